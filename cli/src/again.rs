//! How this program starts itself again, as a process beside it.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The first argument of a process that is started beside this one.
pub const PEER: &str = "__peer";

static PROGRAM: OnceLock<Vec<OsString>> = OnceLock::new();

/// Program and first arguments that start it.
pub fn set(program: &[OsString]) {
    PROGRAM.get_or_init(|| program.to_owned());
}

/// This program, with these arguments, as a peer.
pub fn command(arguments: &[String]) -> Command {
    let own = || vec!["/proc/self/exe".into()];
    let program = PROGRAM.get_or_init(own);
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).arg(PEER).args(arguments).stdin(Stdio::null());
    command
}
