//! Resources of a process: memory, shared memory, descriptors.

use std::fs;

/// The resources of a process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Resident private pages, in bytes.
    pub anonymous_bytes: u64,
    /// Shared pages that it has mapped and touched, in bytes, of any owner.
    pub mapped_bytes: u64,
    /// Allocated bytes of all memfds that the process has open.
    pub shared_bytes: u64,
    pub descriptors: u64,
}

impl Footprint {
    /// Reads those of a process; `None`: it has ended, or may not be inspected.
    pub fn of(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let bytes = |key: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
        };
        let (mut shared_bytes, mut descriptors) = (0, 0);
        let mut seen = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()? {
            let path = entry.ok()?.path();
            descriptors += 1;
            let is_memfd = fs::read_link(&path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:"));
            if is_memfd && let Ok(meta) = fs::metadata(&path) {
                use std::os::unix::fs::MetadataExt;
                if !seen.contains(&meta.ino()) {
                    seen.push(meta.ino());
                    shared_bytes += meta.blocks() * 512;
                }
            }
        }
        Some(Self { anonymous_bytes: bytes("RssAnon:")?, mapped_bytes: bytes("RssShmem:")?, shared_bytes, descriptors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_seen_to_hold_what_it_holds() {
        let before = Footprint::of(std::process::id()).unwrap();
        let sheet = tensorlend_os::memfd::create("footprint", 1 << 20).unwrap();
        let after = Footprint::of(std::process::id()).unwrap();
        assert!(after.shared_bytes >= before.shared_bytes + (1 << 20), "{before:?} {after:?}");
        assert_eq!(after.descriptors, before.descriptors + 1);
        let mapped = tensorlend_os::map::segment(&sheet, 1 << 20, tensorlend_os::memfd::Access::Write, true).unwrap();
        let more = Footprint::of(std::process::id()).unwrap();
        assert!(more.mapped_bytes >= before.mapped_bytes + (1 << 20), "{before:?} {more:?}");
        drop(mapped);
    }
}
