//! JSON responses of `/api/v1`. docs/web.md documents their fields. A field stays for the whole
//! life of the API version.

use crate::events::Event;
use crate::history::Point;
use crate::view::{Namespace, Snapshot};
use serde_json::{Map, Value, json};
use tensorlend::Stat;
use tensorlend::observe::{
    ClientSeen, LeaseSeen, Location, Origin, SegmentSeen, SlotState, States, StreamSeen, ValueSeen, stat_json,
};
use tensorlend_os::clock::duration_ms;

/// Returns `/status`: the daemon, and the namespaces shown.
pub fn status(snapshot: &Snapshot, previews: bool) -> Value {
    let namespaces: Vec<Value> = snapshot.namespaces.iter().map(|ns| namespace(ns)).collect();
    json!({
        "version": tensorlend::build(),
        "host": snapshot.address.host,
        "socket": snapshot.address.socket,
        "look": snapshot.number,
        "at_ms": snapshot.at_ms,
        "previews": previews,
        "interval_ms": duration_ms(snapshot.interval),
        "daemon": snapshot.stat.as_deref().map(daemon),
        "process": {
            "resident_bytes": snapshot.process.resident_bytes,
            "descriptors": snapshot.process.descriptors,
        },
        "daemon_answered_ms": snapshot.answered_ms,
        "namespaces": namespaces,
    })
}

/// Returns the fields of `tensorlend stat --json`. A limit that is not set is null.
fn daemon(stat: &Stat) -> Value {
    let mut it = stat_json(stat);
    it["pool_bytes"] = stat.pool_bytes.into();
    it["pool_bytes_max"] = stat.pool_bytes_max.into();
    without_limits(&mut it);
    it
}

fn without_limits(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(without_limits),
        Value::Array(items) => items.iter_mut().for_each(without_limits),
        Value::Number(number) if number.as_u64() == Some(u64::MAX) => *value = Value::Null,
        _ => {}
    }
}

fn namespace(ns: &Namespace) -> Value {
    let seen = &ns.sampled.seen;
    json!({
        "name": seen.namespace,
        "error": ns.error,
        "bytes_lent": seen.bytes_lent,
        "bytes_max": limit(seen.bytes_max),
        "bytes": states(ns.sampled.states),
        "names": seen.names_live,
        "clients": seen.clients.len(),
        "segments": seen.segments.len(),
        "leases": seen.lease_count(),
        "streams": seen.streams.len(),
        "truncated": seen.truncated,
        "incomplete": seen.incomplete,
        "damaged": seen.damaged,
        "took_us": seen.took.as_micros() as u64,
        "asked": seen.asked,
        "lease_age_max_s": seen.lease_age_max().map(|age| age.as_secs_f64()),
        "services": ns.services.json(),
    })
}

/// Returns a limit; `None`, which becomes null, if there is no limit.
fn limit(most: u64) -> Option<u64> {
    (most < u64::MAX).then_some(most)
}

fn states(bytes: States) -> Value {
    json!({ "live": bytes.live, "leased": bytes.leased, "retired": bytes.retired, "free": bytes.free })
}

/// Returns one entry of `/clients`.
pub fn client(client: &ClientSeen) -> Value {
    json!({
        "client": client.number,
        "epoch": client.epoch,
        "state": client.state.word(),
        "pid": client.pid,
        "uid": client.uid,
        "label": client.label,
        "command": client.command,
        "age_s": client.age.as_secs_f64(),
        "bytes": client.bytes,
        "values": client.values,
        "value_bytes": client.value_bytes,
        "leases": client.leases,
        "leased_bytes": client.leased_bytes,
        "lease_age_max_s": client.lease_age_max.map(|age| age.as_secs_f64()),
        "is_lease_older": client.is_lease_older,
        "is_observer": client.is_observer,
    })
}

/// Returns one entry of `/segments`.
pub fn segment(ns: &Namespace, segment: &SegmentSeen, with_slots: bool) -> Value {
    let bytes = segment.states();
    let mut it = json!({
        "client": segment.owner,
        "base": segment.base,
        "slots_max": segment.slots_max,
        "bytes": segment.bytes,
        "age_s": segment.age.as_secs_f64(),
        "place": location(ns, segment.location),
        "is_mapped": segment.is_mapped,
        "live": bytes.live,
        "leased": bytes.leased,
        "retired": bytes.retired,
        "free": bytes.free,
        "slots": segment.slots.len(),
        "map": map(segment),
        "of": named(ns, segment),
    });
    if with_slots {
        let slots = segment.slots.iter().map(|slot| {
            let origin = slot.value.and_then(|at| ns.sampled.seen.values.get(at)).map(|value| origin(&value.origin));
            json!({
                "slot": slot.slot, "offset": slot.offset, "bytes": slot.bytes, "state": slot.state.word(),
                "of": origin,
            })
        });
        it["slot_list"] = slots.collect();
    }
    it
}

/// Maximum number of characters in a map.
const PLACES: u64 = 256;
/// Maximum number of values shown as the contents of a segment.
const NAMED: usize = 4;

/// Returns the largest values in a segment.
fn named(ns: &Namespace, segment: &SegmentSeen) -> Vec<Value> {
    let mut slots: Vec<_> = segment.slots.iter().filter_map(|slot| Some((slot.bytes, slot.value?))).collect();
    slots.sort_unstable_by_key(|&(bytes, at)| (std::cmp::Reverse(bytes), at));
    slots.dedup_by_key(|&mut (_, at)| at);
    let values = slots.into_iter().take(NAMED).filter_map(|(_, at)| ns.sampled.seen.values.get(at));
    values.map(|value| origin(&value.origin)).collect()
}

/// Returns a letter for each part of the segment: `L` leased, `R` retired, `V` live (has a value), `.` free.
fn map(segment: &SegmentSeen) -> String {
    if !segment.is_mapped {
        return String::new();
    }
    // A part has at least 64 bytes, because slots begin on cache lines of 64 bytes.
    let places = segment.bytes.div_ceil(64).min(PLACES);
    let letter = |state: Option<SlotState>| match state {
        Some(SlotState::Live) => 'V',
        Some(SlotState::Leased) => 'L',
        Some(SlotState::Retired) => 'R',
        None => '.',
    };
    segment.map(places as usize).into_iter().map(letter).collect()
}

fn location(ns: &Namespace, location: Location) -> Value {
    match location {
        Location::Host => json!("host"),
        Location::Device { index, allocator } => json!({
            "device": ns.sampled.seen.devices.get(index).map(ToString::to_string),
            "allocator": allocator.map(|allocator| format!("{allocator:?}").to_lowercase()),
        }),
    }
}

/// Returns the name, stream or list that refers to a value.
fn origin(origin: &Origin) -> Value {
    match origin {
        Origin::Name(name) => json!({ "name": name }),
        Origin::Item { list, number } => json!({ "list": list, "number": number }),
        Origin::Message { stream, number } => json!({ "stream": stream, "number": number }),
    }
}

/// Returns one entry of `/names`.
pub fn value(value: &ValueSeen) -> Value {
    json!({
        "of": origin(&value.origin),
        "client": value.owner,
        "slot": value.slot,
        "generation": value.generation,
        "bytes": value.bytes,
        "is_dataset": value.is_dataset,
        "dtype": value.dtype.map(|dtype| dtype.to_string()),
        "shape": value.shape,
        "timestamp_ns": value.timestamp_ns.to_string(),
        "leases": value.leases,
    })
}

/// Returns one entry of `/leases`.
pub fn lease(ns: &Namespace, lease: &LeaseSeen) -> Value {
    json!({
        "holder": lease.holder,
        "pid": lease.pid,
        "client": lease.owner,
        "slot": lease.slot,
        "is_of_segment": lease.is_of_segment,
        "count": lease.count,
        "bytes": lease.bytes,
        "of": lease.value.and_then(|at| ns.sampled.seen.values.get(at)).map(|value| origin(&value.origin)),
        "age_s": lease.age.as_secs_f64(),
        "is_older": lease.is_older,
    })
}

/// Returns one entry of `/streams`.
pub fn stream(ns: &Namespace, stream: &StreamSeen) -> Value {
    let subscribers = stream.subscribers.iter().map(|subscriber| {
        json!({
            "client": subscriber.client, "cursor": subscriber.cursor, "lag": subscriber.lag,
            "lost": subscriber.lost,
        })
    });
    let lost = ns.sampled.lost(stream);
    json!({
        "name": stream.name,
        "stream": stream.index,
        "id": stream.id,
        "producer": stream.producer,
        "policy": stream.policy_word(),
        "capacity": stream.capacity,
        "sent": stream.sent,
        "held": stream.held,
        "rate": ns.sampled.rate(stream),
        "lag_max": stream.lag_max(),
        "lost": lost,
        "problem": stream.problem(lost),
        "is_closed": stream.is_closed,
        "subscribers": subscribers.collect::<Vec<_>>(),
    })
}

/// Returns one entry of `/events`.
pub fn event(event: &Event) -> Value {
    json!({
        "number": event.number,
        "at_ms": event.at_ms,
        "kind": event.kind,
        "namespace": event.namespace,
        "subject": event.subject,
        "count": event.count,
    })
}

/// Returns one entry of `/history`.
pub fn point(point: &Point) -> Value {
    let clients: Map<String, Value> =
        point.clients.iter().map(|((client, epoch), bytes)| (format!("{client}.{epoch}"), json!(bytes))).collect();
    let uids: Map<String, Value> = point.uids.iter().map(|(uid, bytes)| (uid.to_string(), json!(bytes))).collect();
    json!({
        "at_ms": point.at_ms, "lent": point.lent, "bytes": states(point.states), "names": point.names,
        "uids": uids, "clients": clients,
    })
}
