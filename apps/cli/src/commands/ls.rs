//! `tensorlend ls`: lists names, streams and lists.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tensorlend::observe::natural;
use tensorlend::remote::RemoteNames;
use tensorlend::{Client, Collection, DType, Error, Info, Listing, Spilled};

use crate::commands::held::names_held_by;
use crate::commands::info::Described;
use crate::commands::observed;
use crate::failure::Failure;
use crate::options::{Connection, Json, Observe, bytes, time};
use crate::output::{self, Table};
use crate::summary::{Summary, now_ns};

/// The text for the place of a spilled value.
const IN_FILE: &str = "file";

const EXAMPLES: &str = "\
Examples:
  tensorlend ls
  tensorlend ls 'camera/*'
  tensorlend ls --larger 1GiB --older 10m
  tensorlend ls --all-nodes 'node7/sim/*'
  tensorlend ls --held-by 4711 --json | jq -r '.names[].name'
";

/// List names, streams and lists, with their types and sizes.
///
/// Names are described by their records, and spilled values are not read back: WHERE is "file" for them. SHAPE is "?" for
/// a spilled dataset, and for a spilled tensor whose record is incomplete (strides, more than 4 dimensions, long
/// metadata); `tensorlend info` reads it back. In a terminal, long names are cut to its width. Names that cannot be read are left out and counted on standard error.
///
/// All conditions must hold. With a condition, streams and lists are left out: they have none of these properties.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LsArgs {
    /// Glob of the names: * and ? match any characters, / too; [ab], {a,b} and \ as in a shell.
    #[arg(default_value = "*", hide_default_value = true)]
    glob: String,
    /// Streams only.
    #[arg(long)]
    streams: bool,
    /// Lists only.
    #[arg(long)]
    lists: bool,
    /// Names whose current value this process has leased at the moment of the command.
    #[arg(long, value_name = "PID", conflicts_with_all = ["streams", "lists"])]
    held_by: Option<u32>,
    /// Names whose value is older than this by its timestamp: 10m, 2h. `put` sets timestamps; values without one
    /// (nanoseconds since 1970) are left out.
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["streams", "lists"])]
    older: Option<Duration>,
    /// Names whose value has more bytes than this: 1GiB, 500MiB, 4096.
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with_all = ["streams", "lists"])]
    larger: Option<u64>,
    /// Also the names of other machines, as their gateways report them: prefixed with their nodes, as in 'node7/sim/*'.
    #[arg(long, conflicts_with_all = ["streams", "lists", "held_by", "older", "larger"])]
    all_nodes: bool,
    /// Also names, streams and lists that begin with a dot, which programs use among themselves. --json and a glob that
    /// begins with a dot show them, too.
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    pub observe: Observe,
    #[command(flatten)]
    json: Json,
}

/// Returns the description of a spilled value whose record does not contain its type and shape.
fn spilled_json(it: &Spilled) -> Value {
    let mut json = json!({
        "name": it.name,
        "kind": if it.dtype.is_some() { "tensor" } else { "dataset" },
        "dtype": it.dtype.map(DType::name),
        "ndim": it.ndim,
        "nbytes": it.bytes,
        "metadata_nbytes": it.metadata_bytes,
        "timestamp_ns": it.timestamp_ns,
        "pid": it.pid,
        "uid": it.uid,
        "label": it.label,
        "alive": it.alive,
    });
    if let Some(fields) = json.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    json
}

/// Names that can be described, and names that cannot.
#[derive(Default)]
struct Names {
    infos: Vec<Info>,
    /// Names of `infos` whose values are in spill files.
    in_files: BTreeSet<String>,
    spilled: Vec<Spilled>,
    /// Names that could not be described, and the reasons.
    unreadable: Vec<(String, Error)>,
}

impl LsArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let has_condition = self.held_by.is_some() || self.older.is_some() || self.larger.is_some();
        let all = !self.streams && !self.lists;
        let Names { infos, in_files, spilled, unreadable } = if all { self.names(client)? } else { Names::default() };
        let names = all.then_some(infos);
        let all = all && !has_condition;
        let streams = if all || self.streams { Some(self.shown(client.streams(&self.glob)?)) } else { None };
        let lists = if all || self.lists { Some(self.shown(client.lists(&self.glob)?)) } else { None };
        let remote = if self.all_nodes { Some(client.remote().names(&self.glob)?) } else { None };
        if self.json.on {
            let mut found = serde_json::Map::new();
            let mut add = |key: &str, values: Option<Vec<Value>>| {
                found.extend(values.map(|values| (key.to_owned(), values.into())));
            };
            let described = |infos: Vec<Info>| infos.iter().map(|info| json!(Described::new(info))).collect();
            let counted = |all: Vec<Collection>, count: &str| {
                all.into_iter().map(|it| json!({ "name": it.name, count: it.count })).collect()
            };
            let some = |values: Vec<Value>| Some(values).filter(|values| !values.is_empty());
            add("names", names.map(described));
            add("streams", streams.map(|all| counted(all, "subscribers")));
            add("lists", lists.map(|all| counted(all, "items")));
            add("spilled", some(spilled.iter().map(spilled_json).collect()));
            let unreadable = unreadable.iter().map(|(name, why)| json!({ "name": name, "why": why.to_string() }));
            add("unreadable", some(unreadable.collect()));
            found.extend(remote.map(|remote| ("remote".to_owned(), json!(remote))));
            return output::json(&found);
        }
        let blocks = [
            names.filter(|all| !all.is_empty() || !spilled.is_empty()).map(|all| names_text(&all, &in_files, &spilled)),
            streams.filter(|all| !all.is_empty()).map(|all| collections_text(&["STREAM", ">SUBSCRIBERS"], all)),
            lists.filter(|all| !all.is_empty()).map(|all| collections_text(&["LIST", ">ITEMS"], all)),
            remote.as_ref().filter(|remote| !remote.names.is_empty()).map(remote_text),
        ];
        output::text_block(&blocks.into_iter().flatten().collect::<Vec<_>>().join("\n"))?;
        if let Some((name, why)) = unreadable.first() {
            let count = crate::text::count(unreadable.len() as u64, "name");
            output::note(&format!(
                "{count} could not be read and are left out, the first: {}: {} (--json has all)",
                crate::text::printable(name),
                crate::text::printable(&why.to_string())
            ));
        }
        if let Some(remote) = remote {
            if !remote.silent.is_empty() {
                eprintln!("did not respond: {} (their copies on this machine are listed)", remote.silent.join(", "));
            }
            if remote.more {
                eprintln!("there is more than is listed: give a narrower glob");
            }
        }
        Ok(())
    }

    /// Lists all namespaces without joining them.
    pub fn run_observed(&self, at: &Connection) -> Result<(), Failure> {
        let has_option = self.held_by.is_some() || self.older.is_some() || self.larger.is_some();
        if has_option || self.all_nodes || self.streams || self.lists {
            return Err(Failure::Usage("--observe goes with a glob, --all, --namespace and --json only".into()));
        }
        let glob = tensorlend::Glob::new(&self.glob)?;
        observed::list(at, self.json.on, |name| glob.is_match(name) && self.shows(name))
    }

    /// Returns true if the listing shows a name. Names that begin with a dot are for programs.
    fn shows(&self, name: &str) -> bool {
        self.all || self.json.on || !name.starts_with('.') || self.glob.starts_with('.')
    }

    fn shown(&self, mut all: Vec<Collection>) -> Vec<Collection> {
        all.retain(|it| self.shows(&it.name));
        all.sort_by(|a, b| natural(&a.name, &b.name));
        all
    }

    /// Returns the names that match the glob and the conditions, and the names without a description.
    fn names(&self, client: &Client) -> Result<Names, Failure> {
        let Listing { mut infos, unreadable, mut spilled, in_files } = client.overview(&self.glob)?;
        infos.sort_by(|a, b| natural(&a.name, &b.name));
        infos.retain(|info| self.shows(&info.name));
        spilled.retain(|spilled| self.shows(&spilled.name));
        if let Some(larger) = self.larger {
            infos.retain(|info| info.nbytes > larger);
            // Keep a spilled dataset of unknown size, because only its file contains the size.
            spilled.retain(|spilled| spilled.bytes.is_none_or(|bytes| bytes > larger));
        }
        if let Some(older) = self.older {
            infos.retain(|info| is_older(info.timestamp_ns, older, now_ns()));
            spilled.retain(|spilled| is_older(spilled.timestamp_ns, older, now_ns()));
        }
        if let Some(pid) = self.held_by {
            let held = names_held_by(client, pid)?;
            infos.retain(|info| held.contains(&info.name));
            spilled.retain(|spilled| held.contains(&spilled.name));
        }
        Ok(Names { infos, in_files, spilled, unreadable })
    }
}

fn is_older(timestamp_ns: u64, older: Duration, now_ns: u64) -> bool {
    timestamp_ns != 0 && u128::from(now_ns.saturating_sub(timestamp_ns)) > older.as_nanos()
}

fn names_text(infos: &[Info], in_files: &BTreeSet<String>, spilled: &[Spilled]) -> String {
    let mut rows = Vec::new();
    for info in infos {
        let (dtype, shape) = Summary::of_info(info).columns();
        let owner = crate::text::owner_text(info.pid, &info.label, info.alive);
        let location = if in_files.contains(&info.name) { IN_FILE } else { "" };
        rows.push([info.name.clone(), dtype, shape, info.nbytes.to_string(), location.to_owned(), owner]);
    }
    for it in spilled {
        let dtype = it.dtype.map_or("dataset", DType::name).to_owned();
        let bytes = it.bytes.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
        let owner = crate::text::owner_text(it.pid, &it.label, it.alive);
        rows.push([it.name.clone(), dtype, "?".to_owned(), bytes, IN_FILE.to_owned(), owner]);
    }
    rows.sort_by(|a, b| natural(&a[0], &b[0]));
    // Omit an empty column, because most daemons spill nothing.
    let has_files = rows.iter().any(|row| !row[4].is_empty());
    let mut head = vec!["NAME", "DTYPE", "SHAPE", ">BYTES", "WHERE", "OWNER"];
    if !has_files {
        head.remove(4);
    }
    let mut table = Table::new(&head);
    for row in rows {
        let cells = row.into_iter().enumerate().filter(|(at, _)| has_files || *at != 4);
        table.row(cells.map(|(_, cell)| cell));
    }
    table.fitting()
}

fn collections_text(head: &[&str], all: Vec<Collection>) -> String {
    let mut table = Table::new(head);
    for one in all {
        table.row([one.name, one.count.to_string()]);
    }
    table.fitting()
}

fn remote_text(remote: &RemoteNames) -> String {
    let mut table = Table::new(&["ON OTHER MACHINES", "KIND", "DTYPE", "SHAPE", ">SIZE", "LOCAL COPY"]);
    let mut names: Vec<_> = remote.names.iter().collect();
    names.sort_by(|a, b| natural(&a.name, &b.name));
    for one in names {
        let shape = one.shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
        let copy = match (one.cached, one.stale) {
            (true, true) => "old",
            (true, false) => "current",
            (false, _) => "none",
        };
        table.row([one.name.clone(), one.kind.clone(), one.dtype.clone(), shape, one.size.to_string(), copy.into()]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_timestamp_has_no_age() {
        let minute = Duration::from_mins(1);
        let ns = |seconds: u64| seconds * 1_000_000_000;
        assert!(is_older(ns(100), minute, ns(161)) && !is_older(ns(100), minute, ns(160)));
        assert!(!is_older(0, minute, ns(1000)));
        assert!(!is_older(ns(2000), minute, ns(1000)), "it is stamped with a time to come");
    }
}
