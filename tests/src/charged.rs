//! Charges of memory cgroups: test groups, of either cgroup version, and processes in them.

use crate::{run, skip, skip_without_root};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A group without children. Dropping it removes it: its processes must have ended.
pub struct Group(PathBuf);

/// Returns the folder in which groups with memory accounting can be created, next to the machine's own.
fn tree() -> Option<PathBuf> {
    let unified = Path::new("/sys/fs/cgroup");
    let counts = std::fs::read_to_string(unified.join("cgroup.subtree_control")).unwrap_or_default();
    let second = counts.split_whitespace().any(|one| one == "memory").then(|| unified.to_owned());
    second.or_else(|| Some(unified.join("memory")).filter(|first| first.join("memory.stat").exists()))
}

/// Returns true if no groups can be created here, and records the reason. The test then returns.
pub fn skip_without_groups() -> bool {
    if skip_without_root() {
        return true;
    }
    let made = tree().ok_or("no memory cgroups are mounted".to_owned()).and_then(|tree| {
        let folder = tree.join(format!("tensorlend-try-{}-{:?}", std::process::id(), std::thread::current().id()));
        std::fs::create_dir(&folder).and_then(|()| std::fs::remove_dir(&folder)).map_err(|e| e.to_string())
    });
    if let Err(why) = &made {
        skip(&format!("no cgroup of its own can be made here: {why}"));
    }
    made.is_err()
}

impl Group {
    /// Creates a group.
    ///
    /// # Panics
    /// If it cannot be created: call [`skip_without_groups`] first.
    pub fn new(name: &str) -> Self {
        let folder = tree().expect("there are cgroups").join(format!("tensorlend-test-{}-{name}", std::process::id()));
        std::fs::create_dir(&folder).expect("a group is made");
        Self(folder)
    }

    /// Returns a command that runs a program in the group.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-ec", "echo $$ >\"$0\"; exec \"$@\""]).arg(self.0.join("cgroup.procs")).arg(program);
        command
    }

    /// Creates a group whose processes may use this much memory, and no swap.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn limited(name: &str, bytes: u64) -> Self {
        let group = Self::new(name);
        let files = ["memory.max", "memory.limit_in_bytes"].map(|file| group.0.join(file));
        let file = files.iter().find(|file| file.exists()).expect("the group has a limit");
        std::fs::write(file, bytes.to_string()).expect("a limit is set");
        // Version 1 has one limit of memory and swap together.
        for (file, limit) in [("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", bytes)] {
            let file = group.0.join(file);
            if file.exists() {
                std::fs::write(file, limit.to_string()).expect("a limit of swap is set");
            }
        }
        group
    }

    /// Returns how many of its processes the kernel has killed because the group had no memory left.
    pub fn kills(&self) -> u64 {
        let files = ["memory.events", "memory.oom_control"].map(|file| std::fs::read_to_string(self.0.join(file)));
        let text = files.into_iter().find_map(Result::ok).expect("the group tells of its kills");
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).expect("a number of kills")
    }

    /// Returns the charged bytes of memfds and of `tmpfs`.
    pub fn shared(&self) -> u64 {
        self.bytes(&["shmem"])
    }

    /// Returns the bytes of private memory of its processes.
    pub fn own(&self) -> u64 {
        self.bytes(&["anon", "rss"])
    }

    /// Returns the value in `memory.stat` of the first of these keys that it has: the versions use different names.
    fn bytes(&self, keys: &[&str]) -> u64 {
        let text = std::fs::read_to_string(self.0.join("memory.stat")).expect("the group tells of its memory");
        let value = |key: &&str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok());
        keys.iter().find_map(value).unwrap_or_else(|| panic!("none of {keys:?} in\n{text}"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process leaves its group a moment after it was waited for.
        for _ in 0..100 {
            if !run(Command::new("rmdir").arg(&self.0)).status.success() {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            if !self.0.exists() {
                return;
            }
        }
        eprintln!("{} stays: it has processes", self.0.display());
    }
}
