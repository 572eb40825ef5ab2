//! The scan for values that only leases retain, in slices: see [`crate::core::chores`]. A scan
//! reads the lease tables first. Then it reads the names, announcements and streams of every client
//! whose values are leased. Changes during a scan can make its result wrong, and the next scan
//! corrects the result. So the daemon charges or ends a client only after two scans.

use super::Pressure;
use super::Retained;
use crate::core::bindings::Bindings;
use crate::core::chores::{ENTRIES_STEP, READ, SCAN};
use crate::core::client::survey::{Reach, StreamPosition};
use crate::core::client::{Client, Segment};
use crate::core::context::Context;
use crate::core::env::Env;
use crate::core::members::Members;
use crate::core::parts::Parts;
use crate::core::stream::Streams;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::catalogue::RING;
use tensorlend_layout::leases::{LeaseTable, scan_fence};
use tensorlend_layout::number::{CellNo, ClientNo, EntryNo, SlotNo};
use tensorlend_layout::size;
use tensorlend_layout::tensor::SlotInfo;
use tensorlend_layout::word::{Cell, LeaseWord, OwnerWord, SLOT_NONE, low32};

/// Maximum number of slots of a chain that the scan counts. The largest dataset has 4,096 members
/// with at most two slots each.
const CHAIN_MAX: u32 = 1 << 14;

#[derive(Debug)]
enum Stage {
    /// Reads the lease tables of the clients from this number on.
    Tables(Option<ClientNo>),
    /// Reads the names of the current owner from this entry on.
    Names(EntryNo),
    /// Reads the announcements of the current owner.
    Announced,
    /// Reads the streams of the current owner from this position on.
    Streams(StreamPosition),
    /// Evaluates the leases on values of the current owner, after this lease.
    Leases(Option<Held>),
}

/// A lease of a reader, as found in the reader's lease table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    holder: ClientNo,
    word: u64,
}

/// The client whose values the leases are on.
#[derive(Clone, Copy)]
struct Owner<'c> {
    number: ClientNo,
    client: &'c Client,
}

#[derive(Debug)]
pub struct Scan {
    stage: Stage,
    /// Leases by the owner of their values. The scan removes the owners that it has finished.
    leases: BTreeMap<ClientNo, BTreeSet<Held>>,
    /// Lease words of the current owner.
    words: BTreeSet<u64>,
    /// The lease words in `words` whose values are still reachable from a name, an announcement or
    /// a stream.
    named: BTreeSet<u64>,
    /// The segments to which all names and streams of a disconnected current owner lead.
    reach: Reach,
    /// For each lease, the time at which a scan first found that the lease retains a value.
    before: BTreeMap<Held, u64>,
    retained: Vec<Retained>,
}

/// The value of a time that is not known, because the last scan did not find the value.
const NEW: u64 = u64::MAX;

impl Scan {
    /// Returns a new scan. A value that the new scan finds again keeps its time from the scan
    /// before.
    pub fn new(before: &[Retained]) -> Self {
        Self {
            stage: Stage::Tables(Some(ClientNo::default())),
            leases: BTreeMap::new(),
            words: BTreeSet::new(),
            named: BTreeSet::new(),
            reach: Reach::default(),
            before: before.iter().map(|k| (Held { holder: k.holder, word: k.lease.0 }, k.since_ns)).collect(),
            retained: Vec::new(),
        }
    }

    /// Begins the scan of the first remaining owner.
    fn begin_owner(&mut self) {
        self.words = self.leases.values().next().into_iter().flatten().map(|held| held.word).collect();
        self.named.clear();
        self.reach = Reach::default();
        self.stage = Stage::Names(EntryNo::new(0));
    }

    /// Records that a name, an announcement or a stream leads to this value of the current owner.
    fn note(&mut self, owner: ClientNo, client: &Client, value: Cell) {
        let word = value.lease(owner).0;
        if self.words.contains(&word) {
            self.named.insert(word);
        }
        if client.is_frozen() {
            self.reach.begin(value.slot(), None);
        }
    }
}

/// Returns the bytes of a segment in host memory, and 0 for device memory, which is charged
/// elsewhere.
fn host_bytes(segment: &Segment) -> u64 {
    if segment.device.is_none() { segment.bytes } else { 0 }
}

/// Returns the bytes of the chain that begins at `slot`, as its owner reports them.
fn chain_bytes(env: &mut Env, client: &Client, slot: SlotNo) -> u64 {
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

/// Returns the bytes of the segments that the chain of `slot` passes and that no name or stream leads to.
fn held_bytes(env: &mut Env, client: &Client, slot: SlotNo, named: &Reach) -> u64 {
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
    /// Continues the scan in progress. Returns true if there is more to do.
    pub fn scan(&mut self, parts: &mut Parts<'_>, bindings: &Bindings, streams: &Streams) -> bool {
        let Some(mut scan) = self.scan.take() else { return false };
        if Self::continue_scan(parts, bindings, streams, &mut scan) {
            for new in scan.retained.iter_mut().filter(|k| k.since_ns == NEW) {
                new.since_ns = parts.env.clock.now_ns();
            }
            self.retained = scan.retained;
            self.revoke(parts);
            parts.env.chores.has_scanned();
            return false;
        }
        self.scan = Some(scan);
        true
    }

    /// Continues the scan. Returns true if the scan is finished, and false if this step has spent
    /// its units.
    fn continue_scan(parts: &mut Parts<'_>, bindings: &Bindings, streams: &Streams, scan: &mut Scan) -> bool {
        loop {
            if !parts.env.chores.spend(1) {
                return false;
            }
            if let Stage::Tables(next) = scan.stage {
                Self::scan_table(parts.env, parts.members, scan, next);
                continue;
            }
            let Some((&owner, _)) = scan.leases.first_key_value() else { return true };
            let Some(client) = parts.members.get(owner) else {
                // The owner ended during the scan, so all leases on the owner's values ended too.
                scan.leases.remove(&owner);
                scan.begin_owner();
                continue;
            };
            if !scan.reach.follow(client, || parts.env.chores.spend(1)) {
                return false;
            }
            let owner = Owner { number: owner, client };
            match scan.stage {
                Stage::Tables(_) => {}
                Stage::Names(next) => Self::scan_names(parts.env, parts.context, bindings, scan, owner, next),
                Stage::Announced => Self::scan_announced(parts.env, scan, owner),
                Stage::Streams(position) => Self::scan_stream(parts.env, streams, scan, owner, position),
                Stage::Leases(after) => Self::scan_lease(parts.env, scan, owner, after),
            }
        }
    }

    fn scan_table(env: &mut Env, members: &Members, scan: &mut Scan, next: Option<ClientNo>) {
        let Some((holder, client)) = next.and_then(|next| members.first_from(next)) else {
            scan.begin_owner();
            return;
        };
        scan.stage = Stage::Tables(holder.next());
        let Some(table) = client.lease_table() else { return };
        let mut found = 0;
        // This fence pairs with reader R's fence. A lease of R that daemon D does not see here may
        // still become valid. The next scan sees that lease.
        scan_fence();
        LeaseTable::scan_view(table, |lease| {
            if lease.owner() != holder && !lease.is_of_segment() {
                found += 1;
                scan.leases.entry(lease.owner()).or_default().insert(Held { holder, word: lease.0 });
            }
        });
        env.chores.spend(SCAN + found);
    }

    fn scan_names(
        env: &mut Env,
        context: &Context,
        bindings: &Bindings,
        scan: &mut Scan,
        Owner { number: owner, client }: Owner<'_>,
        next: EntryNo,
    ) {
        let entries = bindings.names().owned().of_from(owner, next, ENTRIES_STEP);
        let Some(&last) = entries.last() else {
            scan.stage = Stage::Announced;
            return;
        };
        scan.stage = Stage::Names(last + 1);
        for entry in entries {
            env.chores.spend(READ);
            let owner_word = OwnerWord(context.directory.names[entry.index()].owner_word.peek());
            let Some(value) = client.value(owner_word.cell()) else { continue };
            scan.note(owner, client, value);
            if !scan.reach.follow(client, || env.chores.spend(1)) {
                // The chain of this entry is followed first, then the next entries.
                scan.stage = Stage::Names(entry + 1);
                return;
            }
        }
    }
}

impl Pressure {
    fn scan_announced(env: &mut Env, scan: &mut Scan, Owner { number: owner, client }: Owner<'_>) {
        scan.stage = Stage::Streams(StreamPosition::default());
        if !client.announces() {
            return;
        }
        let absorbed = client.announcements.absorbed();
        let waiting = client.ring_head().wrapping_sub(absorbed).min(RING as u64);
        env.chores.spend(low32(waiting));
        for announcement in client.announcements(absorbed, absorbed + waiting) {
            if let Some(value) = client.value(CellNo::low(announcement)) {
                scan.note(owner, client, value);
            }
        }
    }
}

impl Pressure {
    fn scan_stream(
        env: &mut Env,
        streams: &Streams,
        scan: &mut Scan,
        Owner { number: owner, client }: Owner<'_>,
        position: StreamPosition,
    ) {
        let Some((at, stream)) = streams.of_producer_from(owner, position.line) else {
            scan.stage = Stage::Leases(None);
            return;
        };
        let from = if (at, stream) == (position.line, position.id) { position.entry } else { 0 };
        let (end, value) = streams.value_from(at, from);
        env.chores.spend(size::count(end.saturating_sub(from) / 16));
        match value {
            Some(value) => {
                scan.stage = Stage::Streams(StreamPosition { line: at, id: stream, entry: end });
                scan.note(owner, client, value);
            }
            None => scan.stage = Stage::Streams(StreamPosition::after(at)),
        }
    }
}

impl Pressure {
    fn scan_lease(env: &mut Env, scan: &mut Scan, Owner { number: owner, client }: Owner<'_>, after: Option<Held>) {
        let leases = &scan.leases[&owner];
        let next = match after {
            Some(after) => leases.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded)).next(),
            None => leases.first(),
        };
        let Some(&held) = next else {
            scan.leases.remove(&owner);
            scan.begin_owner();
            return;
        };
        scan.stage = Stage::Leases(Some(held));
        let Held { holder, word } = held;
        let lease = LeaseWord(word);
        if scan.named.contains(&word) || client.segment_of(lease.slot()).is_none() {
            return;
        }
        // The daemon frees whole segments of a disconnected client.
        let bytes = if client.is_frozen() {
            held_bytes(env, client, lease.slot(), &scan.reach)
        } else {
            chain_bytes(env, client, lease.slot())
        };
        let since_ns = scan.before.get(&held).copied().unwrap_or(NEW);
        scan.retained.push(Retained { holder, owner, lease, bytes, since_ns });
    }
}
