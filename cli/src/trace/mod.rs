//! `tensorlend trace`: what happens to a name or a stream, as it happens.

mod event;
mod name;
mod stream;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tensorlend::{Client, Error};

use crate::args::{Json, seconds, time};
use crate::failure::Failure;
use crate::output;
use event::{Event, Seen};

/// Print what happens to a name or a stream.
///
/// Seen exactly: that a name has another value (the trace sleeps on the same words as a reader does), and how many messages
/// were sent, received and lost (counters). Seen by looking, --interval apart: leases, deletion, renaming, the messages
/// themselves, who subscribes, and everything's time. So of values that replace each other faster than they can be looked
/// at the last is told; a lease that was taken and given back between two looks is not told, one that was given back and
/// taken again passes for one; who deleted a name is not known. The trace takes a lease on each value for the moment in
/// which it reads its description. No producer of a stream waits for it.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  tensorlend trace weights
  tensorlend trace --stream camera --for 10s
  tensorlend trace weights --count 1 --json | jq .nbytes
")]
pub struct TraceArgs {
    /// The name; it may not be there yet.
    #[arg(required_unless_present = "stream", conflicts_with = "stream")]
    name: Option<String>,
    /// A stream instead; it may not be there yet.
    #[arg(long, value_name = "STREAM")]
    stream: Option<String>,
    /// End after this time: 10s, 500ms, 5m; default: Ctrl-C ends it.
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// End after so many events.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Seconds between two looks at what is not told by itself.
    #[arg(long, value_name = "SECONDS", default_value = "0.1", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    json: Json,
}

/// What the threads that look have to tell.
type News = Result<Event, Error>;

/// Where they tell it; false: nobody listens any more.
struct Tell(Sender<News>);

impl Tell {
    fn event(&self, seen: Seen) -> bool {
        self.0.send(Ok(Event::now(seen))).is_ok()
    }

    /// Tells why the trace ends.
    fn failure(&self, error: Error) {
        let _ = self.0.send(Err(error));
    }
}

impl TraceArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let until = self.duration.map(|duration| Instant::now() + duration);
        let (sender, news) = channel();
        let (tell, interval) = (Tell(sender), self.interval);
        match (&self.name, &self.stream) {
            (Some(name), _) => {
                // What is wrong with the name itself is said at once.
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

/// The next event; `None`: time is up.
fn next(news: &Receiver<News>, until: Option<Instant>) -> Result<Option<Event>, Failure> {
    let told = match until {
        Some(until) => news.recv_timeout(until.saturating_duration_since(Instant::now())),
        None => news.recv().map_err(|_| RecvTimeoutError::Disconnected),
    };
    match told {
        Ok(event) => Ok(Some(event?)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(Failure::Other("the threads that look have ended".into())),
    }
}

/// From a hundredth of a second to a minute.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = seconds(text)?;
    let sensible = Duration::from_millis(10)..=Duration::from_mins(1);
    if sensible.contains(&interval) { Ok(interval) } else { Err("give seconds from 0.01 to 60".into()) }
}
