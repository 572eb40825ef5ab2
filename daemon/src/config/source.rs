//! The file of a configuration, and the lines of its options.

use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The file from which a configuration was read. Two configurations with the same values are equal,
/// whatever their files are.
#[derive(Clone, Debug, Default)]
pub struct Source {
    path: Option<PathBuf>,
    /// The options and sections of the file, such as `pool.bytes_max`, with their lines.
    lines: Vec<(String, usize)>,
}

impl PartialEq for Source {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Source {}

impl Source {
    /// Finds the options in the text of a file.
    pub(crate) fn of(path: &Path, text: &str) -> Self {
        let mut lines = Vec::new();
        if let Ok(table) = DeTable::parse(text) {
            add(table.get_ref(), "", text, &mut lines);
        }
        Self { path: Some(path.into()), lines }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the file and the line of the first option that a message names, to precede the message. Without
    /// a file, the text is empty.
    pub(crate) fn place_of(&self, message: &str) -> String {
        let line = self.line_of(message).map(|line| format!(", line {line}")).unwrap_or_default();
        self.path.as_ref().map(|path| format!("{}{line}: ", path.display())).unwrap_or_default()
    }

    /// Returns the line of the first option that a message names, if the file sets one of them.
    pub(crate) fn line_of(&self, message: &str) -> Option<usize> {
        let found = self.lines.iter().filter_map(|(option, line)| Some((position(message, option)?, line)));
        found.min().map(|(_, line)| *line)
    }
}

/// Adds the options of a table, whose name with a dot is `prefix`.
fn add(table: &DeTable<'_>, prefix: &str, text: &str, lines: &mut Vec<(String, usize)>) {
    for (key, value) in table {
        let option = format!("{prefix}{}", key.get_ref());
        if let DeValue::Table(table) = value.get_ref() {
            add(table, &format!("{option}."), text, lines);
        }
        let line = 1 + text[..key.span().start].matches('\n').count();
        lines.push((option, line));
    }
}

/// Returns the position of an option in a message, if the message has it as a whole word. The name of a
/// section before another option is no such word.
fn position(message: &str, option: &str) -> Option<usize> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut places = message.match_indices(option).map(|(at, _)| at);
    places.find(|&at| {
        let (before, after) = (&message[..at], &message[at + option.len()..]);
        let is_section = after.strip_prefix('.').is_some_and(|rest| rest.starts_with(is_word));
        !before.ends_with(|c| is_word(c) || c == '.') && !after.starts_with(is_word) && !is_section
    })
}
