//! Rows and columns of the tabs, and their order.

use std::cmp::Ordering;
use std::time::Duration;

use serde_json::Value;
use tensorlend::observe::{ClientSeen, natural};

use crate::member::MemberId;
use crate::text::{age_text, bytes_text, pid_text, printable};

/// A tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Tab {
    /// Bytes by pool, namespace, user and client, over time.
    Use,
    /// Values of names and lists.
    Names,
    /// Leases: holder and age.
    Leases,
    /// Rates, lags and losses of streams.
    Streams,
    /// Processes.
    Clients,
    /// Maps of lent segments.
    Segments,
}

impl Tab {
    pub const ALL: [Self; 6] = [Self::Use, Self::Names, Self::Leases, Self::Streams, Self::Clients, Self::Segments];

    pub fn index(self) -> usize {
        self as usize
    }

    pub fn title(self) -> String {
        format!("{self:?}")
    }

    /// Returns the tab's columns. Columns with a share divide the remaining width.
    pub fn columns(self) -> &'static [Column] {
        const USE: &[Column] =
            &[wide("WHO", 3), left("KIND", 9), right("BYTES", 10), right("AT MOST", 10), wide("OVER TIME", 2)];
        const NAMES: &[Column] = &[
            wide("NAME", 1),
            left("DTYPE", 8),
            left("SHAPE", 12),
            right("BYTES", 10),
            right("LEASES", 6),
            left("OWNER", 14),
        ];
        const LEASES: &[Column] =
            &[right("AGE", 9), right("BYTES", 10), right("COUNT", 5), wide("KEEPS", 1), wide("HOLDER", 1)];
        const STREAMS: &[Column] = &[
            wide("STREAM", 1),
            right("SENT", 9),
            right("RATE", 8),
            right("HELD", 9),
            right("LAG", 5),
            right("LOST", 6),
            right("SUB", 3),
            left("POLICY", 11),
            right("PRODUCER", 8),
        ];
        const CLIENTS: &[Column] = &[
            right("PID", 7),
            right("UID", 5),
            left("STATE", 6),
            right("AGE", 8),
            right("BYTES", 10),
            right("LEASES", 6),
            right("LEASED", 10),
            wide("LABEL", 1),
            wide("COMMAND", 2),
        ];
        const SEGMENTS: &[Column] = &[
            right("OWNER", 7),
            right("FIRST", 6),
            left("PLACE", 8),
            right("BYTES", 10),
            right("IN USE", 6),
            wide("MAP", 1),
        ];
        match self {
            Self::Use => USE,
            Self::Names => NAMES,
            Self::Leases => LEASES,
            Self::Streams => STREAMS,
            Self::Clients => CLIENTS,
            Self::Segments => SEGMENTS,
        }
    }

    /// Returns the default order of the tab's rows.
    pub fn sort(self) -> Sort {
        let (column, is_descending) = match self {
            Self::Use | Self::Clients | Self::Segments => (None, false),
            Self::Names | Self::Streams => (Some(0), false),
            Self::Leases => (Some(0), true),
        };
        Sort { column, is_descending }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub head: &'static str,
    pub width: Width,
    pub is_right: bool,
}

/// The width of a column in characters.
#[derive(Clone, Copy, Debug)]
pub enum Width {
    Fixed(u16),
    /// A share of the remaining width.
    Share(u16),
}

const fn left(head: &'static str, width: u16) -> Column {
    Column { head, width: Width::Fixed(width), is_right: false }
}

const fn right(head: &'static str, width: u16) -> Column {
    Column { head, width: Width::Fixed(width), is_right: true }
}

const fn wide(head: &'static str, share: u16) -> Column {
    Column { head, width: Width::Share(share), is_right: false }
}

#[derive(Clone, Debug)]
pub struct Row {
    /// The id of the row's subject, which is the same in all samples.
    pub id: String,
    pub cells: Vec<Cell>,
    pub subject: Subject,
    /// More values, which only the details show.
    pub more: Vec<(&'static str, String)>,
}

/// The object that a row describes, on which actions are performed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Name(String),
    Stream(String),
    Client(MemberId),
    /// A segment, by its index in the observation.
    Segment(usize),
    /// A subject without actions.
    Other,
}

/// A cell of the table: its text, and its value in JSON. A number in JSON has no unit, and is in bytes, seconds, messages
/// per second or percent.
#[derive(Clone, Debug)]
pub struct Cell {
    pub text: String,
    pub json: Value,
}

impl Cell {
    /// Returns a cell that shows `text`. Its value is null if it is unknown.
    pub fn new(json: impl Into<Value>, text: impl Into<String>) -> Self {
        Self { text: text.into(), json: json.into() }
    }

    /// Returns a cell with untrusted text, with control characters escaped.
    pub fn text(text: impl AsRef<str>) -> Self {
        Self::new(text.as_ref(), printable(text.as_ref()))
    }

    /// Returns a cell with a number. If it is unknown, the cell shows `-`.
    pub fn count(number: impl Into<Option<u64>>) -> Self {
        let number = number.into();
        Self::new(number, number.map_or_else(|| "-".to_owned(), |it| it.to_string()))
    }

    /// Returns the text, with the exact number if the text is rounded to a unit of bytes.
    pub fn details(&self) -> String {
        let is_rounded = self.json.is_u64() && self.text.ends_with("iB");
        let exact = is_rounded.then(|| format!(" ({} bytes)", self.json));
        self.text.clone() + &exact.unwrap_or_default()
    }

    pub fn bytes(bytes: u64) -> Self {
        Self::new(bytes, bytes_text(bytes))
    }

    pub fn age(age: Duration) -> Self {
        Self::new(age.as_secs_f64(), age_text(age))
    }

    pub fn pid(client: Option<&ClientSeen>) -> Self {
        let pid = client.map_or(0, |client| client.pid);
        Self::new(Some(pid).filter(|&pid| pid != 0), pid_text(pid))
    }

    /// Compares numbers as numbers, and names in their natural order. Unknown values come first.
    fn compare(&self, other: &Self) -> Ordering {
        match (self.json.as_f64(), other.json.as_f64()) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (a, b) => a.is_some().cmp(&b.is_some()).then_with(|| natural(&self.text, &other.text)),
        }
    }
}

/// The column to sort by, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sort {
    pub column: Option<usize>,
    pub is_descending: bool,
}

impl Sort {
    /// Selects the column that is `by` places to the right. Columns of numbers sort in descending
    /// order.
    pub fn step(self, tab: Tab, by: isize) -> Self {
        let columns = tab.columns();
        let from = self.column.map_or(if by < 0 { 0 } else { -1 }, |column| column as isize);
        let column = (from + by).rem_euclid(columns.len() as isize) as usize;
        Self { column: Some(column), is_descending: columns[column].is_right }
    }

    /// Sorts rows. Rows with equal values are ordered by id, so that they keep their order from sample to sample.
    pub fn apply(self, rows: &mut [Row]) {
        let Some(column) = self.column else { return };
        rows.sort_by(|a, b| {
            let order = a.cells[column].compare(&b.cells[column]);
            let order = if self.is_descending { order.reverse() } else { order };
            order.then_with(|| natural(&a.id, &b.id))
        });
    }
}

/// Returns true if at least one cell contains the words, ignoring case.
pub fn matches(row: &Row, words: &str) -> bool {
    let words = words.to_lowercase();
    row.cells.iter().any(|cell| cell.text.to_lowercase().contains(&words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, bytes: u64) -> Row {
        let cells = vec![Cell::text(name), Cell::bytes(bytes)];
        Row { id: name.to_owned(), cells, subject: Subject::Other, more: Vec::new() }
    }

    fn order(sort: Sort, rows: &[Row]) -> String {
        let mut rows = rows.to_vec();
        sort.apply(&mut rows);
        rows.iter().map(|row| row.id.as_str()).collect()
    }

    #[test]
    fn numbers_are_ordered_as_numbers_and_equal_rows_stay() {
        let rows = [row("b", 9), row("a", 1 << 20), row("d", 10), row("c", 10)];
        let by = |column, is_descending| Sort { column: Some(column), is_descending };
        assert_eq!(order(by(0, false), &rows), "abcd");
        assert_eq!(order(by(0, true), &rows), "dcba");
        assert_eq!(order(by(1, true), &rows), "acdb");
        assert_eq!(order(Sort::default(), &rows), "badc");
    }

    #[test]
    fn columns_follow_each_other_round() {
        let first = Sort::default().step(Tab::Names, 1);
        assert_eq!(first, Sort { column: Some(0), is_descending: false });
        assert_eq!(first.step(Tab::Names, -1).column, Some(5));
        assert_eq!(
            Sort { column: Some(2), ..first }.step(Tab::Names, 1),
            Sort { column: Some(3), is_descending: true }
        );
        assert_eq!(Sort { column: Some(5), ..first }.step(Tab::Names, 1).column, Some(0));
    }

    #[test]
    fn words_are_found_in_any_column() {
        let row = row("Camera/front", 1 << 20);
        assert!(matches(&row, "camera") && matches(&row, "1.0 mi") && matches(&row, ""));
        assert!(!matches(&row, "rear"));
    }
}
