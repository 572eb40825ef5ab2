//! Stable codes of the daemon's errors.

use crate::{ConfigError, DaemonError};

impl ConfigError {
    /// Returns the error's stable code, such as `TL-1102`, which the manual's page on errors explains.
    ///
    /// ```
    /// assert_eq!(tensorlend_daemon::Config::parse("pool = 3").unwrap_err().code(), "TL-1102");
    /// ```
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "TL-1101",
            Self::Parse { .. } => "TL-1102",
            Self::Value(_) | Self::ValueInFile { .. } => "TL-1103",
        }
    }
}

impl DaemonError {
    /// Returns the error's stable code, such as `TL-1116`. The manual's page on errors explains the
    /// code. `tensorlendd` prints it at the end of the error's line.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Kernel(_) => "TL-0901",
            Self::System { .. } => "TL-0904",
            Self::Config(error) => error.code(),
            Self::NoProc(_) => "TL-1111",
            Self::Descriptors { .. } => "TL-1112",
            Self::NoSocketPath(_) => "TL-1113",
            Self::Socket { .. } => "TL-1114",
            Self::Occupied { .. } => "TL-1115",
            Self::Running(_) => "TL-1116",
            Self::NoAnswer { .. } => "TL-1117",
            Self::Activation(_) => "TL-1118",
            Self::FdStore { .. } => "TL-1119",
            Self::NotStarted { .. } => "TL-1120",
        }
    }
}
