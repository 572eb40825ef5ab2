//! The rows of each tab.

use std::time::Duration;
use tensorlend::observe::ClientNo;

use tensorlend::Policy;
use tensorlend::observe::{
    ClientSeen, ClientState, LeaseSeen, Origin, Place, SegmentSeen, SlotState, StreamSeen, ValueSeen,
};

use super::facts::{Facts, Use};
use super::table::{Cell, Row, Subject, Tab};
use crate::member::MemberId;
use crate::output::{bytes_text, printable};
use crate::summary::timestamp_text;

/// Returns all rows, in the order of the observation.
pub fn rows(tab: Tab, facts: &Facts) -> Vec<Row> {
    let seen = &facts.seen;
    match tab {
        Tab::Use => facts.uses.iter().map(one_use).collect(),
        Tab::Names => {
            let named = seen.values.iter().filter(|value| !matches!(value.origin, Origin::Message { .. }));
            named.map(|value| name(facts, value)).collect()
        }
        Tab::Leases => seen.leases.iter().map(|it| lease(facts, it)).collect(),
        Tab::Streams => seen.streams.iter().map(|it| stream(facts, it)).collect(),
        Tab::Clients => seen.clients.iter().map(client).collect(),
        Tab::Segments => seen.segments.iter().enumerate().map(|(at, it)| segment(facts, at, it)).collect(),
    }
}

fn one_use(it: &Use) -> Row {
    let most = it.most.map_or_else(|| Cell::number(u64::MAX, "-".into()), Cell::bytes);
    let cells =
        vec![Cell::text(&it.who), Cell::text(it.kind), Cell::bytes(it.bytes), most, Cell::text(spark(&it.history))];
    let subject = it.client.map_or(Subject::Other, Subject::Client);
    let id = it.client.map_or_else(|| it.who.clone(), |it| format!("{} {}", it.catalogue, it.epoch));
    Row { id: format!("{} {id}", it.kind), cells, subject, more: vec![("bytes exactly", it.bytes.to_string())] }
}

/// Returns the latest values as bars, scaled to the highest value.
pub fn spark(history: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const WIDTH: usize = 60;
    let latest = &history[history.len().saturating_sub(WIDTH)..];
    let highest = latest.iter().copied().max().unwrap_or(0).max(1);
    latest.iter().map(|&value| BARS[(u128::from(value) * 7).div_ceil(u128::from(highest)) as usize]).collect()
}

/// Returns the name, stream or list that refers to a value.
pub fn origin_text(origin: &Origin) -> String {
    match origin {
        Origin::Name(name) => printable(name),
        Origin::Item { list, number } => format!("{}[{number}]", printable(list)),
        Origin::Message { stream, number } => format!("{} #{number}", printable(stream)),
    }
}

/// Returns the process and the label of a client.
fn owner_text(facts: &Facts, catalogue: ClientNo) -> String {
    match facts.client(catalogue) {
        Some(client) => format!("{} {}", pid_text(client.pid), client.label),
        None => "?".to_owned(),
    }
}

/// Returns the text of a pid. The pid is unknown for a process in a pid namespace that the daemon
/// does not see.
fn pid_text(pid: u32) -> String {
    if pid == 0 { "?".to_owned() } else { pid.to_string() }
}

fn name(facts: &Facts, value: &ValueSeen) -> Row {
    let dtype = match value.dtype {
        Some(dtype) => dtype.name(),
        None if value.is_dataset => "dataset",
        None => "?",
    };
    let shape = value.shape.as_ref().map_or_else(String::new, |shape| format!("{shape:?}"));
    let subject = match &value.origin {
        Origin::Name(name) => Subject::Name(name.clone()),
        _ => Subject::Other,
    };
    let origin = origin_text(&value.origin);
    let cells = vec![
        Cell::text(&origin),
        Cell::text(dtype),
        Cell::text(shape),
        bytes_seen(value.bytes, Some(value)),
        Cell::count(value.leases),
        Cell::text(owner_text(facts, value.catalogue)),
    ];
    let timestamp = match value.timestamp_ns {
        0 => "none".to_owned(),
        ns => format!("{} s", timestamp_text(ns)),
    };
    let place = format!("slot {}, generation {}", value.slot, value.generation);
    let more = vec![("bytes exactly", value.bytes.to_string()), ("timestamp", timestamp), ("lies in", place)];
    Row { id: origin, cells, subject, more }
}

/// Returns the bytes of a lease if the record of its value was read. An observation does not read
/// records of device memory.
fn bytes_seen(bytes: u64, value: Option<&ValueSeen>) -> Cell {
    let is_known = value.is_some_and(|value| value.dtype.is_some() || value.is_dataset);
    if is_known || bytes > 0 { Cell::bytes(bytes) } else { Cell::number(0, "?".into()) }
}

fn lease(facts: &Facts, it: &LeaseSeen) -> Row {
    let value = it.value.and_then(|at| facts.seen.values.get(at));
    let keeps = match value {
        Some(value) => origin_text(&value.origin),
        None if it.is_of_segment => format!("a whole segment of {}", owner_text(facts, it.catalogue)),
        None => format!("replaced, slot {} of {}", it.slot, owner_text(facts, it.catalogue)),
    };
    let age = age_text(it.age);
    let age = if it.is_older { format!("> {age}") } else { age };
    let holder = facts.client(it.holder);
    let more = vec![
        ("bytes exactly", it.bytes.to_string()),
        ("command", holder.map_or_else(String::new, |client| printable(client.command.as_deref().unwrap_or("?")))),
        ("age", "for how long this program has seen it; > : it was there before".to_owned()),
    ];
    let cells = vec![
        Cell::number(u64::try_from(it.age.as_nanos()).unwrap_or(u64::MAX), age),
        bytes_seen(it.bytes, value),
        Cell::count(it.count),
        Cell::text(keeps),
        Cell::text(owner_text(facts, it.holder)),
    ];
    let subject = holder.map_or(Subject::Other, |client| Subject::Client(MemberId::of(client)));
    Row { id: format!("{} {} {} {}", it.holder, it.catalogue, it.slot, it.is_of_segment), cells, subject, more }
}

fn stream(facts: &Facts, it: &StreamSeen) -> Row {
    let lag = it.subscribers.iter().filter_map(|subscriber| subscriber.lag).max();
    let rate = facts.rates.get(&it.id).copied().unwrap_or(0.0);
    let unknown = |number: Option<u64>| number.map_or_else(|| Cell::number(0, "-".into()), Cell::count);
    let cells = vec![
        Cell::text(&it.name),
        unknown(it.sent),
        Cell::number((rate * 1000.0) as u64, format!("{rate:.1}/s")),
        Cell::number(it.held, format!("{}/{}", it.held, it.capacity)),
        unknown(lag),
        Cell::count(facts.lost.get(&it.id).copied().unwrap_or(0)),
        Cell::count(it.subscribers.len() as u64),
        Cell::text(match it.policy {
            _ if it.is_closed => "closed",
            Policy::Block => "block",
            Policy::DropOldest => "drop",
            Policy::Error => "error",
        }),
        Cell::number(
            facts.client(it.producer).map_or(0, |client| u64::from(client.pid)),
            facts.client(it.producer).map_or_else(|| "?".to_owned(), |client| pid_text(client.pid)),
        ),
    ];
    let subscribers = it.subscribers.iter().map(|one| {
        let lag = one.lag.map_or("has not begun".to_owned(), |lag| format!("lags {lag}"));
        ("subscriber", printable(&format!("{}: {lag}, lost {}", owner_text(facts, one.catalogue), one.lost)))
    });
    let producer = ("producer", printable(&owner_text(facts, it.producer)));
    let more = std::iter::once(producer).chain(subscribers).collect();
    Row { id: it.id.to_string(), cells, subject: Subject::Stream(it.name.clone()), more }
}

fn client(it: &ClientSeen) -> Row {
    let state = match it.state {
        _ if it.is_observer => "this",
        ClientState::Alive => "alive",
        ClientState::Ending => "ending",
        ClientState::Ended => "gone",
    };
    let cells = vec![
        Cell::number(u64::from(it.pid), pid_text(it.pid)),
        Cell::count(it.uid),
        Cell::text(state),
        Cell::number(it.age.as_secs(), age_text(it.age)),
        Cell::bytes(it.bytes),
        Cell::count(it.leases),
        Cell::bytes(it.leased_bytes),
        Cell::text(&it.label),
        Cell::text(it.command.as_deref().unwrap_or("?")),
    ];
    let values = format!("{} of {}", it.values, bytes_text(it.value_bytes));
    let more = vec![("bytes exactly", it.bytes.to_string()), ("values", values)];
    Row { id: format!("{} {}", it.catalogue, it.epoch), cells, subject: Subject::Client(MemberId::of(it)), more }
}

fn segment(facts: &Facts, at: usize, it: &SegmentSeen) -> Row {
    let place = match it.place {
        Place::Host => "host".to_owned(),
        Place::Device { index, .. } => format!("device {index}"),
    };
    let bytes = |state| it.bytes_of(state);
    let (live, leased, retired) = (bytes(SlotState::Live), bytes(SlotState::Leased), bytes(SlotState::Retired));
    let used = live + leased + retired;
    let percent = used.saturating_mul(100) / it.bytes.max(1);
    let percent =
        if it.is_mapped { Cell::number(percent, format!("{percent} %")) } else { Cell::number(0, "-".into()) };
    let owner = facts.client(it.catalogue);
    let cells = vec![
        Cell::number(owner.map_or(0, |client| u64::from(client.pid)), owner.map_or("?".into(), |c| pid_text(c.pid))),
        Cell::count(it.base),
        Cell::text(place),
        Cell::bytes(it.bytes),
        percent,
        // The cell is empty because the map is drawn later, when the column's width is known.
        Cell::text(""),
    ];
    let free = it.bytes.saturating_sub(used);
    let more = vec![
        ("owner", printable(&owner_text(facts, it.catalogue))),
        ("lent for", age_text(it.age)),
        ("live", bytes_text(live)),
        ("leased", bytes_text(leased)),
        ("retired", bytes_text(retired)),
        ("free", format!("{}, or its owner's drafts", bytes_text(free))),
    ];
    Row { id: format!("{} {}", it.catalogue, it.base), cells, subject: Subject::Segment(at), more }
}

/// Formats a duration with its largest units.
pub fn age_text(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..=9 => format!("{:.1} s", age.as_secs_f64()),
        10..=99 => format!("{seconds} s"),
        100..=5999 => format!("{} min", seconds / 60),
        6000..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
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

    #[test]
    fn ages() {
        let text = |seconds| age_text(Duration::from_secs_f64(seconds));
        assert_eq!([text(0.25), text(12.0), text(600.0), text(7200.0)], ["0.2 s", "12 s", "10 min", "2 h"]);
        assert_eq!(text(1e6), "11 d");
    }
}
