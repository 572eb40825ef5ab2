//! The machine that produced the measurements.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tensorlend_baselines::Cores;

/// The properties of a machine that affect the measurements.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    /// The cores of the two parties of an exchange.
    pub cores_used: [usize; 2],
    pub memory_bytes: u64,
    pub kernel: String,
    /// Date of the measurement: year, month and day, UTC.
    pub date: String,
    /// Version of tensorlend.
    pub version: &'static str,
}

impl Machine {
    /// Returns this machine and the current date.
    pub fn here(used: Cores) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or(std::env::consts::ARCH).to_owned(),
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            cores_used: [used.first, used.second],
            memory_bytes: field(&read("/proc/meminfo"), "MemTotal").map_or(0, kib) * 1024,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            date: date(days),
            version: tensorlend::build(),
        }
    }
}

/// Returns the text after the colon in the first line of a file of /proc that begins with `name`.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim())
}

fn kib(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns the Gregorian date of a day, counted from 1970-01-01.
fn date(days: u64) -> String {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", day + 1)
}

#[cfg(test)]
mod tests {
    use super::{date, field, kib};

    #[test]
    fn days_have_dates() {
        let cases = [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (364, "1970-12-31"),
            (789, "1972-02-29"),
            (11_016, "2000-02-29"),
            (19_782, "2024-02-29"),
            (19_783, "2024-03-01"),
            (20_454, "2026-01-01"),
        ];
        for (days, text) in cases {
            assert_eq!(date(days), text);
        }
    }

    #[test]
    fn fields_of_proc() {
        let text = "processor\t: 0\nmodel name\t: A: B\nMemTotal:  12 kB\n";
        assert_eq!(field(text, "model name"), Some("A: B"));
        assert_eq!(field(text, "MemTotal").map(kib), Some(12));
        assert_eq!(field(text, "flags"), None);
    }
}
