//! The report of `tensorlend doctor`, which prints each result as soon as the check ends.

use serde::Serialize;

use crate::failure::Failure;
use crate::output;
use crate::text::printable;

/// Width of the column of checks. A longer name widens its own line.
const WIDTH: usize = 17;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// The checked part works, with a limitation.
    Warning,
    /// The checked part does not work.
    Failure,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The subject, as a stable name that is the same in each run.
    #[serde(rename = "check")]
    pub what: &'static str,
    pub state: State,
    /// The finding, as text.
    pub found: String,
    /// The remedy, if there is a fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// The checks so far.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub checks: Vec<Check>,
    /// Whether each check is printed as it ends.
    #[serde(skip)]
    prints: bool,
    /// The first error of standard output. After this error, nothing is printed.
    #[serde(skip)]
    failed: Option<Failure>,
}

impl Report {
    /// Returns a report that prints each check as it ends.
    pub fn printing() -> Self {
        Self { prints: true, ..Self::default() }
    }

    /// Returns the error that ended printing.
    pub fn printed(&mut self) -> Result<(), Failure> {
        self.failed.take().map_or(Ok(()), Err)
    }

    pub fn ok(&mut self, check: &'static str, found: impl Into<String>) {
        self.add(check, State::Ok, found, None);
    }

    pub fn warn(&mut self, check: &'static str, found: impl Into<String>, fix: impl Into<String>) {
        self.add(check, State::Warning, found, Some(fix.into()));
    }

    pub fn fail(&mut self, check: &'static str, found: impl Into<String>, fix: impl Into<String>) {
        self.add(check, State::Failure, found, Some(fix.into()));
    }

    fn add(&mut self, what: &'static str, state: State, found: impl Into<String>, fix: Option<String>) {
        let check = Check { what, state, found: found.into(), fix };
        if self.prints && self.failed.is_none() {
            self.failed = output::text_block(&check.text()).err();
        }
        self.checks.push(check);
    }

    pub fn count(&self, state: State) -> u64 {
        self.checks.iter().filter(|check| check.state == state).count() as u64
    }
}

impl Check {
    /// Formats a line with the finding. If there is a remedy, adds a second line with the remedy.
    fn text(&self) -> String {
        let state = match self.state {
            State::Ok => "ok      ",
            State::Warning => "warning ",
            State::Failure => "FAILURE ",
        };
        let line = format!("{state} {:WIDTH$}  {}\n", self.what, printable(&self.found));
        let fix = self.fix.iter().map(|fix| format!("{:9}{:WIDTH$}  -> {}\n", "", "", printable(fix)));
        std::iter::once(line).chain(fix).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_each_and_one_for_what_is_to_be_done() {
        let mut report = Report::default();
        report.ok("kernel", "Linux 6.18");
        report.fail("socket", "\u{1b}[2J is not there", "start it");
        let text: String = report.checks.iter().map(Check::text).collect();
        assert_eq!(
            text,
            "ok       kernel             Linux 6.18\nFAILURE  socket             \\u{1b}[2J is not there\n                            -> start it\n"
        );
        assert_eq!((report.count(State::Failure), report.count(State::Warning)), (1, 0));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["checks"][0], serde_json::json!({"check": "kernel", "state": "ok", "found": "Linux 6.18"}));
    }
}
