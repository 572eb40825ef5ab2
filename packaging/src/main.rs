//! `tensorlend-pages`: writes the manual pages and completions of packages, made from the programs' own definitions.
//!
//! ```text
//! DIR/man1/tensorlend.1, tensorlend-COMMAND.1    the command line tool, and each of its commands
//! DIR/man1/tensorlend-runner.1                   the runner
//! DIR/man5/tensorlendd.toml.5                    the configuration of the daemon
//! DIR/man5/tensorlend-gateway.toml.5             the configuration of the gateway
//! DIR/man8/tensorlendd.8, tensorlend-gateway.8   the daemon and the gateway
//! DIR/tensorlendd.toml                           the configuration that a package installs
//! DIR/bash, DIR/zsh, DIR/fish                    completions of all four, named as each shell looks for them
//! ```
//!
//! Without the feature `companions`, those of the tool and the daemon only.

mod options;
mod page;

#[cfg(feature = "companions")]
use clap::CommandFactory;
use clap::{Command, Parser};
use clap_complete::{Shell, generate_to};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Writes manual pages and completions into a folder.
#[derive(Parser)]
#[command(name = "tensorlend-pages")]
struct Arguments {
    /// The folder; it is made.
    folder: PathBuf,
}

fn main() -> ExitCode {
    let folder = Arguments::parse().folder;
    match write(&folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tensorlend-pages: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path) -> io::Result<()> {
    let programs = [
        (tensorlend_cli::command(), "1"),
        (tensorlend_daemon::program::command(), "8"),
        #[cfg(feature = "companions")]
        (tensorlend_runner::args::Args::command(), "1"),
        #[cfg(feature = "companions")]
        (tensorlend_gateway::args::Args::command(), "8"),
    ];
    let made = |name: &str| {
        let made = folder.join(name);
        std::fs::create_dir_all(&made).map(|()| made)
    };
    for (program, section) in &programs {
        for page in page::all(program.clone(), section) {
            page.write(&made(&format!("man{section}"))?)?;
        }
    }
    for configuration in options::ALL {
        options::page(configuration).write(&made("man5")?)?;
    }
    std::fs::write(folder.join("tensorlendd.toml"), tensorlend_daemon::commented())?;
    for (shell, name) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
        let completions = made(name)?;
        for (program, _) in &programs {
            complete(shell, program.clone(), &completions)?;
        }
    }
    Ok(())
}

fn complete(shell: Shell, mut program: Command, folder: &Path) -> io::Result<()> {
    let name = program.get_name().to_owned();
    let file = generate_to(shell, &mut program, &name, folder)?;
    // bash-completion looks for the program's bare name.
    if shell == Shell::Bash {
        std::fs::rename(&file, folder.join(name))?;
    }
    Ok(())
}
