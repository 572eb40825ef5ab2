//! `tensorlend list-get`: writes the items of a list to files.

use std::path::PathBuf;

use serde::Serialize;
use tensorlend::Client;

use crate::failure::Failure;
use crate::options::Json;
use crate::output;
use crate::progress::Progress;
use crate::save::Folder;
use crate::summary::Summary;

/// Number of items that the command leases at a time. A client can hold 4096 leases.
const BATCH: u64 = 64;

/// Write the items of a list to a folder, one file each.
///
/// Files are called 000000.npy and so on, by the item's number in the list; they replace files and links of that name.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  tensorlend list-get results -o results --first 100\n")]
pub struct ListGetArgs {
    /// The list's name.
    list: String,
    /// The folder; created if it does not exist.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Number of the first item.
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Maximum number of items.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// npy, npz, safetensors, png, jpg or raw; default: npy, npz for datasets, safetensors for element types that numpy
    /// lacks.
    #[arg(long)]
    format: Option<String>,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct Got<'a> {
    list: &'a str,
    item: u64,
    path: String,
    #[serde(flatten)]
    summary: Summary,
}

impl ListGetArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        // Check that the list exists before creating the directory.
        client.get_range(&self.list, 0..0)?;
        let folder = Folder::open(&self.output, self.format.as_deref())?;
        let end = client.length(&self.list).min(self.first.saturating_add(self.count.unwrap_or(u64::MAX)));
        let progress = Progress::files(&self.list, usize::try_from(end.saturating_sub(self.first)).unwrap_or(0));
        let mut at = self.first;
        while at < end {
            let items = client.get_range(&self.list, at..end.min(at + BATCH))?;
            if items.is_empty() {
                return Err(Failure::NotFound(format!(
                    "a client cleared list {:?} during this command, at item {at}: see `tensorlend ls`",
                    self.list
                )));
            }
            for value in items {
                let path = folder
                    .save(at, &value, &self.list)
                    .map_err(|e| e.context(format!("item {at} of list {:?}", self.list)))?;
                let (path, summary) = (path.display().to_string(), Summary::of_value(&value, false)?);
                if self.json.on {
                    output::json(&Got { list: &self.list, item: at, path, summary })?;
                } else {
                    output::line(format_args!("{}: {summary}", crate::text::printable(&path)))?;
                }
                at += 1;
                progress.advance(1);
            }
        }
        Ok(())
    }
}
