//! Who a process is, so that a number that is given again is not taken for the one that died.

/// When the process started, in ticks since boot. None: there is no such process, or it only waits to be reaped.
pub fn started(pid: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, parentheses and spaces too.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

pub fn lives(pid: u64, start: u64) -> bool {
    started(pid) == Some(start)
}

/// This process: number and start.
pub fn this() -> (u64, u64) {
    let pid = u64::from(std::process::id());
    (pid, started(pid).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    #[test]
    fn knows_itself() {
        let (pid, start) = super::this();
        assert!(start != 0 && super::lives(pid, start) && !super::lives(pid, start + 1));
    }
}
