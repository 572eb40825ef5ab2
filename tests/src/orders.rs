//! The side of an agent: a program that takes orders.

use std::error::Error;
use std::io::{BufRead, Write};

/// The text of an answer, or the error.
pub type Answer<T = String> = Result<T, Box<dyn Error>>;

/// Executes each line of standard input, and answers each with one line, `ok ...` or `error ...`. Returns when one of the
/// two pipes is closed.
pub fn obey(mut run: impl FnMut(&str) -> Answer) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match run(&line) {
            Ok(text) => format!("ok {text}"),
            Err(e) => format!("error {e}"),
        };
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{}", answer.replace('\n', " ").trim_end()).and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

/// Ends this process when its parent ends.
pub fn end_with_parent() {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}
