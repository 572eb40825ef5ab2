//! `tensorlend ls --observe`: lists the names, streams and lists of all namespaces, as an observer sees them.

use serde::Serialize;
use tensorlend::DType;
use tensorlend::observe::{ClientNo, ClientSeen, ClientState, Observation, Origin, StreamSeen, ValueSeen};

use crate::commands::ls::owner_of;
use crate::failure::Failure;
use crate::options::Connection;
use crate::output::{self, Table};

/// A namespace, as JSON.
#[derive(Serialize)]
struct Seen<'o> {
    namespace: &'o str,
    bytes: u64,
    names: Vec<Value<'o>>,
    streams: Vec<Stream<'o>>,
    lists: Vec<List<'o>>,
    clients: Vec<Member<'o>>,
}

#[derive(Serialize)]
struct Value<'o> {
    name: &'o str,
    kind: &'static str,
    dtype: Option<&'static str>,
    shape: Option<&'o [usize]>,
    nbytes: u64,
    timestamp_ns: u64,
    owner: ClientNo,
    /// The clients that have leased the value.
    holders: Vec<ClientNo>,
}

#[derive(Serialize)]
struct Stream<'o> {
    name: &'o str,
    producer: ClientNo,
    subscribers: Vec<ClientNo>,
}

#[derive(Serialize)]
struct List<'o> {
    name: &'o str,
    items: u64,
}

#[derive(Serialize)]
struct Member<'o> {
    client: ClientNo,
    pid: u32,
    uid: u32,
    label: &'o str,
    command: Option<&'o str>,
    alive: bool,
    bytes: u64,
    leases: u64,
}

/// Lists the namespaces that the user named, or all namespaces. `shows` selects names.
pub fn list(at: &Connection, is_json: bool, shows: impl Fn(&str) -> bool) -> Result<(), Failure> {
    let mut inspector = at.inspect()?;
    let mut names = at.namespaces().to_vec();
    if names.is_empty() {
        names.extend(inspector.namespaces()?.into_iter().map(|it| it.name));
    }
    let all = names.iter().map(|name| inspector.observe(name)).collect::<Result<Vec<_>, _>>()?;
    if is_json {
        let all: Vec<Seen<'_>> = all.iter().map(|seen| json(seen, &shows)).collect();
        return output::json(&serde_json::json!({ "namespaces": all }));
    }
    let blocks = [names_text(&all, &shows), streams_text(&all, &shows), lists_text(&all, &shows)];
    output::text_block(&blocks.into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

/// Returns the names that `shows` selects, with their values.
fn named<'o>(seen: &'o Observation, shows: &impl Fn(&str) -> bool) -> Vec<(&'o str, usize, &'o ValueSeen)> {
    let named = seen.values.iter().enumerate().filter_map(|(at, value)| match &value.origin {
        Origin::Name(name) if shows(name) => Some((name.as_str(), at, value)),
        _ => None,
    });
    let mut named: Vec<_> = named.collect();
    named.sort_unstable_by_key(|&(name, ..)| name);
    named
}

fn json<'o>(seen: &'o Observation, shows: &impl Fn(&str) -> bool) -> Seen<'o> {
    let names = named(seen, shows).into_iter().map(|(name, at, value)| Value {
        name,
        kind: if value.is_dataset { "dataset" } else { "tensor" },
        dtype: value.dtype.map(DType::name),
        shape: value.shape.as_deref(),
        nbytes: value.bytes,
        timestamp_ns: value.timestamp_ns,
        owner: value.catalogue,
        holders: seen.leases.iter().filter(|lease| lease.value == Some(at)).map(|lease| lease.holder).collect(),
    });
    let streams = seen.streams.iter().filter(|it| shows(&it.name)).map(|it: &StreamSeen| Stream {
        name: &it.name,
        producer: it.producer,
        subscribers: it.subscribers.iter().map(|one| one.catalogue).collect(),
    });
    let lists = seen.lists.iter().filter(|it| shows(&it.name)).map(|it| List { name: &it.name, items: it.items });
    let clients = seen.clients.iter().map(|it: &ClientSeen| Member {
        client: it.catalogue,
        pid: it.pid,
        uid: it.uid,
        label: &it.label,
        command: it.command.as_deref(),
        alive: it.state != ClientState::Ended,
        bytes: it.bytes,
        leases: it.leases,
    });
    Seen {
        namespace: &seen.namespace,
        bytes: seen.bytes_lent,
        names: names.collect(),
        streams: streams.collect(),
        lists: lists.collect(),
        clients: clients.collect(),
    }
}

fn names_text(all: &[Observation], shows: &impl Fn(&str) -> bool) -> Option<String> {
    let mut table = Table::new(&["NAME", "NAMESPACE", "DTYPE", "SHAPE", ">BYTES", ">LEASES", "OWNER"]);
    for seen in all {
        for (name, _, value) in named(seen, shows) {
            let owner = seen.clients.iter().find(|client| client.catalogue == value.catalogue);
            let is_alive = |it: &ClientSeen| it.state != ClientState::Ended;
            table.row([
                name.to_owned(),
                seen.namespace.clone(),
                value.dtype.map_or(if value.is_dataset { "dataset" } else { "?" }, DType::name).to_owned(),
                value.shape.as_ref().map_or_else(String::new, |shape| format!("{shape:?}")),
                value.bytes.to_string(),
                value.leases.to_string(),
                owner.map_or_else(|| "?".to_owned(), |it| owner_of(it.pid, &it.label, is_alive(it))),
            ]);
        }
    }
    table.has_rows().then(|| table.fitting())
}

fn streams_text(all: &[Observation], shows: &impl Fn(&str) -> bool) -> Option<String> {
    let mut table = Table::new(&["STREAM", "NAMESPACE", ">SUBSCRIBERS"]);
    for seen in all {
        for it in seen.streams.iter().filter(|it| shows(&it.name)) {
            table.row([it.name.clone(), seen.namespace.clone(), it.subscribers.len().to_string()]);
        }
    }
    table.has_rows().then(|| table.fitting())
}

fn lists_text(all: &[Observation], shows: &impl Fn(&str) -> bool) -> Option<String> {
    let mut table = Table::new(&["LIST", "NAMESPACE", ">ITEMS"]);
    for seen in all {
        for it in seen.lists.iter().filter(|it| shows(&it.name)) {
            table.row([it.name.clone(), seen.namespace.clone(), it.items.to_string()]);
        }
    }
    table.has_rows().then(|| table.fitting())
}
