//! `tensorlend-runner`: runs ONNX models beside the tensors that a broker lends.
//!
//! A client like others: the daemon executes no model. The *supervisor* (`supervisor.rs`) looks which models there are and keeps one
//! *worker* for each, a child process of its own, so that a model that crashes or hangs takes nothing with it but its worker.
//! The worker (`worker.rs`) reads the model, serves it ([`tensorlend::Client::serve`]), and tells the supervisor by lines on its
//! standard output how it is (`report.rs`).
//!
//! Inputs are read where they lie, outputs are written where they will be read, as far as `engine/` can.

pub mod args;
mod batch;
mod engine;
mod job;
mod linger;
mod post;
mod prepare;
mod report;
mod statistics;
mod supervisor;
mod worker;

use std::io::IsTerminal;
use std::process::ExitCode;

/// Runs the program.
pub fn main() -> ExitCode {
    use clap::Parser;
    let args = args::Args::parse();
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(colours);
    log.with_env_filter(args.filter()).without_time().init();
    let done = match &args.worker {
        Some(model) => worker::run(&args, model),
        None => supervisor::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}
