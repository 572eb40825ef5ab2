//! The daemon's process, as /proc describes it.

use std::fs::{read_dir, read_to_string};

/// Memory and descriptors of the daemon's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Resident bytes, without the pages of shared memory. `None` if /proc does not show the
    /// process.
    pub resident_bytes: Option<u64>,
    /// Open descriptors. `None` if this user may not count them: only the daemon's own user and
    /// root may.
    pub descriptors: Option<u64>,
}

impl Process {
    /// Returns the state of the process with this pid. If the daemon is in another pid namespace,
    /// the pid may belong to another process.
    pub fn of(pid: u32) -> Self {
        let resident_bytes = read_to_string(format!("/proc/{pid}/status")).ok().and_then(|text| resident(&text));
        let descriptors = read_dir(format!("/proc/{pid}/fd")).ok().map(|all| all.count() as u64);
        Self { resident_bytes, descriptors }
    }
}

/// Returns the resident bytes of a process minus those of shared memory, because lent segments are
/// already part of the pool.
fn resident(status: &str) -> Option<u64> {
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some(field("VmRSS:")?.saturating_sub(field("RssShmem:")?) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_process_has_memory_and_descriptors() {
        let own = Process::of(std::process::id());
        assert!(own.resident_bytes.is_some_and(|bytes| bytes > 1 << 16), "{own:?}");
        assert!(own.descriptors.is_some_and(|number| number > 2), "{own:?}");
        assert_eq!(Process::of(u32::MAX), Process::default());
        assert_eq!(resident("Name:\tx\nVmRSS:\t  40 kB\nRssShmem:\t  30 kB\n"), Some(10 << 10));
    }
}
