//! A handler of SIGSEGV for faults in lent memory. Before such a fault ends the process, the handler prints one line on
//! standard error, with the tensor and the remedy. A program or its language turns the handler on by [`explain`].
//!
//! Such faults have two causes. A lease is mapped read-only, so a write to it faults; neither C nor torch prevents the
//! write. And a parent's draft is not mapped in a forked child, which no library knows. While the handler is on, every
//! live view has an entry in a table, in which the handler looks up the address of a fault. The handler then passes the
//! fault to the previous handler: a crash reporter's, Python's faulthandler, or the kernel's. That handler ends the
//! process as usual.
//!
//! The handler may interrupt any code in any thread. So it takes no lock, allocates nothing, and
//! calls only the system functions `write`, `sigaction` and `raise`. The table consists of atomics.
//! An entry's `state` changes with each use. A reader loads `state` before and after it reads the
//! other fields, and compares the two values.
#![allow(unsafe_code)]

use crate::fork;
use std::fmt::Write;
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Maximum number of views in the table. For a fault in a view without an entry, the handler prints no message.
const ENTRIES: usize = 8192;
/// Number of entries that `note` tries. If none of them is free, the view gets no entry.
const PROBES: usize = 32;
/// Number of 8-byte words of a name that an entry stores.
const NAME_WORDS: usize = 8;

/// The kind of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tensor that was leased read-only.
    Leased = 1,
    /// A private, writable view of a tensor.
    Private = 2,
    /// The view of a draft.
    Draft = 3,
}

impl Kind {
    /// Returns the kind in an entry's state. `None` for an entry that is free, or that a thread is writing.
    fn of_state(state: u64) -> Option<Self> {
        [Self::Leased, Self::Private, Self::Draft].into_iter().find(|kind| *kind as u64 == state & KIND_MASK)
    }
}

struct Entry {
    /// The number of uses of this entry, times 8, plus the kind of its view. Kind 0 marks a free
    /// entry. Kind 7 marks an entry that a thread is writing.
    state: AtomicU64,
    /// The fork generation of the process that wrote the entry.
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

/// The entry of a view. Dropping this object frees the entry. Without an entry if the table was full, or while the
/// handler is off.
#[derive(Default)]
pub struct Noted(Option<&'static Entry>);

impl std::fmt::Debug for Noted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Noted").field(&self.0.is_some()).finish()
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        if let Some(entry) = self.0 {
            let next = (entry.state.load(Ordering::Relaxed) & !KIND_MASK).wrapping_add(KIND_MASK + 1);
            entry.state.store(next | FREE, Ordering::Release);
        }
    }
}

/// Adds an entry for a view of `bytes` bytes at `start` to the table. The entry stays until the
/// result is dropped. If the view is of a dataset's tensor, `name` is the dataset's name, and
/// `member` the tensor's. Adds nothing while the handler is off.
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

/// A text of at most N bytes, to which longer texts are truncated.
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

/// The view that contains an address.
struct Found {
    kind: Kind,
    is_inherited: bool,
    name: [u8; 8 * NAME_WORDS],
}

/// Returns the view that contains an address. Prefers this process's own view to an inherited view.
fn find(address: usize) -> Option<Found> {
    let mut inherited = None;
    for entry in &TABLE {
        let state = entry.state.load(Ordering::Acquire);
        let Some(kind) = Kind::of_state(state) else { continue };
        if !(entry.start.load(Ordering::Relaxed)..entry.end.load(Ordering::Relaxed)).contains(&address) {
            continue;
        }
        let forks = entry.forks.load(Ordering::Relaxed);
        // A child reads its parent's leases as its own, unless the fork could not protect the
        // leases.
        let is_inherited = forks != fork::generation() && (kind == Kind::Draft || !fork::is_readable(forks));
        let mut found = Found { kind, is_inherited, name: [0; 8 * NAME_WORDS] };
        for (bytes, word) in found.name.chunks_exact_mut(8).zip(&entry.name) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        // Check that no thread reused the entry during the read.
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
    fn line(&self, describe: Describe) -> Text<512> {
        let used = self.name.iter().position(|&byte| byte == 0).unwrap_or(self.name.len());
        let name = match str::from_utf8(&self.name[..used]) {
            Ok(name) => name,
            // The name was truncated within a character. Omit the incomplete character.
            Err(error) => str::from_utf8(&self.name[..error.valid_up_to()]).unwrap_or_default(),
        };
        let dots = if used == self.name.len() { "..." } else { "" };
        let mut line = Text::default();
        let _ = line.write_str("tensorlend: Segmentation fault: this process ");
        let _ = describe(&Fault { kind: self.kind, is_inherited: self.is_inherited, name, dots }, &mut line);
        let _ = line.write_str("\n");
        line
    }
}

/// A fault in a view.
#[derive(Debug)]
pub struct Fault<'f> {
    /// The kind of the view.
    pub kind: Kind,
    /// Whether a parent process made the view, which is not mapped in this process.
    pub is_inherited: bool,
    /// The name of the tensor, or its beginning. Empty for a draft or a lease without a name, such as a response's.
    pub name: &'f str,
    /// Dots if the name was truncated.
    dots: &'f str,
}

impl Fault<'_> {
    /// Writes what the process did, and the remedy. `instead` is the remedy for a write to a lease, in the language of the
    /// program.
    ///
    /// # Errors
    /// The writer's.
    pub fn describe(&self, line: &mut dyn Write, instead: &str) -> std::fmt::Result {
        let Self { kind, is_inherited, name, dots } = *self;
        match (is_inherited, kind) {
            (true, Kind::Draft) if name.is_empty() => {
                line.write_str("used a draft of its parent process, which is not mapped after a fork: create it in the child")
            }
            (true, Kind::Draft) => write!(
                line,
                "used a draft (\"{name}{dots}\") of its parent process, which is not mapped after a fork: create it in the child"
            ),
            (true, _) if name.is_empty() => line.write_str(
                "used a tensor that its parent process leased, and that is not mapped after a fork: get it in the child",
            ),
            (true, _) => write!(
                line,
                "used tensor \"{name}{dots}\", which its parent process leased, and which is not mapped after a fork: get it in \
                 the child"
            ),
            (false, _) if name.is_empty() => write!(line, "wrote to a tensor that is leased read-only: {instead}"),
            (false, _) => write!(line, "wrote to tensor \"{name}{dots}\", which is leased read-only: {instead}"),
        }
    }
}

/// A function that describes a fault in the language of the program. The handler calls it, so it must be
/// async-signal-safe: it may only format numbers and texts.
pub type Describe = fn(&Fault<'_>, &mut dyn Write) -> std::fmt::Result;

static DESCRIBE: OnceLock<Describe> = OnceLock::new();

/// The handler that this module's handler has replaced. Its data is never freed.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
/// Whether the handler is installed.
static ON: AtomicBool = AtomicBool::new(false);

/// Turns the handler on: faults in views that are noted from now on are described. `describe` counts at the first call
/// only. Another call installs the handler again, after another handler has replaced it. That handler must not call the
/// one that it has replaced, because the two would call each other without end.
///
/// # Errors
/// The error of `sigaction`.
pub fn explain(describe: Describe) -> io::Result<()> {
    // Forks are counted before an entry stores their number.
    fork::watch();
    DESCRIBE.get_or_init(|| describe);
    install()?;
    ON.store(true, Ordering::Relaxed);
    Ok(())
}

/// Returns whether the handler is on.
#[inline]
pub fn is_on() -> bool {
    // Relaxed: a thread that does not see a handler of another thread only omits an entry.
    ON.load(Ordering::Relaxed)
}

/// Returns true if the process has no other handler than this module's for the signals of faults and aborts, neither
/// installed nor replaced by [`explain`].
pub fn is_only_handler() -> bool {
    let is_default = |signal| {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: sigaction fills in the structure. The code reads the structure only if the call
        // succeeds.
        unsafe {
            libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
                && action.assume_init().sa_sigaction == libc::SIG_DFL
        }
    };
    // SAFETY: the pointer is null, or points to a result of sigaction that is never freed.
    let before = unsafe { PREVIOUS.load(Ordering::Acquire).as_ref() };
    before.is_some_and(|before| before.sa_sigaction == libc::SIG_DFL)
        && [libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGILL].into_iter().all(is_default)
}

fn install() -> io::Result<()> {
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    let mut ours = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: sigaction reads and writes the given structures. A `sigaction` of zero bytes is
    // valid, and blocks no signal. The handler has the signature that SA_SIGINFO requires. It stays
    // valid for the life of the process, because neither extension modules of Python nor the C library
    // are unloaded (it is linked with `nodelete`). The code reads `before` only after sigaction has
    // filled it in.
    unsafe {
        if libc::sigaction(libc::SIGSEGV, std::ptr::null(), before.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let before = before.assume_init();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
        if before.sa_sigaction == handler as usize {
            return Ok(());
        }
        // Store the previous handler before the installation of this module's handler, which needs
        // it. Never free an earlier value, because a handler may be reading it.
        PREVIOUS.store(Box::into_raw(Box::new(before)), Ordering::Release);
        let action = ours.assume_init_mut();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGSEGV, action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    static SAID: AtomicBool = AtomicBool::new(false);
    // SAFETY: the kernel calls this function with `info` and `context` that are readable until the
    // function returns. errno is the thread's own.
    let (errno, was_sent, address) = unsafe {
        let was_sent = (*info).si_code <= 0;
        let address = if was_sent { last_fault(context) } else { (*info).si_addr().addr() };
        (*libc::__errno_location(), was_sent, address)
    };
    if let Some(describe) = DESCRIBE.get()
        && let Some(found) = find(address)
        && !SAID.swap(true, Ordering::Relaxed)
    {
        let line = found.line(*describe);
        // SAFETY: the line has `used` readable bytes.
        unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.used) };
    }
    // SAFETY: `PREVIOUS` is null, or points to a result of sigaction that is never freed. This
    // function installs the previous handler again and returns to the faulting instruction. The
    // instruction then faults again, and the kernel calls that handler. A signal that a process
    // sent does not repeat, so this function raises it again. That signal stays blocked until the
    // function returns.
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

/// Returns the address of this thread's last fault. If faulthandler was enabled after the
/// installation of this handler, faulthandler gets the fault first. Then it passes the signal on
/// with `raise`, which loses the address in `siginfo`. The saved registers still contain the
/// address.
///
/// # Safety
/// `context` is the argument that the kernel passed to a handler.
unsafe fn last_fault(context: *mut libc::c_void) -> usize {
    let context = context.cast::<libc::ucontext_t>();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller passes the kernel's context, whose registers the kernel has filled in.
    return usize::try_from(unsafe { (*context).uc_mcontext.gregs[libc::REG_CR2 as usize] }.cast_unsigned())
        .unwrap_or_default();
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller passes the kernel's context, whose registers the kernel has filled in.
    return usize::try_from(unsafe { (*context).uc_mcontext.fault_address }).unwrap_or_default();
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = context;
        return 0;
    }
}
