//! Parts of the display that all tools share.

use serde_json::{Value, json};
use std::cmp::Ordering;
use tensorlend_layout::wire::Stat;

/// Compares names so that numbers in them are ordered by value: `layer.2` comes before `layer.10`.
///
/// ```
/// let mut names = ["layer.10", "layer.2", "layer", "layer.02"];
/// names.sort_by(|a, b| tensorlend::observe::natural(a, b));
/// assert_eq!(names, ["layer", "layer.02", "layer.2", "layer.10"]);
/// ```
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    while let (Some(x), Some(y)) = (left.first(), right.first()) {
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let (m, n) = (number(&mut left), number(&mut right));
            m.len().cmp(&n.len()).then(m.cmp(n))
        } else {
            (left, right) = (&left[1..], &right[1..]);
            x.cmp(y)
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Removes the leading digits from the text, and returns them without leading zeros.
fn number<'t>(text: &mut &'t [u8]) -> &'t [u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    &digits[digits.iter().position(|&digit| digit != b'0').unwrap_or(end)..]
}

/// Returns the daemon's metrics as JSON. Sizes are in bytes. A limit that is not set is the largest 64-bit integer.
///
/// ```
/// use tensorlend::{Stat, observe::stat_json};
///
/// let stat = Stat { pool_bytes: 4096, ..Stat::default() };
/// assert_eq!(stat_json(&stat)["pool"]["bytes"], 4096);
/// ```
pub fn stat_json(stat: &Stat) -> Value {
    let device = |it: &tensorlend_layout::wire::DeviceUse| {
        json!({
            "uuid": it.offer.uuid.to_string(), "name": it.offer.name, "allocator": it.offer.allocator.name(),
            "segment_bytes": it.offer.segment_bytes, "bytes_max": it.bytes_max, "bytes": it.bytes,
            "bytes_in_use": it.bytes_in_use, "segments": it.segments,
        })
    };
    json!({
        "version": stat.version,
        "pid": stat.pid,
        "mode": stat.mode,
        "uptime_ns": stat.uptime_ns,
        "pool": { "bytes_max": stat.pool_bytes_max, "bytes": stat.pool_bytes },
        "bytes_in_use": stat.bytes_in_use,
        "bytes_spare": stat.bytes_spare,
        "bytes_sheets": stat.bytes_sheets,
        "segments": stat.segments,
        "names": stat.names,
        "clients": stat.clients,
        "clients_gone": stat.frozen,
        "requests": stat.requests,
        "refusals": stat.refusals.total(),
        "refusals_by_reason": stat.refusals,
        "wakeups": stat.wakeups,
        "names_expired": stat.names_expired,
        "names_ephemeral_gone": stat.names_ephemeral_gone,
        "sessions_revoked": stat.sessions_revoked,
        "bytes_spilled": stat.bytes_spilled,
        "spill_failures": stat.spill_failures,
        "uids": stat.uids,
        "namespaces": stat.namespaces,
        // Sessions with returned memory that a process still has mapped.
        "holders": stat.holders,
        "device": stat.device,
        "devices": stat.devices.iter().map(device).collect::<Vec<_>>(),
        // Faults of the daemon, and the losses of its last restart. Null: the daemon is older than this client.
        "health": stat.health,
    })
}
