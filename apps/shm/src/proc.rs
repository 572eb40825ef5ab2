//! The lines of /proc that the scan reads. Other users choose some of the names in them: names need not be UTF-8, and no
//! name makes a function panic or hides the rest of a file.

use crate::object::Kind;
use rustix::fs::makedev;
use std::fs::{read, read_dir, read_link};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tensorlend_os::clock;
use tensorlend_os::sysv::History;

/// A mapping: a line of /proc/PID/maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub is_writable: bool,
    pub is_shared: bool,
    pub offset: u64,
    pub device: u64,
    pub inode: u64,
    pub path: String,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let mut fields = rest.splitn(5, ' ');
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let rights = fields.next()?.as_bytes();
        let offset = hex(fields.next()?)?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let number = |text| u32::from_str_radix(text, 16).ok();
        Some(Self {
            start: hex(start)?,
            end: hex(end)?,
            is_writable: rights.get(1) == Some(&b'w'),
            is_shared: rights.get(3) == Some(&b's'),
            offset,
            device: makedev(number(major)?, number(minor)?),
            inode: fields.next()?.parse().ok()?,
            path: fields.next().unwrap_or("").trim_start().to_owned(),
        })
    }

    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

fn text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&read(path)?).into_owned())
}

/// Returns the processes.
pub fn pids() -> io::Result<Vec<u32>> {
    Ok(read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Returns the threads of a process.
pub fn threads(pid: u32) -> Vec<u32> {
    let threads = read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns true if the process has memory that this user may not read.
pub fn is_unreadable(pid: u32) -> bool {
    read(format!("/proc/{pid}/maps")).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        && Stat::of(pid).is_some_and(|stat| stat.has_memory())
}

/// Returns the mappings of a process, or of the process of this thread.
pub fn mappings(pid: u32) -> io::Result<Vec<Mapping>> {
    Ok(text(format!("/proc/{pid}/maps"))?.lines().filter_map(Mapping::parse).collect())
}

/// Returns the mappings of a process with their resident bytes. The kernel counts them page by page.
pub fn resident(pid: u32) -> Vec<(Mapping, u64)> {
    let mut all: Vec<(Mapping, u64)> = Vec::new();
    for line in text(format!("/proc/{pid}/smaps")).unwrap_or_default().lines() {
        match (kib(line, "Rss:"), all.last_mut()) {
            (Some(bytes), Some((_, resident))) => *resident = bytes,
            _ => all.extend(Mapping::parse(line).map(|mapping| (mapping, 0))),
        }
    }
    all
}

fn kib(line: &str, key: &str) -> Option<u64> {
    line.strip_prefix(key)?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Sums over the mappings of a process, as /proc/PID/smaps_rollup has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rollup {
    /// Bytes of changed pages that no other process maps. Unchanged pages of files are the kernel's cache.
    pub private_bytes: u64,
    /// The process's share of the pages of shared memory.
    pub pss_shmem_bytes: u64,
}

/// Returns the sums over a process's mappings.
pub fn rollup(pid: u32) -> Option<Rollup> {
    let text = text(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let field = |key| text.lines().find_map(|line| kib(line, key)).unwrap_or(0);
    Some(Rollup {
        private_bytes: field("Private_Dirty:") + field("Private_Hugetlb:"),
        pss_shmem_bytes: field("Pss_Shmem:"),
    })
}

/// The descriptors of a process: the number, and the text of the link.
pub fn descriptors(pid: u32) -> io::Result<Vec<(u32, String)>> {
    let folder = PathBuf::from(format!("/proc/{pid}/fd"));
    let of = |entry: std::fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let target = read_link(entry.path()).ok()?;
        Some((number, String::from_utf8_lossy(target.as_os_str().as_bytes()).into_owned()))
    };
    Ok(read_dir(folder)?.flatten().filter_map(of).collect())
}

/// Fields of /proc/PID/stat.
#[derive(Clone, Debug)]
pub struct Stat {
    pub name: String,
    pub parent: u32,
    /// Time since the process started.
    pub age: Duration,
    is_kernel: bool,
    /// Whether all threads have ended. The main thread can end (`pthread_exit`) before the others.
    is_zombie: bool,
}

/// `PF_KTHREAD` of the kernel's include/linux/sched.h.
const KERNEL_THREAD: u64 = 0x0020_0000;

impl Stat {
    pub fn of(pid: u32) -> Option<Self> {
        let text = text(format!("/proc/{pid}/stat")).ok()?;
        // The name may contain parentheses and spaces.
        let (head, tail) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = tail.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let started = Duration::from_millis(number(19)? * 1000 / rustix::param::clock_ticks_per_second());
        Some(Self {
            name: head.split_once('(')?.1.to_owned(),
            parent: number(1)? as u32,
            age: Duration::from_nanos(clock::boottime_ns()).saturating_sub(started),
            is_kernel: number(6)? & KERNEL_THREAD != 0,
            is_zombie: matches!(fields.first(), Some(&("Z" | "X"))) && number(17)? <= 1,
        })
    }

    /// Returns true if the process has memory and descriptors.
    pub fn has_memory(&self) -> bool {
        !self.is_kernel && !self.is_zombie
    }
}

/// Returns the command line of a process, or its name if it has none.
pub fn command(pid: u32) -> String {
    let words = read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&words).replace('\0', " ");
    match line.trim() {
        "" => Stat::of(pid).map(|stat| stat.name).unwrap_or_default(),
        line => line.to_owned(),
    }
}

/// Returns the effective user of a process.
pub fn uid(pid: u32) -> Option<u32> {
    let text = text(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the control group of a process. Containers have groups of their own.
pub fn cgroup(pid: u32) -> String {
    let text = text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let path = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        (controllers.is_empty() || controllers.split(',').any(|one| one == "memory")).then(|| path.to_owned())
    };
    // With both versions of cgroups, the memory controller of version 1 has the path of a container.
    text.lines().filter_map(path).max_by_key(String::len).unwrap_or_default()
}

/// A file system of shared memory in a mount namespace.
#[derive(Clone, Debug)]
pub struct Mount {
    pub point: String,
    pub device: u64,
    pub kind: Kind,
}

/// Returns the mounts of shared memory that a process sees.
pub fn mounts(pid: u32) -> Vec<Mount> {
    let of = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let fields: Vec<&str> = mount.split(' ').collect();
        let point = *fields.get(4)?;
        let kind = match system.split(' ').next()? {
            "tmpfs" if point == "/dev/shm" => Kind::Shm,
            "tmpfs" => Kind::Tmpfs,
            "hugetlbfs" => Kind::Hugetlb,
            _ => return None,
        };
        let (major, minor) = fields.get(2)?.split_once(':')?;
        Some(Mount { point: point.to_owned(), device: makedev(major.parse().ok()?, minor.parse().ok()?), kind })
    };
    text(format!("/proc/{pid}/mountinfo")).unwrap_or_default().lines().filter_map(of).collect()
}

/// Returns true if /proc does not show all processes of the machine.
pub fn is_partial() -> bool {
    /// The inode of the initial pid namespace: `PROC_PID_INIT_INO` of the kernel's include/linux/proc_ns.h.
    const INITIAL: &str = "pid:[4026531836]";
    let is_initial = read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new(INITIAL));
    // With `hidepid`, even the first process is hidden from other users.
    !is_initial || !Path::new("/proc/1/stat").exists()
}

/// A segment of System V: a line of /proc/sysvipc/shm.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub key: i32,
    pub id: i32,
    pub attachments: u64,
    pub resident_bytes: u64,
    pub history: History,
}

/// Returns the segments of this process's ipc namespace.
pub fn segments() -> Vec<Segment> {
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Segment {
            key: fields.first()?.parse().ok()?,
            id: number(1)? as i32,
            attachments: number(6)?,
            resident_bytes: number(14)? + number(15)?,
            history: History {
                uid: number(7)? as u32,
                size_bytes: number(3)?,
                creator: number(4)? as i32,
                last_user: number(5)? as i32,
                times_s: [number(11)? as i64, number(12)? as i64, number(13)? as i64],
            },
        })
    };
    text("/proc/sysvipc/shm").unwrap_or_default().lines().skip(1).filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_is_parsed() {
        let line = "7f0e1000-7f0e3000 rw-s 00001000 00:1b 42                         /dev/shm/a b (deleted)";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.start, mapping.bytes(), mapping.offset), (0x7f0e_1000, 0x2000, 0x1000));
        assert_eq!((mapping.device, mapping.inode), (makedev(0, 0x1b), 42));
        assert!(mapping.is_shared && mapping.is_writable);
        assert_eq!(mapping.path, "/dev/shm/a b (deleted)");
        assert_eq!(Mapping::parse("1000-2000 r--p 0 00:00 0 ").unwrap().path, "");
        assert_eq!(Mapping::parse("1000-2000 r--p 0 00:00 0 /SYSV").unwrap().path, "/SYSV");
        assert_eq!(Mapping::parse("Rss: 4 kB"), None);
    }

    #[test]
    fn this_process_has_memory() {
        let own = std::process::id();
        assert!(pids().unwrap().contains(&own));
        assert!(Stat::of(own).is_some_and(|stat| stat.has_memory() && stat.parent > 0));
        assert!(rollup(own).is_some_and(|rollup| rollup.private_bytes > 4096));
        assert!(resident(own).iter().any(|(_, bytes)| *bytes > 0));
        assert!(!command(own).is_empty() && uid(own).is_some());
        assert!(descriptors(own).unwrap().len() > 2);
    }
}
