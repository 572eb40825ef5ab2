//! Functions that print. They return an ordinary error for a closed pipe, and never panic.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde::Serialize;
use tensorlend::observe::{ClientSeen, ClientState, ValueSeen};
use tensorlend::{DType, Refusals, RestartLoss};
use tensorlend_os::stderr;

use crate::failure::Failure;

/// Prints a line on standard output and flushes it, because another program may wait for this line.
pub fn line(text: impl Display) -> Result<(), Failure> {
    text_block(&format!("{text}\n"))
}

/// Prints a value as one line of JSON.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    line(json_text(value).map_err(|e| Failure::Output(e.into()))?)
}

/// Returns a value as JSON. Integers beyond 2^53 become strings, because many programs read JSON
/// numbers as `f64`.
pub fn json_text(value: &impl Serialize) -> serde_json::Result<String> {
    let mut text = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Exact))?;
    // The serializer writes UTF-8.
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Greatest integer up to which `f64` represents all integers exactly.
const EXACT_MAX: u64 = 1 << 53;

/// Formats JSON without spaces, and integers beyond 2^53 as strings.
struct Exact;

impl serde_json::ser::Formatter for Exact {
    fn write_u64<W: ?Sized + Write>(&mut self, out: &mut W, value: u64) -> io::Result<()> {
        if value > EXACT_MAX { write!(out, "\"{value}\"") } else { write!(out, "{value}") }
    }

    fn write_i64<W: ?Sized + Write>(&mut self, out: &mut W, value: i64) -> io::Result<()> {
        if value.unsigned_abs() > EXACT_MAX { write!(out, "\"{value}\"") } else { write!(out, "{value}") }
    }
}

/// Prints text that already contains its line ends.
pub fn text_block(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}

/// Prints a note on standard error.
pub fn note(text: &str) {
    stderr::say(&format!("tensorlend: {text}"));
}

/// Escapes characters that would control a terminal, or disguise the rest of the line.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_misleading(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Returns true if a character is invisible and changes the order or the appearance of other
/// characters. Such characters are direction marks, line ends, zero-width spaces and tags. The two
/// zero-width joiners are allowed, because some scripts need them.
fn is_misleading(c: char) -> bool {
    matches!(c,
        '\u{AD}' | '\u{61C}' | '\u{180E}' | '\u{200B}' | '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}'
        | '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E007F}')
}

/// Formats bytes with a binary unit.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "";
    for next in UNITS {
        // A value that would round to 1024.0 gets the next unit.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// Formats a duration in its largest unit.
pub fn age_text(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..=9 => format!("{:.1} s", age.as_secs_f64()),
        10..=99 => format!("{seconds} s"),
        100..=5999 => format!("{} min", seconds / 60),
        6000..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Returns the text of a pid. The pid is 0 if the process is in a pid namespace that the daemon does not see.
pub fn pid_text(pid: u32) -> String {
    if pid == 0 { "?".to_owned() } else { pid.to_string() }
}

/// Returns a client's process and its label, and whether the client has ended.
pub fn owner_text(pid: u32, label: &str, is_alive: bool) -> String {
    let gone = if is_alive { "" } else { " (gone)" };
    format!("{} {label}{gone}", pid_text(pid))
}

/// Returns a client as [`owner_text`] does. The client is unknown if an observation omitted it.
pub fn client_text(client: Option<&ClientSeen>) -> String {
    client.map_or_else(|| "?".to_owned(), |it| owner_text(it.pid, &it.label, it.state != ClientState::Ended))
}

/// Returns the element type of a value. It is unknown for a value on a device.
pub fn dtype_text(value: &ValueSeen) -> &'static str {
    value.dtype.map_or(if value.is_dataset { "dataset" } else { "?" }, DType::name)
}

/// Returns the shape of a value as text, if it is known.
pub fn shape_text(value: &ValueSeen) -> String {
    value.shape.as_ref().map_or_else(String::new, |shape| format!("{shape:?}"))
}

/// Formats a number with its noun, such as "1 name" or "2 names".
pub fn count(number: impl Into<u64>, what: &str) -> String {
    let number = number.into();
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Returns the number of refusals, with their reasons if there are any.
pub fn refused_text(refusals: &Refusals) -> String {
    let reasons = [
        (refusals.limit, "for a limit"),
        (refusals.invalid, "invalid"),
        (refusals.race, "because another client was first"),
    ];
    let reasons = reasons.into_iter().filter(|&(number, _)| number > 0);
    let reasons: Vec<String> = reasons.map(|(number, reason)| format!("{number} {reason}")).collect();
    if reasons.is_empty() {
        return "0 refused".to_owned();
    }
    format!("{} refused ({})", refusals.total(), reasons.join(", "))
}

/// Returns the losses of a restart, with the cause.
pub fn loss_text(lost: &RestartLoss) -> String {
    let RestartLoss { names, streams, bytes, namespaces, why } = lost;
    let namespaces = match namespaces {
        0 => String::new(),
        some => format!(", {} whole", count(*some, "namespace")),
    };
    let (names, streams) = (count(*names, "name"), count(*streams, "stream"));
    format!("lost {names}, {streams}{namespaces} and {} of segments: {why}", bytes_text(*bytes))
}

/// A table of aligned columns.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Whether each column is right-aligned.
    right: Vec<bool>,
}

impl Table {
    /// Creates a table with a header. A header that begins with `>` right-aligns its column.
    pub fn new(head: &[&str]) -> Self {
        let right = head.iter().map(|h| h.starts_with('>')).collect();
        Self { rows: vec![head.iter().map(|h| h.trim_start_matches('>').to_owned()).collect()], right }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell)).collect());
    }

    /// Returns true if the table has rows below its header.
    pub fn has_rows(&self) -> bool {
        self.rows.len() > 1
    }

    /// Returns the table's text. In a terminal, truncates the first column so that each row fits
    /// into one line.
    pub fn fitting(mut self) -> String {
        let is_terminal = io::stdout().is_terminal();
        let size = is_terminal.then(|| rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok()).flatten();
        if let Some(columns) = size.map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0) {
            self.fit(columns);
        }
        self.text()
    }

    /// Truncates the first column in the middle, so that rows have at most `columns` characters.
    /// Does nothing if fewer than 12 characters of the column would remain.
    fn fit(&mut self, columns: usize) {
        const FIRST_MIN: usize = 12;
        let others: usize = (1..self.right.len()).map(|column| self.width(column) + 2).sum();
        let first = columns.saturating_sub(others).max(FIRST_MIN);
        for row in &mut self.rows {
            if let Some(cell) = row.first_mut() {
                *cell = elided(cell, first);
            }
        }
    }

    fn width(&self, column: usize) -> usize {
        self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    pub fn text(&self) -> String {
        let widths: Vec<usize> = (0..self.right.len()).map(|column| self.width(column)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, &width), &right) in row.iter().zip(&widths).zip(&self.right) {
                let padding = " ".repeat(width - cell.chars().count());
                let (before, after) = if right { (padding.as_str(), "") } else { ("", padding.as_str()) };
                line.extend([before, cell, after, "  "]);
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// Returns text of at most `most` characters. Keeps its beginning and its end, which distinguish
/// names.
fn elided(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let (head, tail) = (most / 2, most - most / 2 - 1);
    text.chars().take(head).chain(['…']).chain(text.chars().skip(count - tail)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes_text(0), "0 B");
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(1536), "1.5 KiB");
        assert_eq!(bytes_text((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes_text(1 << 30), "1.0 GiB");
        assert_eq!(bytes_text(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn columns() {
        let mut table = Table::new(&["NAME", ">BYTES", "OWNER"]);
        table.row(["a".into(), "1000000".into(), "x".into()]);
        table.row(["温度\u{1b}".into(), "4".into(), String::new()]);
        assert_eq!(table.text(), "NAME        BYTES  OWNER\na         1000000  x\n温度\\u{1b}        4\n");
    }

    #[test]
    fn integers_that_no_f64_has_are_texts() {
        let text =
            json_text(&serde_json::json!({ "a": 1u64 << 53, "b": (1u64 << 53) + 1, "c": [-7, i64::MIN], "d": 0.5 }));
        let wanted = r#"{"a":9007199254740992,"b":"9007199254740993","c":[-7,"-9223372036854775808"],"d":0.5}"#;
        assert_eq!(text.unwrap(), wanted);
    }

    #[test]
    fn names_are_cut_to_the_width() {
        assert_eq!(elided("camera/front/left", 20), "camera/front/left");
        assert_eq!(elided("camera/front/left", 9), "came…left");
        let mut table = Table::new(&["NAME", ">BYTES"]);
        table.row(["x".repeat(100), "1000000".into()]);
        table.fit(40);
        assert_eq!(table.text().lines().map(|line| line.chars().count()).max(), Some(40));
        // A narrow terminal wraps the lines: no number is cut.
        table.fit(10);
        assert!(table.text().ends_with("xxxxxx…xxxxx  1000000\n"), "{}", table.text());
    }

    #[test]
    fn refusals_have_reasons() {
        assert_eq!(refused_text(&Refusals::default()), "0 refused");
        assert_eq!(
            refused_text(&Refusals { limit: 2, invalid: 0, race: 1 }),
            "3 refused (2 for a limit, 1 because another client was first)"
        );
    }

    #[test]
    fn ages() {
        let text = |seconds| age_text(Duration::from_secs_f64(seconds));
        assert_eq!([text(0.25), text(12.0), text(600.0), text(7200.0)], ["0.2 s", "12 s", "10 min", "2 h"]);
        assert_eq!(text(1e6), "11 d");
    }

    #[test]
    fn plurals() {
        assert_eq!(count(1u64, "name"), "1 name");
        assert_eq!(count(0u64, "name"), "0 names");
    }
}
