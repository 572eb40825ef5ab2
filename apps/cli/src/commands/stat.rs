//! `tensorlend stat`: shows the daemon's metrics.

use std::time::Duration;

use serde_json::json;
use tensorlend::observe::{ClientSeen, Observation, States, stat_json};
use tensorlend::{DeviceUse, Health, Holder, NamespaceUse, Stat, UidUse};

use crate::commands::held::complete_observation;
use crate::failure::Failure;
use crate::options::{Connection, Json, Observe, Reached};
use crate::output::{self, Table};
use crate::text::bytes_text;

/// Show the daemon's metrics.
///
/// bytes_live, bytes_leased, bytes_retired and bytes_free are bytes of this namespace: values without a lease, values with
/// one, the part of the leased that was replaced or deleted, and the rest of the segments. All other metrics cover the
/// whole daemon. Usage and present limits of this user and this namespace follow (of all, for the superuser).
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  tensorlend stat --json | jq .bytes_in_use\n")]
pub struct StatArgs {
    #[command(flatten)]
    pub observe: Observe,
    #[command(flatten)]
    json: Json,
}

/// The namespace that a command has joined.
enum Namespace {
    /// The name, and the values and leases of the namespace. `None`: they could not be read.
    Joined(String, Option<Box<Observation>>),
    /// None, because an observer sees all namespaces.
    All,
    /// None, because a limit has refused a session. The text is the refusal.
    Refused(String),
}

impl StatArgs {
    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        match at.reach("stat")? {
            Reached::Session(client) => {
                // Before the observation, whose own requests count.
                let stat = client.stat()?;
                let seen = match complete_observation(&client) {
                    Ok(seen) => Some(Box::new(seen)),
                    Err(why) => {
                        output::note(&format!("the values and leases of the namespace cannot be read: {why}"));
                        None
                    }
                };
                self.show(&stat, &Namespace::Joined(client.namespace().to_owned(), seen))
            }
            Reached::Metrics { stat, refused } => self.show(&stat, &Namespace::Refused(refused.to_string())),
        }
    }

    /// Shows the metrics that an observer of all namespaces can read.
    pub fn run_observed(&self, at: &Connection) -> Result<(), Failure> {
        self.show(&at.inspect()?.stat()?, &Namespace::All)
    }

    fn show(&self, stat: &Stat, namespace: &Namespace) -> Result<(), Failure> {
        if !self.json.on {
            return output::text_block(&text(stat, namespace));
        }
        let mut it = stat_json(stat);
        let (name, seen) = match namespace {
            Namespace::Joined(name, seen) => (Some(name), seen.as_deref()),
            Namespace::All | Namespace::Refused(_) => (None, None),
        };
        let states = seen.map(States::of);
        it["namespace"] = name.map(String::as_str).into();
        it["bytes_live"] = states.map(|states| states.live).into();
        it["bytes_leased"] = states.map(|states| states.leased).into();
        it["bytes_retired"] = states.map(|states| states.retired).into();
        it["bytes_free"] = states.and_then(|states| states.free).into();
        let holder = |it: &ClientSeen| {
            json!({
                "client": it.number, "pid": it.pid, "uid": it.uid, "label": it.label,
                "leased_bytes": it.leased_bytes, "leases": it.leases,
            })
        };
        it["lease_holders"] = seen.map(|seen| seen.lease_holders().into_iter().map(holder).collect::<Vec<_>>()).into();
        output::json(&it)
    }
}

fn text(stat: &Stat, namespace: &Namespace) -> String {
    let mut table = Table::new(&["daemon", &stat.version]);
    let mut row = |what: &str, text: String| table.row([what.to_owned(), text]);
    let bytes = |bytes: u64| format!("{bytes} bytes ({})", bytes_text(bytes));
    row("pid", stat.pid.to_string());
    row("mode", stat.mode.clone());
    row("uptime", crate::text::age_text(Duration::from_nanos(stat.uptime_ns)));
    let of_namespace = match namespace {
        Namespace::Joined(name, _) => name.clone(),
        Namespace::All => "all, as an observer".to_owned(),
        Namespace::Refused(why) => format!("none, without a session: {}", crate::text::printable(why)),
    };
    row("namespace", of_namespace);
    row("pool.bytes_max", bytes(stat.pool_bytes_max));
    row("pool.bytes", bytes(stat.pool_bytes));
    row("bytes_in_use", bytes(stat.bytes_in_use));
    if let Namespace::Joined(_, Some(seen)) = namespace {
        let States { live, leased, retired, free } = States::of(seen);
        row("bytes_live", format!("{}, in this namespace, without a lease", bytes(live)));
        row("bytes_leased", format!("{}, in this namespace", bytes(leased)));
        row("bytes_retired", format!("{} of the leased: replaced or deleted", bytes(retired)));
        row("bytes_free", free.map_or_else(|| "unknown".to_owned(), |free| format!("{}, or drafts", bytes(free))));
    }
    row("bytes_spare", bytes(stat.bytes_spare));
    row("bytes_sheets", bytes(stat.bytes_sheets));
    if stat.bytes_spilled > 0 || stat.spill_failures > 0 {
        row("bytes_spilled", format!("{}, {} files failed", bytes(stat.bytes_spilled), stat.spill_failures));
    }
    row("segments", format!("{} lent", stat.segments));
    row("names", stat.names.to_string());
    row("clients", format!("{} connected, {} gone whose tensors live on", stat.clients, stat.frozen));
    row("requests", format!("{} completed, {}", stat.requests, crate::text::refused_text(&stat.refusals)));
    row("wakeups", stat.wakeups.to_string());
    row(
        "ended",
        format!(
            "{} names expired, {} ephemeral; {} sessions revoked",
            stat.names_expired, stat.names_ephemeral_gone, stat.sessions_revoked
        ),
    );
    for (what, text) in stat.health.iter().flat_map(health_rows) {
        row(what, crate::text::printable(&text));
    }
    if stat.devices.is_empty() {
        row("device", stat.device.clone());
    }
    let tables = [
        table.text(),
        table_text(&lease_holders(namespace), LEASE_HOLDERS),
        table_text(&stat.devices, DEVICES),
        table_text(&stat.uids, UIDS),
        table_text(&stat.holders, HOLDERS),
        table_text(&stat.namespaces, NAMESPACES),
    ];
    tables.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

fn lease_holders(namespace: &Namespace) -> Vec<ClientSeen> {
    let Namespace::Joined(_, Some(seen)) = namespace else { return Vec::new() };
    seen.lease_holders().into_iter().take(LEASE_HOLDERS_SHOWN).cloned().collect()
}

/// Returns the rows about faults of the daemon, and about the losses of its last restart.
fn health_rows(health: &Health) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(fault) = &health.spill {
        rows.push((
            "spilling",
            format!("fails, {} so far: {}", crate::text::count(fault.failures, "file"), fault.reason),
        ));
    }
    if let Some(store) = &health.fd_store {
        let room = store.capacity.map_or_else(String::new, |most| format!(", room for {most}"));
        rows.push(("fd store", format!("{} of {} descriptors{room}", store.needed - store.missing, store.needed)));
    }
    rows.push((
        "last restart",
        health.lost.as_ref().map_or_else(|| "nothing was lost".to_owned(), crate::text::loss_text),
    ));
    rows
}

/// The header of a column, and the text of a row in it.
type Column<T> = (&'static str, fn(&T) -> String);

const DEVICES: &[Column<DeviceUse>] = &[
    ("DEVICE", |it| it.offer.uuid.to_string()),
    ("NAME", |it| it.offer.name.clone()),
    ("ALLOCATOR", |it| it.offer.allocator.name().to_owned()),
    (">BYTES", |it| of(it.bytes, it.bytes_max)),
    (">IN USE", |it| it.bytes_in_use.to_string()),
    (">SEGMENTS", |it| it.segments.to_string()),
];

const UIDS: &[Column<UidUse>] = &[
    ("UID", |it| it.uid.to_string()),
    (">BYTES", |it| of(it.bytes, it.bytes_max)),
    (">KEPT BY LEASES", |it| it.bytes_kept_by_leases.to_string()),
    (">RETURNED AND HELD", |it| it.bytes_returned_and_held.to_string()),
    (">DEVICE BYTES", |it| it.device_bytes.to_string()),
    (">SEGMENTS", |it| it.segments.to_string()),
    (">DESCRIPTORS", |it| of(it.descriptors, it.descriptors_max)),
    (">SESSIONS", |it| of(it.sessions, it.sessions_max)),
    (">NAMES", |it| it.names.to_string()),
    (">LEASES", |it| it.leases.to_string()),
];

/// Maximum number of clients in the table of the holders of leases.
const LEASE_HOLDERS_SHOWN: usize = 10;

/// Clients with leases in this namespace, the one with the most leased bytes first.
const LEASE_HOLDERS: &[Column<ClientSeen>] = &[
    ("LEASED BY", |it| crate::text::client_text(Some(it))),
    (">BYTES", |it| it.leased_bytes.to_string()),
    (">LEASES", |it| it.leases.to_string()),
];

/// Sessions with returned memory that a process still has mapped.
const HOLDERS: &[Column<Holder>] = &[
    ("HOLDER", |it| known(it, format!("client {}", it.client))),
    (">PID", |it| known(it, it.pid.to_string())),
    (">UID", |it| it.uid.to_string()),
    ("SESSION", |it| known(it, if it.connected { "connected" } else { "ended" }.to_owned())),
    (">PIECES", |it| it.pieces.to_string()),
    (">BYTES", |it| it.bytes.to_string()),
];

const NAMESPACES: &[Column<NamespaceUse>] = &[
    ("NAMESPACE", |it| it.name.clone()),
    (">BYTES", |it| of(it.bytes, it.bytes_max)),
    (">DEVICE BYTES", |it| it.device_bytes.to_string()),
    (">SEGMENTS", |it| of(it.segments, it.segments_max)),
    (">DESCRIPTORS", |it| it.descriptors.to_string()),
    (">NAMES", |it| of(it.names, it.names_max)),
    (">CLIENTS", |it| of(it.clients, it.clients_max)),
];

/// Returns a table. Returns an empty text if there are no rows.
fn table_text<T>(rows: &[T], columns: &[Column<T>]) -> String {
    let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
    let mut table = Table::new(&heads);
    for row in rows {
        table.row(columns.iter().map(|(_, text)| text(row)));
    }
    if table.has_rows() { table.text() } else { String::new() }
}

/// Returns the text "USED / LIMIT".
fn of(used: impl Into<u64>, most: impl Into<u64>) -> String {
    let (used, most) = (used.into(), most.into());
    if most == u64::MAX { used.to_string() } else { format!("{used} / {most}") }
}

/// Returns the text if the daemon knows the session.
fn known(holder: &Holder, text: String) -> String {
    if holder.pid == 0 { "unknown".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_have_units() {
        let stat = Stat { pool_bytes_max: 1 << 30, version: "1.0".into(), ..Stat::default() };
        let text = text(&stat, &Namespace::Joined("uid-1".into(), Some(Box::default())));
        assert!(text.contains("pool.bytes_max  1073741824 bytes (1.0 GiB)\n"), "{text}");
        assert!(text.contains("bytes_leased    0 bytes (0 B), in this namespace\n"), "{text}");
        assert!(!text.contains("LEASED BY"), "{text}");
    }

    #[test]
    fn the_greatest_holders_of_leases_come_first() {
        let client = |pid, leased_bytes, leases| ClientSeen {
            pid,
            label: "reader".into(),
            leased_bytes,
            leases,
            ..ClientSeen::default()
        };
        let mut clients = vec![client(9, 0, 0), client(7, 10, 3)];
        clients.extend((0..20).map(|n| client(100 + n, 1000 + u64::from(n), 1)));
        let seen = Observation { clients, ..Observation::default() };
        let text = text(&Stat::default(), &Namespace::Joined("lab".into(), Some(Box::new(seen))));
        assert!(text.contains("LEASED BY   BYTES  LEASES\n119 reader   1019       1\n"), "{text}");
        assert!(text.contains("110 reader") && !text.contains("109 reader"), "{text}");
    }
}
