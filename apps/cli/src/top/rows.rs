//! The rows of each tab.

use tensorlend::observe::{ClientSeen, LeaseSeen, Location, Observation, Origin, SegmentSeen, StreamSeen, ValueSeen};

use super::facts::{Facts, POINTS, Use};
use super::table::{Cell, Row, Subject, Tab};
use crate::member::MemberId;
use crate::summary::timestamp_text;
use crate::text::{age_text, bytes_text, client_text, dtype_text, printable, shape_text};

/// Returns all rows, in the order of the observation.
pub fn rows(tab: Tab, facts: &Facts) -> Vec<Row> {
    let seen = &facts.sampled.seen;
    match tab {
        Tab::Use => facts.uses.iter().map(one_use).collect(),
        Tab::Names => {
            let named = seen.values.iter().filter(|value| !matches!(value.origin, Origin::Message { .. }));
            named.map(|value| name(seen, value)).collect()
        }
        Tab::Leases => seen.leases.iter().map(|it| lease(seen, it)).collect(),
        Tab::Streams => seen.streams.iter().map(|it| stream(facts, it)).collect(),
        Tab::Clients => seen.clients.iter().map(client).collect(),
        Tab::Segments => seen.segments.iter().enumerate().map(|(at, it)| segment(seen, at, it)).collect(),
    }
}

fn one_use(it: &Use) -> Row {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| Cell::count(None), Cell::bytes);
    let cells = vec![
        Cell::text(&it.who),
        Cell::text(it.kind),
        Cell::bytes(it.bytes),
        bytes(it.most),
        bytes(it.leases.map(|held| held.bytes)),
        Cell::count(it.leases.map(|held| held.count)),
        Cell::lease_age(it.leases.and_then(|held| held.age_max), it.leases.is_some_and(|held| held.is_older)),
        Cell::text(spark(&it.history)),
    ];
    let subject = it.client.map_or(Subject::Other, Subject::Client);
    Row { id: it.id(), cells, subject, more: Vec::new() }
}

/// Returns the latest values as bars, scaled to the highest value.
pub fn spark(history: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let latest = &history[history.len().saturating_sub(POINTS)..];
    let highest = latest.iter().copied().max().unwrap_or(0).max(1);
    latest.iter().map(|&value| BARS[(u128::from(value) * 7).div_ceil(u128::from(highest)) as usize]).collect()
}

/// Returns the name, stream or list that refers to a value.
fn origin_text(origin: &Origin) -> String {
    match origin {
        Origin::Name(name) => name.clone(),
        Origin::Item { list, number } => format!("{list}[{number}]"),
        Origin::Message { stream, number } => format!("{stream} #{number}"),
    }
}

fn name(seen: &Observation, value: &ValueSeen) -> Row {
    let subject = match &value.origin {
        Origin::Name(name) => Subject::Name(name.clone()),
        _ => Subject::Other,
    };
    let origin = origin_text(&value.origin);
    let cells = vec![
        Cell::text(&origin),
        Cell::text(dtype_text(value)),
        Cell::text(shape_text(value)),
        bytes_seen(value.bytes, Some(value)),
        Cell::count(value.leases),
        Cell::text(client_text(seen.client(value.owner))),
    ];
    let timestamp = match value.timestamp_ns {
        0 => "none".to_owned(),
        ns => format!("{} s", timestamp_text(ns)),
    };
    let place = format!("slot {}, generation {}", value.slot, value.generation);
    let more = vec![("timestamp", timestamp), ("stored in", place)];
    Row { id: origin, cells, subject, more }
}

/// Returns the bytes of a lease if the record of its value was read. An observation does not read
/// records of device memory.
fn bytes_seen(bytes: u64, value: Option<&ValueSeen>) -> Cell {
    let is_known = value.is_some_and(|value| value.dtype.is_some() || value.is_dataset);
    if is_known || bytes > 0 { Cell::bytes(bytes) } else { Cell::new((), "?") }
}

fn lease(seen: &Observation, it: &LeaseSeen) -> Row {
    let value = it.value.and_then(|at| seen.values.get(at));
    let owner = client_text(seen.client(it.owner));
    let keeps = match value {
        Some(value) => origin_text(&value.origin),
        None if it.is_of_segment => format!("a whole segment of {owner}"),
        None => format!("old value of {owner}"),
    };
    let holder = seen.client(it.holder);
    let more = vec![
        ("command", holder.map_or_else(String::new, |client| printable(client.command.as_deref().unwrap_or("?")))),
        ("slot", printable(&format!("{} of {owner}", it.slot))),
        ("old value", "replaced or deleted, and kept by its leases".to_owned()),
        ("age", "for how long this program has seen it; > : it was there before".to_owned()),
    ];
    let cells = vec![
        Cell::lease_age(Some(it.age), it.is_older),
        bytes_seen(it.bytes, value),
        Cell::count(it.count),
        Cell::text(keeps),
        Cell::text(client_text(holder)),
    ];
    let subject = holder.map_or(Subject::Other, |client| Subject::Client(MemberId::of(client)));
    Row { id: format!("{} {} {} {}", it.holder, it.owner, it.slot, it.is_of_segment), cells, subject, more }
}

fn stream(facts: &Facts, it: &StreamSeen) -> Row {
    let seen = &facts.sampled.seen;
    let rate = facts.sampled.rate(it);
    let cells = vec![
        Cell::text(&it.name),
        Cell::count(it.sent),
        Cell::new(rate, rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}/s"))),
        Cell::new(it.held, format!("{}/{}", it.held, it.capacity)),
        Cell::count(it.lag_max()),
        Cell::count(facts.sampled.lost(it)),
        Cell::count(it.subscribers.len() as u64),
        Cell::text(if it.is_closed { "closed" } else { it.policy_word() }),
        Cell::pid(seen.client(it.producer)),
    ];
    let subscribers = it.subscribers.iter().map(|one| {
        let lag = one.lag.map_or("has not begun".to_owned(), |lag| format!("lags {lag}"));
        let subscriber = client_text(seen.client(one.client));
        ("subscriber", printable(&format!("{subscriber}: {lag}, lost {}", one.lost)))
    });
    let producer = ("producer", printable(&client_text(seen.client(it.producer))));
    let more = std::iter::once(producer).chain(subscribers).collect();
    Row { id: it.id.to_string(), cells, subject: Subject::Stream(it.name.clone()), more }
}

fn client(it: &ClientSeen) -> Row {
    let state = it.state.word();
    let cells = vec![
        Cell::pid(Some(it)),
        Cell::count(u64::from(it.uid)),
        Cell::new(state, if it.is_observer { "itself" } else { state }),
        Cell::age(it.age),
        Cell::bytes(it.bytes),
        Cell::count(it.leases),
        Cell::bytes(it.leased_bytes),
        Cell::lease_age(it.lease_age_max, it.is_lease_older),
        Cell::text(&it.label),
        Cell::text(it.command.as_deref().unwrap_or("?")),
    ];
    let values = format!("{} of {}", it.values, bytes_text(it.value_bytes));
    let more = vec![("values", values)];
    Row { id: format!("{} {}", it.number, it.epoch), cells, subject: Subject::Client(MemberId::of(it)), more }
}

fn segment(seen: &Observation, at: usize, it: &SegmentSeen) -> Row {
    let location = match it.location {
        Location::Host => "host".to_owned(),
        Location::Device { index, .. } => format!("device {index}"),
    };
    let bytes = it.states();
    let percent = (bytes.live + bytes.leased).saturating_mul(100) / it.bytes.max(1);
    let percent = if it.is_mapped { Cell::new(percent, format!("{percent} %")) } else { Cell::count(None) };
    let owner = seen.client(it.owner);
    let cells = vec![
        Cell::pid(owner),
        Cell::count(u64::from(it.base)),
        Cell::text(location),
        Cell::bytes(it.bytes),
        percent,
        // The cell is empty because the map is drawn later, when the column's width is known.
        Cell::text(""),
    ];
    let more = vec![
        ("owner", printable(&client_text(owner))),
        ("lent for", age_text(it.age)),
        ("live", bytes_text(bytes.live)),
        ("leased", bytes_text(bytes.leased)),
        ("retired", format!("{} of the leased", bytes_text(bytes.retired))),
        ("free", bytes.free.map_or("?".to_owned(), |free| format!("{}, or its owner's drafts", bytes_text(free)))),
    ];
    Row { id: format!("{} {}", it.owner, it.base), cells, subject: Subject::Segment(at), more }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_relative_to_the_highest_of_them() {
        assert_eq!(spark(&[0, 1, 50, 100]), "▁▂▅█");
        assert_eq!(spark(&[0, 0]), "▁▁");
        assert_eq!(spark(&[u64::MAX; 100]).chars().count(), 60);
        assert_eq!(spark(&[]), "");
    }
}
