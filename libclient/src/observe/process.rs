//! A client's process, as described by /proc.

use std::collections::HashMap;
use std::fs::read_to_string;
use tensorlend_layout::number::ClientNo;

/// Maximum bytes of a command line.
const COMMAND_BYTES_MAX: usize = 200;
/// Maximum error of a process's start time: the clock of /proc ticks a hundred times a second.
const TICK_NS: u64 = 10_000_000;

/// The command lines of clients, by number and epoch. Each is read once.
#[derive(Default)]
pub struct Commands {
    known: HashMap<(ClientNo, u32), Option<String>>,
}

impl Commands {
    /// Returns the command line of a client's process. Returns `None` if it is unknown.
    pub fn of(&mut self, client: (ClientNo, u32), pid: u32, uid: u32, since_ns: u64) -> Option<String> {
        self.known.entry(client).or_insert_with(|| command(pid, uid, since_ns)).clone()
    }

    /// Removes all other clients.
    pub fn keep(&mut self, present: impl Fn(&(ClientNo, u32)) -> bool) {
        self.known.retain(|client, _| present(client));
    }
}

/// Returns true if the process with this pid belongs to this user and existed at this time, in nanoseconds of
/// `CLOCK_BOOTTIME`. The checks are necessary because pids are reused and the daemon may be in another pid namespace. So
/// another process may have this pid.
pub fn is_process(pid: u32, uid: u32, since_ns: u64) -> bool {
    let read = |file: &str| read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    has_uid(&read("status"), uid)
        && started_ns(&read("stat")).is_some_and(|started| started <= since_ns.saturating_add(TICK_NS))
}

/// Returns the command line of a client's process.
fn command(pid: u32, uid: u32, since_ns: u64) -> Option<String> {
    if pid == 0 || !is_process(pid, uid, since_ns) {
        return None;
    }
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = text(&line);
    (!text.is_empty()).then_some(text)
}

/// Returns true if one of a process's four uids is `uid`: real, effective, saved or file system.
fn has_uid(status: &str, uid: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.is_some_and(|line| line.split_ascii_whitespace().any(|word| word.parse() == Ok(uid)))
}

/// Returns the start time of a process in nanoseconds of `CLOCK_BOOTTIME`. It is the 22nd field of the process's stat file,
/// in hundredths of a second. The second field is the process's name in brackets, which may contain any characters.
fn started_ns(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let ticks: u64 = after_name.split_ascii_whitespace().nth(19)?.parse().ok()?;
    Some(ticks.saturating_mul(TICK_NS))
}

/// Returns a command line as text, cut to its maximum length, without control characters.
fn text(line: &[u8]) -> String {
    let line = &line[..line.len().min(COMMAND_BYTES_MAX)];
    let words = String::from_utf8_lossy(line);
    let words = words.trim_end_matches(['\0', '\u{FFFD}']);
    words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_command_is_found_and_nobody_elses() {
        let (pid, uid) = (std::process::id(), rustix::process::getuid().as_raw());
        assert!(command(pid, uid, u64::MAX).is_some());
        assert_eq!(command(pid, uid + 1, u64::MAX), None);
        assert_eq!(command(pid, uid, 0), None, "it began after the client connected");
        assert_eq!(command(0, uid, u64::MAX), None);
    }

    #[test]
    fn names_with_brackets_do_not_shift_the_fields() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 42 0";
        assert_eq!(started_ns(&format!("7 (a ) b) {fields}")), Some(42 * TICK_NS));
        assert_eq!(text(b"a\0b\n\0"), "a b ");
    }
}
