//! `tensorlend ping`: checks that the daemon responds.

use std::time::{Duration, Instant};

use serde::Serialize;
use tensorlend_os::clock::duration_ns;

use crate::failure::Failure;
use crate::options::{Connection, Json, Reached};
use crate::output;
use crate::text::printable;

/// Check that the daemon responds; exit status 3 if it does not.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  until tensorlend ping; do sleep 1; done\n")]
pub struct PingArgs {
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct Pong<'a> {
    version: &'a str,
    /// The session's namespace. `None` if a limit has refused a session.
    namespace: Option<&'a str>,
    round_trip_ns: u64,
}

impl PingArgs {
    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        match at.reach("ping")? {
            Reached::Session(client) => {
                let round_trip = client.ping()?;
                self.show(client.daemon_version(), Some(client.namespace()), round_trip)
            }
            Reached::Metrics { refused, .. } => {
                let since = Instant::now();
                let stat = at.builder("ping")?.stat()?;
                let round_trip = since.elapsed();
                eprintln!("tensorlend: {}", printable(&format!("this user gets no session: {refused}")));
                self.show(&stat.version, None, round_trip)
            }
        }
    }

    fn show(&self, version: &str, namespace: Option<&str>, round_trip: Duration) -> Result<(), Failure> {
        if self.json.on {
            let round_trip_ns = duration_ns(round_trip);
            return output::json(&Pong { version, namespace, round_trip_ns });
        }
        let microseconds = round_trip.as_secs_f64() * 1e6;
        let namespace = namespace.map_or_else(|| "no session".to_owned(), |name| format!("namespace {name}"));
        output::line(format_args!("tensorlendd {version}, {namespace}: {microseconds:.0} us"))
    }
}
