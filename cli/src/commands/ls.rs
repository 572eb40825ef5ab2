//! `tensorlend ls`: what is there.

use serde::Serialize;
use tensorlend::{Client, Collection, Info};

use crate::args::Json;
use crate::commands::info::Described;
use crate::failure::Failure;
use crate::output::{self, Table};
use crate::summary::Summary;

const EXAMPLES: &str = "\
Examples:
  tensorlend ls
  tensorlend ls 'camera/*'
  tensorlend ls --json | jq -r '.names[] | select(.nbytes > 1e9) | .name'
";

/// List names, streams and lists, with what they hold.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LsArgs {
    /// Which: * and ? match any characters, / too; [ab], {a,b} and \ as in a shell.
    #[arg(default_value = "*", hide_default_value = true)]
    glob: String,
    /// Streams only.
    #[arg(long)]
    streams: bool,
    /// Lists only.
    #[arg(long)]
    lists: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Default, Serialize)]
struct Found {
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<Vec<Described>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    streams: Option<Vec<Stream>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lists: Option<Vec<List>>,
}

#[derive(Serialize)]
struct Stream {
    name: String,
    subscribers: u64,
}

#[derive(Serialize)]
struct List {
    name: String,
    items: u64,
}

impl LsArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let all = !self.streams && !self.lists;
        let names = if all { Some(client.list(&self.glob)?) } else { None };
        let streams = if all || self.streams { Some(client.streams(&self.glob)?) } else { None };
        let lists = if all || self.lists { Some(client.lists(&self.glob)?) } else { None };
        if self.json.on {
            return output::json(&Found {
                names: names.map(|infos| infos.iter().map(Described::new).collect()),
                streams: streams
                    .map(|all| all.into_iter().map(|c| Stream { name: c.name, subscribers: c.count }).collect()),
                lists: lists.map(|all| all.into_iter().map(|c| List { name: c.name, items: c.count }).collect()),
            });
        }
        let blocks = [
            names.filter(|all| !all.is_empty()).map(|all| names_text(&all)),
            streams.filter(|all| !all.is_empty()).map(|all| collections_text(&["STREAM", ">SUBSCRIBERS"], all)),
            lists.filter(|all| !all.is_empty()).map(|all| collections_text(&["LIST", ">ITEMS"], all)),
        ];
        output::text_block(&blocks.into_iter().flatten().collect::<Vec<_>>().join("\n"))
    }
}

fn names_text(infos: &[Info]) -> String {
    let mut table = Table::new(&["NAME", "DTYPE", "SHAPE", ">BYTES", "OWNER"]);
    for info in infos {
        let (dtype, shape) = Summary::of_info(info).columns();
        table.row([info.name.clone(), dtype, shape, info.nbytes.to_string(), owner_text(info)]);
    }
    table.text()
}

fn collections_text(head: &[&str], all: Vec<Collection>) -> String {
    let mut table = Table::new(head);
    for one in all {
        table.row([one.name, one.count.to_string()]);
    }
    table.text()
}

/// Process, label, and whether it is connected.
pub fn owner_text(info: &Info) -> String {
    let gone = if info.alive { "" } else { " (gone)" };
    // In a pid namespace that the daemon does not see.
    let pid = if info.pid == 0 { "?".to_owned() } else { info.pid.to_string() };
    format!("{pid} {}{gone}", info.label)
}
