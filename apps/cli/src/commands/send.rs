//! `tensorlend send`: sends files as the messages of a stream.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use tensorlend::{Client, Policy, Stream};

use crate::failure::Failure;
use crate::options::{Json, Notes, Raw, seconds};
use crate::output;
use crate::parcel::Parcel;
use crate::progress::Progress;

const EXAMPLES: &str = "\
Examples:
  tensorlend send camera frames/*.png --wait-subscribers 1
  tensorlend send batches train.npz test.npz --capacity 64
  tensorlend send lidar scan.raw --dtype f32 --shape 65536x4 --policy drop-oldest
";

/// Send files through a stream, one message each.
///
/// The command opens the stream, and closes it at the end; its last messages can be received afterwards. A file with
/// named tensors (.npz, .safetensors) is one message, a dataset.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SendArgs {
    /// The stream's name.
    stream: String,
    /// Files, as for put.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Messages that the stream holds; rounded up to a power of two.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    capacity: u32,
    /// Policy when a subscriber lags by a whole stream.
    #[arg(long, value_enum, default_value_t = Lag::Block)]
    policy: Lag,
    /// Number of subscribers to wait for before the first message.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    wait_subscribers: usize,
    /// Seconds to wait for a subscriber or for room before the command fails with exit status 5; default: no limit.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Send each tensor of a file as a message of its own.
    #[arg(long)]
    split: bool,
    #[command(flatten)]
    raw: Raw,
    #[command(flatten)]
    notes: Notes,
    #[command(flatten)]
    json: Json,
}

/// Policy for lagging subscribers.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Lag {
    /// Wait for the lagging subscribers.
    Block,
    /// Replace the oldest message; the subscriber learns how many it lost.
    DropOldest,
    /// Fail with exit status 7.
    Error,
}

#[derive(Serialize)]
struct Sent<'a> {
    stream: &'a str,
    messages: u64,
    nbytes: u64,
}

impl SendArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let policy = match self.policy {
            Lag::Block => Policy::Block,
            Lag::DropOldest => Policy::DropOldest,
            Lag::Error => Policy::Error,
        };
        let stream = client.stream(&self.stream).capacity(self.capacity).policy(policy).open()?;
        if self.wait_subscribers > 0 {
            stream.wait_subscribers(self.wait_subscribers, self.timeout.unwrap_or(Duration::MAX))?;
        }
        let progress = Progress::files(&format!("to {}", self.stream), self.files.len());
        let mut sent = Sent { stream: &self.stream, messages: 0, nbytes: 0 };
        for file in &self.files {
            if let Err(e) = self.send(client, &stream, file, &mut sent) {
                return Err(e.context(format!(
                    "stream {:?}: stopped at {}, after {}",
                    self.stream,
                    file.display(),
                    crate::text::count(sent.messages, "message")
                )));
            }
            progress.advance(1);
        }
        drop((stream, progress));
        if self.json.on {
            return output::json(&sent);
        }
        let messages = crate::text::count(sent.messages, "message");
        output::line(format_args!("sent {messages}, {} bytes, to {}", sent.nbytes, self.stream))
    }

    fn send(&self, client: &Client, stream: &Stream, file: &Path, sent: &mut Sent<'_>) -> Result<(), Failure> {
        let metadata = self.notes.metadata.as_ref().map_or(&[][..], |m| &m.0);
        let parcel = Parcel::read(client, file, self.raw.spec())?;
        let messages = if self.split {
            parcel.split(metadata)?.into_iter().map(|(_, summary, message)| (summary.nbytes, message)).collect()
        } else {
            let nbytes = parcel.summary().nbytes();
            vec![(nbytes, parcel.whole(client, metadata)?)]
        };
        for (nbytes, message) in messages {
            match self.timeout {
                None => stream.send(message)?,
                Some(timeout) => stream.send_timeout(message, timeout)?,
            };
            sent.messages += 1;
            sent.nbytes += nbytes;
        }
        Ok(())
    }
}
