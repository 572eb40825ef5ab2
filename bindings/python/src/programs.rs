//! The programs that the package contains: the command-line tool and the daemon.

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the command-line tool, and returns its exit status. `again` is the command with which the
/// tool starts itself, with more arguments.
#[pyfunction]
pub fn tool(py: Python<'_>, arguments: Vec<OsString>, again: Vec<OsString>) -> u8 {
    py.detach(|| tensorlend_cli::main(arguments, &again))
}

/// Runs the daemon, and returns its exit status.
#[pyfunction]
pub fn daemon(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| tensorlend_daemon::program::main(arguments))
}
