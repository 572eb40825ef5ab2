//! Events of a name.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tensorlend::observe::{Observation, Origin, ValueSeen};
use tensorlend::{Client, Error, Info, Version};

use super::Tell;
use super::event::{Seen, Who};
use crate::summary::Summary;

/// Watches from two threads until the receiver is gone: one sleeps until there is a new value, one samples the rest.
pub fn watch(client: &Client, name: &str, interval: Duration, tell: Tell) {
    let (client, name) = (client.clone(), name.to_owned());
    std::thread::spawn(move || publications(&client, &name, interval, &tell));
}

/// Sends an event for each value.
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
    // Starts the second thread now, so that the value's event precedes those of its leases.
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

/// Sleeps until the name has another value than `seen`, and describes it.
fn newer(client: &Client, name: &str, seen: Version) -> Result<Info, Error> {
    loop {
        match client.wait_value(name, seen, None) {
            // A value on a device cannot be read here, but described like any other.
            Ok(_) | Err(Error::Kind { .. } | Error::Device { .. }) => {}
            Err(error) => return Err(error),
        }
        match client.info(name) {
            Ok(info) if info.version != seen => return Ok(info),
            // The name was deleted at this moment: waits for the next value.
            Ok(_) | Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Owner's member number, slot and generation of a value.
type Place = (u16, u32, u64);

fn place(value: &ValueSeen) -> Place {
    (value.catalogue, value.slot, value.generation)
}

/// A sample of a name.
#[derive(Default)]
struct Look {
    place: Option<Place>,
    /// Other names of the same value.
    aliases: HashSet<String>,
    /// Holders of the name's present and earlier values, by member number and epoch, with their numbers of leases and
    /// bytes.
    holders: BTreeMap<(u16, u32), (u64, u64)>,
}

impl Look {
    /// Counts leases on the name's current value, and on its earlier values as long as they last.
    fn of(seen: &Observation, name: &str, before: &HashSet<(u16, u32)>) -> (Self, HashSet<(u16, u32)>) {
        let named = |value: &ValueSeen| matches!(&value.origin, Origin::Name(own) if own == name);
        let Some(value) = seen.values.iter().find(|value| named(value)) else {
            return (Self { holders: holders(seen, before), ..Self::default() }, before.clone());
        };
        let mut slots = before.clone();
        slots.insert((value.catalogue, value.slot));
        let aliases = seen.values.iter().filter(|other| place(other) == place(value) && !named(other));
        let aliases = aliases.filter_map(|other| match &other.origin {
            Origin::Name(name) => Some(name.clone()),
            _ => None,
        });
        let look = Self { place: Some(place(value)), aliases: aliases.collect(), holders: holders(seen, &slots) };
        (look, slots)
    }
}

/// Returns the holders of leases on these slots, except this program.
fn holders(seen: &Observation, slots: &HashSet<(u16, u32)>) -> BTreeMap<(u16, u32), (u64, u64)> {
    let mut holders = BTreeMap::new();
    for lease in
        seen.leases.iter().filter(|lease| slots.contains(&(lease.catalogue, lease.slot)) && !lease.is_of_segment)
    {
        let Some(client) = seen.clients.iter().find(|client| client.catalogue == lease.holder) else { continue };
        if !client.is_observer {
            let (count, bytes) = holders.entry((lease.holder, client.epoch)).or_insert((0, 0));
            *count += lease.count;
            *bytes += lease.bytes;
        }
    }
    holders
}

/// Sends events for leases, and for the end of the name.
fn surroundings(client: &Client, name: &str, interval: Duration, tell: &Tell) {
    let mut observer = client.observer();
    let mut last = Look::default();
    let mut slots: HashSet<(u16, u32)> = HashSet::new();
    let mut who = BTreeMap::new();
    loop {
        let seen = match observer.observe() {
            Ok(seen) => seen,
            Err(error) => return tell.failure(error),
        };
        let (look, known) = Look::of(&seen, name, &slots);
        slots = known;
        let mut events = Vec::new();
        for (&holder, &(count, nbytes)) in &look.holders {
            let holder_is = Who::of(&seen.clients, holder.0);
            if last.holders.get(&holder).is_none_or(|&(before, _)| before < count) {
                let nbytes = (nbytes > 0).then_some(nbytes);
                events.push(Seen::Leased { name: name.to_owned(), count, nbytes, holder: holder_is.clone() });
            }
            who.insert(holder, holder_is);
        }
        for holder in last.holders.keys().filter(|holder| !look.holders.contains_key(holder)) {
            let holder = who.remove(holder).unwrap_or_default();
            events.push(Seen::Released { name: name.to_owned(), holder });
        }
        if let (Some(place_before), None) = (last.place, look.place)
            // An observation may be incomplete, so this checks the name itself.
            && matches!(client.exists(name), Ok(false))
        {
            let is_it = |value: &&ValueSeen| place(value) == place_before;
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
        // A slot without leases may be reused for another name.
        let current = look.place.map(|(catalogue, slot, _)| (catalogue, slot));
        slots.retain(|slot| {
            current == Some(*slot) || seen.leases.iter().any(|lease| (lease.catalogue, lease.slot) == *slot)
        });
        last = look;
        if !events.into_iter().all(|event| tell.event(event)) {
            return;
        }
        std::thread::sleep(interval);
    }
}
