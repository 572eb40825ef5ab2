//! `tensorlend load`: publishes a file's tensors as names.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::Serialize;
use tensorlend::{Client, Draft, Glob, Lifetime, ValueDraft};

use crate::failure::Failure;
use crate::files::manifest::{self, About, Manifest, Named};
use crate::files::{self, Entry, FileError};
use crate::options::{Connection, Json};
use crate::output;
use crate::progress::Progress;
use crate::publish::{self, Existing, Publisher};

const EXAMPLES: &str = "\
Examples:
  tensorlend load checkpoint.safetensors
  tensorlend load checkpoint.safetensors --prefix old/ --only 'model/*'
  tensorlend load model.safetensors                    of any program: each tensor under its own name
";

/// Publish the tensors of a .safetensors file, each under its own name.
///
/// All names are published, or none. The whole file is read into shared memory before the first name is published: a
/// damaged file, or one that does not fit, changes nothing. The names are then published one after the other. If the
/// daemon refuses one of them, or a signal ends the command, the others get back their former values. A file that `tensorlend save` wrote restores
/// datasets, metadata and timestamps; any other file gives one tensor per key.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LoadArgs {
    /// The file, with the extension .safetensors.
    file: PathBuf,
    /// Prefix of every name.
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Only names of the file that match a glob as in ls; may be given several times.
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
    /// Publish nothing if one of the names exists when the command starts.
    #[arg(long)]
    no_overwrite: bool,
    /// Keep the values of names that exist already, and publish the others.
    #[arg(long, conflicts_with = "no_overwrite")]
    keep_existing: bool,
    #[command(flatten)]
    json: Json,
}

/// The result of a load, which the command prints.
#[derive(Serialize)]
pub struct Loaded {
    path: String,
    names: Vec<String>,
    nbytes: u64,
    /// Names that existed already and were not replaced.
    kept: Vec<String>,
}

impl Loaded {
    /// Prints the result as text or JSON.
    pub fn print(&self, json: Json) -> Result<(), Failure> {
        if json.on {
            return output::json(self);
        }
        let (path, count) = (crate::text::printable(&self.path), crate::text::count(self.names.len() as u64, "name"));
        let kept = if self.kept.is_empty() { String::new() } else { format!(", {} kept as they are", self.kept.len()) };
        output::line(format_args!("{path}: {count}, {} bytes{kept}", self.nbytes))
    }
}

impl LoadArgs {
    /// Returns the arguments that publish the names of a file that do not exist yet.
    pub fn missing_of(file: PathBuf) -> Self {
        let json = Json { on: false };
        Self { file, prefix: String::new(), only: Vec::new(), no_overwrite: false, keep_existing: true, json }
    }

    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        self.load(at, "load")?.print(self.json)
    }

    /// Publishes the file's tensors, in a session that listings show with this verb.
    pub fn load(&self, at: &Connection, verb: &str) -> Result<Loaded, Failure> {
        let client = &at.open(verb)?;
        let (manifest, entries) = self.open()?;
        let (mut wanted, mut kept, mut new_names) = (Vec::new(), Vec::new(), 0);
        // Reject invalid names before reading a large file.
        for named in self.wanted(manifest)? {
            let name = self.name(&named);
            let exists = client.exists(&name).map_err(|cause| self.in_file(cause))?;
            if exists && self.no_overwrite {
                let hint = "leave out --no-overwrite, or give a --prefix";
                return Err(Failure::Other(format!("{name:?} exists already, and nothing was loaded: {hint}").into()));
            }
            if exists && self.keep_existing {
                kept.push(name);
            } else {
                wanted.push(named);
                new_names += usize::from(!exists);
            }
        }
        let existing = if self.keep_existing { Existing::Keep } else { Existing::Replace };
        let open = || at.open(verb);
        let publisher = Publisher { client, open: &open, lifetime: Lifetime::default(), existing };
        publisher.check_room(new_names).map_err(|e| e.context(format!("cannot load {}", self.file.display())))?;
        let (drafts, nbytes) = self.read(client, &wanted, &entries)?;
        let names = drafts.iter().map(|(name, _)| name.clone()).collect();
        // Another client may have published some of the names while this command read the file.
        let more = publisher.publish(drafts)?;
        let names = publish::without(names, &more);
        kept.extend(more);
        Ok(Loaded { path: self.file.display().to_string(), names, nbytes, kept })
    }

    fn name(&self, named: &Named) -> String {
        format!("{}{}", self.prefix, named.name)
    }

    fn in_file(&self, cause: tensorlend::Error) -> Failure {
        Failure::Content { path: self.file.clone(), cause: Box::new(cause) }
    }

    /// Returns the manifest of the file, and its tensors by key.
    fn open(&self) -> Result<(Manifest, HashMap<String, Entry>), Failure> {
        let (entries, notes) = files::open_noted(&self.file)?;
        let keys = || entries.iter().filter_map(|entry| entry.name.as_deref());
        let manifest = match notes.get(manifest::KEY) {
            Some(text) => Manifest::read(text, keys()).map_err(|what| FileError::Damaged {
                path: self.file.clone(),
                what,
                remedy: "save it again, or write it without the notes that it has under \"tensorlend\"",
            })?,
            None => Manifest::of_keys(keys()),
        };
        let by_key = |mut entry: Entry| (entry.name.take().unwrap_or_default(), entry);
        Ok((manifest, entries.into_iter().map(by_key).collect()))
    }

    /// Returns the names of the manifest that `only` selects. Without `only`, returns all names.
    fn wanted(&self, manifest: Manifest) -> Result<Vec<Named>, Failure> {
        let only = self.only.iter().map(|glob| Glob::new(glob)).collect::<Result<Vec<_>, _>>()?;
        let chosen = |named: &Named| only.is_empty() || only.iter().any(|glob| glob.is_match(&named.name));
        Ok(manifest.names.into_iter().filter(chosen).collect())
    }

    /// Reads all selected tensors into drafts. Also returns the total number of bytes.
    fn read(
        &self,
        client: &Client,
        wanted: &[Named],
        entries: &HashMap<String, Entry>,
    ) -> Result<(Vec<(String, ValueDraft)>, u64), Failure> {
        let keys = wanted.iter().flat_map(|it| it.key.iter().chain(it.members.iter().flatten().map(|m| &m.key)));
        let nbytes = keys.fold(0, |sum: u64, key| sum.saturating_add(entries[key].bytes));
        let _progress = Progress::bytes(&self.file.display().to_string(), nbytes);
        let tensor = |key: &str, about: &About| self.tensor(client, &entries[key], about);
        let mut drafts = Vec::with_capacity(wanted.len());
        for named in wanted {
            let draft: ValueDraft = if let Some(key) = &named.key {
                tensor(key, &named.about)?.into()
            } else {
                let mut dataset = client.dataset().timestamp(named.about.timestamp_ns);
                dataset = dataset.metadata(&bytes_of(&named.about)).map_err(|cause| self.in_file(cause))?;
                for member in named.members.iter().flatten() {
                    let draft = tensor(&member.key, &member.about)?;
                    dataset = dataset.add(&member.name, draft).map_err(|cause| self.in_file(cause))?;
                }
                dataset.into()
            };
            drafts.push((self.name(named), draft));
        }
        Ok((drafts, nbytes))
    }

    fn tensor(&self, client: &Client, entry: &Entry, about: &About) -> Result<Draft, Failure> {
        let draft = client.create(entry.dtype, &entry.shape);
        let mut draft = draft.map_err(|cause| self.in_file(cause))?;
        entry.read_into(draft.bytes_mut())?;
        draft.set_timestamp(about.timestamp_ns);
        draft.set_metadata(&bytes_of(about)).map_err(|cause| self.in_file(cause))?;
        Ok(draft)
    }
}

/// Returns the metadata. Its encoding was validated when the manifest was read.
fn bytes_of(about: &About) -> Vec<u8> {
    about.metadata().unwrap_or_default()
}
