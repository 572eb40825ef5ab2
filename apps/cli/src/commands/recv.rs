//! `tensorlend recv`: writes the messages of a stream to files.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use tensorlend::{Client, Error, Message, Start, Subscription};

use crate::failure::Failure;
use crate::options::{Json, seconds};
use crate::output;
use crate::save::Folder;
use crate::summary::Summary;

const EXAMPLES: &str = "\
Examples:
  tensorlend recv camera -o received
  tensorlend recv camera -o received --format png --count 100 --timeout 10
  tensorlend recv camera -o received --from next --json | jq .lost
";

/// Receive a stream into a folder, one file for each message.
///
/// Files are called 000000.npy and so on, by the message's number in the stream; they replace files and links of that name. The
/// command ends with the stream. If the stream is opened again, the numbers continue.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RecvArgs {
    /// The stream's name.
    stream: String,
    /// The folder; created if it does not exist.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// End after this many messages.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Seconds to wait for the stream to be opened, and for each message, before the command ends with exit status 5;
    /// default: fail if the stream does not exist, and wait for messages without end.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// npy, npz, safetensors, png, jpg or raw; default: npy, npz for datasets, safetensors for element types that numpy
    /// lacks.
    #[arg(long)]
    format: Option<String>,
    /// The first message to receive.
    #[arg(long, value_enum, default_value_t = From::Oldest)]
    from: From,
    #[command(flatten)]
    json: Json,
}

/// The first message to receive.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum From {
    /// The oldest message that the stream still holds.
    Oldest,
    /// The newest message that the stream holds.
    Newest,
    /// The first message that is sent from now on.
    Next,
}

#[derive(Serialize)]
struct Received<'a> {
    stream: &'a str,
    sequence: u64,
    lost: u64,
    path: String,
    #[serde(flatten)]
    summary: Summary,
    timestamp_ns: u64,
}

/// The numbers of files. Within one opening of the stream, a file has its message's number. A
/// reopened stream restarts at 0, but the file numbers continue.
#[derive(Default)]
struct Numbers {
    base: u64,
    next: u64,
}

impl Numbers {
    fn of(&mut self, sequence: u64) -> u64 {
        if self.base + sequence < self.next {
            self.base = self.next;
        }
        self.next = self.base + sequence + 1;
        self.next - 1
    }
}

impl RecvArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let folder = Folder::open(&self.output, self.format.as_deref())?;
        let start = match self.from {
            From::Oldest => Start::Oldest,
            From::Newest => Start::Newest,
            From::Next => Start::Next,
        };
        let mut builder = client.subscription(&self.stream).start_at(start);
        if let Some(timeout) = self.timeout {
            builder = builder.wait(timeout);
        }
        let mut messages = builder.open()?;
        let mut numbers = Numbers::default();
        for _ in 0..self.count.unwrap_or(u64::MAX) {
            let message = match self.next(&mut messages) {
                Err(Error::StreamEnded(_)) => break,
                other => other?,
            };
            self.take(&folder, message, &mut numbers)?;
        }
        Ok(())
    }

    fn next(&self, messages: &mut Subscription) -> Result<Message, Error> {
        match self.timeout {
            Some(timeout) => messages.recv_timeout(timeout),
            None => messages.recv(),
        }
    }

    fn take(&self, folder: &Folder, message: Message, numbers: &mut Numbers) -> Result<(), Failure> {
        let (sequence, lost, timestamp_ns) = (message.sequence(), message.lost(), message.timestamp());
        if lost > 0 {
            let lost = crate::text::count(lost, "message");
            output::note(&format!("stream {:?}: {lost} lost before message {sequence}", self.stream));
        }
        let value = message.into_value();
        let path = folder
            .save(numbers.of(sequence), &value, &self.stream)
            .map_err(|e| e.context(format!("message {sequence} of stream {:?}", self.stream)))?;
        let summary = Summary::of_value(&value, false)?;
        let path = path.display().to_string();
        if self.json.on {
            return output::json(&Received { stream: &self.stream, sequence, lost, path, summary, timestamp_ns });
        }
        output::line(format_args!("{}: {summary}", crate::text::printable(&path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_when_a_stream_begins_again() {
        let mut numbers = Numbers::default();
        let files: Vec<u64> = [0, 1, 5, 0, 1, 0].into_iter().map(|sequence| numbers.of(sequence)).collect();
        assert_eq!(files, [0, 1, 5, 6, 7, 8]);
    }
}
