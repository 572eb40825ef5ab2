//! The program `tensorlend`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Pass the link and not its target, because the link refers to the running program even after
    // its file is replaced.
    tensorlend_cli::main(std::env::args_os().collect(), &["/proc/self/exe".into()]).into()
}
