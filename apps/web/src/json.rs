//! JSON responses of `/api/v1`. docs/web.md documents their fields. A field stays for the whole
//! life of the API version.

use crate::events::Event;
use crate::history::Point;
use crate::map;
use crate::view::{Namespace, Snapshot, States};
use serde_json::{Map, Value, json};
use tensorlend::observe::{
    ClientSeen, ClientState, LeaseSeen, Origin, Place, SegmentSeen, SlotState, StreamSeen, ValueSeen,
};
use tensorlend::{DeviceUse, NamespaceUse, Stat, UidUse};

/// Returns `/status`: the daemon, and the namespaces shown.
pub fn status(snapshot: &Snapshot, previews: bool) -> Value {
    let namespaces: Vec<Value> = snapshot.namespaces.iter().map(|ns| namespace(ns)).collect();
    json!({
        "version": tensorlend::build(),
        "host": snapshot.place.host,
        "socket": snapshot.place.socket,
        "look": snapshot.number,
        "at_ms": snapshot.at_ms,
        "previews": previews,
        "interval_ms": snapshot.interval.as_millis() as u64,
        "daemon": snapshot.stat.as_deref().map(daemon),
        "process": {
            "resident_bytes": snapshot.process.resident_bytes,
            "descriptors": snapshot.process.descriptors,
        },
        "daemon_answered_ms": snapshot.answered_ms,
        "namespaces": namespaces,
    })
}

fn daemon(stat: &Stat) -> Value {
    json!({
        "version": stat.version,
        "pid": stat.pid,
        "mode": stat.mode,
        "uptime_ns": stat.uptime_ns,
        "pool_bytes_max": limit(stat.pool_bytes_max),
        "pool_bytes": stat.pool_bytes,
        "bytes_in_use": stat.bytes_in_use,
        "bytes_spare": stat.bytes_spare,
        "bytes_sheets": stat.bytes_sheets,
        "segments": stat.segments,
        "clients": stat.clients,
        "clients_gone": stat.frozen,
        "names": stat.names,
        "requests": stat.requests,
        "refusals": stat.refusals.total(),
        "refusals_by_reason": stat.refusals,
        "wakeups": stat.wakeups,
        "names_expired": stat.names_expired,
        "names_ephemeral_gone": stat.names_ephemeral_gone,
        "sessions_revoked": stat.sessions_revoked,
        "bytes_spilled": stat.bytes_spilled,
        "spill_failures": stat.spill_failures,
        "device": stat.device,
        "devices": stat.devices.iter().map(device).collect::<Vec<_>>(),
        "uids": stat.uids.iter().map(uid).collect::<Vec<_>>(),
        "namespaces": stat.namespaces.iter().map(namespace_use).collect::<Vec<_>>(),
    })
}

fn device(device: &DeviceUse) -> Value {
    json!({
        "uuid": device.offer.uuid.to_string(),
        "bytes_max": device.bytes_max,
        "bytes": device.bytes,
        "bytes_in_use": device.bytes_in_use,
    })
}

fn uid(uid: &UidUse) -> Value {
    json!({
        "uid": uid.uid, "bytes": uid.bytes, "bytes_max": limit(uid.bytes_max),
        "bytes_kept_by_leases": uid.bytes_kept_by_leases, "bytes_returned_and_held": uid.bytes_returned_and_held, "segments": uid.segments, "device_bytes": uid.device_bytes,
        "sessions": uid.sessions, "sessions_max": uid.sessions_max, "names": uid.names, "leases": uid.leases,
    })
}

fn namespace_use(ns: &NamespaceUse) -> Value {
    json!({ "name": ns.name, "bytes": ns.bytes, "bytes_max": limit(ns.bytes_max), "names": ns.names, "names_max": ns.names_max })
}

fn namespace(ns: &Namespace) -> Value {
    let seen = &ns.seen;
    let leases: u64 = seen.clients.iter().map(|client| client.leases).sum();
    json!({
        "name": seen.namespace,
        "error": ns.error,
        "bytes_lent": seen.bytes_lent,
        "bytes_max": limit(seen.bytes_max),
        "bytes": states(ns.bytes),
        "names": seen.names_live,
        "clients": seen.clients.len(),
        "segments": seen.segments.len(),
        "leases": leases,
        "streams": seen.streams.len(),
        "truncated": seen.truncated,
        "incomplete": seen.incomplete,
        "damaged": seen.damaged,
        "took_us": seen.took.as_micros() as u64,
        "asked": seen.asked,
        "lease_age_max_s": seen.leases.iter().map(|lease| lease.age.as_secs_f64()).reduce(f64::max),
        "services": ns.services.json(),
    })
}

/// Returns a limit; `None`, which becomes null, if there is no limit.
fn limit(most: u64) -> Option<u64> {
    (most < u64::MAX).then_some(most)
}

fn states(bytes: States) -> Value {
    json!({ "live": bytes.live, "leased": bytes.leased, "retired": bytes.retired })
}

/// Returns one entry of `/clients`.
pub fn client(client: &ClientSeen) -> Value {
    let state = match client.state {
        ClientState::Alive => "alive",
        ClientState::Ending => "ending",
        ClientState::Ended => "ended",
    };
    json!({
        "client": client.catalogue,
        "epoch": client.epoch,
        "state": state,
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
        "is_observer": client.is_observer,
    })
}

/// Returns one entry of `/segments`.
pub fn segment(ns: &Namespace, segment: &SegmentSeen, with_slots: bool) -> Value {
    let mut it = json!({
        "client": segment.catalogue,
        "base": segment.base,
        "slots_max": segment.slots_max,
        "bytes": segment.bytes,
        "age_s": segment.age.as_secs_f64(),
        "place": place(ns, segment.place),
        "is_mapped": segment.is_mapped,
        "live": segment.bytes_of(SlotState::Live),
        "leased": segment.bytes_of(SlotState::Leased),
        "retired": segment.bytes_of(SlotState::Retired),
        "slots": segment.slots.len(),
        "map": map::map(segment),
        "of": named(ns, segment),
    });
    if with_slots {
        let slots = segment.slots.iter().map(|slot| {
            let origin = slot.value.and_then(|at| ns.seen.values.get(at)).map(|value| origin(&value.origin));
            json!({
                "slot": slot.slot, "offset": slot.offset, "bytes": slot.bytes, "state": state(slot.state),
                "of": origin,
            })
        });
        it["slot_list"] = slots.collect();
    }
    it
}

/// Maximum number of values shown as the contents of a segment.
const NAMED: usize = 4;

/// Returns the largest values in a segment.
fn named(ns: &Namespace, segment: &SegmentSeen) -> Vec<Value> {
    let mut slots: Vec<_> = segment.slots.iter().filter_map(|slot| Some((slot.bytes, slot.value?))).collect();
    slots.sort_unstable_by_key(|&(bytes, at)| (std::cmp::Reverse(bytes), at));
    slots.dedup_by_key(|&mut (_, at)| at);
    let values = slots.into_iter().take(NAMED).filter_map(|(_, at)| ns.seen.values.get(at));
    values.map(|value| origin(&value.origin)).collect()
}

fn state(state: SlotState) -> &'static str {
    match state {
        SlotState::Live => "live",
        SlotState::Leased => "leased",
        SlotState::Retired => "retired",
    }
}

fn place(ns: &Namespace, place: Place) -> Value {
    match place {
        Place::Host => json!("host"),
        Place::Device { index, allocator } => json!({
            "device": ns.seen.devices.get(index).map(ToString::to_string),
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
        "client": value.catalogue,
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
        "client": lease.catalogue,
        "slot": lease.slot,
        "is_of_segment": lease.is_of_segment,
        "count": lease.count,
        "bytes": lease.bytes,
        "of": lease.value.and_then(|at| ns.seen.values.get(at)).map(|value| origin(&value.origin)),
        "age_s": lease.age.as_secs_f64(),
        "is_older": lease.is_older,
    })
}

/// Returns one entry of `/streams`.
pub fn stream(ns: &Namespace, stream: &StreamSeen) -> Value {
    let subscribers = stream.subscribers.iter().map(|subscriber| {
        json!({
            "client": subscriber.catalogue, "cursor": subscriber.cursor, "lag": subscriber.lag,
            "lost": subscriber.lost,
        })
    });
    json!({
        "name": stream.name,
        "stream": stream.index,
        "id": stream.id,
        "producer": stream.producer,
        "policy": policy(stream),
        "capacity": stream.capacity,
        "sent": stream.sent,
        "held": stream.held,
        "rate": ns.rates.get(&stream.id),
        "lag_max": stream.subscribers.iter().filter_map(|s| s.lag).max(),
        "lost": ns.lost.get(&stream.id).copied().unwrap_or(0),
        "is_closed": stream.is_closed,
        "subscribers": subscribers.collect::<Vec<_>>(),
    })
}

/// Returns a stream's policy as the command line spells it.
fn policy(stream: &StreamSeen) -> &'static str {
    match stream.policy {
        tensorlend::Policy::Block => "block",
        tensorlend::Policy::DropOldest => "drop-oldest",
        tensorlend::Policy::Error => "error",
    }
}

/// Returns one entry of `/events`.
pub fn event(event: &Event) -> Value {
    json!({
        "number": event.number,
        "at_ms": event.at_ms,
        "kind": event.kind.word(),
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
