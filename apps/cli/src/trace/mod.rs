//! `tensorlend trace`: prints events of a name or a stream as they happen.

mod event;
mod name;
mod stream;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tensorlend::{Client, Error};

use crate::failure::Failure;
use crate::options::{Json, seconds, time};
use crate::output;
use event::{Event, Seen};

/// Print the events of a name or a stream.
///
/// Exact: new values of a name (the trace sleeps on the same words as a reader), and the numbers of messages sent,
/// received and lost (counters). Sampled every --interval: leases, deletion, renaming, the messages themselves,
/// subscriptions, and all times. So if values replace each other faster than samples, only the last is reported. A
/// lease that is taken and released between two samples is not reported; one that is released and taken again counts as
/// one. The client that deletes a name is unknown. The trace leases each value while it reads the description. It never
/// blocks the producer of a stream.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  tensorlend trace weights
  tensorlend trace --stream camera --for 10s
  tensorlend trace weights --count 1 --json | jq .nbytes
")]
pub struct TraceArgs {
    /// The name; it need not exist yet.
    #[arg(required_unless_present = "stream", conflicts_with = "stream")]
    name: Option<String>,
    /// A stream instead; it need not exist yet.
    #[arg(long, value_name = "STREAM")]
    stream: Option<String>,
    /// End after this time: 10s, 500ms, 5m; default: Ctrl-C ends it.
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// End after this many events.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Seconds between two samples.
    #[arg(long, value_name = "SECONDS", default_value = "0.1", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    json: Json,
}

/// A message of a watching thread: an event, or the error that ends the trace.
type News = Result<Event, Error>;

/// The sender of a watching thread. Its methods return false once the receiver has been dropped.
struct Tell(Sender<News>);

impl Tell {
    fn event(&self, seen: Seen) -> bool {
        self.0.send(Ok(Event::now(seen))).is_ok()
    }

    /// Sends the error that ends the trace.
    fn failure(&self, error: Error) {
        let _ = self.0.send(Err(error));
    }
}

impl TraceArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let until = self.duration.and_then(|duration| Instant::now().checked_add(duration));
        let (sender, news) = channel();
        let (tell, interval) = (Tell(sender), self.interval);
        match (&self.name, &self.stream) {
            (Some(name), _) => {
                // Reject an invalid name before the trace starts.
                client.exists(name)?;
                name::watch(client, name, interval, tell);
            }
            (None, Some(stream)) => {
                let (client, stream) = (client.clone(), stream.clone());
                std::thread::spawn(move || stream::watch(&client, &stream, interval, &tell));
            }
            (None, None) => return Err(Failure::Usage("give a name, or --stream".into())),
        }
        for _ in 0..self.count.unwrap_or(u64::MAX) {
            let Some(event) = next(&news, until)? else { return Ok(()) };
            if self.json.on {
                output::json(&event)?;
            } else {
                output::line(event)?;
            }
        }
        Ok(())
    }
}

/// Returns the next event; `None` after the time limit.
fn next(news: &Receiver<News>, until: Option<Instant>) -> Result<Option<Event>, Failure> {
    let told = match until {
        Some(until) => news.recv_timeout(until.saturating_duration_since(Instant::now())),
        None => news.recv().map_err(|_| RecvTimeoutError::Disconnected),
    };
    match told {
        Ok(event) => Ok(Some(event?)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(Failure::Other("the threads that take samples have ended".into())),
    }
}

/// Parses an interval from 0.01 s to one minute.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = seconds(text)?;
    let sensible = Duration::from_millis(10)..=Duration::from_mins(1);
    if sensible.contains(&interval) { Ok(interval) } else { Err("give seconds from 0.01 to 60".into()) }
}
