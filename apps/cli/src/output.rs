//! Functions that print. They return an ordinary error for a closed pipe, and never panic.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use tensorlend_os::stderr;

use crate::failure::Failure;
use crate::text::printable;

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

pub struct Table {
    rows: Vec<Vec<String>>,
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
}
