//! `tensorlendd`: lends tensors in shared memory between processes.

use std::process::ExitCode;

fn main() -> ExitCode {
    tensorlend_daemon::program::main(std::env::args_os().collect()).into()
}
