//! The program, from its command line to its end.

use crate::args::Args;
use crate::config::{Config, EXAMPLE};
use crate::gateway::Gateway;
use crate::transport::{Transport, Zenoh};
use clap::Parser;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

/// Exit code for an invalid configuration, as in sysexits.h.
const EX_CONFIG: u8 = 78;

/// Runs the gateway's program and returns its exit code.
pub fn main() -> ExitCode {
    let args = Args::parse();
    if args.print_config {
        print!("{EXAMPLE}");
        return ExitCode::SUCCESS;
    }
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(colours);
    let log = log.with_env_filter(Args::filter());
    if Args::logs_json() {
        log.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
    } else {
        log.without_time().init();
    }
    // A panic of any thread ends the process, because the other threads would no longer work. The
    // daemon then deletes the gateway's copies, and the service manager starts a new process.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(End::Config(error)) => {
            tracing::error!("{error}");
            ExitCode::from(EX_CONFIG)
        }
        Err(End::Other(error)) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The reason why the program ends.
enum End {
    /// The configuration is invalid, so a restart would fail, too.
    Config(Box<dyn std::error::Error>),
    Other(Box<dyn std::error::Error>),
}

fn run(args: &Args) -> Result<(), End> {
    let wrong = |error: crate::config::BadConfig| End::Config(error.into());
    let path = args.config.as_ref().ok_or_else(|| End::Config("no --config".into()))?;
    let config = Config::load(path).map_err(wrong)?;
    let mut settings = config.settings().map_err(wrong)?;
    let options = config.zenoh_options().map_err(wrong)?;
    if let Some(socket) = args.socket.as_ref().filter(|socket| !socket.as_os_str().is_empty()) {
        settings.socket = Some(socket.clone());
    }
    if args.check {
        println!("{}: node {}, {} namespaces", path.display(), settings.node, settings.spaces.len());
        return Ok(());
    }
    let other = |error: Box<dyn std::error::Error>| End::Other(error);
    // Install the handlers before any thread starts, so that no signal reaches a default handler.
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT]).map_err(|error| other(error.into()))?;
    let transport: Arc<dyn Transport> = Arc::new(Zenoh::open(options).map_err(|error| other(error.into()))?);
    let node = settings.node.clone();
    let gateway = Gateway::start(settings, transport).map_err(|error| other(error.into()))?;
    tracing::info!(%node, "serving");
    tell(&[NotifyState::Ready, NotifyState::Status(&format!("node {node}"))]);
    // The loop below ends at a signal. It also ends when `on_end` closes the signals' iterator,
    // because the daemon has ended the gateway's session for good.
    let handle = signals.handle();
    let gateway = gateway.on_end(move || handle.close());
    let signal = signals.forever().next();
    tell(&[NotifyState::Stopping]);
    gateway.stop();
    match signal {
        Some(_) => Ok(()),
        None => Err(other("the daemon has ended this gateway's session".into())),
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
