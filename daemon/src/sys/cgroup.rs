//! Memory limits and free memory of the daemon's cgroups (version 1 or 2) and of the machine.
//!
//! If a process uses more memory than the limit, the kernel does not refuse the allocation. Its OOM
//! killer then kills a process. The most likely one is the daemon, because lent memory is charged
//! to it. So the daemon checks the free memory before it allocates.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

type Read<'r> = &'r dyn Fn(&Path) -> Option<String>;

/// Bytes of free memory that the daemon never uses. They remain for other processes and for the
/// kernel's own overhead.
const MARGIN: u64 = 8 << 20;

/// Bytes of free memory that only administrators' sessions may use, for their sheets.
const RESERVE: u64 = 16 << 20;

/// The kind of users for whom the daemon allocates memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Ordinary users. They may not use [`RESERVE`].
    Users,
    /// Administrators. They may use [`RESERVE`].
    Administrators,
}

/// The cgroup directory of a process, or of an ancestor group.
struct Group {
    folder: PathBuf,
    first_version: bool,
}

/// Returns the control groups in `own`, the text of /proc/PID/cgroup, and their ancestors. A
/// machine may use both versions at once. Only one of them then controls memory.
fn groups(own: &str) -> Vec<Group> {
    let of_line = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let first_version = !controllers.is_empty();
        if first_version && !controllers.split(',').any(|one| one == "memory") {
            return None;
        }
        let root = if first_version { "/sys/fs/cgroup/memory" } else { "/sys/fs/cgroup" };
        let folder = Path::new(root).join(path.trim_start_matches('/'));
        let above = folder.ancestors().take_while(|folder| folder.starts_with(root));
        Some(above.map(|folder| Group { folder: folder.into(), first_version }).collect::<Vec<_>>())
    };
    own.lines().filter_map(of_line).flatten().collect()
}

/// The smallest number that means "no limit". Version 1 of cgroups reports 2^63 minus one page for
/// this.
const NO_LIMIT: u64 = 1 << 62;

impl Group {
    fn number(&self, read: Read<'_>, first: &str, second: &str) -> Option<u64> {
        let file = if self.first_version { first } else { second };
        read(&self.folder.join(file))?.trim().parse().ok()
    }

    fn limit(&self, read: Read<'_>) -> Option<u64> {
        self.number(read, "memory.limit_in_bytes", "memory.max").filter(|limit| *limit < NO_LIMIT)
    }

    /// Returns the bytes that the group may still use. Inactive file pages count as free, because
    /// the kernel reclaims them on demand.
    fn room(&self, read: Read<'_>) -> Option<u64> {
        let used = self.number(read, "memory.usage_in_bytes", "memory.current")?;
        let stat = read(&self.folder.join("memory.stat")).unwrap_or_default();
        let key = if self.first_version { "total_inactive_file " } else { "inactive_file " };
        let unused = stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok()).unwrap_or(0);
        Some(self.limit(read)?.saturating_sub(used.saturating_sub(unused)))
    }
}

/// Returns the smallest memory limit of this process's control groups, in bytes. Returns `None` if
/// there is no limit.
pub fn limit() -> Option<u64> {
    limit_of(&own(), &read_file)
}

/// Returns the smallest memory limit of a process's control groups, in bytes. Returns `None` if
/// there is no limit, or if the limit cannot be read.
///
/// ```
/// let own = tensorlend_daemon::memory_limit(std::process::id());
/// assert!(own.is_none_or(|bytes| bytes > 0));
/// ```
pub fn memory_limit(pid: u32) -> Option<u64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    limit_of(&groups, &read_file)
}

fn limit_of(own: &str, read: Read<'_>) -> Option<u64> {
    groups(own).iter().filter_map(|group| group.limit(read)).min()
}

fn room_of(own: &str, read: Read<'_>) -> u64 {
    let meminfo = read(Path::new("/proc/meminfo")).unwrap_or_default();
    let machine = meminfo_bytes(&meminfo, "MemAvailable:").unwrap_or(u64::MAX);
    let swap = meminfo_bytes(&meminfo, "SwapFree:").unwrap_or(0);
    let least = groups(own).iter().filter_map(|group| group.room(read)).chain([machine]).min().unwrap_or(u64::MAX);
    // Free swap counts as room, because the kernel can swap out lent memory like any other memory.
    least.saturating_add(swap)
}

/// Returns the value of a line of /proc/meminfo, in bytes.
pub fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn own() -> String {
    std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

fn read_file(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Checks that this many more bytes fit into memory. The caller then allocates them.
///
/// The function does not read the kernel's files at each call. After one reading it grants up to an
/// eighth of the free memory without a further reading.
///
/// # Errors
/// `OutOfMemory` if the bytes do not fit.
pub fn make_room(bytes: u64, claim: Claim) -> io::Result<()> {
    static KNOWN: Mutex<u64> = Mutex::new(0);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if *known < bytes {
        let room = room_of(&own(), &read_file);
        let left = MARGIN + if claim == Claim::Users { RESERVE } else { 0 };
        if room < bytes.saturating_add(left) {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!("the machine, or the daemon's cgroup, has {room} bytes left"),
            ));
        }
        if claim == Claim::Administrators {
            return Ok(());
        }
        *known = (room / 8).max(bytes);
    }
    *known -= bytes;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files<'f>(files: &'f [(&'f str, &'f str)]) -> impl Fn(&Path) -> Option<String> + 'f {
        move |path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| format!("{text}\n"))
    }

    const SECOND: &[(&str, &str)] = &[
        ("/sys/fs/cgroup/a/b/memory.max", "max"),
        ("/sys/fs/cgroup/a/memory.max", "1048576"),
        ("/sys/fs/cgroup/a/memory.current", "1000000"),
        ("/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 400000\nactive_file 7"),
        ("/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\nSwapFree: 1 kB"),
    ];
    const FIRST: &[(&str, &str)] = &[
        ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4194304"),
        ("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "5000000"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
        ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "7000000"),
    ];

    #[test]
    fn the_least_limit_holds() {
        assert_eq!(limit_of("0::/a/b\n", &files(SECOND)), Some(1 << 20));
        assert_eq!(limit_of("0::/c\n", &files(SECOND)), None);
        assert_eq!(limit_of("9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n", &files(FIRST)), Some(4 << 20));
        assert_eq!(limit_of("4:memory:/c\n", &files(FIRST)), None, "the kernel's number for no limit");
    }

    #[test]
    fn room_is_what_the_tightest_has_left() {
        assert_eq!(room_of("0::/a/b\n", &files(SECOND)), 1_048_576 - 600_000 + 1024);
        assert_eq!(room_of("0::/c\n", &files(SECOND)), 8001 * 1024);
        assert_eq!(room_of("4:memory:/a\n", &files(FIRST)), 0);
        assert_eq!(room_of("", &files(&[])), u64::MAX);
    }

    #[test]
    fn more_than_any_machine_has_is_refused() {
        make_room(4096, Claim::Users).unwrap();
        assert!(make_room(1 << 60, Claim::Administrators).unwrap_err().to_string().contains("bytes left"));
        make_room(4096, Claim::Administrators).unwrap();
    }
}
