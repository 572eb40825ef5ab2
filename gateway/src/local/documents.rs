//! JSON documents that the gateway publishes for local clients. They describe each node, and the
//! gateway's statistics.

use super::Space;
use crate::nodes::Nodes;
use crate::statistics::Statistics;
use crate::wire::NodeName;
use tensorlend::remote::{NodeDocument, SERVICE, node_name};
use tensorlend::{DType, Lifetime};

/// Publishes the document about a node; `None` means this node.
///
/// # Errors
/// The client's error, if it cannot publish.
pub fn node(space: &Space, nodes: &Nodes, which: Option<&NodeName>) -> tensorlend::Result<()> {
    let here = which.is_none_or(|node| node == nodes.here());
    let (node, epoch, alive) = match which.filter(|_| !here) {
        None => (nodes.here(), nodes.epoch(), true),
        Some(node) => match nodes.get(node) {
            Some(known) => (node, known.epoch, known.alive),
            None => return Ok(()),
        },
    };
    let document = NodeDocument { v: 1, node: node.to_string(), epoch: epoch.to_string(), alive, here };
    publish(space, &node_name(node.as_str()), &document)
}

/// Publishes the gateway's statistics as a document.
///
/// # Errors
/// The client's error, if it cannot publish.
pub fn statistics(space: &Space, statistics: &Statistics) -> tensorlend::Result<()> {
    publish(space, &format!("{SERVICE}/stat"), statistics)
}

fn publish(space: &Space, name: &str, document: &impl serde::Serialize) -> tensorlend::Result<()> {
    let bytes = serde_json::to_vec(document).map_err(|error| tensorlend::Error::Argument(error.to_string()))?;
    let mut draft = space.client.create(DType::U8, bytes.len())?;
    draft.copy_from(&bytes)?;
    draft.publish_for(name, Lifetime::EPHEMERAL)?;
    Ok(())
}
