//! Events of a name.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tensorlend::observe::{ClientNo, LeaseSeen, Observation, Origin, SlotNo, ValueSeen};
use tensorlend::{Client, Error, Info, Version};

use super::Tell;
use super::event::{Seen, Who};
use crate::member::MemberId;
use crate::summary::Summary;

/// Watches a name until the receiver has been dropped. One thread sleeps until there is a new
/// value. A second thread takes samples of leases and of the name.
pub fn watch(client: &Client, name: &str, interval: Duration, tell: Tell) {
    let (client, name) = (client.clone(), name.to_owned());
    std::thread::spawn(move || publications(&client, &name, interval, &tell));
}

/// Sends an event for each new value.
fn publications(client: &Client, name: &str, interval: Duration, tell: &Tell) {
    let (mut seen, mut number) = (Version::NONE, 0);
    let mut published = |info: Info, was_there| {
        number += 1;
        let producer = Who { pid: info.pid, uid: info.uid, label: info.label.clone() };
        let (summary, timestamp_ns) = (Summary::of_info(&info), info.timestamp_ns);
        tell.event(Seen::Published { name: info.name, number, was_there, summary, timestamp_ns, producer })
    };
    match client.info(name) {
        Ok(info) => {
            seen = info.version;
            published(info, true);
        }
        Err(Error::NotFound(_)) => {}
        Err(error) => return tell.failure(error),
    }
    // Start the second thread after the first event. So the event of the value precedes the events
    // of its leases.
    let (rest, own_name, also_tell) = (client.clone(), name.to_owned(), Tell(tell.0.clone()));
    std::thread::spawn(move || surroundings(&rest, &own_name, interval, &also_tell));
    loop {
        let info = match newer(client, name, seen) {
            Ok(info) => info,
            Err(error) => return tell.failure(error),
        };
        seen = info.version;
        if !published(info, false) {
            return;
        }
    }
}

/// Sleeps until the name has a value other than `seen`, and describes that value.
fn newer(client: &Client, name: &str, seen: Version) -> Result<Info, Error> {
    loop {
        match client.wait_value(name, seen, None) {
            // This program cannot read a value on a device, but can describe it.
            Ok(_) | Err(Error::Kind { .. } | Error::Device { .. }) => {}
            Err(error) => return Err(error),
        }
        match client.info(name) {
            Ok(info) if info.version != seen => return Ok(info),
            // The name was deleted before the description, so wait for the next value.
            Ok(_) | Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct SlotId {
    owner: ClientNo,
    slot: u32,
}

/// A value, identified by one generation of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ValueId {
    slot: SlotId,
    generation: u64,
}

impl ValueId {
    fn of(value: &ValueSeen) -> Self {
        let slot = SlotId { owner: value.owner, slot: value.slot.get() };
        Self { slot, generation: value.generation }
    }
}

/// The leases of one holder, and their bytes.
#[derive(Clone, Copy, Default)]
struct Leases {
    count: u64,
    bytes: u64,
}

#[derive(Default)]
struct Sample {
    value: Option<ValueId>,
    /// Other names of the same value.
    aliases: HashSet<String>,
    /// Holders of the name's present and earlier values.
    holders: BTreeMap<MemberId, Leases>,
}

impl Sample {
    /// Counts leases on the name's current value, and on its earlier values while they still have
    /// leases.
    fn of(seen: &Observation, name: &str, before: &HashSet<SlotId>) -> (Self, HashSet<SlotId>) {
        let named = |value: &ValueSeen| matches!(&value.origin, Origin::Name(own) if own == name);
        let Some(value) = seen.values.iter().find(|value| named(value)) else {
            return (Self { holders: holders(seen, before), ..Self::default() }, before.clone());
        };
        let mut slots = before.clone();
        let id = ValueId::of(value);
        slots.insert(id.slot);
        let aliases = seen.values.iter().filter(|other| ValueId::of(other) == id && !named(other));
        let aliases = aliases.filter_map(|other| match &other.origin {
            Origin::Name(name) => Some(name.clone()),
            _ => None,
        });
        let sample = Self { value: Some(id), aliases: aliases.collect(), holders: holders(seen, &slots) };
        (sample, slots)
    }
}

/// Returns the holders of leases on these slots, except this program.
fn holders(seen: &Observation, slots: &HashSet<SlotId>) -> BTreeMap<MemberId, Leases> {
    let mut holders = BTreeMap::new();
    let on_slots = |lease: &&LeaseSeen| {
        slots.contains(&SlotId { owner: lease.owner, slot: lease.slot.get() }) && !lease.is_of_segment
    };
    for lease in seen.leases.iter().filter(on_slots) {
        let Some(client) = seen.clients.iter().find(|client| client.number == lease.holder) else { continue };
        if !client.is_observer {
            let leases: &mut Leases = holders.entry(MemberId::of(client)).or_default();
            leases.count += lease.count;
            leases.bytes += lease.bytes;
        }
    }
    holders
}

/// Sends events for leases, and for the end of the name.
fn surroundings(client: &Client, name: &str, interval: Duration, tell: &Tell) {
    let mut observer = client.observer();
    let mut last = Sample::default();
    let mut slots = HashSet::new();
    let mut who = BTreeMap::new();
    loop {
        let seen = match observer.observe() {
            Ok(seen) => seen,
            Err(error) => return tell.failure(error),
        };
        let (sample, known) = Sample::of(&seen, name, &slots);
        slots = known;
        let mut events = Vec::new();
        for (&holder, &Leases { count, bytes }) in &sample.holders {
            let holder_is = Who::of(&seen.clients, holder.number);
            if last.holders.get(&holder).is_none_or(|before| before.count < count) {
                let nbytes = (bytes > 0).then_some(bytes);
                events.push(Seen::Leased { name: name.to_owned(), count, nbytes, holder: holder_is.clone() });
            }
            who.insert(holder, holder_is);
        }
        for holder in last.holders.keys().filter(|holder| !sample.holders.contains_key(holder)) {
            let holder = who.remove(holder).unwrap_or_default();
            events.push(Seen::Released { name: name.to_owned(), holder });
        }
        if let (Some(before), None) = (last.value, sample.value)
            // An observation may be incomplete, so check that the name no longer exists.
            && matches!(client.exists(name), Ok(false))
        {
            let is_it = |value: &&ValueSeen| ValueId::of(value) == before;
            let to = seen.values.iter().filter(is_it).find_map(|value| match &value.origin {
                Origin::Name(to) if !last.aliases.contains(to) => Some(to.clone()),
                _ => None,
            });
            let name = name.to_owned();
            events.push(match to {
                Some(to) => Seen::Renamed { name, to },
                None => Seen::Deleted { name },
            });
        }
        // Keep only slots with leases, because a slot without leases may be reused for another name.
        let current = sample.value.map(|value| value.slot);
        let is_leased =
            |it: &SlotId| seen.leases.iter().any(|lease| (lease.owner, lease.slot) == (it.owner, SlotNo::new(it.slot)));
        slots.retain(|slot| current == Some(*slot) || is_leased(slot));
        last = sample;
        if !events.into_iter().all(|event| tell.event(event)) {
            return;
        }
        std::thread::sleep(interval);
    }
}
