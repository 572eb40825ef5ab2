//! `tensorlend`, the command-line tool, as a library. The program `tensorlend` and the Python package use it.

mod again;
mod args;
mod bench;
mod commands;
mod demo;
mod doctor;
mod failure;
mod files;
mod interrupt;
mod member;
mod meminfo;
mod onnx;
mod options;
mod output;
mod parcel;
mod progress;
mod publish;
mod save;
mod shm;
mod snapshot;
mod summary;
mod text;
#[cfg(feature = "top")]
mod top;
mod trace;

use std::ffi::OsString;

use clap::{CommandFactory, Parser};
use tensorlend_os::stderr::{self, Stderr};

/// Runs a command line and returns the exit status. Its first argument is the program's name.
/// `program` is a command (a program and its first arguments) that calls this function again. The
/// demo and the benchmark use it to start peer processes.
pub fn main(arguments: Vec<OsString>, program: &[OsString]) -> u8 {
    again::set(program);
    // The arguments of peer processes bypass clap, so that neither help nor completions show them.
    if arguments.get(1).is_some_and(|word| word == again::PEER) {
        let words: Vec<String> = arguments[2..].iter().map(|word| word.to_string_lossy().into_owned()).collect();
        return failure::exit(demo::peer(&words).map_err(Into::into), false);
    }
    log_to_stderr();
    let is_json = arguments.iter().skip(1).take_while(|word| *word != "--").any(|word| word == "--json");
    let args = match args::Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) if is_json && error.use_stderr() => return failure::exit_usage(error.to_string().trim_end()),
        Err(error) => error.exit(),
    };
    if args.command.runs_until_stopped() {
        // Nobody may read the notes of a command in the background.
        stderr::start(|lines| output::note(&stderr::dropped_text(lines)));
        // `top` handles signals itself, because it restores the terminal.
        if !args.command.uses_terminal() {
            interrupt::flush_at_end();
        }
    }
    let status = failure::exit(commands::run(&args), is_json);
    stderr::flush();
    status
}

/// Returns the clap command, for manual pages and completions.
pub fn command() -> clap::Command {
    args::Args::command()
}

/// Returns the completion script for a shell, which also completes the names that are published.
pub fn completions(shell: clap_complete::Shell) -> String {
    commands::completions::script(shell)
}

/// Logs the embedded daemon's warnings and errors. `TENSORLEND_LOG` can select more.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TENSORLEND_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Stderr).try_init();
}
