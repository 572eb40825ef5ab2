//! The programs that the package contains: the command-line tool and the daemon.

use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::Path;

/// Runs the command-line tool, and returns its exit status. `again` is the command with which the
/// tool starts itself, with more arguments.
#[pyfunction]
pub fn tool(py: Python<'_>, arguments: Vec<OsString>, again: Vec<OsString>) -> u8 {
    py.detach(|| tensorlend_cli::main(arguments, &again))
}

/// Runs the daemon, and returns its exit status.
#[pyfunction]
pub fn daemon(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    name_daemon(py)?;
    Ok(py.detach(|| tensorlend_daemon::program::main(arguments)))
}

/// Names the command that runs the package's daemon, which a client starts if none listens, and a daemon starts as its fd store.
pub fn name_daemon(py: Python<'_>) -> PyResult<()> {
    let interpreter: Option<OsString> = py.import("sys")?.getattr("executable")?.extract()?;
    // In an application that embeds Python, this names the application, or nothing.
    let is_python =
        |it: &OsString| Path::new(it).file_name().is_some_and(|name| name.to_string_lossy().starts_with("py"));
    if let Some(interpreter) = interpreter.filter(is_python) {
        tensorlend_os::program::set_daemon(vec![interpreter, "-P".into(), "-m".into(), "tensorlend._programs".into()]);
    }
    Ok(())
}
