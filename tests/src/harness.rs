//! A harness for tests whose process must have one thread, or its own `main`. It supports the options of libtest that
//! `cargo test` and `cargo nextest` use: `--list`, `--ignored`, `--exact`, `--skip`, and names.

use std::process::{Command, ExitCode};

pub type Test = (&'static str, fn());

/// The parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    list: bool,
    ignored: bool,
    exact: bool,
    names: Vec<String>,
    skipped: Vec<String>,
}

impl Asked {
    fn parse(arguments: impl IntoIterator<Item = String>) -> Self {
        let (mut asked, mut arguments) = (Self::default(), arguments.into_iter());
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => asked.list = true,
                "--ignored" => asked.ignored = true,
                "--exact" => asked.exact = true,
                "--skip" => asked.skipped.extend(arguments.next()),
                // The values of these options are not names.
                "--format" | "--test-threads" | "--color" | "--logfile" | "-Z" => _ = arguments.next(),
                // Options of the output's format, and unsupported features.
                other if other.starts_with('-') => {}
                _ => asked.names.push(argument),
            }
        }
        asked
    }

    fn takes(&self, name: &str) -> bool {
        let fits = |wanted: &String| if self.exact { name == wanted } else { name.contains(wanted.as_str()) };
        // No test here is marked as ignored.
        !self.ignored && (self.names.is_empty() || self.names.iter().any(fits)) && !self.skipped.iter().any(fits)
    }
}

/// Lists or runs the tests that the command line names. One test runs in this process, which has one thread; several
/// run one after the other in separate processes.
///
/// Ends the process: with status 101 if a test failed.
pub fn main(tests: &[Test]) -> ExitCode {
    let asked = Asked::parse(std::env::args().skip(1));
    let chosen: Vec<&Test> = tests.iter().filter(|(name, _)| asked.takes(name)).collect();
    if asked.list {
        for (name, _) in &chosen {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    if let [(name, test)] = chosen[..] {
        println!("running 1 test");
        // A panic ends the process here, with its message and status 101.
        test();
        println!("test {name} ... ok");
        return ExitCode::SUCCESS;
    }
    println!("running {} tests", chosen.len());
    let mut failed = 0;
    for (name, _) in &chosen {
        let mut again = Command::new(std::env::current_exe().expect("a program knows its own path"));
        let status = again.args([name, "--exact", "--nocapture"]).status().expect("it can be started again");
        if !status.success() {
            println!("test {name} ... FAILED ({status})");
            failed += 1;
        }
    }
    println!("test result: {} passed; {failed} failed", chosen.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Asked {
        Asked::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn it_takes_what_nextest_says() {
        let list = asked("--list --format terse");
        assert!(list.list && list.takes("a_test"));
        assert!(!asked("--list --format terse --ignored").takes("a_test"));
        let one = asked("a_test --exact --nocapture");
        assert!(!one.list && one.takes("a_test") && !one.takes("a_test_of_another_kind"));
    }

    #[test]
    fn it_takes_what_cargo_test_says() {
        let some = asked("--test-threads 1 -q child --skip refused");
        assert!(some.takes("a_child_is_there") && !some.takes("a_child_is_refused") && !some.takes("1"));
        assert!(asked("").takes("a_test"));
    }
}
