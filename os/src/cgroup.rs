//! Memory limits and free memory of a process's cgroups (version 1 or 2) and of the machine.
//!
//! If a process uses more memory than the limit, the kernel does not refuse the allocation. Its OOM
//! killer then kills a process. So a process checks the free memory before it allocates pages that
//! the kernel charges to its group.

use std::path::{Path, PathBuf};

type Read<'r> = &'r dyn Fn(&Path) -> Option<String>;

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

    /// Returns the bytes of swap that the group may still use. `None` means that only the machine limits them. A group with a
    /// limit of memory that does not report its swap has none.
    fn swap(&self, read: Read<'_>) -> Option<u64> {
        // Version 1 limits memory and swap together.
        let file = if self.first_version { "memory.memsw.limit_in_bytes" } else { "memory.swap.max" };
        let Some(limit) = read(&self.folder.join(file)) else { return self.limit(read).map(|_| 0) };
        let limit = limit.trim().parse::<u64>().ok().filter(|limit| *limit < NO_LIMIT)?;
        let used = self.number(read, "memory.memsw.usage_in_bytes", "memory.swap.current");
        let left = limit.saturating_sub(used.unwrap_or(limit));
        if !self.first_version {
            return Some(left);
        }
        let memory = self.number(read, "memory.usage_in_bytes", "").zip(self.limit(read));
        Some(memory.map_or(left, |(used, limit)| left.saturating_sub(limit.saturating_sub(used))))
    }
}

/// Returns the smallest memory limit of this process's control groups, in bytes. Returns `None` if
/// there is no limit.
pub fn limit() -> Option<u64> {
    limit_of(&own(), &read_file)
}

/// Returns the smallest memory limit of a process's control groups, in bytes. Returns `None` if
/// there is no limit, or if the limit cannot be read.
pub fn limit_of_process(pid: u32) -> Option<u64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    limit_of(&groups, &read_file)
}

/// Returns the bytes that this process may still allocate: the smallest free memory of its control
/// groups and of the machine. Free swap counts as far as the groups may use it, because the kernel
/// can swap out lent memory like any other memory.
pub fn room() -> u64 {
    room_of(&own(), &read_file)
}

/// Returns the bytes that the machine has left, including free swap.
pub fn machine_room() -> u64 {
    room_of("", &read_file)
}

fn limit_of(own: &str, read: Read<'_>) -> Option<u64> {
    groups(own).iter().filter_map(|group| group.limit(read)).min()
}

fn room_of(own: &str, read: Read<'_>) -> u64 {
    let meminfo = read(Path::new("/proc/meminfo")).unwrap_or_default();
    let machine = meminfo_bytes(&meminfo, "MemAvailable:").unwrap_or(u64::MAX);
    let swap = meminfo_bytes(&meminfo, "SwapFree:").unwrap_or(0);
    let groups = groups(own);
    let least = groups.iter().filter_map(|group| group.room(read)).chain([machine]).min().unwrap_or(u64::MAX);
    let swap = groups.iter().filter_map(|group| group.swap(read)).chain([swap]).min().unwrap_or(0);
    least.saturating_add(swap)
}

/// Returns the bytes that the kernel charges to this process's own control group, and that are in no page cache, no
/// process and no object of the kernel that the group's statistics name. Returns `None` without such a group.
///
/// Pages that a process has removed from a file stay charged until the last reference to them is gone. For example, a
/// message in a socket's queue can refer to them (sendfile(2), splice(2)).
pub fn unaccounted() -> Option<u64> {
    unaccounted_of(&own(), &read_file)
}

fn unaccounted_of(own: &str, read: Read<'_>) -> Option<u64> {
    groups(own).iter().find_map(|group| {
        let used = || group.number(read, "memory.usage_in_bytes", "memory.current");
        let before = used()?;
        let stat = read(&group.folder.join("memory.stat"))?;
        let of = |key: &str| {
            stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
        };
        let known = if group.first_version {
            // The statistics of version 1 do not name the kernel's objects.
            let kernel = group.number(read, "memory.kmem.usage_in_bytes", "").unwrap_or(0);
            of("total_cache")? + of("total_rss")? + kernel
        } else {
            // Before Linux 5.18, the parts of `kernel` have lines of their own only.
            let parts = ["slab", "kernel_stack", "pagetables", "percpu", "vmalloc"];
            let kernel = of("kernel").unwrap_or_else(|| parts.iter().filter_map(|part| of(part)).sum());
            of("anon")? + of("file")? + kernel + of("sock").unwrap_or(0)
        };
        // Other threads allocate and free memory between these readings.
        Some(before.min(used()?).saturating_sub(known))
    })
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
        ("/sys/fs/cgroup/a/memory.swap.max", "max"),
        ("/sys/fs/cgroup/a/memory.swap.current", "0"),
        ("/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\nSwapFree: 1 kB"),
    ];
    const FIRST: &[(&str, &str)] = &[
        ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4194304"),
        ("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "5000000"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
        ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "7000000"),
    ];

    #[test]
    fn bytes_that_the_statistics_do_not_name_are_unaccounted() {
        let second = [
            ("/sys/fs/cgroup/a/memory.current", "1000"),
            ("/sys/fs/cgroup/a/memory.stat", "anon 100\nanon_thp 7\nfile 200\nkernel 50\nsock 5"),
        ];
        assert_eq!(unaccounted_of("0::/a\n", &files(&second)), Some(645));
        let older = [second[0], ("/sys/fs/cgroup/a/memory.stat", "anon 100\nfile 200\nslab 30\npercpu 3")];
        assert_eq!(unaccounted_of("0::/a\n", &files(&older)), Some(667));
        let first = [
            ("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000"),
            ("/sys/fs/cgroup/memory/a/memory.kmem.usage_in_bytes", "10"),
            ("/sys/fs/cgroup/memory/a/memory.stat", "cache 1\ntotal_cache 300\ntotal_rss 700"),
        ];
        assert_eq!(unaccounted_of("4:memory:/a\n", &files(&first)), Some(0));
        assert_eq!(unaccounted_of("0::/elsewhere\n", &files(&second)), None);
    }

    #[test]
    fn the_least_limit_holds() {
        assert_eq!(limit_of("0::/a/b\n", &files(SECOND)), Some(1 << 20));
        assert_eq!(limit_of("0::/c\n", &files(SECOND)), None);
        assert_eq!(limit_of("9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n", &files(FIRST)), Some(4 << 20));
        assert_eq!(limit_of("4:memory:/c\n", &files(FIRST)), None, "the kernel's number for no limit");
    }

    #[test]
    fn swap_counts_as_far_as_the_group_may_use_it() {
        let second = |max: &'static str| {
            [
                ("/sys/fs/cgroup/a/memory.max", "1000000"),
                ("/sys/fs/cgroup/a/memory.current", "400000"),
                ("/sys/fs/cgroup/a/memory.swap.max", max),
                ("/sys/fs/cgroup/a/memory.swap.current", "300"),
                ("/proc/meminfo", "MemAvailable: 8000 kB\nSwapFree: 1 kB"),
            ]
        };
        for (max, swap) in [("0", 0), ("1000", 700), ("90000", 1024), ("max", 1024)] {
            assert_eq!(room_of("0::/a\n", &files(&second(max))), 600_000 + swap, "{max}");
        }
        let unknown = &second("0")[..2];
        let unknown = [unknown, &second("0")[4..]].concat();
        assert_eq!(room_of("0::/a\n", &files(&unknown)), 600_000);
        let first = |both: &'static str| {
            [
                ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000000"),
                ("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "400000"),
                ("/sys/fs/cgroup/memory/a/memory.memsw.limit_in_bytes", both),
                ("/sys/fs/cgroup/memory/a/memory.memsw.usage_in_bytes", "400000"),
                ("/proc/meminfo", "MemAvailable: 8000 kB\nSwapFree: 1 kB"),
            ]
        };
        for (both, swap) in [("1000000", 0), ("1000500", 500), ("2000000", 1024), ("9223372036854771712", 1024)] {
            assert_eq!(room_of("4:memory:/a\n", &files(&first(both))), 600_000 + swap, "{both}");
        }
    }

    #[test]
    fn room_is_what_the_tightest_has_left() {
        assert_eq!(room_of("0::/a/b\n", &files(SECOND)), 1_048_576 - 600_000 + 1024);
        assert_eq!(room_of("0::/c\n", &files(SECOND)), 8001 * 1024);
        assert_eq!(room_of("4:memory:/a\n", &files(FIRST)), 0);
        assert_eq!(room_of("", &files(&[])), u64::MAX);
    }
}
