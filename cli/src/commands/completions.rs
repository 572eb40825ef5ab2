//! `tensorlend completions`: prints a completion script for a shell.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::failure::Failure;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  tensorlend completions bash > ~/.local/share/bash-completion/completions/tensorlend
  tensorlend completions zsh > ~/.zfunc/_tensorlend
  tensorlend completions fish > ~/.config/fish/completions/tensorlend.fish
";

/// Print a completion script for a shell.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

impl CompletionsArgs {
    pub fn run(&self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Args::command(), "tensorlend", &mut script);
        output::text_block(&String::from_utf8_lossy(&script))
    }
}
