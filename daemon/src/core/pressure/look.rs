//! Finds the values that leases alone keep, in slices: see [`crate::core::chores`]. A look reads the lease tables first, and then
//! the names, announcements and streams of every client whose values are leased. The next look corrects what changes during
//! this one; a single look charges no client and ends none.

use super::Pressure;
use super::Retained;
use crate::core::bindings::Bindings;
use crate::core::chores::{ENTRIES_STEP, LOOK, SCAN};
use crate::core::client::survey::Reach;
use crate::core::client::{Client, Segment};
use crate::core::context::Context;
use crate::core::env::Env;
use crate::core::members::Members;
use crate::core::stream::Streams;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::catalogue::RING;
use tensorlend_layout::leases::scan_fence;
use tensorlend_layout::tensor::SlotInfo;
use tensorlend_layout::word::{Cell, Home, LeaseWord, SLOT_NONE};

/// Slots of a chain that are counted: more than the largest dataset has, of whose 4,096 members each may have a second slot.
const CHAIN_MAX: u32 = 1 << 14;

#[derive(Debug)]
enum Stage {
    /// Lease tables, of the clients from this number on.
    Tables(u16),
    /// Names of the owner at hand, from this entry on.
    Names(u32),
    /// Its announcements.
    Announced,
    /// Its streams from this place on; of that one, if it has this id, entries of its ring from this one on.
    Streams { place: u32, id: u64, entry: usize },
    /// Its leases behind this one.
    Leases(Option<(u16, u64)>),
}

/// How far the look has come.
#[derive(Debug)]
pub struct Look {
    stage: Stage,
    /// By owner: holders and lease words. Those of owners that have been gone through are out.
    leases: BTreeMap<u16, BTreeSet<(u16, u64)>>,
    /// Lease words of the owner at hand.
    words: BTreeSet<u64>,
    /// Those of them that names, announcements and streams lead to.
    named: BTreeSet<u64>,
    /// Where all of its names and streams lead, if it is gone.
    reach: Reach,
    /// Since when the look before knew what to be kept, by holder and lease word.
    before: BTreeMap<(u16, u64), u64>,
    retained: Vec<Retained>,
}

/// Not known before.
const NEW: u64 = u64::MAX;

impl Look {
    /// At its beginning; what was kept before is kept since then, if it still is.
    pub fn new(before: &[Retained]) -> Self {
        Self {
            stage: Stage::Tables(0),
            leases: BTreeMap::new(),
            words: BTreeSet::new(),
            named: BTreeSet::new(),
            reach: Reach::default(),
            before: before.iter().map(|k| ((k.holder, k.lease.0), k.since_ns)).collect(),
            retained: Vec::new(),
        }
    }

    /// Begins with the first owner that is left.
    fn begin_owner(&mut self) {
        self.words = self.leases.values().next().into_iter().flatten().map(|&(_, word)| word).collect();
        self.named.clear();
        self.reach = Reach::default();
        self.stage = Stage::Names(0);
    }

    /// Notes that something leads to this value of the owner at hand.
    fn note(&mut self, owner: u16, client: &Client, value: Cell) {
        let word = value.lease(owner).0;
        if self.words.contains(&word) {
            self.named.insert(word);
        }
        if client.is_frozen() {
            self.reach.begin(value.slot(), None);
        }
    }
}

/// Bytes of a segment in host memory: what is kept of devices' is charged elsewhere.
fn host_bytes(segment: &Segment) -> u64 {
    if segment.device.is_none() { segment.bytes } else { 0 }
}

/// Bytes behind the chain that begins at `slot`, as its owner says.
fn chain_bytes(env: &mut Env, client: &Client, slot: u32) -> u64 {
    let most: u64 = client.segments.values().map(host_bytes).sum();
    let (mut at, mut bytes, mut reach, mut left) = (slot, 0u64, BTreeSet::new(), CHAIN_MAX);
    while at != SLOT_NONE
        && left > 0
        && reach.insert(at)
        && let Some((base, words)) = client.slot(at)
        && let Ok(info) = SlotInfo::unpack(&words)
    {
        bytes = bytes.saturating_add(info.data_bytes.min(host_bytes(&client.segments[&base])));
        at = info.next;
        left -= 1;
    }
    env.chores.spend(CHAIN_MAX - left);
    bytes.min(most)
}

/// Bytes of the segments that the chain of `slot` lies in, and nothing named.
fn held_bytes(env: &mut Env, client: &Client, slot: u32, named: &Reach) -> u64 {
    let (mut held, mut left) = (Reach::default(), CHAIN_MAX);
    held.begin(slot, None);
    held.follow(client, || {
        left = left.saturating_sub(1);
        left > 0
    });
    env.chores.spend(CHAIN_MAX - left);
    held.bases().filter(|&base| !named.has(base)).map(|base| client.segments[&base].bytes).sum()
}

impl Pressure {
    /// Goes on with the look that is under way; whether there is more to do.
    pub fn look(
        &mut self,
        env: &mut Env,
        context: &Context,
        members: &mut Members,
        bindings: &Bindings,
        streams: &Streams,
    ) -> bool {
        let Some(mut look) = self.look.take() else { return false };
        if Self::go_on_looking(env, context, members, bindings, streams, &mut look) {
            for new in look.retained.iter_mut().filter(|k| k.since_ns == NEW) {
                new.since_ns = env.now_ns;
            }
            self.retained = look.retained;
            self.revoke(env, members);
            env.chores.has_looked();
            return false;
        }
        self.look = Some(look);
        true
    }

    /// Whether it is done; else this step may not go on.
    fn go_on_looking(
        env: &mut Env,
        context: &Context,
        members: &Members,
        bindings: &Bindings,
        streams: &Streams,
        look: &mut Look,
    ) -> bool {
        loop {
            if !env.chores.spend(1) {
                return false;
            }
            if let Stage::Tables(next) = look.stage {
                Self::look_at_table(env, members, look, next);
                continue;
            }
            let Some((&owner, _)) = look.leases.first_key_value() else { return true };
            let Some(client) = members.get(owner) else {
                // It is gone meanwhile, and whatever was leased of it.
                look.leases.remove(&owner);
                look.begin_owner();
                continue;
            };
            if !look.reach.follow(client, || env.chores.spend(1)) {
                return false;
            }
            match look.stage {
                Stage::Tables(_) => {}
                Stage::Names(next) => Self::look_at_names(env, context, bindings, look, (owner, client), next),
                Stage::Announced => Self::look_at_announced(env, look, (owner, client)),
                Stage::Streams { place, id, entry } => {
                    Self::look_into_stream(env, streams, look, (owner, client), (place, id, entry));
                }
                Stage::Leases(after) => Self::look_at_lease(env, look, (owner, client), after),
            }
        }
    }

    fn look_at_table(env: &mut Env, members: &Members, look: &mut Look, next: u16) {
        let Some((holder, client)) = members.first_from(next) else {
            look.begin_owner();
            return;
        };
        look.stage = Stage::Tables(holder + 1);
        let Some(table) = client.lease_table() else { return };
        let mut found = 0;
        // Against the reader's fence: what is not seen here may still come to be, and is seen at the next look.
        scan_fence();
        table.scan(|lease| {
            if lease.catalogue() != holder && !lease.is_of_segment() {
                found += 1;
                look.leases.entry(lease.catalogue()).or_default().insert((holder, lease.0));
            }
        });
        env.chores.spend(SCAN + found);
    }

    fn look_at_names(
        env: &mut Env,
        context: &Context,
        bindings: &Bindings,
        look: &mut Look,
        (owner, client): (u16, &Client),
        next: u32,
    ) {
        let entries = bindings.names().owned_from(owner, next, ENTRIES_STEP);
        let Some(&last) = entries.last() else {
            look.stage = Stage::Announced;
            return;
        };
        look.stage = Stage::Names(last + 1);
        for entry in entries {
            env.chores.spend(LOOK);
            let home = Home(context.directory.names[entry as usize].home.peek());
            let Some(value) = client.value(home.cell()) else { continue };
            look.note(owner, client, value);
            if !look.reach.follow(client, || env.chores.spend(1)) {
                // The chain first, and then from here on.
                look.stage = Stage::Names(entry + 1);
                return;
            }
        }
    }
}

impl Pressure {
    fn look_at_announced(env: &mut Env, look: &mut Look, (owner, client): (u16, &Client)) {
        look.stage = Stage::Streams { place: 0, id: 0, entry: 0 };
        if !client.announces() {
            return;
        }
        let waiting = client.words().ring_head.read().wrapping_sub(client.absorbed).min(RING as u64);
        env.chores.spend(waiting as u32);
        for number in client.absorbed..client.absorbed + waiting {
            let word = client.words().ring[(number % RING as u64) as usize].peek();
            if let Some(value) = client.value(word as u32 & 0xFF_FFFF) {
                look.note(owner, client, value);
            }
        }
    }
}

impl Pressure {
    fn look_into_stream(
        env: &mut Env,
        streams: &Streams,
        look: &mut Look,
        (owner, client): (u16, &Client),
        (place, id, entry): (u32, u64, usize),
    ) {
        let Some((at, stream)) = streams.of_producer_from(owner, place) else {
            look.stage = Stage::Leases(None);
            return;
        };
        let from = if (at, stream) == (place, id) { entry } else { 0 };
        let (end, value) = streams.value_from(at, from);
        env.chores.spend((end.saturating_sub(from) / 16) as u32);
        match value {
            Some(value) => {
                look.stage = Stage::Streams { place: at, id: stream, entry: end };
                look.note(owner, client, value);
            }
            None => look.stage = Stage::Streams { place: at + 1, id: 0, entry: 0 },
        }
    }
}

impl Pressure {
    fn look_at_lease(env: &mut Env, look: &mut Look, (owner, client): (u16, &Client), after: Option<(u16, u64)>) {
        let leases = &look.leases[&owner];
        let next = match after {
            Some(after) => leases.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded)).next(),
            None => leases.first(),
        };
        let Some(&(holder, word)) = next else {
            look.leases.remove(&owner);
            look.begin_owner();
            return;
        };
        look.stage = Stage::Leases(Some((holder, word)));
        let lease = LeaseWord(word);
        if look.named.contains(&word) || client.segment_of(lease.slot()).is_none() {
            return;
        }
        // A client that is gone has its segments freed whole.
        let bytes = if client.is_frozen() {
            held_bytes(env, client, lease.slot(), &look.reach)
        } else {
            chain_bytes(env, client, lease.slot())
        };
        let since_ns = look.before.get(&(holder, word)).copied().unwrap_or(NEW);
        look.retained.push(Retained { holder, owner, lease, bytes, since_ns });
    }
}
