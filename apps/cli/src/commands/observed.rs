//! `tensorlend ls --observe`: lists the names, streams and lists of all namespaces, as an observer sees them.

use serde_json::{Value, json};
use tensorlend::DType;
use tensorlend::observe::{ClientNo, ClientState, Observation, Origin, ValueSeen, natural};

use crate::failure::Failure;
use crate::options::Connection;
use crate::output::{self, Table};
use crate::text;

/// Lists the namespaces that the user named, or all namespaces. `shows` selects names.
pub fn list(at: &Connection, is_json: bool, shows: impl Fn(&str) -> bool) -> Result<(), Failure> {
    let mut inspector = at.inspect()?;
    let mut all =
        at.observed_namespaces()?.iter().map(|name| inspector.observe(name)).collect::<Result<Vec<_>, _>>()?;
    for seen in &mut all {
        seen.streams.retain(|it| shows(&it.name));
        seen.lists.retain(|it| shows(&it.name));
    }
    if is_json {
        let all: Vec<Value> = all.iter().map(|seen| namespace(seen, &shows)).collect();
        return output::json(&json!({ "namespaces": all }));
    }
    let mut values = Table::new(&["NAME", "NAMESPACE", "DTYPE", "SHAPE", ">BYTES", ">LEASES", "OWNER"]);
    let mut streams = Table::new(&["STREAM", "NAMESPACE", ">SUBSCRIBERS"]);
    let mut lists = Table::new(&["LIST", "NAMESPACE", ">ITEMS"]);
    for seen in &all {
        for (name, _, value) in named(seen, &shows) {
            values.row([
                name.to_owned(),
                seen.namespace.clone(),
                text::dtype_text(value).to_owned(),
                text::shape_text(value),
                value.bytes.to_string(),
                value.leases.to_string(),
                text::client_text(seen.client(value.owner)),
            ]);
        }
        for it in &seen.streams {
            streams.row([it.name.clone(), seen.namespace.clone(), it.subscribers.len().to_string()]);
        }
        for it in &seen.lists {
            lists.row([it.name.clone(), seen.namespace.clone(), it.items.to_string()]);
        }
    }
    let blocks: Vec<String> =
        [values, streams, lists].into_iter().filter(Table::has_rows).map(Table::fitting).collect();
    output::text_block(&blocks.join("\n"))
}

/// Returns the names that `shows` selects, with their values.
fn named<'o>(seen: &'o Observation, shows: &impl Fn(&str) -> bool) -> Vec<(&'o str, usize, &'o ValueSeen)> {
    let named = seen.values.iter().enumerate().filter_map(|(at, value)| match &value.origin {
        Origin::Name(name) if shows(name) => Some((name.as_str(), at, value)),
        _ => None,
    });
    let mut named: Vec<_> = named.collect();
    named.sort_by(|a, b| natural(a.0, b.0));
    named
}

/// Returns a namespace as JSON.
fn namespace(seen: &Observation, shows: &impl Fn(&str) -> bool) -> Value {
    let names = named(seen, shows).into_iter().map(|(name, at, value)| {
        let holders = seen.leases.iter().filter(|lease| lease.value == Some(at)).map(|lease| lease.holder);
        json!({
            "name": name,
            "kind": if value.is_dataset { "dataset" } else { "tensor" },
            "dtype": value.dtype.map(DType::name),
            "shape": value.shape,
            "nbytes": value.bytes,
            "timestamp_ns": value.timestamp_ns,
            "owner": value.owner,
            "holders": holders.collect::<Vec<_>>(),
        })
    });
    let streams = seen.streams.iter().map(|it| {
        let subscribers: Vec<ClientNo> = it.subscribers.iter().map(|one| one.client).collect();
        json!({ "name": it.name, "producer": it.producer, "subscribers": subscribers })
    });
    let clients = seen.clients.iter().map(|it| {
        json!({
            "client": it.number, "pid": it.pid, "uid": it.uid, "label": it.label, "command": it.command,
            "alive": it.state != ClientState::Ended, "bytes": it.bytes, "leases": it.leases,
        })
    });
    json!({
        "namespace": seen.namespace,
        "bytes": seen.bytes_lent,
        "names": names.collect::<Vec<_>>(),
        "streams": streams.collect::<Vec<_>>(),
        "lists": seen.lists.iter().map(|it| json!({ "name": it.name, "items": it.items })).collect::<Vec<_>>(),
        "clients": clients.collect::<Vec<_>>(),
    })
}
