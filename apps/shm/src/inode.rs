//! Inodes of objects, read without a request to a file system.
//!
//! A hostile user can give a file any name, on a file system of their own (FUSE) that never answers. `AT_STATX_DONT_SYNC`
//! returns what the kernel knows.

use rustix::fs::{AtFlags, CWD, FileType, MemfdFlags, StatxFlags, fstat, makedev, memfd_create, statx};
use std::path::Path;
use std::time::{Duration, SystemTime};

pub struct Inode {
    pub device: u64,
    pub number: u64,
    pub links: u64,
    pub bytes: u64,
    /// Bytes of allocated blocks.
    pub resident_bytes: u64,
    pub uid: u32,
    /// Time since the last change of the contents or the inode.
    pub age: Duration,
    pub kind: FileType,
}

impl Inode {
    /// Returns the inode to which a link of /proc leads.
    pub fn behind(link: impl AsRef<Path>) -> Option<Self> {
        Self::read(link.as_ref(), AtFlags::empty())
    }

    /// Returns the inode of a file, or of a link itself.
    pub fn of(path: &Path) -> Option<Self> {
        Self::read(path, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn read(path: &Path, flags: AtFlags) -> Option<Self> {
        let flags = flags | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let found = statx(CWD, path, flags, StatxFlags::BASIC_STATS).ok()?;
        let time = |time: rustix::fs::StatxTimestamp| (time.tv_sec, i64::from(time.tv_nsec));
        Some(Self {
            device: makedev(found.stx_dev_major, found.stx_dev_minor),
            number: found.stx_ino,
            links: found.stx_nlink.into(),
            bytes: found.stx_size,
            resident_bytes: found.stx_blocks * 512,
            uid: found.stx_uid,
            age: age(time(found.stx_mtime), time(found.stx_ctime)),
            kind: FileType::from_raw_mode(found.stx_mode.into()),
        })
    }
}

/// The file systems that the kernel mounts for itself: of memfds, segments of System V and shared memory without a file. No
/// user can create a file with a name there.
#[derive(Debug)]
pub struct KernelMounts(Vec<u64>);

impl Default for KernelMounts {
    fn default() -> Self {
        // Each size of huge pages has a file system of its own. A memfd without bytes uses no page.
        let huge = [
            MemfdFlags::HUGE_64KB,
            MemfdFlags::HUGE_512KB,
            MemfdFlags::HUGE_1MB,
            MemfdFlags::HUGE_2MB,
            MemfdFlags::HUGE_8MB,
            MemfdFlags::HUGE_16MB,
            MemfdFlags::HUGE_32MB,
            MemfdFlags::HUGE_256MB,
            MemfdFlags::HUGE_512MB,
            MemfdFlags::HUGE_1GB,
            MemfdFlags::HUGE_2GB,
            MemfdFlags::HUGE_16GB,
        ];
        let flags = huge.into_iter().map(|size| MemfdFlags::HUGETLB | size).chain([MemfdFlags::empty()]);
        let device = |flags| Some(fstat(memfd_create("device", MemfdFlags::CLOEXEC | flags).ok()?).ok()?.st_dev);
        Self(flags.filter_map(device).collect())
    }
}

impl KernelMounts {
    /// Returns true if the file system with this device is one of them.
    pub fn has(&self, device: u64) -> bool {
        self.0.contains(&device)
    }
}

/// Returns the time since the later of two times, in seconds and nanoseconds since 1970.
pub fn age(modified: (i64, i64), changed: (i64, i64)) -> Duration {
    let (seconds, nanoseconds) = modified.max(changed);
    let at = Duration::new(seconds.max(0).cast_unsigned(), nanoseconds.clamp(0, 999_999_999) as u32);
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().saturating_sub(at)
}
