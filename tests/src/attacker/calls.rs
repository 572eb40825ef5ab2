//! System calls without a safe wrapper, used so that they can harm only their target: every block here touches memory
//! that this file mapped itself, or passes the kernel numbers that it checks.
#![allow(unsafe_code)]

use libc::{c_int, c_ulong, c_void, pid_t};
use std::any::Any;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use tensorlend_layout::raw::View;

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A shared mapping that children inherit.
pub struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    pub fn new(fd: impl AsFd, bytes: u64, protection: c_int) -> io::Result<Self> {
        let (bytes, fd) = (bytes as usize, fd.as_fd().as_raw_fd());
        // SAFETY: new memory at an address of the kernel's choice; it changes no existing mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
        if start == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { start: start.cast(), bytes })
        }
    }

    pub fn address(&self) -> u64 {
        self.start as u64
    }

    pub fn protect(&self, protection: c_int) -> io::Result<()> {
        // SAFETY: this value's own mapping, to which no references exist.
        check(unsafe { libc::mprotect(self.start.cast(), self.bytes, protection) })
    }

    /// As [`Mapping::protect`], with a new protection key if the processor has some.
    pub fn protect_by_key(&self, protection: c_int) -> io::Result<()> {
        // SAFETY: passes numbers only. Without protection keys in the processor the call fails, and -1 means no key.
        let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) }.max(-1);
        // SAFETY: as `protect`.
        let result = unsafe { libc::syscall(libc::SYS_pkey_mprotect, self.start, self.bytes, protection, key) };
        check(result as c_int)
    }

    /// Calls madvise.
    pub fn advise(&self, advice: c_int) -> io::Result<()> {
        // SAFETY: this value's own mapping, to which no references exist.
        check(unsafe { libc::madvise(self.start.cast(), self.bytes, advice) })
    }

    /// Inverts the first byte of each page. If the mapping is not writable, this process dies.
    pub fn flip(&self) {
        for at in (0..self.bytes).step_by(4096) {
            // SAFETY: inside the mapping, volatile, and no reference into it exists. A write to a read-only page raises
            // a signal, which ends this process.
            unsafe { self.start.add(at).write_volatile(!self.start.add(at).read_volatile()) };
        }
    }

    /// Keeps the memory mapped until the process ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, unmapped once, and no reference into it exists.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// Returns the writable sheets of this process's own clients as words, found through /proc. They stay mapped only as
/// long as the clients live, which `keep` ensures.
pub fn own_sheets(keep: &Arc<dyn Any + Send + Sync>) -> io::Result<Vec<(u64, View)>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut sheets = Vec::new();
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, "rw-s", _, _, inode, path, ..] = words[..] else { continue };
        let named = |kind| path.strip_prefix("/memfd:tensorlend-").is_some_and(|rest: &str| rest.starts_with(kind));
        let ends =
            range.split_once('-').map(|(from, to)| (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)));
        let (Some((Ok(from), Ok(to))), false) = (ends, named("segment")) else { continue };
        if named("") {
            let start = NonNull::new(from as *mut u8).ok_or_else(|| io::Error::other("nothing is mapped at 0"))?;
            // SAFETY: 1: pages are aligned to 64, and the client, which `keep` keeps alive, has them mapped.
            // 2: the client reaches the same words through atomics only. 3: the mapping is writable.
            let view = unsafe { View::new(start, to - from, keep.clone()) };
            sheets.push((inode.parse().map_err(io::Error::other)?, view));
        }
    }
    Ok(sheets)
}

/// Requeues the sleepers of a futex word that is mapped read-only to this process's own word, which nobody wakes;
/// returns their number.
pub fn steal_sleepers(word: &AtomicU32, own: &AtomicU32) -> usize {
    // SAFETY: two live words; the kernel only reads the first.
    let stolen = unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_REQUEUE, 0, i64::from(i32::MAX), own.as_ptr())
    };
    usize::try_from(stolen).unwrap_or(0)
}

/// Requests a lease on a file.
pub fn lease(fd: impl AsFd, kind: c_int) -> io::Result<()> {
    // SAFETY: passes numbers only. The signal of a broken lease is ignored.
    check(unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_SETLEASE, kind)
    })
}

/// Writes into another process's memory with process_vm_writev.
pub fn write_to_process(pid: u32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: bytes.len() };
    // SAFETY: the kernel only reads the local bytes, which live; the remote address is the other process's.
    let written = unsafe { libc::process_vm_writev(pid as pid_t, &raw const local, 1, &raw const remote, 1, 0) };
    check(written as c_int)
}

/// Writes into another process's memory with ptrace.
pub fn trace_and_write(pid: u32, address: u64, change: impl FnOnce(u64) -> u64) -> io::Result<()> {
    let pid = pid as pid_t;
    let (null, at) = (std::ptr::null_mut::<c_void>(), address as *mut c_void);
    // SAFETY: addresses are those of the traced process; locally only `status` is written.
    unsafe {
        check(libc::ptrace(libc::PTRACE_SEIZE, pid, null, null) as c_int)?;
        check(libc::ptrace(libc::PTRACE_INTERRUPT, pid, null, null) as c_int)?;
        let mut status = 0;
        check(libc::waitpid(pid, &raw mut status, libc::__WALL))?;
        let before = libc::ptrace(libc::PTRACE_PEEKDATA, pid, at, null) as u64;
        let poked = check(libc::ptrace(libc::PTRACE_POKEDATA, pid, at, change(before)) as c_int);
        libc::ptrace(libc::PTRACE_DETACH, pid, null, null);
        poked
    }
}

/// Returns success if a debugger may attach; detaches at once.
pub fn trace(pid: u32) -> io::Result<()> {
    let null = std::ptr::null_mut::<c_void>();
    // SAFETY: passes numbers only; the process is stopped briefly so that it can be detached.
    unsafe {
        check(libc::ptrace(libc::PTRACE_SEIZE, pid as pid_t, null, null) as c_int)?;
        check(libc::ptrace(libc::PTRACE_INTERRUPT, pid as pid_t, null, null) as c_int)?;
        let mut status = 0;
        check(libc::waitpid(pid as pid_t, &raw mut status, libc::__WALL))?;
        check(libc::ptrace(libc::PTRACE_DETACH, pid as pid_t, null, null) as c_int)
    }
}

/// Opens and enables a userfaultfd. `Unsupported` where the kernel or a sandbox has none.
pub fn userfaultfd() -> io::Result<OwnedFd> {
    const USER_MODE_ONLY: c_int = 1;
    const API: c_ulong = 0xC018_AA3F;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: creates a descriptor, which nobody else owns, and touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as c_int;
    if fd < 0 {
        let error = io::Error::last_os_error();
        return Err(io::Error::new(io::ErrorKind::Unsupported, format!("userfaultfd: {error}")));
    }
    // SAFETY: the descriptor was created above.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut api = [0xAA_u64, 0, 0];
    // SAFETY: the kernel reads and writes three words, the array's length.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), API, api.as_mut_ptr()) })?;
    Ok(fd)
}

/// Registers a mapping with a userfaultfd, and makes the kernel fill its first page with this process's bytes.
pub fn fill_by_fault(fault: &OwnedFd, mapping: &Mapping) -> io::Result<()> {
    const REGISTER: c_ulong = 0xC020_AA00;
    const COPY: c_ulong = 0xC028_AA03;
    const MISSING: u64 = 1;
    let mut register = [mapping.address(), mapping.bytes as u64, MISSING, 0];
    // SAFETY: the kernel reads and writes four words, the array's length; the mapping changes only in the handling of
    // its faults.
    check(unsafe { libc::ioctl(fault.as_raw_fd(), REGISTER, register.as_mut_ptr()) })?;
    let page = vec![0x5A_u8; 4096];
    let mut copy = [mapping.address(), page.as_ptr() as u64, 4096, 0, 0];
    // SAFETY: five words; the page that it reads lives, and it fills a page of the mapping.
    check(unsafe { libc::ioctl(fault.as_raw_fd(), COPY, copy.as_mut_ptr()) })
}

/// A process left behind by a dead one: it waits until another process opens `go`, writes through an inherited mapping,
/// and reports through `done`.
struct Ghost {
    go: CString,
    done: CString,
    mappings: Vec<Mapping>,
}

extern "C" fn haunt(ghost: *mut c_void) -> c_int {
    // SAFETY: `leave_ghost` passes a value that lives for ever. Only system calls and volatile stores follow, since
    // this may run in the memory of a process that is ending.
    unsafe {
        let ghost = &*ghost.cast::<Ghost>();
        libc::alarm(90);
        let go = libc::open(ghost.go.as_ptr(), libc::O_RDONLY);
        let mut byte = 0u8;
        libc::read(go, (&raw mut byte).cast(), 1);
        for mapping in &ghost.mappings {
            mapping.flip();
        }
        let done = libc::open(ghost.done.as_ptr(), libc::O_WRONLY);
        libc::write(done, (&raw const byte).cast(), 1);
        libc::_exit(0)
    }
}

/// Leaves a process with these mappings behind, forked or sharing all memory, and ends this one.
pub fn leave_ghost(go: &Path, done: &Path, mappings: Vec<Mapping>, share: bool) -> ! {
    let path = |path: &Path| CString::new(path.as_os_str().as_encoded_bytes()).expect("a path has no NUL");
    let ghost: &mut Ghost = Box::leak(Box::new(Ghost { go: path(go), done: path(done), mappings }));
    let stack = Box::leak(vec![0_u128; 1 << 14].into_boxed_slice());
    let flags = libc::SIGCHLD | if share { libc::CLONE_VM } else { 0 };
    // SAFETY: the stack and the ghost live for ever; this process continues only to exit, so with shared memory nobody
    // else uses the ghost's data.
    unsafe {
        let top = stack.as_mut_ptr_range().end;
        let pid = libc::clone(haunt, top.cast(), flags, std::ptr::from_mut(ghost).cast());
        libc::_exit(i32::from(pid < 0))
    }
}
