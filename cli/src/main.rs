//! `tensorlend`: put, get, watch, stream and measure tensors from the command line.

mod args;
mod bench;
mod commands;
mod demo;
mod failure;
mod files;
mod meminfo;
mod output;
mod parcel;
mod progress;
mod save;
mod summary;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // What demo and bench start beside themselves. Not clap's business, so that neither help nor completions show it.
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == "__peer") {
        let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
        return failure::exit(demo::peer(&words).map_err(Into::into));
    }
    log_to_stderr();
    failure::exit(commands::run(&args::Args::parse()))
}

/// What the embedded daemon has to say, from warnings on; `TENSORLEND_LOG` may ask for more.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TENSORLEND_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}
