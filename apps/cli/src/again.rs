//! Starts this program again as a peer process.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The first argument of a peer process.
pub const PEER: &str = "__peer";

static PROGRAM: OnceLock<Vec<OsString>> = OnceLock::new();

/// Sets the program and its first arguments for [`command`].
pub fn set(program: &[OsString]) {
    PROGRAM.get_or_init(|| program.to_owned());
}

/// Returns a command that starts this program, as a user does.
pub fn program() -> Command {
    let own = || vec!["/proc/self/exe".into()];
    let program = PROGRAM.get_or_init(own);
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    command
}

/// Returns the Python interpreter that runs this tool, if the tool is a part of the Python package.
pub fn interpreter() -> Option<OsString> {
    PROGRAM.get().filter(|program| program.len() > 1).map(|program| program[0].clone())
}

/// Returns a command that starts this program as a peer with these arguments.
pub fn command(arguments: &[String]) -> Command {
    let mut command = program();
    command.arg(PEER).args(arguments).stdin(Stdio::null());
    command
}
