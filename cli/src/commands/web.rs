//! `tensorlend web`: metrics and a dashboard over HTTP.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tensorlend_web::{Connect, Error, Listen, Options, Server, Token};

use crate::failure::Failure;
use crate::options::{Connection, seconds};
use crate::output;

/// Show the daemon over HTTP: Prometheus metrics, JSON, a dashboard.
///
/// Runs in its own process and reads shared memory. It requests the daemon's metrics twice a second, however many
/// viewers there are. Stops with Ctrl-C.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  tensorlend web                                          http://127.0.0.1:9470/
  tensorlend web --listen unix:/run/user/1000/web.sock    for this user alone
  tensorlend web --listen 0.0.0.0:9470 --token-file token for other machines: with a token
  curl http://127.0.0.1:9470/metrics
")]
pub struct WebArgs {
    /// Address to listen on: an address and a port, or unix: and a path. May be given several times.
    #[arg(long, value_name = "WHERE", default_value = "127.0.0.1:9470")]
    listen: Vec<Listen>,
    /// A file with a token (at least 16 bytes, mode 600) that viewers must present; required if other machines can
    /// reach the address.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Also show statistics and pictures of tensors' contents.
    #[arg(long)]
    previews: bool,
    /// Also send the metrics of /metrics to an OpenTelemetry collector at this address (http://127.0.0.1:4318).
    #[cfg(feature = "otel")]
    #[arg(long, value_name = "URL")]
    otlp: Option<tensorlend_web::Endpoint>,
    /// Seconds between two exports.
    #[cfg(feature = "otel")]
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = interval)]
    otlp_interval: Duration,
    /// Seconds between two samples.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
}

impl WebArgs {
    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        let named = at.namespaces().iter().map(|name| Some(name.as_str()));
        let mut names: Vec<Option<&str>> = named.collect();
        if names.is_empty() {
            names.push(None);
        }
        let connect = |name: Option<&str>| -> Connect {
            let builder = at.client("web", name);
            Arc::new(move || builder.clone().connect())
        };
        let options = Options {
            listen: self.listen.clone(),
            token: self.token_file.as_deref().map(Token::read).transpose().map_err(failure)?,
            previews: self.previews,
            interval: self.interval,
            namespaces: names.into_iter().map(connect).collect(),
            #[cfg(feature = "otel")]
            otlp: self.otlp.clone().map(|endpoint| tensorlend_web::Otlp { endpoint, interval: self.otlp_interval }),
        };
        let server = Server::new(options).map_err(failure)?;
        for name in server.names() {
            output::line(format_args!("{name}"))?;
        }
        server.run().map_err(failure)
    }
}

/// Parses an interval from 0.1 s to one hour.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = seconds(text)?;
    let sensible = Duration::from_millis(100)..=Duration::from_hours(1);
    if sensible.contains(&interval) { Ok(interval) } else { Err("give seconds from 0.1 to 3600".into()) }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Client(error) => Failure::Client(error),
        Error::Open(_) | Error::Token { .. } => Failure::Usage(error.to_string()),
        other => Failure::Other(Box::new(other)),
    }
}
