//! The program `tensorlend`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The link, not the path it shows: it leads to this very program even if the file was replaced since.
    tensorlend_cli::main(std::env::args_os().collect(), &["/proc/self/exe".into()]).into()
}
