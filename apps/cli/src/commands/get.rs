//! `tensorlend get`: writes a tensor or a dataset to a file.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tensorlend::{Client, Error, Value};

use crate::failure::Failure;
use crate::options::{Json, seconds};
use crate::progress::Progress;
use crate::summary::Summary;
use crate::{output, save};

const EXAMPLES: &str = "\
Examples:
  tensorlend get weights -o weights.safetensors
  tensorlend get photo -o photo.png
  tensorlend get frame -o frame.bytes --raw
  tensorlend get result -o result.npy --timeout 30     wait for it, 30 seconds at most
";

/// Write the value of a name to a file.
///
/// The extension selects the format; a dataset needs .npz or .safetensors, unless it has one tensor only. The file
/// appears whole or not at all, and replaces a file or a symbolic link of that name. A device or a pipe of that name
/// gets the bytes directly.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct GetArgs {
    /// The name.
    name: String,
    /// The file: .npy, .npz, .safetensors, .png, .jpg, .raw or .bin.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Write the elements in C order and nothing else, whatever the extension.
    #[arg(long)]
    raw: bool,
    /// Seconds to wait for the name; default: fail at once if it does not exist.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct Got<'a> {
    name: &'a str,
    path: String,
    #[serde(flatten)]
    summary: Summary,
}

impl GetArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let value = self.value(client)?;
        let summary = Summary::of_value(&value, false)?;
        {
            let _progress = Progress::bytes(&self.output.display().to_string(), summary.nbytes());
            let write = if self.raw { save::save_raw } else { save::save };
            write(&value, &self.name, &self.output).map_err(|e| e.context(format!("cannot get {:?}", self.name)))?;
        }
        let path = self.output.display().to_string();
        if self.json.on {
            return output::json(&Got { name: &self.name, path, summary });
        }
        output::line(format_args!("{}: {summary}", crate::text::printable(&path)))
    }

    fn value(&self, client: &Client) -> Result<Value, Error> {
        match self.timeout {
            Some(_) => client.wait_value(&self.name, tensorlend::Version::NONE, self.timeout),
            None => client.get_value(&self.name),
        }
    }
}
