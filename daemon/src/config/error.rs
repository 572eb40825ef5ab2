//! The errors of configurations.

use super::EXAMPLE;
use super::source::Source;
use std::path::PathBuf;

/// The reason why a configuration is rejected.
#[derive(thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path:?}: {error}: name a file that this user can read with --config")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The text is not valid TOML, or has an unknown option.
    #[error("the configuration{} is wrong: {error}{}", .path.as_ref().map(|p| format!(" {}", p.display())).unwrap_or_default(), remedy(error))]
    Parse {
        /// Path of the file, if the text came from one.
        path: Option<PathBuf>,
        /// The parser's error.
        error: Box<toml::de::Error>,
    },
    /// A value is out of its range.
    #[error("the configuration is wrong: {0}")]
    Value(String),
    /// A value of a file is out of its range.
    #[error("the configuration {} is wrong{}: {text}", path.display(), .line.map(|line| format!(", line {line}")).unwrap_or_default())]
    ValueInFile {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line with the option, from 1. `None` if the file does not set the option.
        line: Option<usize>,
        /// The option, its value and the remedy.
        text: String,
    },
}

/// Returns the remedy for an error whose text does not contain it: an option of another section, or a section that
/// begins twice.
fn remedy(error: &toml::de::Error) -> String {
    let message = error.message();
    let field = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    match field {
        Some(section) if EXAMPLE.lines().any(|line| line == format!("[{section}]")) => {
            format!("; {section} is a section: write the option under the line [{section}], without {section}.")
        }
        None if message == "duplicate key" => {
            "; a section or an option appears twice: write all options of a section under one line, such as [pool]"
                .into()
        }
        _ => String::new(),
    }
}

impl ConfigError {
    /// Adds the file and the line to an error about a value.
    pub(crate) fn in_file(self, source: &Source) -> Self {
        match (self, source.path()) {
            (Self::Value(text), Some(path)) => {
                Self::ValueInFile { path: path.into(), line: source.line_of(&text), text }
            }
            (other, _) => other,
        }
    }
}

/// Prints the same text as `Display`, because `unwrap` and a `main` that returns this error print
/// errors with `Debug`.
impl std::fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
