//! The program `tensorlendd`, the daemon.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Ok(program) = std::env::current_exe() {
        tensorlend_os::program::set_daemon(vec![program.into()]);
    }
    tensorlend_daemon::program::main(std::env::args_os().collect()).into()
}
