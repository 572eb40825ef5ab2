//! What was found, line by line.

use serde::Serialize;

use crate::output::printable;

/// How well something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// It works, and may not for everything.
    Warning,
    /// It does not work.
    Failure,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at, the same in each run.
    #[serde(rename = "check")]
    pub what: &'static str,
    pub state: State,
    /// What was found.
    pub found: String,
    /// How to mend it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

/// All of it.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub checks: Vec<Check>,
}

impl Report {
    pub fn ok(&mut self, check: &'static str, found: impl Into<String>) {
        self.add(check, State::Ok, found, None);
    }

    pub fn warn(&mut self, check: &'static str, found: impl Into<String>, mend: impl Into<String>) {
        self.add(check, State::Warning, found, Some(mend.into()));
    }

    pub fn fail(&mut self, check: &'static str, found: impl Into<String>, mend: impl Into<String>) {
        self.add(check, State::Failure, found, Some(mend.into()));
    }

    fn add(&mut self, what: &'static str, state: State, found: impl Into<String>, mend: Option<String>) {
        self.checks.push(Check { what, state, found: found.into(), mend });
    }

    pub fn count(&self, state: State) -> u64 {
        self.checks.iter().filter(|check| check.state == state).count() as u64
    }

    /// A line for each, and one below it where there is something to do.
    pub fn text(&self) -> String {
        let width = self.checks.iter().map(|check| check.what.len()).max().unwrap_or(0);
        let mut text = String::new();
        for it in &self.checks {
            let state = match it.state {
                State::Ok => "ok      ",
                State::Warning => "warning ",
                State::Failure => "FAILURE ",
            };
            let lines = std::iter::once(format!("{state} {:width$}  {}\n", it.what, printable(&it.found)));
            text.extend(
                lines.chain(it.mend.iter().map(|mend| format!("{:9}{:width$}  -> {}\n", "", "", printable(mend)))),
            );
        }
        text
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
        assert_eq!(
            report.text(),
            "ok       kernel  Linux 6.18\nFAILURE  socket  \\u{1b}[2J is not there\n                 -> start it\n"
        );
        assert_eq!((report.count(State::Failure), report.count(State::Warning)), (1, 0));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["checks"][0], serde_json::json!({"check": "kernel", "state": "ok", "found": "Linux 6.18"}));
    }
}
