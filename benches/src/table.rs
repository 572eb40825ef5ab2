//! Tables in Markdown.

use crate::stats::Summary;
use std::fmt;
pub use tensorlend_layout::size::bytes_exact as bytes;

/// Rows of cells under a header; printed with columns of equal width.
#[derive(Clone, Debug, Default)]
pub struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(title: impl Into<String>, head: &[&str]) -> Self {
        Self { title: title.into(), rows: vec![head.iter().map(ToString::to_string).collect()] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns the title, and each row as an object with the header's names.
    pub fn json(&self) -> serde_json::Value {
        let (head, rows) = self.rows.split_first().expect("a table has a head");
        let object = |row: &Vec<String>| -> serde_json::Value {
            head.iter().cloned().zip(row.iter().cloned().map(Into::into)).collect::<serde_json::Map<_, _>>().into()
        };
        serde_json::json!({ "title": self.title, "rows": rows.iter().map(object).collect::<Vec<_>>() })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width = |at: usize| self.rows.iter().filter_map(|r| r.get(at)).map(|c| c.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0).max(2)).collect();
        writeln!(f, "\n{}\n", self.title)?;
        for (number, row) in self.rows.iter().enumerate() {
            for (cell, width) in row.iter().zip(&widths) {
                write!(f, "| {cell:<width$} ")?;
            }
            writeln!(f, "|")?;
            if number == 0 {
                for width in &widths {
                    write!(f, "|{}", "-".repeat(width + 2))?;
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

/// Formats nanoseconds in a suitable unit, with three digits.
pub fn nanos(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns.abs() < 999.5 => (ns, "ns"),
        ns if ns < 999.5e3 => (ns / 1e3, "us"),
        ns if ns < 999.5e6 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{} {unit}", digits(value))
}

/// Formats the median and, in brackets, minimum and maximum.
pub fn spread(summary: &Summary) -> String {
    format!("{} ({} .. {})", nanos(summary.p50), nanos(summary.min), nanos(summary.max))
}

/// Formats a number with three digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 || v == 0.0 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a ratio.
pub fn times(ratio: f64) -> String {
    format!("{}x", digits(ratio))
}

#[cfg(test)]
mod tests {
    use super::{Table, nanos, times};

    #[test]
    fn units_suit() {
        assert_eq!(
            [nanos(4.0), nanos(1500.0), nanos(999.9), nanos(2.5e9)],
            ["4.00 ns", "1.50 us", "1.00 us", "2.50 s"]
        );
        assert_eq!([times(0.5), times(12.34), times(1234.5)], ["0.50x", "12.3x", "1234x"]);
    }

    #[test]
    fn columns_stand_in_line() {
        let mut table = Table::new("T", &["a", "long"]);
        table.row(["wide cell".into(), "1".into()]);
        assert_eq!(table.to_string(), "\nT\n\n| a         | long |\n|-----------|------|\n| wide cell | 1    |\n");
        assert_eq!(table.json()["rows"][0]["long"], "1");
    }
}
