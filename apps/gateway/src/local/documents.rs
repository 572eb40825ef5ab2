//! JSON documents that the gateway publishes for local clients. They describe each node, and the
//! gateway's statistics.

use super::Space;
use crate::nodes::Nodes;
use crate::statistics::Statistics;
use crate::wire::NodeName;
use tensorlend::remote::{NodeDocument, SERVICE, known_name, node_name};
use tensorlend::{DType, Lifetime};

/// Publishes the document about a node; `None` means this node.
///
/// # Errors
/// The client's error, if it cannot publish.
pub fn node(space: &Space, nodes: &Nodes, which: Option<&NodeName>) -> tensorlend::Result<()> {
    let here = which.is_none_or(|node| node == nodes.here());
    if let Some(other) = which.filter(|_| !here) {
        known(space, nodes, other)?;
    }
    let (node, epoch, alive) = match which.filter(|_| !here) {
        None => (nodes.here(), nodes.epoch(), true),
        Some(node) => match nodes.get(node) {
            Some(known) => (node, known.epoch, known.alive),
            None => return Ok(()),
        },
    };
    let document = NodeDocument { v: 1, node: node.to_string(), epoch: epoch.to_string(), alive, here };
    publish(space, &node_name(node.as_str()), &document, Lifetime::EPHEMERAL)
}

/// Records that this gateway has seen a node. The record outlives a gateway that is killed, so that clients can
/// distinguish names of this node from unknown names.
fn known(space: &Space, nodes: &Nodes, node: &NodeName) -> tensorlend::Result<()> {
    let name = known_name(node.as_str());
    let here = NodeDocument {
        v: 1,
        node: nodes.here().to_string(),
        epoch: nodes.epoch().to_string(),
        alive: false,
        here: true,
    };
    publish(space, &name, &here, Lifetime::default())
}

/// Deletes the records of the nodes that gateways of this machine have seen.
pub fn forget(space: &Space) {
    let delete = || -> tensorlend::Result<()> {
        let records = space.client.list(&known_name("*"))?;
        records.iter().try_for_each(|record| space.client.delete(&record.name).map(drop))
    };
    if let Err(error) = delete() {
        tracing::warn!(%error, "the records of nodes could not be deleted");
    }
}

/// Publishes the gateway's statistics as a document.
///
/// # Errors
/// The client's error, if it cannot publish.
pub fn statistics(space: &Space, statistics: &Statistics) -> tensorlend::Result<()> {
    publish(space, &format!("{SERVICE}/stat"), statistics, Lifetime::EPHEMERAL)
}

fn publish(space: &Space, name: &str, document: &impl serde::Serialize, lifetime: Lifetime) -> tensorlend::Result<()> {
    let bytes = serde_json::to_vec(document).map_err(|error| tensorlend::Error::Argument(error.to_string()))?;
    let mut draft = space.client.create(DType::U8, bytes.len())?;
    draft.copy_from(&bytes)?;
    draft.publish_for(name, lifetime)?;
    Ok(())
}
