//! The machine's memory, as the kernel reports it.

/// Returns the machine's `MemAvailable` in bytes, which is available without swapping; `None` if /proc does not report it.
pub fn available_bytes() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Returns the machine's `MemTotal` in bytes.
pub fn total_bytes() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Parses `MemAvailable` from the text of /proc/meminfo, in bytes.
pub fn parse(text: &str) -> Option<u64> {
    field(text, "MemAvailable:")
}

/// Parses a node's `MemTotal` from its meminfo, whose lines begin with `Node 0 `.
pub fn node_bytes(text: &str) -> Option<u64> {
    text.lines().find_map(|line| field(line.splitn(3, ' ').nth(2)?.trim(), "MemTotal:"))
}

/// Returns the NUMA nodes that have memory.
pub fn nodes() -> Vec<u32> {
    let text = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_read() {
        assert_eq!(node_bytes("Node 0 MemTotal:       16 kB\nNode 0 MemFree: 1 kB\n"), Some(16 << 10));
        assert_eq!(parse("MemTotal: 9 kB\nMemAvailable:    3 kB\n"), Some(3 << 10));
        assert!(total_bytes().is_some());
    }
}
