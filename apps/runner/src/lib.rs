//! `tensorlend-runner`: a program that runs ONNX models on the machine whose daemon lends the
//! tensors.
//!
//! The runner is a client of the daemon, which does not execute models itself. The *supervisor*
//! (`supervisor.rs`) lists the models and runs one *worker* for each, in a child process. So a
//! model that crashes or hangs affects only its worker. The worker (`worker.rs`) loads the model
//! and serves it ([`tensorlend::Client::serve`]). Before it reads the model, it gives up the rights
//! that it does not need (`sandbox.rs`). It reports its state to the supervisor by lines
//! on its standard output (`report.rs`).
//!
//! If the engine supports it, workers read inputs in place, and write outputs into the memory of
//! the response.

pub mod args;
mod batch;
mod engine;
mod job;
mod linger;
mod post;
mod prepare;
mod report;
mod sandbox;
mod statistics;
mod supervisor;
mod worker;

use std::io::IsTerminal;
use std::process::ExitCode;
use tensorlend_os::stderr::{self, Stderr};

/// Stable code of the program's own errors. Errors of the client library have codes of the library.
const START_CODE: &str = "TL-1202";

/// Runs the program, as a supervisor or as a worker, and returns its exit code.
pub fn main() -> ExitCode {
    use clap::Parser;
    let args = args::Args::parse();
    // A worker must not start a thread before its confinement. It needs none for its log, because the
    // supervisor always reads it.
    if args.worker.is_none() {
        stderr::start(|lines| tracing::error!(dropped = lines, "{}", stderr::dropped_text(lines)));
    }
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_writer(|| Stderr).with_ansi(colours);
    let log = log.with_env_filter(args.filter());
    if args::logs_json() {
        log.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
    } else if stderr::leads_to_journal() {
        log.without_time().init();
    } else {
        log.init();
    }
    let done = match &args.worker {
        Some(model) => worker::run(&args, model),
        None => supervisor::run(&args),
    };
    let status = match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error} [{}]", code(&error));
            ExitCode::FAILURE
        }
    };
    stderr::flush();
    status
}

/// Returns the stable code of an error that ends the program. The manual's page on errors explains it.
fn code(error: &worker::Trouble) -> &'static str {
    error.downcast_ref().map_or(START_CODE, tensorlend::Error::code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_client_library_keep_their_codes() {
        assert_eq!(code(&tensorlend::Error::SessionEnded.into()), "TL-0104");
        assert_eq!(code(&std::io::Error::from(std::io::ErrorKind::OutOfMemory).into()), "TL-1202");
    }
}
