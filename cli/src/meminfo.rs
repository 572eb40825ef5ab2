//! The machine's memory that is available without swapping.

/// Returns the machine's `MemAvailable` in bytes; `None` if /proc does not report it.
pub fn available_bytes() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Parses `MemAvailable` from the text of /proc/meminfo, in bytes.
pub fn parse(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
