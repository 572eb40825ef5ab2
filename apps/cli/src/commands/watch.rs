//! `tensorlend watch`: prints a line for each new value of a name.

use std::time::Duration;

use serde::Serialize;
use tensorlend::{Client, Value, Version};

use crate::failure::Failure;
use crate::options::{Json, seconds};
use crate::output;
use crate::save::on_device;
use crate::summary::{Summary, timestamp_text};

const EXAMPLES: &str = "\
Examples:
  tensorlend watch weights
  tensorlend watch weights --new --count 1 --timeout 60 && echo trained
  tensorlend watch weights --json | jq .checksum_xxh3
";

/// Print a line for each new value of a name.
///
/// The first line describes the current value. A name holds its latest value only: if values come faster than they are
/// printed, the command skips to the newest. (A stream delivers every message.)
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct WatchArgs {
    /// The name; it need not exist yet.
    name: String,
    /// End after this many values.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// End with exit status 5 after this many seconds without a new value; default: no limit.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Leave out the current value.
    #[arg(long)]
    new: bool,
    /// Do not read the bytes for a checksum.
    #[arg(long)]
    no_checksum: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct Seen<'a> {
    name: &'a str,
    #[serde(flatten)]
    summary: Summary,
    timestamp_ns: u64,
}

impl WatchArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let there = if self.new { client.version(&self.name)? } else { None };
        let mut seen = there.unwrap_or(Version::NONE);
        for _ in 0..self.count.unwrap_or(u64::MAX) {
            let value = client.wait_value(&self.name, seen, self.timeout)?;
            seen = value.version();
            self.print(&value)?;
        }
        Ok(())
    }

    fn print(&self, value: &Value) -> Result<(), Failure> {
        let summary = Summary::of_value(value, !self.no_checksum)?;
        let timestamp_ns = match value {
            Value::Tensor(lease) => lease.timestamp(),
            Value::Dataset(dataset) => dataset.timestamp(),
            _ => return Err(on_device(&self.name)),
        };
        if self.json.on {
            return output::json(&Seen { name: &self.name, summary, timestamp_ns });
        }
        match timestamp_ns {
            0 => output::line(format_args!("{}: {summary}", self.name)),
            ns => output::line(format_args!("{}: {summary}, at {} s", self.name, timestamp_text(ns))),
        }
    }
}
