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
        const USE: &[Column] = &[
            wide("WHO", 3, 20),
            left("KIND", 9),
            right("BYTES", 10),
            right("AT MOST", 10),
            right("LEASED", 10),
            right("LEASES", 6),
            right("OLDEST", 8),
            wide("OVER TIME", 2, 8),
        ];
        const NAMES: &[Column] = &[
            wide("NAME", 2, 8),
            left("DTYPE", 8).yielding(),
            left("SHAPE", 12).whole(),
            right("BYTES", 10),
            right("LEASES", 6).yielding(),
            wide("OWNER", 1, 8).yielding(),
        ];
        const LEASES: &[Column] =
            &[right("AGE", 9), right("BYTES", 10), right("COUNT", 5), wide("KEEPS", 1, 8), wide("HOLDER", 1, 8)];
        const STREAMS: &[Column] = &[
            wide("STREAM", 1, 8),
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
            right("UID", 5).yielding(),
            left("STATE", 6).yielding(),
            right("AGE", 8).yielding(),
            right("BYTES", 10),
            right("LEASES", 6),
            right("LEASED", 10),
            right("OLDEST", 8),
            wide("LABEL", 1, 8),
            wide("COMMAND", 2, 12),
        ];
        const SEGMENTS: &[Column] = &[
            right("OWNER", 7),
            right("FIRST", 6),
            left("PLACE", 8),
            right("BYTES", 10),
            right("IN USE", 6),
            wide("MAP", 1, 8),
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
            // The observation has the leases in order: the oldest first, and of equal age the one with the most bytes.
            Self::Use | Self::Leases | Self::Segments => (None, false),
            Self::Names | Self::Streams => (Some(0), false),
            // The holder of the most leased bytes comes first.
            Self::Clients => (Some(6), true),
        };
        Sort { column, is_descending }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub head: &'static str,
    pub width: Width,
    pub is_right: bool,
    /// True if the column is at least as wide as its texts. A part of a number or of a shape is another number or shape.
    pub is_whole: bool,
    /// True if the column is omitted before the others where the terminal is too narrow for all.
    pub yields: bool,
}

/// The width of a column in characters.
#[derive(Clone, Copy, Debug)]
pub enum Width {
    Fixed(u16),
    /// A share of the remaining width, and the least width.
    Share(u16, u16),
}

impl Column {
    const fn whole(self) -> Self {
        Self { is_whole: true, ..self }
    }

    const fn yielding(self) -> Self {
        Self { yields: true, ..self }
    }
}

const fn left(head: &'static str, width: u16) -> Column {
    Column { head, width: Width::Fixed(width), is_right: false, is_whole: false, yields: false }
}

/// Returns a column of numbers.
const fn right(head: &'static str, width: u16) -> Column {
    Column { is_right: true, ..left(head, width) }.whole()
}

const fn wide(head: &'static str, share: u16, least: u16) -> Column {
    Column { width: Width::Share(share, least), ..left(head, 0) }
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

    /// Returns a cell with the age of a lease. `is_older` marks a lease that is older than its age.
    pub fn lease_age(age: Option<Duration>, is_older: bool) -> Self {
        let older = if is_older { "> " } else { "" };
        age.map_or_else(|| Self::count(None), |age| Self::new(age.as_secs_f64(), format!("{older}{}", age_text(age))))
    }

    /// Compares numbers as numbers, and names in their natural order. Unknown values come last in both orders.
    fn compare(&self, other: &Self, is_descending: bool) -> Ordering {
        let order = match (self.json.as_f64(), other.json.as_f64()) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            _ if self.json.is_null() || other.json.is_null() => return self.json.is_null().cmp(&other.json.is_null()),
            _ => natural(&self.text, &other.text),
        };
        if is_descending { order.reverse() } else { order }
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
            let order = a.cells[column].compare(&b.cells[column], self.is_descending);
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
    fn unknown_values_come_last_in_both_orders() {
        let mut unknown = row("u", 0);
        unknown.cells[1] = Cell::count(None);
        let rows = [unknown, row("a", 1), row("b", 2)];
        assert_eq!(order(Sort { column: Some(1), is_descending: true }, &rows), "bau");
        assert_eq!(order(Sort { column: Some(1), is_descending: false }, &rows), "abu");
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
