//! The program `tensorlend`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Passes the link itself, not its target: it refers to this running program even after the file was replaced.
    tensorlend_cli::main(std::env::args_os().collect(), &["/proc/self/exe".into()]).into()
}
