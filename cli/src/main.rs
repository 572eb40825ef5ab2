//! The program `tensorlend`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Pass the link and not its target: the link refers to the running program even after its file was replaced.
    tensorlend_cli::main(std::env::args_os().collect(), &["/proc/self/exe".into()]).into()
}
