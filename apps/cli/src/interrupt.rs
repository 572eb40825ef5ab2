//! Signals that end the program, while it stores lines of its log, has a temporary file or is in the middle of a change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use tensorlend_os::mutex::lock;
use tensorlend_os::stderr;

/// The signals that users and systems send to end a program. No program can handle SIGKILL.
const SIGNALS: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// The state that the threads of the program share with the thread that waits for signals.
struct State {
    /// Whether the thread runs.
    is_watching: bool,
    /// Temporary files and folders that exist now.
    temporary: Vec<PathBuf>,
    holds: usize,
    /// The signal that arrived during a hold.
    waiting: Option<i32>,
}

static STATE: Mutex<State> = Mutex::new(State { is_watching: false, temporary: Vec::new(), holds: 0, waiting: None });

/// A temporary file or folder, which a signal removes before it ends the program.
///
/// Every creation, removal and renaming of the path happens under the lock of [`STATE`]. The thread that ends the
/// program never releases the lock. So no step can happen between its removals and the end of the program.
pub struct Temporary<T> {
    /// `None` only while the value is being dropped or kept.
    inner: Option<T>,
    path: PathBuf,
}

impl<T> Temporary<T> {
    /// Calls `create`, which creates the file or folder. `path` returns its path.
    pub fn create(create: impl FnOnce() -> io::Result<T>, path: impl FnOnce(&T) -> &Path) -> io::Result<Self> {
        let mut state = watch()?;
        let inner = create()?;
        let path = path(&inner).to_owned();
        state.temporary.push(path.clone());
        Ok(Self { inner: Some(inner), path })
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("it is present until `keep` takes it")
    }

    /// Calls `keep`, after which the path no longer exists or is no longer temporary.
    pub fn keep<R>(mut self, keep: impl FnOnce(T) -> R) -> R {
        let inner = self.inner.take().expect("it is present until `keep` takes it");
        let mut state = lock(&STATE);
        forget(&mut state, &self.path);
        keep(inner)
    }
}

impl<T> Drop for Temporary<T> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            let mut state = lock(&STATE);
            forget(&mut state, &self.path);
            drop(inner);
        }
    }
}

fn forget(state: &mut State, path: &Path) {
    if let Some(at) = state.temporary.iter().position(|known| known == path) {
        state.temporary.swap_remove(at);
    }
}

/// A change of several steps that one signal does not interrupt. The signal ends the program when the hold is dropped.
/// A second signal ends the program at once.
pub struct Hold(());

impl Hold {
    pub fn new() -> io::Result<Self> {
        watch()?.holds += 1;
        Ok(Self(()))
    }

    /// Returns true if a signal has arrived. Then the change should be undone.
    #[expect(clippy::unused_self, reason = "a signal waits only during a hold")]
    pub fn is_interrupted(&self) -> bool {
        lock(&STATE).waiting.is_some()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = lock(&STATE);
        state.holds -= 1;
        if let (0, Some(signal)) = (state.holds, state.waiting) {
            end(state, signal);
        }
    }
}

/// Makes a signal write the stored lines of the log before it ends the program. Without it, the signal loses them.
pub fn flush_at_end() {
    // Without the thread, only lines of the log are at stake.
    drop(watch());
}

/// Returns the state, after it has started the thread that waits for signals.
fn watch() -> io::Result<MutexGuard<'static, State>> {
    let mut state = lock(&STATE);
    if !state.is_watching {
        let mut signals = Signals::new(heeded(&SIGNALS))?;
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                let mut state = lock(&STATE);
                if state.holds > 0 && state.waiting.is_none() {
                    state.waiting = Some(signal);
                } else {
                    end(state, signal);
                }
            }
        })?;
        state.is_watching = true;
    }
    Ok(state)
}

/// Returns those of the signals that this process does not ignore. `nohup` and shells start programs with ignored signals,
/// which the programs that they start inherit. A handler would end that.
pub fn heeded(signals: &[i32]) -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    signals.iter().copied().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}

/// Removes the temporary files, writes the stored lines of the log, and ends the program as the signal does without a
/// handler. Never releases the lock.
fn end(state: MutexGuard<'static, State>, signal: i32) -> ! {
    for path in &state.temporary {
        let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
    stderr::flush();
    // The kernel protects the first process of a container from signals without a handler.
    if std::process::id() != 1 {
        let _ = emulate_default_handler(signal);
    }
    std::process::exit(128 + signal)
}
