//! `tensorlend ping`: checks that the daemon responds.

use serde::Serialize;
use tensorlend::Client;

use crate::failure::Failure;
use crate::options::Json;
use crate::output;

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
    namespace: &'a str,
    round_trip_ns: u64,
}

impl PingArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let round_trip = client.ping()?;
        let (version, namespace) = (client.daemon_version(), client.namespace());
        if self.json.on {
            let round_trip_ns = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
            return output::json(&Pong { version, namespace, round_trip_ns });
        }
        let microseconds = round_trip.as_secs_f64() * 1e6;
        output::line(format_args!("tensorlendd {version}, namespace {namespace}: {microseconds:.0} us"))
    }
}
