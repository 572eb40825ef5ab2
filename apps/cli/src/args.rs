//! The command-line options of `tensorlend`.

use clap::Parser;

use crate::commands::Command;
use crate::failure::EXIT_CODES;
use crate::options::Connection;

/// The text about the demo in --help. A build without the feature `baselines` omits the text,
/// because its demo compares nothing.
const DEMO_EXAMPLE: &str = if cfg!(feature = "baselines") {
    "  tensorlend demo                              what lending saves, measured here\n"
} else {
    ""
};

const EXAMPLES: &str =
    "  tensorlend bench --quick                     the floors of this machine, compared with tensorlend
  tensorlend put weights model.safetensors     a file becomes tensors in shared memory
  tensorlend ls                                names, streams and lists
  tensorlend get weights -o copy.safetensors   and from shared memory into a file
  tensorlend save '*' -o all.safetensors       the values of all names, as of one moment
  tensorlend load all.safetensors              publish all of them again
  tensorlend watch weights                     a line for each new value
  tensorlend doctor                            faults of this machine, and how to fix them
  tensorlend send camera frames/*.png          a stream: every message, for every subscriber
  tensorlend recv camera -o received

`tensorlend help COMMAND` shows each command's options and examples.
";

/// Lend tensors between processes on one machine: no serialization, no copy.
///
/// The daemon (tensorlendd) owns pooled shared memory. Tensors outlive their producer: they stay until a client removes
/// or replaces them.
#[derive(Parser, Debug)]
#[command(name = "tensorlend", version = tensorlend::build(), max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = format!("Examples:\n{DEMO_EXAMPLE}{EXAMPLES}\n{EXIT_CODES}"))]
pub struct Args {
    #[command(flatten)]
    pub connection: Connection,
    #[command(subcommand)]
    pub command: Command,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_commands_are_sound() {
        Args::command().debug_assert();
    }

    /// The first example is a command that this build supports fully.
    #[test]
    fn the_demo_is_an_example_where_it_has_what_it_compares_with() {
        let help = Args::command().render_help().to_string();
        assert_eq!(help.contains("\n  tensorlend demo "), cfg!(feature = "baselines"), "{help}");
        assert!(help.contains("Examples:\n  tensorlend "), "{help}");
    }
}
