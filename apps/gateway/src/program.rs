//! The program, from its command line to its end.

use crate::args::Args;
use crate::config::{BadConfig, Config, EXAMPLE};
use crate::error::CannotStart;
use crate::gateway::Gateway;
use crate::transport::{Transport, Zenoh};
use clap::Parser;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use tensorlend_os::stderr::{self, Stderr};

/// Exit code for an invalid configuration, as in sysexits.h.
const EX_CONFIG: u8 = 78;

// Stable codes of the program's own errors. Errors of the client library have codes of the library.
const CONFIG_CODE: &str = "TL-1201";
const START_CODE: &str = "TL-1202";

/// Runs the gateway's program and returns its exit code.
pub fn main() -> ExitCode {
    let args = Args::parse();
    if args.print_config {
        print!("{EXAMPLE}");
        return ExitCode::SUCCESS;
    }
    stderr::start(|lines| tracing::error!(dropped = lines, "{}", stderr::dropped_text(lines)));
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_writer(|| Stderr).with_ansi(colours);
    let log = log.with_env_filter(Args::filter());
    if Args::logs_json() {
        log.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
    } else if stderr::leads_to_journal() {
        log.without_time().init();
    } else {
        log.init();
    }
    // A panic of any thread ends the process, because the other threads would no longer work. The
    // daemon then deletes the gateway's copies, and the service manager starts a new process.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    let status = match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(end) => {
            tracing::error!("{} [{}]", end.error().to_string().trim_end(), end.code());
            end.status()
        }
    };
    stderr::flush();
    status
}

/// The reason why the program ends.
enum End {
    /// The configuration is invalid, so a restart would fail, too.
    Config(Box<dyn std::error::Error>),
    Other(Box<dyn std::error::Error>),
}

impl End {
    fn error(&self) -> &dyn std::error::Error {
        match self {
            Self::Config(error) | Self::Other(error) => &**error,
        }
    }

    /// Returns the stable code, which the manual's page on errors explains.
    fn code(&self) -> &'static str {
        match self {
            Self::Config(_) => CONFIG_CODE,
            Self::Other(error) => match error.downcast_ref() {
                Some(CannotStart::Broker(error)) => error.code(),
                _ => START_CODE,
            },
        }
    }

    fn status(&self) -> ExitCode {
        match self {
            Self::Config(_) => ExitCode::from(EX_CONFIG),
            Self::Other(_) => ExitCode::FAILURE,
        }
    }
}

fn run(args: &Args) -> Result<(), End> {
    let wrong = |error: BadConfig| End::Config(error.into());
    let missing = "the option --config is missing: name the gateway's TOML file (see --print-config)";
    let path = args.config.as_ref().ok_or_else(|| End::Config(missing.into()))?;
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
    let transport: Arc<dyn Transport> =
        Arc::new(Zenoh::open(options).map_err(|error| other(CannotStart::from(error).into()))?);
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
        None => Err(other(
            "the daemon has ended this gateway's session: see the daemon's log, and start the gateway again".into(),
        )),
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
