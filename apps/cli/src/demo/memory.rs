//! The memory that the demo may use, and the rows that it leaves out for lack of memory.

use std::fs;
use std::path::{Path, PathBuf};

use crate::meminfo;

use super::table::{LeftOut, Method};
use tensorlend_layout::size::bytes_text;

/// The memory available now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Memory that is available without swapping (`MemAvailable`); `None` if /proc does not report it.
    pub available_bytes: Option<u64>,
    /// Free memory below the tightest limit of this process's control groups; `None` without a
    /// limit.
    pub cgroup_left_bytes: Option<u64>,
    /// The file system of /dev/shm; `None` if there is none.
    pub shm: Option<Shm>,
}

/// The size of the file system of /dev/shm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shm {
    /// Maximum size in bytes.
    pub size_bytes: u64,
    /// Free bytes, at most `size_bytes`.
    pub free_bytes: u64,
}

/// The rows to run, and the rows to omit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Size and method, in the order of the sizes given.
    pub run: Vec<(u64, Method)>,
    /// The other rows, with reasons.
    pub left_out: Vec<LeftOut>,
}

impl Memory {
    /// Reads the memory that is available now.
    pub fn now() -> Self {
        Self { shm: Shm::now(), ..Self::below(Path::new("/")) }
    }

    /// Reads the files below `root`. Tests use another root.
    fn below(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        let available_bytes = read("proc/meminfo").and_then(|text| meminfo::parse(&text));
        let groups = read("proc/self/cgroup").unwrap_or_default();
        Self { available_bytes, cgroup_left_bytes: cgroup_left(root, &groups), shm: None }
    }

    /// Returns the usable memory in bytes, and the limit that determines it. An eighth stays free
    /// for other programs.
    fn usable(&self) -> (u64, &'static str) {
        let available = (self.available_bytes.unwrap_or(u64::MAX), "available on this machine");
        let group = (self.cgroup_left_bytes.unwrap_or(u64::MAX), "left below the limit of this control group");
        let (bytes, what) = available.min(group);
        (bytes - bytes / 8, what)
    }
}

impl Shm {
    fn now() -> Option<Self> {
        let stat = rustix::fs::statvfs("/dev/shm").ok()?;
        // A tmpfs without a size limit reports 0 blocks.
        if stat.f_blocks == 0 {
            return Some(Self { size_bytes: u64::MAX, free_bytes: u64::MAX });
        }
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Some(Self { size_bytes: bytes(stat.f_blocks), free_bytes: bytes(stat.f_bavail) })
    }
}

/// Decides for each size and method whether memory suffices. The shared_memory crate does not
/// reserve its segment. When /dev/shm is full, the first write to the segment kills the process by
/// SIGBUS. So the plan checks /dev/shm first.
pub fn plan(sizes: &[u64], memory: &Memory) -> Plan {
    let mut plan = Plan { run: Vec::new(), left_out: Vec::new() };
    for &bytes in sizes {
        for method in Method::ALL {
            match reason_against(bytes, method, memory) {
                None => plan.run.push((bytes, method)),
                Some(reason) => plan.left_out.push(LeftOut { bytes, method, reason }),
            }
        }
    }
    plan
}

fn reason_against(bytes: u64, method: Method, memory: &Memory) -> Option<String> {
    if method == Method::Copy {
        match memory.shm {
            None => return Some("there is no /dev/shm, and the shared_memory crate works nowhere else".to_owned()),
            // The crate needs two extra pages, for its header and for the partial last page.
            Some(shm) if shm.free_bytes < bytes.saturating_add(2 * 4096) => {
                let (free, size) = (bytes_text(shm.free_bytes), bytes_text(shm.size_bytes));
                return Some(format!(
                    "/dev/shm has {free} of {size} free; the shared_memory crate would die of SIGBUS"
                ));
            }
            Some(_) => {}
        }
    }
    let needed = bytes.saturating_mul(times_in_memory(method));
    let (usable, what) = memory.usable();
    (needed > usable).then(|| {
        let (needed, usable) = (bytes_text(needed), bytes_text(usable));
        format!("it takes {needed} of memory and may take {usable}, seven eighths of what is {what}")
    })
}

/// Returns the number of copies of the tensor in memory at the peak of one exchange, summed over
/// both processes.
fn times_in_memory(method: Method) -> u64 {
    match method {
        // The copies are the payload, its encoding, the received message and the decoded tensor.
        Method::Serialize => 4,
        // The copies of `Copy` are the payload, the segment and the consumer's own copy. The copies of
        // tensorlend are the payload, its slot, and the retired slot of the previous exchange.
        Method::Copy | Method::LendCopied | Method::Lend => 3,
    }
}

/// Returns the free memory below the tightest limit among this process's control groups and their
/// ancestors. `groups` is the text of /proc/self/cgroup, with one `number:controllers:path` per
/// line.
fn cgroup_left(root: &Path, groups: &str) -> Option<u64> {
    let line = |controller: &str| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            controllers.split(',').any(|each| each == controller).then(|| parts.next()).flatten()
        })
    };
    let v2 = line("")
        .and_then(|path| tightest(&root.join("sys/fs/cgroup"), path, "memory.max", "memory.current", "inactive_file"));
    let v1 = line("memory").and_then(|path| {
        let top = root.join("sys/fs/cgroup/memory");
        tightest(&top, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    });
    v2.into_iter().chain(v1).min()
}

/// Returns the smallest free memory of the groups from `path` up to `top`. In a container the path
/// may be the host's, whose directories are missing. Then `top` is the container's own group.
fn tightest(top: &Path, path: &str, limit: &str, used: &str, cache: &str) -> Option<u64> {
    let start: PathBuf = top.join(path.trim_start_matches('/'));
    let groups = start.ancestors().take_while(|group| group.starts_with(top));
    groups.filter_map(|group| left_in(group, limit, used, cache)).min()
}

fn left_in(group: &Path, limit: &str, used: &str, cache: &str) -> Option<u64> {
    /// Limits from this number on mean "no limit". Without a limit, version 1 of cgroups reports
    /// `i64::MAX` rounded down to a page.
    const NO_LIMIT: u64 = i64::MAX as u64 - 0xFFFF;
    let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    // Version 2 reports "max", which is not a number, if there is no limit.
    let limit = number(limit).filter(|&limit| limit < NO_LIMIT)?;
    let used = number(used).unwrap_or(0);
    // Inactive file pages count as used, but the kernel reclaims them as soon as memory is needed.
    let cache =
        fs::read_to_string(group.join("memory.stat")).ok().and_then(|text| stat_line(&text, cache)).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cache)))
}

fn stat_line(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{LeftOut, Memory, Method, Shm, fs, meminfo, plan};

    const MB: u64 = 1 << 20;

    fn roomy() -> Memory {
        let shm = Some(Shm { size_bytes: 4096 * MB, free_bytes: 4096 * MB });
        Memory { available_bytes: Some(16384 * MB), cgroup_left_bytes: None, shm }
    }

    /// Creates a file system root with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn available_memory_is_read_in_kibibytes() {
        let text = "MemTotal:       24684032 kB\nMemFree:        1 kB\nMemAvailable:   23751680 kB\n";
        assert_eq!(meminfo::parse(text), Some(23_751_680 * 1024));
        assert_eq!(meminfo::parse("MemTotal: 5 kB\n"), None);
        assert_eq!(meminfo::parse("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn the_tightest_group_on_the_way_up_counts() {
        let root = root(&[
            ("proc/meminfo", "MemAvailable: 1024 kB\n"),
            ("proc/self/cgroup", "0::/user.slice/demo.service\n"),
            ("sys/fs/cgroup/user.slice/demo.service/memory.max", "max\n"),
            ("sys/fs/cgroup/user.slice/memory.max", "1000000\n"),
            ("sys/fs/cgroup/user.slice/memory.current", "700000\n"),
            ("sys/fs/cgroup/user.slice/memory.stat", "anon 1\ninactive_file 50000\n"),
        ]);
        let memory = Memory::below(root.path());
        assert_eq!(memory.available_bytes, Some(1 << 20));
        assert_eq!(memory.cgroup_left_bytes, Some(350_000));
    }

    #[test]
    fn version_one_in_a_container_has_its_limit_at_the_top() {
        let root = root(&[
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/of/the/host\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "4000\n"),
        ]);
        assert_eq!(Memory::below(root.path()).cgroup_left_bytes, Some(5000));
    }

    #[test]
    fn no_limit_is_none() {
        let root = root(&[
            ("proc/self/cgroup", "4:memory:/\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(Memory::below(root.path()), Memory { available_bytes: None, cgroup_left_bytes: None, shm: None });
    }

    #[test]
    fn this_machine_answers() {
        let memory = Memory::now();
        assert!(memory.available_bytes.is_some_and(|bytes| bytes > MB));
    }

    #[test]
    fn with_room_everything_runs() {
        let plan = plan(&[1024, 256 * MB], &roomy());
        assert_eq!(plan.left_out, []);
        assert_eq!(plan.run.len(), 8);
        assert_eq!(plan.run[0], (1024, Method::Serialize));
        assert_eq!(plan.run[7], (256 * MB, Method::Lend));
    }

    #[test]
    fn a_small_shm_leaves_only_copy_out() {
        let shm = Some(Shm { size_bytes: 64 * MB, free_bytes: 64 * MB });
        let plan = plan(&[16 * MB, 64 * MB, 256 * MB], &Memory { shm, ..roomy() });
        let reason = "/dev/shm has 64 MiB of 64 MiB free; the shared_memory crate would die of SIGBUS".to_owned();
        let out = |bytes| LeftOut { bytes, method: Method::Copy, reason: reason.clone() };
        assert_eq!(plan.left_out, [out(64 * MB), out(256 * MB)]);
        assert_eq!(plan.run.len(), 10);
    }

    #[test]
    fn little_memory_leaves_out_what_needs_most_of_it() {
        let plan = plan(&[256 * MB], &Memory { cgroup_left_bytes: Some(1024 * MB), ..roomy() });
        assert_eq!(plan.run, [(256 * MB, Method::Copy), (256 * MB, Method::LendCopied), (256 * MB, Method::Lend)]);
        assert_eq!(
            plan.left_out[0].to_string(),
            "serialize at 256 MiB: it takes 1 GiB of memory and may take 896 MiB, seven eighths of what is left below the \
             limit of this control group"
        );
    }

    #[test]
    fn without_shm_there_is_no_copy() {
        let plan = plan(&[1024], &Memory { shm: None, ..roomy() });
        assert_eq!(plan.left_out.len(), 1);
        assert!(plan.left_out[0].reason.contains("no /dev/shm"));
    }
}
