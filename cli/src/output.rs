//! Functions that print. A closed pipe is an ordinary error here, and never a panic.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

use crate::failure::Failure;

/// Prints a line on standard output and flushes it, because another program may wait for this line.
pub fn line(text: impl Display) -> Result<(), Failure> {
    text_block(&format!("{text}\n"))
}

/// Prints a value as one line of JSON.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|e| Failure::Output(e.into()))?;
    line(text)
}

/// Prints text that includes its line ends.
pub fn text_block(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}

/// Prints a note on standard error.
pub fn note(text: &str) {
    // A failure to write to standard error cannot be reported.
    let _ = writeln!(io::stderr(), "tensorlend: {text}");
}

/// Escapes characters that would control a terminal, or disguise the rest of the line.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_misleading(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Returns true if a character is invisible and changes the order or the appearance of others: direction marks, line
/// ends, zero-width spaces, tags. The two zero-width joiners are allowed, because some scripts need them.
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

/// Formats a number with its noun: "1 name", "2 names".
pub fn count(number: impl Into<u64>, what: &str) -> String {
    let number = number.into();
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// A table of aligned columns.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// For each column, whether it is right-aligned.
    right: Vec<bool>,
}

impl Table {
    /// Creates a table with a header; a name that begins with `>` right-aligns its column.
    pub fn new(head: &[&str]) -> Self {
        let right = head.iter().map(|h| h.starts_with('>')).collect();
        Self { rows: vec![head.iter().map(|h| h.trim_start_matches('>').to_owned()).collect()], right }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell)).collect());
    }

    pub fn text(&self) -> String {
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
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
    fn plurals() {
        assert_eq!(count(1u64, "name"), "1 name");
        assert_eq!(count(0u64, "name"), "0 names");
    }
}
