//! `tensorlend append`: appends files to a list.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tensorlend::Client;

use crate::failure::Failure;
use crate::options::{Json, Notes, Raw};
use crate::output;
use crate::parcel::Parcel;
use crate::progress::Progress;

/// Append files to a list, one item each.
///
/// The first item creates the list. Many producers may append to one list; the daemon orders them. A file with named
/// tensors (.npz, .safetensors) is one item, a dataset.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  tensorlend append results run-*.npy\n")]
pub struct AppendArgs {
    /// The list's name.
    list: String,
    /// Files, as for put.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    raw: Raw,
    #[command(flatten)]
    notes: Notes,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct Appended<'a> {
    list: &'a str,
    /// The items' numbers in the list.
    items: Vec<u64>,
    nbytes: u64,
}

impl AppendArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let progress = Progress::files(&format!("to {}", self.list), self.files.len());
        let mut appended = Appended { list: &self.list, items: Vec::new(), nbytes: 0 };
        for file in &self.files {
            if let Err(e) = self.append(client, file, &mut appended) {
                let items = crate::text::count(appended.items.len() as u64, "item");
                let at = file.display();
                return Err(e.context(format!("list {:?}: stopped at {at}, after {items}", self.list)));
            }
            progress.advance(1);
        }
        drop(progress);
        if self.json.on {
            return output::json(&appended);
        }
        let items = crate::text::count(appended.items.len() as u64, "item");
        output::line(format_args!("appended {items}, {} bytes, to {}", appended.nbytes, self.list))
    }

    fn append(&self, client: &Client, file: &Path, appended: &mut Appended<'_>) -> Result<(), Failure> {
        let metadata = self.notes.metadata.as_ref().map_or(&[][..], |m| &m.0);
        let parcel = Parcel::read(client, file, self.raw.spec())?;
        let nbytes = parcel.summary().nbytes();
        appended.items.push(client.append(&self.list, parcel.whole(client, metadata)?)?);
        appended.nbytes += nbytes;
        Ok(())
    }
}
