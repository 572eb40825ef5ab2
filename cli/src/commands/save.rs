//! `tensorlend save`: what names hold becomes one file.

use std::path::PathBuf;

use serde::Serialize;
use tensorlend::{Client, Tensor, Value};

use crate::args::Json;
use crate::failure::Failure;
use crate::files::manifest::{self, About, Keys, Manifest, Member, Named};
use crate::files::{self, Outline};
use crate::output;
use crate::progress::Progress;
use crate::save::{elements, on_device};
use crate::snapshot::Snapshot;

const EXAMPLES: &str = "\
Examples:
  tensorlend save '*' -o all.safetensors
  tensorlend save 'model/*' optimizer -o checkpoint.safetensors
  tensorlend load checkpoint.safetensors               back under the same names
";

/// Write what names hold to one .safetensors file.
///
/// All values are leased before the first byte is written, and looked at again: the file holds what all of these names held
/// at one moment. It appears whole or not at all; one of that name is replaced. Tensors, datasets, metadata and timestamps
/// are kept, the time that a name has left is not. Lists and streams are not saved (`list-get`, `recv`), nor are tensors on
/// devices. The file is one for any reader of the format: a tensor's key is its name, that of a dataset's tensor NAME/ITS-NAME.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SaveArgs {
    /// Names, which must exist, or globs as in ls.
    #[arg(value_name = "GLOB", required = true)]
    globs: Vec<String>,
    /// The file, with the extension .safetensors.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    json: Json,
}

/// What was written.
#[derive(Serialize)]
struct Saved<'a> {
    path: String,
    names: Vec<&'a str>,
    nbytes: u64,
}

impl SaveArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let path = self.output.display().to_string();
        let snapshot = Snapshot::take(client, &self.globs)?;
        let (manifest, tensors) = contents(&snapshot)?;
        let nbytes = tensors.iter().fold(0u64, |sum, (_, tensor)| sum.saturating_add(tensor.nbytes()));
        let outlines: Vec<_> =
            tensors.iter().map(|(key, tensor)| Outline { key, dtype: tensor.dtype(), shape: tensor.shape() }).collect();
        let progress = Progress::bytes(&path, nbytes, tensors.len());
        let mut refused = None;
        let written = files::write_noted(&self.output, &outlines, (manifest::KEY, manifest.text()), |at| {
            let (key, tensor) = &tensors[at];
            progress.advance(tensor.nbytes());
            elements(tensor).map_err(|failure| {
                refused = Some(failure.context(format!("cannot save {key:?}")));
                std::io::ErrorKind::OutOfMemory.into()
            })
        });
        drop(progress);
        if let Some(failure) = refused {
            return Err(failure);
        }
        written?;
        let names: Vec<_> = snapshot.iter().map(|(name, _)| name).collect();
        if self.json.on {
            return output::json(&Saved { path, names, nbytes });
        }
        let count = output::count(names.len() as u64, "name");
        output::line(format_args!("{}: {count}, {nbytes} bytes", output::printable(&path)))
    }
}

/// A tensor and its key in the file.
type Keyed<'a> = (String, &'a Tensor);

/// What the file says of the names, and its tensors.
fn contents(snapshot: &Snapshot) -> Result<(Manifest, Vec<Keyed<'_>>), Failure> {
    let single = snapshot.iter().filter(|(_, value)| value.as_tensor().is_some()).map(|(name, _)| name);
    let mut keys = Keys::new(single);
    let mut tensors: Vec<Keyed<'_>> = Vec::new();
    let mut names = Vec::new();
    for (name, value) in snapshot.iter() {
        names.push(match value {
            Value::Tensor(tensor) => {
                let key = keys.own(name);
                tensors.push((key.clone(), tensor));
                let about = About::new(tensor.metadata(), tensor.timestamp());
                Named { name: name.to_owned(), key: Some(key), about, members: None }
            }
            Value::Dataset(dataset) => {
                let members = dataset.iter().map(|(member, tensor)| {
                    let key = keys.take(&format!("{name}/{member}"));
                    tensors.push((key.clone(), tensor));
                    Member { name: member.to_owned(), key, about: About::new(tensor.metadata(), tensor.timestamp()) }
                });
                let members = Some(members.collect());
                let about = About::new(dataset.metadata(), dataset.timestamp());
                Named { name: name.to_owned(), key: None, about, members }
            }
            _ => return Err(on_device(name)),
        });
    }
    Ok((Manifest::new(names), tensors))
}
