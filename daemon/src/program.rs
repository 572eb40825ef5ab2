//! The program `tensorlendd`, for its own binary and for whoever carries it along in another, as the Python package does.

use crate::{Config, DaemonError};
use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::path::PathBuf;

/// Broker that owns pooled shared memory and lends tensor slots to client processes.
///
/// Exit codes: 0 stopped by SIGTERM or SIGINT; 1 could not run; 2 wrong usage or configuration.
#[derive(Debug, Parser)]
#[command(name = "tensorlendd", version)]
struct Arguments {
    /// Configuration file (TOML); without one, every option has its default
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Path of the control socket, instead of the configuration's
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Lend memory of devices whose driver is a stand-in for tests, too
    #[arg(long)]
    allow_fake_cuda: bool,
    /// Check the configuration and exit
    #[arg(long)]
    check_config: bool,
    /// Print the default configuration, with every option explained, and exit
    #[arg(long)]
    print_config: bool,
}

/// The command line as clap knows it, for manual pages and completions.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the daemon as a command line asks for, the program's name first; returns its exit status.
pub fn main(arguments: Vec<OsString>) -> u8 {
    let arguments = Arguments::parse_from(arguments);
    if arguments.print_config {
        print!("{}", crate::EXAMPLE);
        return 0;
    }
    #[cfg(feature = "crash-points")]
    tensorlend_os::crash::arm();
    let filter = tracing_subscriber::EnvFilter::try_from_env("TENSORLEND_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| "info".into()))
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    match start(arguments) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("tensorlendd: {error}");
            if matches!(error, DaemonError::Config(_)) { 2 } else { 1 }
        }
    }
}

fn start(arguments: Arguments) -> Result<(), DaemonError> {
    let mut config = match &arguments.config {
        Some(path) => Config::load(path)?,
        None => Config::default(),
    };
    if arguments.socket.is_some() {
        config.socket = arguments.socket;
    }
    config.cuda.allow_fake = arguments.allow_fake_cuda;
    if arguments.check_config {
        crate::check(&config)?;
        println!("the configuration is right");
        return Ok(());
    }
    crate::run(&config)
}
