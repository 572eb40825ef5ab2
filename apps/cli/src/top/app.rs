//! State of `tensorlend top`, and the effects of keys on it.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;

use super::facts::Facts;
use super::process::Process;
use super::rows::rows;
use super::table::{Row, Sort, Subject, Tab, matches};

/// All state that determines a frame.
pub struct App {
    pub facts: Facts,
    /// The latest sample while the display is paused.
    waiting: Option<Facts>,
    pub is_paused: bool,
    pub tab: Tab,
    sorts: [Sort; Tab::ALL.len()],
    pub filter: String,
    /// The rows that match the filter, in the order of display.
    pub rows: Vec<Row>,
    /// Number of rows without the filter.
    pub rows_all: usize,
    pub table: TableState,
    /// The id of the selected row. The row stays selected while other rows appear and disappear.
    chosen: Option<String>,
    pub mode: Mode,
    /// The result of the last request, as text.
    pub said: String,
    /// Number of rows that fit on the screen.
    pub page: usize,
    pub has_colors: bool,
}

/// The part of the display to which keys apply.
#[derive(Debug)]
pub enum Mode {
    Table,
    Filter,
    Help,
    Details,
    Confirm(Question),
}

/// The action that the user must confirm.
#[derive(Debug)]
pub enum Question {
    Delete(Order),
    End(Process),
}

/// The action that follows a key, in addition to drawing a new frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Then {
    Nothing,
    Quit,
    Do(Order),
}

/// A request to the daemon: delete the name or the stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Order {
    pub is_stream: bool,
    pub name: String,
}

impl App {
    pub fn new(tab: Tab, has_colors: bool) -> Self {
        Self {
            facts: Facts::default(),
            waiting: None,
            is_paused: false,
            tab,
            sorts: Tab::ALL.map(Tab::sort),
            filter: String::new(),
            rows: Vec::new(),
            rows_all: 0,
            table: TableState::new(),
            chosen: None,
            mode: Mode::Table,
            said: String::new(),
            page: 10,
            has_colors,
        }
    }

    /// Stores a sample. While the display is paused, the sample is not shown.
    pub fn take(&mut self, facts: Facts) {
        if self.is_paused {
            self.waiting = Some(facts);
        } else {
            self.facts = facts;
            self.arrange();
        }
    }

    pub fn sort(&self) -> Sort {
        self.sorts[self.tab.index()]
    }

    pub fn set_sort(&mut self, sort: Sort) {
        self.sorts[self.tab.index()] = sort;
        self.arrange();
    }

    pub fn set_filter(&mut self, filter: String) {
        self.filter = filter;
        self.arrange();
    }

    /// Returns the rows of the view as JSON, with the names of the columns. See [`super::table::Cell`]
    /// for the units of numbers.
    pub fn json(&self) -> serde_json::Value {
        let keys: Vec<String> = self.tab.columns().iter().map(|column| column.head.to_lowercase()).collect();
        let row = |row: &Row| -> serde_json::Map<String, serde_json::Value> {
            keys.iter().cloned().zip(row.cells.iter().map(|cell| cell.json.clone())).collect()
        };
        let (sampled, states) = (&self.facts.sampled, &self.facts.sampled.states);
        let rows: Vec<_> = self.rows.iter().take(super::ROWS_MAX).map(row).collect();
        serde_json::json!({
            "namespace": sampled.seen.namespace,
            "bytes": {
                "lent": sampled.seen.bytes_lent, "live": states.live, "leased": states.leased,
                "retired": states.retired, "free": states.free,
            },
            "view": self.tab.title().to_lowercase(),
            "rows": rows,
            "refusals": self.facts.stat.as_ref().map(|stat| stat.refusals),
            "error": self.facts.error,
        })
    }

    /// Returns the selected row, if there is one.
    pub fn row(&self) -> Option<&Row> {
        self.rows.get(self.table.selected()?)
    }

    /// Computes the rows again from the sample, the tab, the filter and the order.
    fn arrange(&mut self) {
        let mut all = rows(self.tab, &self.facts);
        self.rows_all = all.len();
        if !self.filter.is_empty() {
            all.retain(|row| matches(row, &self.filter));
        }
        self.sort().apply(&mut all);
        self.rows = all;
        let found = self.chosen.as_ref().and_then(|id| self.rows.iter().position(|row| row.id == *id));
        match (found, &self.mode) {
            (Some(at), _) => self.table.select(Some(at)),
            // If the row has disappeared, close its details, because they must not show another
            // row.
            (None, Mode::Details) => {
                self.mode = Mode::Table;
                self.choose(self.table.selected().unwrap_or(0));
            }
            (None, _) => self.choose(self.table.selected().unwrap_or(0)),
        }
    }

    fn choose(&mut self, at: usize) {
        let at = at.min(self.rows.len().saturating_sub(1));
        self.chosen = self.rows.get(at).map(|row| row.id.clone());
        self.table.select(self.chosen.as_ref().map(|_| at));
    }

    fn show(&mut self, tab: Tab) {
        self.tab = tab;
        self.table = TableState::new();
        self.chosen = None;
        self.arrange();
    }

    fn turn(&mut self, by: isize) {
        let tabs = Tab::ALL.len() as isize;
        self.show(Tab::ALL[(self.tab.index() as isize + by).rem_euclid(tabs) as usize]);
    }

    fn pause(&mut self) {
        self.is_paused = !self.is_paused;
        if let Some(facts) = self.waiting.take() {
            self.take(facts);
        }
    }

    /// Handles a key, and returns the action that must follow.
    pub fn key(&mut self, key: KeyEvent) -> Then {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Then::Quit } else { Then::Nothing };
        }
        match &self.mode {
            Mode::Filter => self.filter_key(key.code),
            Mode::Confirm(_) => return self.answer(key.code),
            // Every key returns to the table, because keys must not act on hidden rows.
            Mode::Help | Mode::Details => self.mode = Mode::Table,
            Mode::Table => return self.table_key(key.code),
        }
        Then::Nothing
    }

    fn filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.mode = Mode::Table,
            KeyCode::Esc => {
                self.mode = Mode::Table;
                self.set_filter(String::new());
            }
            KeyCode::Backspace => {
                self.filter.pop();
                self.arrange();
            }
            KeyCode::Char(c) => {
                self.filter.push(c);
                self.arrange();
            }
            _ => {}
        }
    }

    fn table_key(&mut self, code: KeyCode) -> Then {
        let at = self.table.selected().unwrap_or(0);
        self.said.clear();
        match code {
            KeyCode::Char('q') => return Then::Quit,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(-1),
            KeyCode::Char(digit @ '1'..='6') => self.show(Tab::ALL[digit as usize - '1' as usize]),
            KeyCode::Down | KeyCode::Char('j') => self.choose(at + 1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(at.saturating_sub(1)),
            KeyCode::PageDown => self.choose(at + self.page),
            KeyCode::PageUp => self.choose(at.saturating_sub(self.page)),
            KeyCode::Home | KeyCode::Char('g') => self.choose(0),
            KeyCode::End | KeyCode::Char('G') => self.choose(usize::MAX),
            KeyCode::Char('s') => self.set_sort(self.sort().step(self.tab, 1)),
            KeyCode::Char('S') => self.set_sort(self.sort().step(self.tab, -1)),
            KeyCode::Char('r') => {
                let sort = self.sort();
                self.set_sort(Sort { is_descending: !sort.is_descending, ..sort });
            }
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Esc => self.set_filter(String::new()),
            KeyCode::Char('p' | ' ') => self.pause(),
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Enter if self.row().is_some() => self.mode = Mode::Details,
            KeyCode::Char('x') | KeyCode::Delete => self.ask(),
            _ => {}
        }
        Then::Nothing
    }

    /// Asks the user to confirm the end of the selected object.
    fn ask(&mut self) {
        let Some(subject) = self.row().map(|row| row.subject.clone()) else { return };
        let seen = &self.facts.sampled.seen;
        let question = match subject {
            Subject::Name(name) => Ok(Question::Delete(Order { is_stream: false, name })),
            Subject::Stream(name) => Ok(Question::Delete(Order { is_stream: true, name })),
            Subject::Client(id) => match seen.client(id.number) {
                Some(client) if client.epoch == id.epoch => Process::of(client, seen.at_ns).map(Question::End),
                _ => Err("that client is gone".to_owned()),
            },
            Subject::Segment(_) => {
                Err("a segment ends with its last tensor, or with its owner: see Clients".to_owned())
            }
            Subject::Other => {
                Err("names, streams and clients can be ended here; a list by `tensorlend rm --list`".into())
            }
        };
        match question {
            Ok(question) => self.mode = Mode::Confirm(question),
            Err(why) => self.said = why,
        }
    }

    fn answer(&mut self, code: KeyCode) -> Then {
        let Mode::Confirm(question) = std::mem::replace(&mut self.mode, Mode::Table) else { return Then::Nothing };
        if !matches!(code, KeyCode::Char('y' | 'Y')) {
            self.said = "nothing was done".into();
            return Then::Nothing;
        }
        match question {
            Question::Delete(order) => Then::Do(order),
            Question::End(process) => {
                self.said = match process.end() {
                    Ok(()) => format!("process {} was asked to end (SIGTERM)", process.pid),
                    Err(why) => why,
                };
                Then::Nothing
            }
        }
    }
}
