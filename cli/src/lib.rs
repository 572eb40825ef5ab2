//! `tensorlend`, the command line tool, as a library: for its own program, and for whoever carries it along in another, as the
//! Python package does.

mod again;
mod args;
mod bench;
mod commands;
mod demo;
mod doctor;
mod failure;
mod files;
mod meminfo;
mod onnx;
mod output;
mod parcel;
mod progress;
mod save;
mod snapshot;
mod summary;
#[cfg(feature = "top")]
mod top;
mod trace;

use std::ffi::OsString;

use clap::{CommandFactory, Parser};

/// Does what a command line asks for, the program's name first, and returns the exit status. `program` starts this program
/// again with more arguments behind its own: the demonstration and the benchmark run processes beside themselves.
pub fn main(arguments: Vec<OsString>, program: &[OsString]) -> u8 {
    again::set(program);
    // What demo and bench start beside themselves. Not clap's business, so that neither help nor completions show it.
    if arguments.get(1).is_some_and(|word| word == again::PEER) {
        let words: Vec<String> = arguments[2..].iter().map(|word| word.to_string_lossy().into_owned()).collect();
        return failure::exit(demo::peer(&words).map_err(Into::into));
    }
    log_to_stderr();
    failure::exit(commands::run(&args::Args::parse_from(arguments)))
}

/// The command line as clap knows it, for manual pages and completions.
pub fn command() -> clap::Command {
    args::Args::command()
}

/// What the embedded daemon has to say, from warnings on; `TENSORLEND_LOG` may ask for more.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TENSORLEND_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}
