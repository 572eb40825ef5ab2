//! Identity of a process: its number and start time, so that a reused number is not mistaken for a dead process.

/// Returns the start of a process in ticks since boot. Returns `None` if there is no such process, or it is a zombie.
pub fn started(pid: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any characters, also parentheses and spaces.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

pub fn lives(pid: u64, start: u64) -> bool {
    started(pid) == Some(start)
}

/// Returns this process's number and start.
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
