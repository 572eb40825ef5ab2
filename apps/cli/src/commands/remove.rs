//! `tensorlend rm`: deletes names, streams and lists.

use serde::Serialize;
use tensorlend::{Client, Error};

use crate::failure::Failure;
use crate::options::Json;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  tensorlend rm weights
  tensorlend rm 'camera/*' 'lidar/*'
  tensorlend rm --exact 'odd[name]*'
  tensorlend rm --stream camera --list results
";

/// Delete names, streams and lists.
///
/// Current readers of a tensor keep it until they release it. A name without * ? [ { or \ must exist (exit status 4 if
/// not; the others are deleted nevertheless); a glob may match nothing.
#[derive(clap::Args, Debug)]
#[command(visible_alias = "remove", after_help = EXAMPLES)]
pub struct RemoveArgs {
    /// Names, or globs as in ls.
    #[arg(value_name = "GLOB", required_unless_present_any = ["streams", "lists"])]
    globs: Vec<String>,
    /// Delete a stream, or all that match a glob; may be given several times.
    #[arg(long = "stream", value_name = "GLOB")]
    streams: Vec<String>,
    /// Delete a list and its items, or all that match a glob; may be given several times.
    #[arg(long = "list", value_name = "GLOB")]
    lists: Vec<String>,
    /// Take all arguments literally, not as globs.
    #[arg(long)]
    exact: bool,
    #[command(flatten)]
    json: Json,
}

/// The result of a removal, which the command prints.
#[derive(Serialize)]
struct Deleted {
    names: Vec<String>,
    streams: Vec<String>,
    lists: Vec<String>,
}

impl RemoveArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let mut missing = Vec::new();
        let found = |all: Vec<tensorlend::Collection>| all.into_iter().map(|c| c.name).collect();
        let deleted = Deleted {
            names: self.each(
                ("tensor", &self.globs, &mut missing),
                |glob| client.names(glob),
                |name| client.delete(name),
            )?,
            streams: self.each(
                ("stream", &self.streams, &mut missing),
                |glob| client.streams(glob).map(found),
                |name| client.delete_stream(name),
            )?,
            lists: self.each(
                ("list", &self.lists, &mut missing),
                |glob| client.lists(glob).map(found),
                |name| client.clear(name),
            )?,
        };
        if self.json.on {
            output::json(&deleted)?;
        } else {
            output::line(format_args!("deleted {}", deleted.text()))?;
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(Failure::NotFound(format!("there is no {}: see `tensorlend ls`", missing.join(", no "))))
    }

    /// Deletes the objects of one kind that the words name or match. Adds each word that names no
    /// object to `missing`.
    fn each(
        &self,
        (kind, words, missing): (&str, &[String], &mut Vec<String>),
        list: impl Fn(&str) -> Result<Vec<String>, Error>,
        delete: impl Fn(&str) -> Result<bool, Error>,
    ) -> Result<Vec<String>, Failure> {
        let mut deleted = Vec::new();
        for word in words {
            if !self.exact && word.contains(['*', '?', '[', '{', '\\']) {
                for name in list(word)? {
                    // `delete` returns false if another client has deleted the object since it was
                    // listed.
                    if delete(&name)? {
                        deleted.push(name);
                    }
                }
            } else if delete(word)? {
                deleted.push(word.clone());
            } else {
                missing.push(format!("{kind} named {word:?}"));
            }
        }
        Ok(deleted)
    }
}

impl Deleted {
    fn text(&self) -> String {
        let counts = [(&self.names, "name", true), (&self.streams, "stream", false), (&self.lists, "list", false)];
        let several = self.streams.len() + self.lists.len() > 0;
        let shown = counts.into_iter().filter(|(all, _, always)| !all.is_empty() || (*always && !several));
        shown.map(|(all, what, _)| crate::text::count(all.len() as u64, what)).collect::<Vec<_>>().join(", ")
    }
}
