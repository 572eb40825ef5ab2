//! One line on standard error before a fault in lent memory ends the process: which tensor it was, and what to do about it.
//!
//! torch does not know read-only memory, and no library knows that an array of its parent's is not mapped in a forked child. Both
//! end in SIGSEGV, of which the kernel tells nobody why. So views are noted in a table as long as they live, and a handler of SIGSEGV
//! looks the address up there. It then hands the fault to the handler that was there before (faulthandler's, a crash reporter's, the
//! kernel's own), by which the process ends as it would have without this.
//!
//! The handler may interrupt any code in any thread. It takes no lock, allocates nothing, and calls `write`, `sigaction`, `raise`
//! and nothing else of the system. The table is of atomics: an entry's `state` is read before and after the rest, and holds a number
//! that changes with each use.
#![allow(unsafe_code)]

use pyo3::prelude::*;
use std::fmt::Write;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use tensorlend_os::fork;

/// Set to 0, no handler is installed.
const SWITCH: &str = "TENSORLEND_FAULT_MESSAGES";

/// Views that can be noted at once. Others go without a message.
const ENTRIES: usize = 8192;
/// Entries that are tried before a view is left without one.
const PROBES: usize = 32;
/// A name's first bytes.
const NAME_WORDS: usize = 8;

/// What lies there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A tensor that was leased read-only.
    Leased = 1,
    /// A batch of a loader, leased read-only.
    Batch = 2,
    /// A private, writable view of a tensor.
    Private = 3,
    /// A draft.
    Draft = 4,
}

impl Kind {
    /// Of something leased, by its name or that of its stream.
    pub fn leased(name: &str) -> Self {
        if name.starts_with("loader/") { Self::Batch } else { Self::Leased }
    }
}

struct Entry {
    /// The number of its uses, times 8, and its kind; kind 0: free; kind 7: being written.
    state: AtomicU64,
    /// Of the process that noted it.
    forks: AtomicU64,
    start: AtomicUsize,
    end: AtomicUsize,
    name: [AtomicU64; NAME_WORDS],
}

const FREE: u64 = 0;
const WRITING: u64 = 7;
const KIND_MASK: u64 = 7;

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        state: AtomicU64::new(FREE),
        forks: AtomicU64::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        name: [const { AtomicU64::new(0) }; NAME_WORDS],
    }
}; ENTRIES];

/// A view's entry; without one where the table is full, or messages are off.
pub struct Noted(Option<&'static Entry>);

impl Drop for Noted {
    fn drop(&mut self) {
        if let Some(entry) = self.0 {
            let next = (entry.state.load(Ordering::Relaxed) & !KIND_MASK).wrapping_add(KIND_MASK + 1);
            entry.state.store(next | FREE, Ordering::Release);
        }
    }
}

/// Notes that a view of `bytes` bytes lies at `start`, until what is returned is dropped. `member`: its name in the dataset `name`.
pub fn note(kind: Kind, start: *const u8, bytes: usize, name: &str, member: Option<&str>) -> Noted {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if bytes == 0 || !is_on() {
        return Noted(None);
    }
    let first = NEXT.fetch_add(1, Ordering::Relaxed);
    for at in 0..PROBES {
        let entry = &TABLE[first.wrapping_add(at) % ENTRIES];
        let state = entry.state.load(Ordering::Relaxed);
        if state & KIND_MASK == FREE
            && entry.state.compare_exchange(state, state | WRITING, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            entry.forks.store(fork::generation(), Ordering::Relaxed);
            entry.start.store(start.addr(), Ordering::Relaxed);
            entry.end.store(start.addr() + bytes, Ordering::Relaxed);
            let mut text = Text::<{ 8 * NAME_WORDS }>::default();
            let _ = match member {
                Some(member) => write!(text, "{name}[{member}]"),
                None => text.write_str(name),
            };
            for (word, bytes) in entry.name.iter().zip(text.bytes.chunks_exact(8)) {
                word.store(u64::from_ne_bytes(bytes.try_into().unwrap_or_default()), Ordering::Relaxed);
            }
            entry.state.store(state | kind as u64, Ordering::Release);
            return Noted(Some(entry));
        }
    }
    Noted(None)
}

/// Text of so many bytes at most; what is more is cut off.
struct Text<const N: usize> {
    bytes: [u8; N],
    used: usize,
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self { bytes: [0; N], used: 0 }
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for &byte in text.as_bytes() {
            if self.used < N {
                self.bytes[self.used] = byte;
                self.used += 1;
            }
        }
        Ok(())
    }
}

/// What the handler found of an address.
struct Found {
    kind: u64,
    is_inherited: bool,
    name: [u8; 8 * NAME_WORDS],
}

/// The view in which an address lies: this process's own before one that it inherited.
fn find(address: usize) -> Option<Found> {
    let mut inherited = None;
    for entry in &TABLE {
        let state = entry.state.load(Ordering::Acquire);
        let kind = state & KIND_MASK;
        let within = || (entry.start.load(Ordering::Relaxed)..entry.end.load(Ordering::Relaxed)).contains(&address);
        if kind == FREE || kind == WRITING || !within() {
            continue;
        }
        let is_inherited = entry.forks.load(Ordering::Relaxed) != fork::generation();
        let mut found = Found { kind, is_inherited, name: [0; 8 * NAME_WORDS] };
        for (bytes, word) in found.name.chunks_exact_mut(8).zip(&entry.name) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        // Nobody has used the entry for something else meanwhile.
        std::sync::atomic::fence(Ordering::Acquire);
        if entry.state.load(Ordering::Relaxed) != state {
            continue;
        }
        if !is_inherited {
            return Some(found);
        }
        inherited = Some(found);
    }
    inherited
}

impl Found {
    fn line(&self) -> Text<512> {
        let used = self.name.iter().position(|&byte| byte == 0).unwrap_or(self.name.len());
        let name = match str::from_utf8(&self.name[..used]) {
            Ok(name) => name,
            // A letter was cut through.
            Err(error) => str::from_utf8(&self.name[..error.valid_up_to()]).unwrap_or_default(),
        };
        let dots = if used == self.name.len() { "..." } else { "" };
        let mut line = Text::default();
        let _ = line.write_str("tensorlend: Segmentation fault: this process ");
        let _ = match (self.is_inherited, self.kind) {
            (true, kind) if kind == Kind::Draft as u64 => writeln!(
                line,
                "used a draft (\"{name}{dots}\") of its parent process, which is not mapped after a fork: create it in the child"
            ),
            (true, _) => writeln!(
                line,
                "used tensor \"{name}{dots}\", which its parent process leased, and which is not mapped after a fork: get it in \
                 the child"
            ),
            (false, kind) if kind == Kind::Batch as u64 => writeln!(
                line,
                "wrote to a batch of a SharedLoader, which is read-only: give the loader mode=\"cow\", or write to a copy \
                 (.clone())"
            ),
            (false, _) => writeln!(
                line,
                "wrote to tensor \"{name}{dots}\", which is leased read-only: get it with mode=\"cow\", or write to a copy \
                 (.clone(), .copy())"
            ),
        };
        line
    }
}

/// What handled the signal before: it stays for the life of the process.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
/// Whether there is a handler.
static ON: AtomicBool = AtomicBool::new(false);

/// Installs the handler again, after another one took its place without a word to it.
#[pyfunction]
pub fn _watch_faults() {
    if ON.load(Ordering::Relaxed) {
        install();
    }
}

/// Installs the handler, once, and says whether there is one.
fn is_on() -> bool {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        if std::env::var_os(SWITCH).is_none_or(|word| word != "0") {
            ON.store(install(), Ordering::Relaxed);
        }
    });
    ON.load(Ordering::Relaxed)
}

fn install() -> bool {
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    let mut ours = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: sigaction reads and writes what it is given room for. All zeroes are a valid `sigaction`, with no signal blocked. The
    // handler is a function of the form that SA_SIGINFO calls for, and stays for as long as the process does: extension modules are
    // never unloaded. `before` is read only where the call has filled it in.
    unsafe {
        if libc::sigaction(libc::SIGSEGV, std::ptr::null(), before.as_mut_ptr()) != 0 {
            return false;
        }
        let before = before.assume_init();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
        if before.sa_sigaction == handler as usize {
            return true;
        }
        // Known before it can be needed, and never freed: a handler may be reading the one of before.
        PREVIOUS.store(Box::into_raw(Box::new(before)), Ordering::Release);
        let action = ours.assume_init_mut();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, action, std::ptr::null_mut()) == 0
    }
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    static SAID: AtomicBool = AtomicBool::new(false);
    // SAFETY: the kernel calls this with an `info` and a `context` that can be read until it returns; errno is the thread's own.
    let (errno, was_sent, address) = unsafe {
        let was_sent = (*info).si_code <= 0;
        let address = if was_sent { last_fault(context) } else { (*info).si_addr().addr() };
        (*libc::__errno_location(), was_sent, address)
    };
    if let Some(found) = find(address)
        && !SAID.swap(true, Ordering::Relaxed)
    {
        let line = found.line();
        // SAFETY: so many bytes of the line are there to be read.
        unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.used) };
    }
    // SAFETY: `PREVIOUS` is null, or holds what sigaction returned. With it back in place, this returns to the instruction that failed, which fails
    // again, for the handler before. A signal that was sent does not come again by itself; this one is blocked until the return.
    unsafe {
        match PREVIOUS.load(Ordering::Acquire).as_ref() {
            Some(before) if !(before.sa_sigaction == libc::SIG_IGN && was_sent) => {
                libc::sigaction(signal, before, std::ptr::null_mut());
                if was_sent {
                    libc::raise(signal);
                }
            }
            _ => {}
        }
        *libc::__errno_location() = errno;
    }
}

/// Where this thread last failed. faulthandler, if it was enabled after this handler was installed, has the fault first, and hands it on
/// with `raise`, by which the address is lost; the kernel tells it in the registers all the same.
///
/// # Safety
/// `context` is what the kernel called a handler with.
unsafe fn last_fault(context: *mut libc::c_void) -> usize {
    let context = context.cast::<libc::ucontext_t>();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the caller; the kernel has filled in all registers.
    return unsafe { (*context).uc_mcontext.gregs[libc::REG_CR2 as usize] as usize };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    return unsafe { (*context).uc_mcontext.fault_address as usize };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = context;
        return 0;
    }
}
