//! Sealed memfds: creation, allocation, reopening for one purpose, sealing, and queries for remaining holders.

use crate::file_lease;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use tensorlend_layout::size;

/// The permissions of every memfd.
const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);

/// Creates a memfd of `bytes` zeroed bytes with a fixed length, readable and writable only by its
/// owner's uid. Allocates every page, so that no later access can fail and no reader can allocate
/// pages.
pub fn create(name: &str, bytes: u64) -> rustix::io::Result<OwnedFd> {
    create_while(name, bytes, &|| true)
}

/// Creates a memfd like [`create`], but calls `continues` before every 16 MiB. Returns `ECANCELED` if
/// `continues` returns false.
pub fn create_while(name: &str, bytes: u64, continues: &dyn Fn() -> bool) -> rustix::io::Result<OwnedFd> {
    if !continues() {
        return Err(Errno::CANCELED);
    }
    let fd = create_empty(name, bytes)?;
    allocate(fd.as_fd(), 0, bytes, continues)?;
    Ok(fd)
}

/// The bytes that one write zeroes. They are no allocation: its pages would be new ones in each call.
static ZEROES: [u8; 1 << 20] = [0; 1 << 20];

/// Zeroes every page, and calls `continues` before every MiB. Returns `ECANCELED` if `continues` returns
/// false.
///
/// Without this function, the kernel zeroes a page at its first access, and the first user of the
/// page waits. The function writes to the file instead of a mapping, because a write takes half the
/// time and never delays threads that map memory.
pub fn zero(fd: BorrowedFd<'_>, bytes: u64, continues: &dyn Fn() -> bool) -> rustix::io::Result<()> {
    let mut at = 0;
    while at < bytes {
        if !continues() {
            return Err(Errno::CANCELED);
        }
        let step = ZEROES.len().min(size::index(bytes - at));
        match rustix::io::pwrite(fd, &ZEROES[..step], at) {
            Ok(written) => at += written as u64,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The size of a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePage {
    /// 2 MiB.
    Mib2,
    /// 1 GiB.
    Gib1,
}

impl HugePage {
    /// Returns the length of the page in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Mib2 => 2 << 20,
            Self::Gib1 => 1 << 30,
        }
    }
}

/// Creates a memfd for huge pages and allocates no pages. [`allocate`] takes the pages from the
/// administrator's reserve and zeroes them. The reserve may be too small (`ENOSPC`). `bytes` is a
/// multiple of the page's length.
pub fn create_huge(name: &str, bytes: u64, page: HugePage) -> rustix::io::Result<OwnedFd> {
    let page = match page {
        HugePage::Mib2 => MemfdFlags::HUGE_2MB,
        HugePage::Gib1 => MemfdFlags::HUGE_1GB,
    };
    empty(name, bytes, MemfdFlags::HUGETLB | page)
}

/// Creates a memfd like [`create`], but allocates no pages. [`allocate`] allocates them later.
/// Until then, any access to a page allocates the page, even a reader's access.
pub fn create_empty(name: &str, bytes: u64) -> rustix::io::Result<OwnedFd> {
    empty(name, bytes, MemfdFlags::empty())
}

fn empty(name: &str, bytes: u64, more: MemfdFlags) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | more;
    let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        made => made?,
    };
    // With the default mode, any uid could reopen the memfd through /proc.
    rustix::fs::fchmod(&fd, OWNER_ONLY)?;
    rustix::fs::ftruncate(&fd, bytes)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(fd)
}

/// Allocates the pages in a part of the memfd. If a signal interrupts the kernel, the function
/// continues with the remaining pages.
pub fn allocate(fd: BorrowedFd<'_>, at: u64, bytes: u64, continues: &dyn Fn() -> bool) -> rustix::io::Result<()> {
    // A huge page may be longer than one step.
    const STEP: u64 = 16 << 20;
    let page = u64::try_from(rustix::fs::fstatfs(fd)?.f_bsize).map_err(|_| Errno::OVERFLOW)?;
    let step_max = if page > STEP { u64::MAX } else { STEP };
    let (mut at, end) = (at, at + bytes);
    while at < end {
        if !continues() {
            return Err(Errno::CANCELED);
        }
        let step = step_max.min(end - at);
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), at, step) {
            Ok(()) => at += step,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The access of a reopened descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only, for all readers.
    Read,
    /// Read and write, for the one writer.
    Write,
}

/// Opens the memfd again. The daemon never lends the original descriptor. So when the daemon asks
/// the kernel whether a writer remains, only reopened descriptors count as writers.
pub fn reopen(fd: BorrowedFd<'_>, access: Access) -> rustix::io::Result<OwnedFd> {
    reopen_patiently(fd, access, PROBED_PAUSES)
}

/// Opens the memfd like [`reopen`], but does not wait for the end of a file lease. Returns `EAGAIN`
/// in that case.
pub fn reopen_at_once(fd: BorrowedFd<'_>, access: Access) -> rustix::io::Result<OwnedFd> {
    reopen_patiently(fd, access, PROBED_YIELDS)
}

fn reopen_patiently(fd: BorrowedFd<'_>, access: Access, pauses: u32) -> rustix::io::Result<OwnedFd> {
    let flags = match access {
        Access::Read => OFlags::RDONLY,
        Access::Write => OFlags::RDWR,
    };
    // NONBLOCK: while a file lease exists, the kernel can delay a blocking open for 45 seconds.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let open = || {
        // Another thread of this process may be probing the file. The file then has a lease for the
        // duration of two system calls.
        for pause in 0..pauses {
            match rustix::fs::open(&path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()) {
                Err(Errno::AGAIN) if pause < PROBED_YIELDS => std::thread::yield_now(),
                Err(Errno::AGAIN) => std::thread::sleep(std::time::Duration::from_micros(100)),
                opened => return opened,
            }
        }
        Err(Errno::AGAIN)
    };
    match open() {
        // In user mode, a client has the daemon's uid and so owns the file. The client can revoke
        // all permissions through a read-only descriptor. Seals, not permissions, then limit its
        // writes.
        Err(Errno::ACCESS) => {
            rustix::fs::fchmod(fd, OWNER_ONLY)?;
            open()
        }
        opened => opened,
    }
}

/// Forbids, forever, writes through new writable descriptors and new writable mappings. Existing
/// mappings stay writable.
pub fn seal_writers(fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
}

/// Returns true if no writer remains. The kernel grants a read lease only if no process has a
/// writable descriptor of the file, or a writable mapping made from a reopened descriptor.
pub fn is_quiescent(fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    probe_reopened(fd, Access::Read, libc::F_RDLCK)
}

/// Returns true if no other process or thread has a descriptor or a mapping of the file. Only for
/// memfds without [`seal_writers`].
pub fn is_unheld(fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    probe_reopened(fd, Access::Write, libc::F_WRLCK)
}

/// Forbids further seals, so that no client can take rights from later clients.
pub fn seal_seals(fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::fs::fcntl_add_seals(fd, SealFlags::SEAL)
}

/// Records in the open file's flags that the writer of the memfd has mapped it, for a later daemon. The daemon lends only
/// reopened descriptors, so no client has this open file.
///
/// Each call that changes the memfd itself (its mode, its seals or its pages) waits for the inode's lock. The writer can hold
/// this lock without limit: a write to the memfd holds it, and reads its bytes from a file of any file system.
pub fn mark_mapped(fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    // The flag has no effect on a memfd, and no other part of the daemon uses it.
    rustix::fs::fcntl_setfl(fd, rustix::fs::fcntl_getfl(fd)? | OFlags::NOATIME)
}

/// Returns true if [`mark_mapped`] has marked the open file. Builds before protocol 8 marked the file's mode.
pub fn is_marked_mapped(fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let has_former_mark = Mode::from_raw_mode(rustix::fs::fstat(fd)?.st_mode).contains(Mode::SVTX);
    Ok(has_former_mark || rustix::fs::fcntl_getfl(fd)?.contains(OFlags::NOATIME))
}

/// Allocates and zeroes every page of a memfd that has none.
pub fn fill(fd: BorrowedFd<'_>, bytes: u64, continues: &dyn Fn() -> bool) -> rustix::io::Result<()> {
    allocate(fd, 0, bytes, continues)?;
    zero(fd, bytes, continues)
}

/// Returns the length of a file in bytes.
pub fn length(fd: impl AsFd) -> rustix::io::Result<u64> {
    u64::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| Errno::OVERFLOW)
}

/// Returns true if every page of the memfd exists, in memory or in swap. Any access to a missing
/// page allocates it, and the kernel charges the page to the cgroup of the accessing process.
pub fn is_whole(fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(stat.st_blocks.saturating_mul(512) >= stat.st_size)
}

/// Modification time, in seconds, of a file whose pages should be huge.
///
/// No mode bit can be the mark. systemd's `RestrictSUIDSGID` forbids the bits S_ISUID and S_ISGID, and
/// all other bits are rights.
const HUGE_PAGES_MTIME_S: i64 = 1;

/// Records in the file's time of modification that the process that allocates the pages should request
/// huge pages. A write to the file ends the mark.
pub fn mark_for_huge_pages(fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let last_modification = Timespec { tv_sec: HUGE_PAGES_MTIME_S, tv_nsec: 0 };
    rustix::fs::futimens(fd, &Timestamps { last_access, last_modification })
}

/// Returns true if [`mark_for_huge_pages`] has marked the file.
pub fn is_marked_for_huge_pages(fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(rustix::fs::fstat(fd)?.st_mtime as i64 == HUGE_PAGES_MTIME_S)
}

/// Returns true if [`seal_writers`] was applied, or an equivalent seal by another process.
pub fn is_sealed(fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(rustix::fs::fcntl_get_seals(fd)?.intersects(SealFlags::FUTURE_WRITE | SealFlags::WRITE))
}

/// Frees the pages even if processes still map the file. Not for memfds with [`seal_writers`].
pub fn punch(fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    // No signal interrupts a call, and readers can have mapped the memory very often. Short steps let the process end.
    const STEP: u64 = 16 << 20;
    let bytes = length(fd)?;
    (0..bytes).step_by(size::index(STEP)).try_for_each(|at| punch_part(fd, at, STEP.min(bytes - at)))
}

/// Frees the pages in a part of the file like [`punch`]. The part reads as zeros from then on.
pub fn punch_part(fd: BorrowedFd<'_>, at: u64, bytes: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, bytes)
}

/// Number of attempts without pauses to open a file that has a file lease.
const PROBED_YIELDS: u32 = 16;
/// Maximum number of attempts to open a file that has a file lease: 100 ms in total. The scheduler
/// may have suspended the thread that took the lease.
const PROBED_PAUSES: u32 = PROBED_YIELDS + 1000;

/// Probes through a new descriptor. If a file lease prevents the reopening, a client has that
/// lease. In user mode, clients can take file leases, and the caller must not wait for them.
fn probe_reopened(fd: BorrowedFd<'_>, access: Access, kind: libc::c_int) -> rustix::io::Result<bool> {
    match reopen_at_once(fd, access) {
        Err(Errno::AGAIN) => Ok(false),
        opened => probe(opened?, kind),
    }
}

fn probe(fd: OwnedFd, kind: libc::c_int) -> rustix::io::Result<bool> {
    let is_granted = file_lease::set(&fd, kind)?;
    if is_granted {
        file_lease::set(&fd, libc::F_UNLCK)?;
    }
    Ok(is_granted)
}

/// Takes a write lease that lasts until the descriptor is closed. Tests of other crates use it to
/// act as a hostile process.
#[doc(hidden)]
pub fn hold_with_lease(fd: &OwnedFd) -> bool {
    file_lease::set(fd, libc::F_WRLCK) == Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map;

    /// A process that opens a file while another thread probes it with a lease gets the file, and the signal for the broken
    /// lease ends no process.
    #[test]
    fn who_is_looked_at_can_be_opened_meanwhile() {
        let fd = create("test", 4096).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    is_unheld(fd.as_fd()).unwrap();
                }
            });
            for _ in 0..20_000 {
                reopen(fd.as_fd(), Access::Read).unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    /// The kernel breaks a lease only after 45 seconds, so a call that waited for it would stall its process.
    #[test]
    fn memory_under_a_lease_is_held_and_nobody_waits_for_the_lease() {
        let fd = create("test", 4096).unwrap();
        let holder = reopen(fd.as_fd(), Access::Read).unwrap();
        assert!(hold_with_lease(&holder));
        assert_eq!(file_lease::set(&holder, libc::F_RDLCK), Ok(true));
        assert_eq!(is_unheld(fd.as_fd()), Ok(false));
        assert!(hold_with_lease(&holder));
        assert_eq!(is_unheld(fd.as_fd()), Ok(false));
        assert_eq!(reopen_at_once(fd.as_fd(), Access::Read).unwrap_err(), Errno::AGAIN);
        drop(holder);
        assert_eq!(is_unheld(fd.as_fd()), Ok(true));
    }

    #[test]
    fn length_is_fixed_and_pages_are_there() {
        let fd = create("test", 8192).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 4096).is_err());
        assert!(rustix::fs::ftruncate(&fd, 16384).is_err());
        let stat = rustix::fs::fstat(&fd).unwrap();
        assert_eq!((stat.st_size, stat.st_blocks * 512, stat.st_mode & 0o777), (8192, 8192, 0o600));
    }

    #[test]
    fn zeroing_leaves_zeroes_in_every_page() {
        let fd = create_empty("test", (2 << 20) + 4096).unwrap();
        zero(fd.as_fd(), (2 << 20) + 4096, &|| true).unwrap();
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks as u64 * 512, (2 << 20) + 4096);
        let steps = std::cell::Cell::new(0);
        let continues = || steps.replace(steps.get() + 1) < 1;
        assert_eq!(zero(fd.as_fd(), 2 << 20, &continues).unwrap_err(), Errno::CANCELED);
    }

    #[test]
    fn huge_pages_are_reserved_or_refused() {
        let bytes = 8 << 20;
        let made = create_huge("test", bytes, HugePage::Mib2)
            .and_then(|fd| allocate(fd.as_fd(), 0, bytes, &|| true).map(|()| fd));
        match made {
            // The isolation relies on these properties for huge pages, too.
            Ok(fd) => {
                let writer = reopen(fd.as_fd(), Access::Write).unwrap();
                let view = map::segment(&writer, bytes as usize, Access::Write, true).unwrap();
                drop(writer);
                assert!(!is_quiescent(fd.as_fd()).unwrap());
                seal_writers(fd.as_fd()).unwrap();
                assert!(map::segment(&fd, bytes as usize, Access::Write, false).is_err());
                drop(view);
                assert!(is_quiescent(fd.as_fd()).unwrap() && punch(fd.as_fd()).is_err());
            }
            Err(error) => assert!(matches!(error, Errno::NOSPC | Errno::NOMEM | Errno::INVAL), "{error}"),
        }
    }

    #[test]
    fn missing_pages_are_counted() {
        let fd = create_empty("test", (2 << 20) + 4096).unwrap();
        assert!(!is_whole(fd.as_fd()).unwrap());
        fill(fd.as_fd(), (2 << 20) + 4096, &|| true).unwrap();
        assert!(is_whole(fd.as_fd()).unwrap());
        punch_part(fd.as_fd(), 1 << 20, 4096).unwrap();
        assert!(!is_whole(fd.as_fd()).unwrap(), "one page is missing");
    }

    #[test]
    fn a_file_is_marked_for_huge_pages_until_it_is_written() {
        let fd = create_empty("test", 4096).unwrap();
        assert!(!is_marked_for_huge_pages(fd.as_fd()).unwrap());
        mark_for_huge_pages(fd.as_fd()).unwrap();
        let other = reopen(fd.as_fd(), Access::Write).unwrap();
        assert!(is_marked_for_huge_pages(other.as_fd()).unwrap() && !is_marked_mapped(fd.as_fd()).unwrap());
        mark_mapped(fd.as_fd()).unwrap();
        assert!(
            is_marked_mapped(fd.try_clone().unwrap().as_fd()).unwrap() && !is_marked_mapped(other.as_fd()).unwrap()
        );
        // systemd's RestrictSUIDSGID forbids these bits.
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_mode & 0o6000, 0);
        zero(fd.as_fd(), 4096, &|| true).unwrap();
        assert!(!is_marked_for_huge_pages(fd.as_fd()).unwrap());
    }

    #[test]
    fn parts_come_and_go() {
        let fd = create_empty("test", 1 << 20).unwrap();
        allocate(fd.as_fd(), 0, 8192, &|| true).unwrap();
        let pages = || rustix::fs::fstat(&fd).unwrap().st_blocks / 8;
        assert_eq!(pages(), 2);
        let view = map::sheet(&fd, 1 << 20, Access::Write).unwrap();
        allocate(fd.as_fd(), 65536, 16384, &|| true).unwrap();
        let word: &tensorlend_layout::word::Word = view.at(65536).unwrap();
        word.set(7);
        assert_eq!(pages(), 6);
        punch_part(fd.as_fd(), 65536, 16384).unwrap();
        assert_eq!(pages(), 2);
        assert_eq!((word.read(), pages()), (0, 3), "a look makes a page");
        seal_writers(fd.as_fd()).unwrap();
        allocate(fd.as_fd(), 65536, 16384, &|| true).unwrap();
        word.set(8);
        assert!(punch_part(fd.as_fd(), 65536, 16384).is_err());
        assert_eq!((word.read(), pages()), (8, 6), "what is sealed can still grow inside, and gives nothing back");
    }

    #[test]
    fn punched_pages_are_gone_and_sealed_seals_stay() {
        let fd = create("test", 8192).unwrap();
        let kept = map::sheet(&fd, 8192, Access::Read).unwrap();
        seal_seals(fd.as_fd()).unwrap();
        assert!(seal_writers(fd.as_fd()).is_err() && !is_sealed(fd.as_fd()).unwrap());
        punch(fd.as_fd()).unwrap();
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks, 0);
        drop(kept);
        let fd = create("test", 4096).unwrap();
        seal_writers(fd.as_fd()).unwrap();
        assert!(punch(fd.as_fd()).is_err() && is_sealed(fd.as_fd()).unwrap());
    }

    #[test]
    fn an_order_can_be_called_off() {
        let steps = std::cell::Cell::new(0);
        let continues = || steps.replace(steps.get() + 1) < 2;
        assert_eq!(create_while("test", 64 << 20, &continues).unwrap_err(), Errno::CANCELED);
        assert_eq!(steps.get(), 3);
    }

    #[test]
    fn quiet_means_that_nobody_can_write() {
        let fd = create("test", 4096).unwrap();
        assert!(is_quiescent(fd.as_fd()).unwrap() && is_unheld(fd.as_fd()).unwrap());
        let writer = reopen(fd.as_fd(), Access::Write).unwrap();
        assert!(!is_quiescent(fd.as_fd()).unwrap());
        let view = map::sheet(&writer, 4096, Access::Write).unwrap();
        drop(writer);
        assert!(!is_quiescent(fd.as_fd()).unwrap(), "a writable mapping counts without its descriptor");
        drop(view);
        assert!(is_quiescent(fd.as_fd()).unwrap());
        let reader = reopen(fd.as_fd(), Access::Read).unwrap();
        let view = map::sheet(&reader, 4096, Access::Read).unwrap();
        drop(reader);
        assert!(is_quiescent(fd.as_fd()).unwrap(), "readers do not write");
        assert!(!is_unheld(fd.as_fd()).unwrap());
        drop(view);
        assert!(is_unheld(fd.as_fd()).unwrap());
    }

    #[test]
    fn after_the_seal_only_the_old_mapping_writes() {
        let fd = create("test", 4096).unwrap();
        let writer = reopen(fd.as_fd(), Access::Write).unwrap();
        let view = map::sheet(&writer, 4096, Access::Write).unwrap();
        seal_writers(fd.as_fd()).unwrap();
        let word: &tensorlend_layout::word::Word = view.at(0).unwrap();
        word.set(7);
        assert!(map::sheet(&writer, 4096, Access::Write).is_err());
        let reader = reopen(fd.as_fd(), Access::Read).unwrap();
        let read = map::sheet(&reader, 4096, Access::Read).unwrap();
        assert_eq!(read.at::<tensorlend_layout::word::Word>(0).unwrap().read(), 7);
        drop((view, writer));
        assert!(is_quiescent(fd.as_fd()).unwrap(), "the probe works on sealed files");
    }
}
