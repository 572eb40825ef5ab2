//! `tensorlend stat`: shows the daemon's metrics.

use std::time::Duration;

use serde::Serialize;
use tensorlend::{Health, Holder, NamespaceUse, Refusals, Stat, UidUse};

use crate::failure::Failure;
use crate::options::{Connection, Json, Observe, Reached};
use crate::output::{self, Table, bytes_text};

/// Show the daemon's metrics.
///
/// bytes_leased counts the bytes that the clients of this namespace have leased; all other metrics cover the whole
/// daemon. Usage and present limits of this user and this namespace follow (of all, for the superuser).
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  tensorlend stat --json | jq .bytes_in_use\n")]
pub struct StatArgs {
    #[command(flatten)]
    pub observe: Observe,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct Figures<'a> {
    version: &'a str,
    pid: u32,
    mode: &'a str,
    uptime_ns: u64,
    namespace: Option<&'a str>,
    pool: Pool,
    bytes_in_use: u64,
    /// Bytes that clients of the namespace have leased. An observer of all namespaces does not know
    /// this number.
    bytes_leased: Option<u64>,
    bytes_spare: u64,
    bytes_sheets: u64,
    segments: u32,
    names: u64,
    clients: u32,
    clients_gone: u32,
    requests: u64,
    refusals: u64,
    refusals_by_reason: Refusals,
    wakeups: u64,
    names_expired: u64,
    names_ephemeral_gone: u64,
    sessions_revoked: u64,
    /// Bytes of segments that are in spill files and not in the pool.
    bytes_spilled: u64,
    spill_failures: u64,
    uids: &'a [UidUse],
    namespaces: &'a [NamespaceUse],
    /// Sessions with returned memory that a process still has mapped.
    holders: &'a [Holder],
    device: &'a str,
    devices: Vec<Card<'a>>,
    /// Faults of the daemon, and the losses of its last restart. `None`: the daemon is older than this program.
    health: Option<&'a Health>,
}

/// The namespace that a command has joined.
enum Namespace {
    Joined(String),
    /// None, because an observer sees all namespaces.
    All,
    /// None, because a limit has refused a session. The text is the refusal.
    Refused(String),
}

impl Namespace {
    fn name(&self) -> Option<&str> {
        match self {
            Self::Joined(name) => Some(name),
            Self::All | Self::Refused(_) => None,
        }
    }
}

#[derive(Serialize)]
struct Card<'a> {
    uuid: String,
    name: &'a str,
    allocator: &'a str,
    segment_bytes: u64,
    bytes_max: u64,
    bytes: u64,
    bytes_in_use: u64,
    segments: u32,
}

fn cards(stat: &Stat) -> Vec<Card<'_>> {
    let card = stat.devices.iter().map(|it| Card {
        uuid: it.offer.uuid.to_string(),
        name: &it.offer.name,
        allocator: it.offer.allocator.name(),
        segment_bytes: it.offer.segment_bytes,
        bytes_max: it.bytes_max,
        bytes: it.bytes,
        bytes_in_use: it.bytes_in_use,
        segments: it.segments,
    });
    card.collect()
}

#[derive(Serialize)]
struct Pool {
    bytes_max: u64,
    bytes: u64,
}

impl StatArgs {
    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        match at.reach("stat")? {
            Reached::Session(client) => {
                let namespace = Namespace::Joined(client.namespace().to_owned());
                self.show(&client.stat()?, &namespace, Some(client.leased()?))
            }
            Reached::Metrics { stat, refused } => self.show(&stat, &Namespace::Refused(refused.to_string()), None),
        }
    }

    /// Shows the metrics that an observer of all namespaces can read.
    pub fn run_observed(&self, at: &Connection) -> Result<(), Failure> {
        self.show(&at.inspect()?.stat()?, &Namespace::All, None)
    }

    fn show(&self, stat: &Stat, namespace: &Namespace, leased: Option<u64>) -> Result<(), Failure> {
        if !self.json.on {
            return output::text_block(&text(stat, namespace, leased));
        }
        output::json(&Figures {
            version: &stat.version,
            pid: stat.pid,
            mode: &stat.mode,
            uptime_ns: stat.uptime_ns,
            namespace: namespace.name(),
            pool: Pool { bytes_max: stat.pool_bytes_max, bytes: stat.pool_bytes },
            bytes_in_use: stat.bytes_in_use,
            bytes_leased: leased,
            bytes_spare: stat.bytes_spare,
            bytes_sheets: stat.bytes_sheets,
            segments: stat.segments,
            names: stat.names,
            clients: stat.clients,
            clients_gone: stat.frozen,
            requests: stat.requests,
            refusals: stat.refusals.total(),
            refusals_by_reason: stat.refusals,
            wakeups: stat.wakeups,
            names_expired: stat.names_expired,
            names_ephemeral_gone: stat.names_ephemeral_gone,
            sessions_revoked: stat.sessions_revoked,
            bytes_spilled: stat.bytes_spilled,
            spill_failures: stat.spill_failures,
            uids: &stat.uids,
            namespaces: &stat.namespaces,
            holders: &stat.holders,
            device: &stat.device,
            devices: cards(stat),
            health: stat.health.as_ref(),
        })
    }
}

fn text(stat: &Stat, namespace: &Namespace, leased: Option<u64>) -> String {
    let mut table = Table::new(&["daemon", &stat.version]);
    let mut row = |what: &str, text: String| table.row([what.to_owned(), text]);
    let bytes = |bytes: u64| format!("{bytes} bytes ({})", bytes_text(bytes));
    row("pid", stat.pid.to_string());
    row("mode", stat.mode.clone());
    row("uptime", uptime_text(Duration::from_nanos(stat.uptime_ns)));
    let namespace = match namespace {
        Namespace::Joined(name) => name.clone(),
        Namespace::All => "all, as an observer".to_owned(),
        Namespace::Refused(why) => format!("none, without a session: {}", output::printable(why)),
    };
    row("namespace", namespace);
    row("pool.bytes_max", bytes(stat.pool_bytes_max));
    row("pool.bytes", bytes(stat.pool_bytes));
    row("bytes_in_use", bytes(stat.bytes_in_use));
    if let Some(leased) = leased {
        row("bytes_leased", format!("{}, in this namespace", bytes(leased)));
    }
    row("bytes_spare", bytes(stat.bytes_spare));
    row("bytes_sheets", bytes(stat.bytes_sheets));
    if stat.bytes_spilled > 0 || stat.spill_failures > 0 {
        row("bytes_spilled", format!("{}, {} files failed", bytes(stat.bytes_spilled), stat.spill_failures));
    }
    row("segments", format!("{} lent", stat.segments));
    row("names", stat.names.to_string());
    row("clients", format!("{} connected, {} gone whose tensors live on", stat.clients, stat.frozen));
    row("requests", format!("{} completed, {}", stat.requests, output::refused_text(&stat.refusals)));
    row("wakeups", stat.wakeups.to_string());
    row(
        "ended",
        format!(
            "{} names expired, {} ephemeral; {} sessions revoked",
            stat.names_expired, stat.names_ephemeral_gone, stat.sessions_revoked
        ),
    );
    for (what, text) in stat.health.iter().flat_map(health_rows) {
        row(what, output::printable(&text));
    }
    if stat.devices.is_empty() {
        row("device", stat.device.clone());
    }
    let devices = devices_text(&cards(stat));
    [table.text(), devices, uids_text(&stat.uids), holders_text(&stat.holders), namespaces_text(&stat.namespaces)]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns the rows about faults of the daemon, and about the losses of its last restart.
fn health_rows(health: &Health) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(fault) = &health.spill {
        rows.push(("spilling", format!("fails, {} so far: {}", output::count(fault.failures, "file"), fault.reason)));
    }
    if let Some(store) = &health.fd_store {
        let room = store.capacity.map_or_else(String::new, |most| format!(", room for {most}"));
        rows.push(("fd store", format!("{} of {} descriptors{room}", store.needed - store.missing, store.needed)));
    }
    rows.push(("last restart", health.lost.as_ref().map_or_else(|| "nothing was lost".to_owned(), output::loss_text)));
    rows
}

fn devices_text(cards: &[Card<'_>]) -> String {
    if cards.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["DEVICE", "NAME", "ALLOCATOR", ">BYTES", ">IN USE", ">SEGMENTS"]);
    for it in cards {
        table.row([
            it.uuid.clone(),
            it.name.to_owned(),
            it.allocator.to_owned(),
            of(it.bytes, it.bytes_max),
            it.bytes_in_use.to_string(),
            it.segments.to_string(),
        ]);
    }
    table.text()
}

/// Returns the text "USED of LIMIT".
fn of(used: impl Into<u64>, most: impl Into<u64>) -> String {
    let (used, most) = (used.into(), most.into());
    if most == u64::MAX { used.to_string() } else { format!("{used} / {most}") }
}

fn uids_text(uids: &[UidUse]) -> String {
    let mut table = Table::new(&[
        "UID",
        ">BYTES",
        ">KEPT BY LEASES",
        ">RETURNED AND HELD",
        ">DEVICE BYTES",
        ">SEGMENTS",
        ">DESCRIPTORS",
        ">SESSIONS",
        ">NAMES",
        ">LEASES",
    ]);
    for it in uids {
        table.row([
            it.uid.to_string(),
            of(it.bytes, it.bytes_max),
            it.bytes_kept_by_leases.to_string(),
            it.bytes_returned_and_held.to_string(),
            it.device_bytes.to_string(),
            it.segments.to_string(),
            of(it.descriptors, it.descriptors_max),
            of(it.sessions, it.sessions_max),
            it.names.to_string(),
            it.leases.to_string(),
        ]);
    }
    table.text()
}

/// Returns a table of the sessions with returned memory that a process still has mapped. Returns an
/// empty text if there are none.
fn holders_text(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["HOLDER", ">PID", ">UID", "SESSION", ">PIECES", ">BYTES"]);
    for it in holders {
        let known = |text: String| if it.pid == 0 { "unknown".to_owned() } else { text };
        let session = if it.connected { "connected" } else { "ended" };
        table.row([
            known(format!("client {}", it.client)),
            known(it.pid.to_string()),
            it.uid.to_string(),
            known(session.to_owned()),
            it.pieces.to_string(),
            it.bytes.to_string(),
        ]);
    }
    table.text()
}

fn namespaces_text(namespaces: &[NamespaceUse]) -> String {
    let mut table =
        Table::new(&["NAMESPACE", ">BYTES", ">DEVICE BYTES", ">SEGMENTS", ">DESCRIPTORS", ">NAMES", ">CLIENTS"]);
    for it in namespaces {
        table.row([
            it.name.clone(),
            of(it.bytes, it.bytes_max),
            it.device_bytes.to_string(),
            of(it.segments, it.segments_max),
            it.descriptors.to_string(),
            of(it.names, it.names_max),
            of(it.clients, it.clients_max),
        ]);
    }
    table.text()
}

fn uptime_text(up: Duration) -> String {
    let seconds = up.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{:.1} s", up.as_secs_f64()),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptimes() {
        let text = |seconds| uptime_text(Duration::from_secs(seconds));
        assert_eq!(text(5), "5.0 s");
        assert_eq!(text(65), "1 min 5 s");
        assert_eq!(text(3 * 3600 + 61), "3 h 1 min");
        assert_eq!(text(90_000), "1 d 1 h");
    }

    #[test]
    fn the_figures_have_units() {
        let stat = Stat { pool_bytes_max: 1 << 30, version: "1.0".into(), ..Stat::default() };
        let text = text(&stat, &Namespace::Joined("uid-1".into()), Some(1024));
        assert!(text.contains("pool.bytes_max  1073741824 bytes (1.0 GiB)\n"), "{text}");
        assert!(text.contains("bytes_leased    1024 bytes (1.0 KiB), in this namespace\n"), "{text}");
    }
}
