//! `tensorlend web`: metrics and a dashboard over HTTP.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tensorlend_web::{Error, Later, Listen, Options, Server, Source, Token, check_access};

use crate::failure::Failure;
use crate::options::{Connection, Observe, interval};
use crate::output;

/// Show the daemon over HTTP: Prometheus metrics, JSON, a dashboard.
///
/// Runs in its own process and reads shared memory. It requests the daemon's metrics twice a second, however many
/// viewers there are. Stops with Ctrl-C.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  tensorlend web                                          http://127.0.0.1:9470/
  tensorlend web --listen unix:/run/user/1000/web.sock    for this user only
  tensorlend web --listen 0.0.0.0:9470 --token-file token for other machines: with a token
  tensorlend web --observe --token-file token             all namespaces, for viewers with the token
  curl http://127.0.0.1:9470/metrics
")]
pub struct WebArgs {
    /// Address to listen on: an address and a port, or unix: and a path. May be given several times.
    #[arg(long, value_name = "WHERE", default_value = "127.0.0.1:9470")]
    listen: Vec<Listen>,
    /// A file with a token (at least 16 bytes, mode 600) that viewers must present; required if other machines can
    /// reach the address, and with --observe on every address but a Unix socket.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Also show statistics and pictures of tensors' contents.
    #[arg(long)]
    previews: bool,
    #[command(flatten)]
    observe: Observe,
    /// Seconds between two samples.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
}

impl WebArgs {
    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        let token = self.token_file.as_deref().map(Token::read).transpose().map_err(failure)?;
        // The server checks this, too, but the command may wait for a namespace before it starts the server.
        check_access(&self.listen, token.is_some(), self.observe.on).map_err(failure)?;
        let options = Options {
            listen: self.listen.clone(),
            token,
            previews: self.previews,
            socket: socket_text(at),
            interval: self.interval,
            namespaces: if self.observe.on { observed(at)? } else { joined(at) },
            later: (self.observe.on && at.namespaces().is_empty()).then(|| Box::new(observe(at)) as Later),
        };
        let server = Server::new(options).map_err(failure)?;
        for name in server.names() {
            output::line(format_args!("{name}"))?;
        }
        server.run().map_err(failure)
    }
}

/// Returns the daemon's socket. This is the socket that the user named, or the first default socket
/// whose file exists.
fn socket_text(at: &Connection) -> String {
    let named = at.socket().map(std::path::Path::to_owned);
    let found = named.or_else(|| tensorlend::default_sockets().into_iter().find(|path| path.exists()));
    found.map_or_else(String::new, |path| path.display().to_string())
}

/// Returns the namespaces that the user named, or the private namespace.
fn joined(at: &Connection) -> Vec<Source> {
    let named = at.namespaces().iter().map(|name| Some(name.as_str()));
    let mut names: Vec<Option<&str>> = named.collect();
    if names.is_empty() {
        names.push(None);
    }
    let join = |name: Option<&str>| {
        let builder = at.client("web", name);
        Source::Join(Arc::new(move || builder.clone().connect()))
    };
    names.into_iter().map(join).collect()
}

/// Returns the namespaces that the user named, or all present namespaces. Waits until there is one.
fn observed(at: &Connection) -> Result<Vec<Source>, Failure> {
    let mut names = at.observed_namespaces()?;
    while names.is_empty() {
        // After a boot, the dashboard may start before the first client.
        crate::output::note("the daemon has no namespace yet: waiting for its first client");
        std::thread::sleep(Duration::from_secs(5));
        names = at.observed_namespaces()?;
    }
    Ok(names.iter().map(String::as_str).map(observe(at)).collect())
}

/// Returns a function that observes a namespace without joining it.
fn observe(at: &Connection) -> impl Fn(&str) -> Source + Send + use<> {
    let builder = at.client("web", None);
    move |namespace| {
        let builder = builder.clone();
        Source::Observe { connect: Arc::new(move || builder.clone().inspect()), namespace: namespace.into() }
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Client(error) => Failure::Client(error),
        Error::Open(_) | Error::Observed(_) | Error::Token { .. } => Failure::Usage(error.to_string()),
        other => Failure::Other(Box::new(other)),
    }
}
