//! `tensorlend nodes`: lists other machines, as this machine's gateway sees them.

use serde::Serialize;
use tensorlend::Client;
use tensorlend::remote::{NodeDocument, SERVICE};

use crate::failure::Failure;
use crate::options::Json;
use crate::output::{self, Table};

const EXAMPLES: &str = "\
Examples:
  tensorlend nodes
  tensorlend nodes -v
  tensorlend nodes --json | jq -r '.nodes[] | select(.alive) | .node'
";

/// List the nodes that this machine's gateway has seen, and whether they can be reached.
///
/// Reads the gateway's published document; sends no request. Lists nothing if no tensorlend-gateway serves this namespace.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct NodesArgs {
    /// Also show the gateway's counters: transfers, streams, lost and dropped messages.
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct Found {
    nodes: Vec<NodeDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<serde_json::Map<String, serde_json::Value>>,
}

impl NodesArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let nodes = client.remote().nodes()?;
        let gateway = if self.verbose { counted(client)? } else { None };
        if self.json.on {
            return output::json(&Found { nodes, gateway });
        }
        if nodes.is_empty() {
            let namespace = client.namespace();
            output::note(&format!(
                "no tensorlend-gateway serves namespace {namespace}: name the gateway's namespace with --namespace"
            ));
            return Ok(());
        }
        let mut table = Table::new(&["NODE", "STATE"]);
        for node in &nodes {
            let state = match (node.here, node.alive) {
                (true, _) => "this machine",
                (false, true) => "there",
                (false, false) => "cannot be reached",
            };
            table.row([node.node.clone(), state.into()]);
        }
        let mut blocks = vec![table.text()];
        if let Some(gateway) = gateway {
            let mut table = Table::new(&["COUNTED", ">BY THE GATEWAY"]);
            gateway.into_iter().filter(|(_, value)| value.is_u64()).for_each(|(what, value)| {
                table.row([what.replace('_', " "), value.to_string()]);
            });
            blocks.push(table.text());
        }
        output::text_block(&blocks.join("\n"))
    }
}

/// Returns the gateway's counters. Returns `None` if the value is not a document of counters,
/// because any member may write to the name.
fn counted(client: &Client) -> Result<Option<serde_json::Map<String, serde_json::Value>>, Failure> {
    let lease = match client.get(&format!("{SERVICE}/stat")) {
        Err(error) if error.is_not_found() => return Ok(None),
        other => other?,
    };
    let bytes = lease.as_slice::<u8>().ok().filter(|bytes| bytes.len() <= 1 << 20);
    Ok(bytes.and_then(|bytes| serde_json::from_slice(bytes).ok()))
}
