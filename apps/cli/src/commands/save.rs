//! `tensorlend save`: writes the values of names to one file.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;

use serde::Serialize;
use tensorlend::{Client, DType, Tensor, Value};

use crate::failure::Failure;
use crate::files::manifest::{self, About, Keys, Manifest, Member, Named};
use crate::files::{self, FileError, Filler, Outline};
use crate::options::Json;
use crate::output;
use crate::progress::Progress;
use crate::save::{elements, in_host_memory, on_device, sizes};
use crate::snapshot::{Snapshot, Wanted, names_of};

const EXAMPLES: &str = "\
Examples:
  tensorlend save '*' -o all.safetensors
  tensorlend save 'model/*' optimizer -o checkpoint.safetensors
  tensorlend save 'model/*' optimizer --ignore-missing -o checkpoint.safetensors
  tensorlend load checkpoint.safetensors               back under the same names
";

/// Maximum number of names that the command leases together. One client can hold this number of
/// leases.
const TOGETHER: usize = 4096;
/// Number of attempts to write a file of several groups. Then the command fails and reports the
/// names that change.
const ROUNDS: usize = 8;
/// Bytes by which the manifest's entry of one name may grow between the two leases of its group. A
/// later timestamp, for example, may be longer.
const ROOM_BYTES: usize = 64;

/// Write the values of names to one .safetensors file.
///
/// The command leases up to 4,096 names together before the first byte is written, and checks them again: the file
/// holds the values of all these names at one moment. More names, or names whose values do not fit into the daemon's
/// memory together, are saved in groups, in the order of their names: each group as it was at one moment. Each value is
/// whole; values of different groups may be of different moments. The command prints the number of groups. A name that
/// does not exist, or a glob that matches no name, is an error (exit status 4).
///
/// The file appears whole or not at all, and replaces a file or a symbolic link of that name. It keeps tensors, datasets, metadata and
/// timestamps, but not the remaining lifetimes of names. Lists and streams are not saved (`list-get`, `recv`), nor are
/// tensors on devices. Any reader of the format can read the file: a tensor's key is its name, that of a dataset's
/// tensor NAME/ITS-NAME.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SaveArgs {
    /// Names, which must exist, or globs as in ls, each of which must match a name.
    #[arg(value_name = "GLOB", required = true)]
    globs: Vec<String>,
    /// Save the names that exist, even if others are missing. If all are missing, the command writes no file, and fails
    /// with exit status 4.
    #[arg(long)]
    ignore_missing: bool,
    /// The file, with the extension .safetensors.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    json: Json,
}

/// The result of a save, which the command prints.
#[derive(Serialize)]
struct Saved {
    path: String,
    names: Vec<String>,
    nbytes: u64,
    /// Number of groups of names. Each group is consistent.
    groups: usize,
}

impl SaveArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        files::must_be_safetensors(&self.output)?;
        let wanted = names_of(client, &self.globs, self.ignore_missing)?;
        let mut changed = String::new();
        for _ in 0..ROUNDS {
            let saved = match self.save(client, &wanted) {
                Ok(saved) => saved,
                Err(Stop::Changed(name)) => {
                    changed = name;
                    continue;
                }
                Err(Stop::Failed(failure)) => return Err(failure),
            };
            // The command notes globs that match no name when it lists the names.
            for missing in wanted.iter().filter(|it| self.globs.contains(&it.name) && !saved.names.contains(&it.name)) {
                output::note(&format!("{:?} does not exist", missing.name));
            }
            if self.json.on {
                return output::json(&saved);
            }
            let count = crate::text::count(saved.names.len() as u64, "name");
            let groups = if saved.groups > 1 {
                format!(", in {} groups, each as it was at one moment", saved.groups)
            } else {
                String::new()
            };
            let path = crate::text::printable(&saved.path);
            return output::line(format_args!("{path}: {count}, {} bytes{groups}", saved.nbytes));
        }
        Err(Failure::Limit(format!(
            "{changed:?} got another shape or was deleted while the file was written, {ROUNDS} times in a row: leave it out, \
             or stop its producer"
        )))
    }

    /// Describes all names, then writes their values. If the names cannot all be leased together,
    /// writes one group after another.
    fn save(&self, client: &Client, wanted: &[Wanted]) -> Result<Saved, Stop> {
        let Described { groups, names, mut held } = describe(client, wanted)?;
        if names.is_empty() {
            return Err(Failure::NotFound("none of the names exists: see `tensorlend ls`".to_owned()).into());
        }
        let manifest = notes(&names);
        let mut outlines = Vec::new();
        for (described, named) in names.iter().zip(&manifest.names) {
            let keys = named.key.iter().chain(named.members.iter().flatten().map(|member| &member.key));
            for ((dtype, shape), key) in described.layouts.iter().zip(keys) {
                outlines.push(Outline { key, dtype: *dtype, shape });
            }
        }
        let nbytes = names.iter().fold(0u64, |sum, it| sum.saturating_add(it.nbytes));
        let path = self.output.display().to_string();
        let _progress = Progress::bytes(&path, nbytes);
        // The manifest needs no room to grow if this command still holds the snapshot: then the metadata cannot
        // change.
        let room = if held.is_some() { 0 } else { ROOM_BYTES * names.len() };
        let text = manifest.text();
        let fill = |file: &Filler<'_>| {
            let mut now = Vec::with_capacity(names.len());
            let (mut left, mut at) = (&names[..], 0);
            for group in &groups {
                let snapshot = held.take().map_or_else(|| Snapshot::take(client, group), Ok)?;
                let (expected, rest) = left.split_at(group.len());
                left = rest;
                let mut values = snapshot.iter();
                for expected in expected {
                    let changed = || Stop::Changed(expected.name.clone());
                    let (name, value) = values.next().ok_or_else(changed)?;
                    let found = Holding::new(name, value)?;
                    if !found.is_like(expected) {
                        return Err(changed());
                    }
                    for tensor in tensors(value) {
                        let bytes = elements(tensor);
                        let bytes = bytes.map_err(|e| Stop::Failed(e.context(format!("cannot save {name:?}"))))?;
                        file.put(at, &bytes)?;
                        at += 1;
                    }
                    now.push(found);
                }
            }
            Ok(notes(&now).text())
        };
        if !files::write_noted(&self.output, &outlines, (manifest::KEY, &text), room, fill)? {
            return Err(Stop::Changed(names.first().map_or_else(String::new, |it| it.name.clone())));
        }
        let groups = groups.len();
        Ok(Saved { path, names: names.into_iter().map(|it| it.name).collect(), nbytes, groups })
    }
}

/// The reason why the command abandons a file that it has begun.
enum Stop {
    /// The value of this name no longer matches its description. The command writes the whole file
    /// again.
    Changed(String),
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<FileError> for Stop {
    fn from(error: FileError) -> Self {
        Self::Failed(error.into())
    }
}

/// Descriptions of all values to save. The command makes them before it writes the first value.
struct Described {
    /// Groups of names that are leased together.
    groups: Vec<Vec<Wanted>>,
    /// Descriptions of the values, in the same order.
    names: Vec<Holding>,
    /// The leased values, if there is only one group.
    held: Option<Snapshot>,
}

/// A name's value without its elements.
struct Holding {
    name: String,
    about: About,
    /// Names and metadata of a dataset's tensors.
    members: Option<Vec<(String, About)>>,
    /// Element types and shapes of the value's tensors.
    layouts: Vec<(DType, Vec<u64>)>,
    nbytes: u64,
}

impl Holding {
    fn new(name: &str, value: &Value) -> Result<Self, Failure> {
        let (about, members) = match value {
            Value::Tensor(tensor) => (About::new(tensor.metadata(), tensor.timestamp()), None),
            Value::Dataset(dataset) => {
                let about = |tensor: &Tensor| About::new(tensor.metadata(), tensor.timestamp());
                let members = in_host_memory(name, dataset)?.map(|(member, tensor)| (member.to_owned(), about(tensor)));
                (About::new(dataset.metadata(), dataset.timestamp()), Some(members.collect()))
            }
            _ => return Err(on_device(name)),
        };
        let layouts = tensors(value).map(|tensor| (tensor.dtype(), sizes(tensor))).collect();
        let nbytes = tensors(value).fold(0u64, |sum, tensor| sum.saturating_add(tensor.nbytes() as u64));
        Ok(Self { name: name.to_owned(), about, members, layouts, nbytes })
    }

    /// Returns true if both values need the same file layout. Their types, shapes and members must
    /// be equal.
    fn is_like(&self, other: &Self) -> bool {
        let members = |it: &Self| {
            it.members.as_ref().map(|members| members.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>())
        };
        self.name == other.name && self.layouts == other.layouts && members(self) == members(other)
    }
}

/// Returns the tensors of a value, without those on devices.
fn tensors(value: &Value) -> impl Iterator<Item = &Tensor> {
    let single = match value {
        Value::Tensor(tensor) => Some(&**tensor),
        _ => None,
    };
    single
        .into_iter()
        .chain(value.as_dataset().into_iter().flat_map(|dataset| dataset.iter().map(|(_, tensor)| tensor)))
}

/// Describes all names, in groups that can be leased together.
fn describe(client: &Client, wanted: &[Wanted]) -> Result<Described, Failure> {
    let mut waiting: VecDeque<Vec<Wanted>> = wanted.chunks(TOGETHER).map(<[Wanted]>::to_vec).collect();
    let mut described = Described { groups: Vec::new(), names: Vec::new(), held: None };
    while let Some(mut group) = waiting.pop_front() {
        described.held = None;
        let snapshot = match Snapshot::take(client, &group) {
            Ok(snapshot) => snapshot,
            // The group's values do not fit into the daemon's memory together, so split the group
            // into halves.
            Err(failure) if failure.is_room() && group.len() > 1 => {
                let rest = group.split_off(group.len() / 2);
                waiting.push_front(rest);
                waiting.push_front(group);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let from = described.names.len();
        for (name, value) in snapshot.iter() {
            described.names.push(Holding::new(name, value)?);
        }
        let there: HashSet<&str> = described.names[from..].iter().map(|it| it.name.as_str()).collect();
        group.retain(|it| there.contains(it.name.as_str()));
        described.groups.push(group);
        described.held = Some(snapshot);
    }
    if described.groups.len() > 1 {
        described.held = None;
    }
    Ok(described)
}

/// Returns the manifest of a file with these names.
fn notes(names: &[Holding]) -> Manifest {
    let single = names.iter().filter(|it| it.members.is_none()).map(|it| it.name.as_str());
    let mut keys = Keys::new(single);
    let named = names.iter().map(|it| {
        let (key, members) = match &it.members {
            None => (Some(keys.own(&it.name)), None),
            Some(members) => {
                let member = |(member, about): &(String, About)| {
                    let key = keys.take(&format!("{}/{member}", it.name));
                    Member { name: member.clone(), key, about: about.clone() }
                };
                (None, Some(members.iter().map(member).collect()))
            }
        };
        Named { name: it.name.clone(), key, about: it.about.clone(), members }
    });
    Manifest::new(named.collect())
}
