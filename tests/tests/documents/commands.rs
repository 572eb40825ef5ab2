//! Command lines in the manual: finds those that call a program of this workspace, and checks that it accepts them.

use std::process::Command;
use tensorlend_tests::{binary, run};

/// Returns the commands in a piece of shell: words without comments, redirections and assignments. Shell expansions
/// stay as they are.
pub fn commands(shell: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let joined = shell.replace("\\\n", " ");
    let mut letters = joined.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(mark), _) if letter == mark => quote = None,
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => while letters.next_if(|next| *next != '\n').is_some() {},
            (None, ' ' | '\t') => words.extend(word.take()),
            (None, '\n' | ';' | '|' | '&' | '(' | ')') if !word.as_ref().is_some_and(|w| w.ends_with('>')) => {
                words.extend(word.take());
                found.push(std::mem::take(&mut words));
            }
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    found.push(words);
    let is_control = |w: &String| matches!(w.as_str(), "if" | "until" | "while" | "do" | "then" | "else" | "!");
    let is_assignment = |w: &String| {
        w.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
    };
    let plain = |words: Vec<String>| -> Vec<String> {
        let words = words.into_iter().skip_while(|w| is_control(w) || is_assignment(w));
        words.filter(|w| !w.contains('>') && !w.starts_with('<')).collect()
    };
    found.into_iter().map(plain).filter(|words| !words.is_empty()).collect()
}

/// Returns true if this calls one of our programs.
pub fn is_ours(words: &[String]) -> bool {
    // Excludes a line of Cargo.toml.
    matches!(words[0].as_str(), "tensorlend" | "tensorlendd") && words.get(1).is_none_or(|word| word != "=")
}

/// Returns the program's error for these words. Appending `--help` makes it parse all of them without running.
pub fn misunderstood(words: &[String]) -> Option<String> {
    let mut command = Command::new(binary(&words[0]));
    match &words[1..] {
        // `run` passes the words after the program to the program.
        [verb, ..] if verb == "run" => command.args(["run", "--help"]),
        words => command.args(words).arg("--help"),
    };
    let done = run(&mut command);
    (!done.status.success()).then(|| format!("`{}`: {}", words.join(" "), String::from_utf8_lossy(&done.stderr).trim()))
}
