//! The program `tensorlendd`, the daemon.

use std::process::ExitCode;

fn main() -> ExitCode {
    tensorlend_daemon::program::main(std::env::args_os().collect()).into()
}
