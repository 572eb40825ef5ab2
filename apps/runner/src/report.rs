//! A worker's reports to its supervisor. Each report is a line on the worker's standard output.

use std::io::Write;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The worker serves this version of the model.
    Serving { version: [u64; 2], engine: String },
    /// The worker cannot serve this version of the model.
    Refused { version: [u64; 2], why: String },
    /// The kernel does not support a part of the worker's confinement.
    Unconfined { why: String },
    /// The worker is alive. `busy` is the time for which its current run has taken so far (0:
    /// idle).
    Beat { busy: Duration },
}

impl Report {
    /// Writes the report to standard output.
    ///
    /// # Errors
    /// An I/O error, if the supervisor has ended.
    pub fn say(&self) -> std::io::Result<()> {
        let line = self.line();
        let mut out = std::io::stdout().lock();
        out.write_all(line.as_bytes())?;
        out.flush()
    }

    fn line(&self) -> String {
        match self {
            Self::Serving { version: [owner_word, cell], engine } => {
                format!("serving {owner_word} {cell} {}\n", one_line(engine))
            }
            Self::Refused { version: [owner_word, cell], why } => {
                format!("refused {owner_word} {cell} {}\n", one_line(why))
            }
            Self::Unconfined { why } => format!("unconfined {}\n", one_line(why)),
            Self::Beat { busy } => format!("beat {}\n", busy.as_millis()),
        }
    }

    /// Parses a line. Returns `None` for a line that is not a report, such as output of a library.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ')?;
        if word == "beat" {
            return Some(Self::Beat { busy: Duration::from_millis(rest.parse().ok()?) });
        }
        if word == "unconfined" {
            return Some(Self::Unconfined { why: rest.to_owned() });
        }
        let mut parts = rest.splitn(3, ' ');
        let version = [parts.next()?.parse().ok()?, parts.next()?.parse().ok()?];
        let text = parts.next()?.to_owned();
        match word {
            "serving" => Some(Self::Serving { version, engine: text }),
            "refused" => Some(Self::Refused { version, why: text }),
            _ => None,
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        for report in [
            Report::Serving { version: [1, u64::MAX], engine: "rten 0.27".into() },
            Report::Refused { version: [7, 0], why: "no graph".into() },
            Report::Unconfined { why: "no Landlock".into() },
            Report::Beat { busy: Duration::from_millis(20) },
        ] {
            assert_eq!(Report::parse(report.line().trim_end()), Some(report));
        }
        let torn = Report::Refused { version: [0, 0], why: "two\nlines".into() };
        assert_eq!(torn.line(), "refused 0 0 two lines\n");
        for noise in ["", "beat", "beat x", "serving 1", "hello there", "refused a b c"] {
            assert_eq!(Report::parse(noise), None, "{noise}");
        }
    }
}
