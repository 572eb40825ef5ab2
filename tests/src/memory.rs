//! What a process holds: memory, shared memory, descriptors.

use std::fs;

/// What the daemon holds at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Private pages in memory, in bytes.
    pub anonymous_bytes: u64,
    /// Bytes of all memfds that the process has open, as far as they have pages.
    pub shared_bytes: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

impl Footprint {
    /// Of a process; `None`: it is gone, or not ours to look at.
    pub fn of(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
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
        Some(Self { anonymous_bytes: kib << 10, shared_bytes, descriptors })
    }
}

/// Shared memory of the whole machine, in bytes.
pub fn shmem_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
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
        drop(sheet);
        assert!(shmem_bytes().unwrap() > 0);
    }
}
