//! Leases many values together.
//!
//! Most of the cost of one lease is waiting: for the words that lead to the value, which other processes wrote, and
//! for the fence between the lease and the second check of these words. This module does each step for a whole batch
//! before the next step. So the processor fetches the words of many values at once, and one fence serves all leases of
//! the batch. The loops that only load are short, because a processor executes only some hundred instructions ahead,
//! and waits for all loads among them together. The steps and their order are those of a single lease in `take.rs`,
//! which also handles all unusual cases.

use crate::lease::dataset::Dataset;
use crate::lease::group::{Group, copy_group};
use crate::lease::lease::{Held, Lease};
use crate::lease::take::{self, Placed, Route, Seen, confirm, peer_of};
use crate::lease::value::Value;
use crate::link::epoch::EpochGuard;
use crate::link::shards::LeaseEntry;
use crate::peers::{Peer, PeerSegment};
use crate::segment::bytes::Bytes;
use crate::session::Session;
use crate::tensor::Tensor;
use crate::tensor::index::fetch_index;
use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use tensorlend_layout::catalogue::CellRecord;
use tensorlend_layout::directory::FoundName;
use tensorlend_layout::leases;
use tensorlend_layout::tensor::{SlotInfo, SlotKind};
use tensorlend_layout::word::Cell;

/// Maximum number of values leased together: as many as a shard has entries. One epoch guard may cover this number.
pub const BATCH: usize = 64;
/// Words of a dataset of four tensors: a typical size.
const USUAL_WORDS: usize = 64;
/// Indices up to this length share one allocation, which then lasts as long as the longest-lived of them.
const LONG_BYTES: usize = 4096;

/// The results of the steps for the values of a batch. Each kind of result has an array of its own, because whole
/// results would be copied through memory between the steps.
struct Steps<'s> {
    session: &'s Session,
    found: &'s [Option<FoundName>],
    /// The sheets of each value's owner, and the record of its cell.
    cells: [Option<(&'s Peer, &'s CellRecord)>; BATCH],
    /// The content of each cell.
    values: [Cell; BATCH],
    segments: [Option<&'s Arc<PeerSegment>>; BATCH],
    /// The geometry word under which each segment was found.
    geometries: [u64; BATCH],
    /// Whether the cells' records describe the values.
    described: [bool; BATCH],
    entries: [Option<LeaseEntry>; BATCH],
}

impl<'s> Steps<'s> {
    fn new(session: &'s Session, found: &'s [Option<FoundName>]) -> Self {
        assert!(found.len() <= BATCH, "one guard covers one batch");
        Self {
            session,
            found,
            cells: [None; BATCH],
            values: [Cell::DELETED; BATCH],
            segments: [None; BATCH],
            geometries: [0; BATCH],
            described: [false; BATCH],
            entries: [None; BATCH],
        }
    }

    fn all(&self) -> Range<usize> {
        0..self.found.len()
    }

    #[inline(always)]
    fn route(&self, found: FoundName) -> Route<'s> {
        Route::owner_word(&self.session.directory.names[found.entry.index()].owner_word, found.owner_word)
    }

    /// Step 1: reads the latest value of each name, and whether the value is described beside it.
    #[inline(always)]
    fn read(&mut self, guard: &'s EpochGuard<'_>) {
        for at in self.all() {
            let Some(FoundName { owner_word, .. }) = self.found[at] else { continue };
            if let Ok(peer) = peer_of(self.session, guard, owner_word.owner(), 0) {
                self.cells[at] = peer.record(owner_word.cell()).map(|record| (peer, record));
            }
        }
        for at in self.all() {
            if let Some((_, record)) = self.cells[at] {
                self.values[at] = Cell(record.cell.read());
                self.described[at] = record.describes(self.values[at]);
            }
        }
    }

    /// Step 2: finds the segments, and loads the lines of the records of values without a description.
    #[inline(always)]
    fn place(&mut self) {
        for at in self.all() {
            let (Some(found), Some((peer, record))) = (self.found[at], self.cells[at]) else { continue };
            let (route, cell, owner) = (self.route(found), self.values[at], found.owner_word.owner());
            let seen = Seen { peer, owner, route, word: &record.cell, cell, described: None };
            if let Ok(placed) = seen.place(self.session) {
                (self.segments[at], self.geometries[at]) = (Some(placed.segment), placed.geometry);
            }
        }
        for at in self.all() {
            if !self.described[at]
                && let Some(placed) = self.placed(at)
            {
                let record = placed.record();
                black_box((record.words[0].peek(), record.words[8].peek()));
            }
        }
    }

    /// Returns the results of the first two steps.
    #[inline(always)]
    fn placed(&self, at: usize) -> Option<Placed<'s>> {
        let (found, (peer, record), segment) = (self.found[at]?, self.cells[at]?, self.segments[at]?);
        let (owner, geometry) = (found.owner_word.owner(), self.geometries[at]);
        let (word, cell, described) = (&record.cell, self.values[at], self.described[at].then_some(record));
        Some(Placed { owner, route: self.route(found), word, cell, peer, geometry, segment, described })
    }

    /// Step 3: stores the leases.
    #[inline(always)]
    fn store(&mut self, guard: &EpochGuard<'_>) {
        for at in self.all() {
            let Some(placed) = self.placed(at) else { continue };
            let stored = self.session.shards.with_free(guard, |entry| leases::store(entry, placed.lease()));
            self.entries[at] = stored.map(|((), entry)| entry);
        }
    }
}

/// Leases as many of the values as possible. The result has `None` for the others.
pub fn lease_found(session: &Session, found: &[Option<FoundName>]) -> Vec<Option<Value>> {
    let guard = session.shards.epoch_guard();
    let mut steps = Steps::new(session, found);
    steps.read(&guard);
    steps.place();
    steps.store(&guard);
    leases::lease_fence();
    // Step 4: check that all words that led to the values are unchanged.
    let mut values: Vec<Option<Value>> = Vec::with_capacity(found.len());
    let mut others = Vec::new();
    for at in steps.all() {
        values.push(None);
        let (Some(placed), Some(entry)) = (steps.placed(at), steps.entries[at]) else { continue };
        let is_unchanged = leases::confirm(session.shards.word(entry), &placed.words());
        let Ok(entry) = confirm(session, entry, is_unchanged, placed.owner, placed.geometry) else { continue };
        let held = placed.held(entry);
        // Two branches, as in `take`: a summary that came from either source would be copied through memory.
        if let Some(summary) = placed.description() {
            values[at] = Some(Value::Tensor(Lease::of_summary(summary, held)));
        } else if let Some(summary) = placed.summary() {
            values[at] = Some(Value::Tensor(Lease::of_summary(summary, held)));
        } else {
            others.push((
                at,
                Other { held, record: placed.record().copy(), peer: placed.peer, geometry: placed.geometry },
            ));
        }
    }
    if !others.is_empty() {
        assemble_others(session, others, &mut values);
    }
    values
}

/// A leased value whose header summary does not describe it.
struct Other<'s> {
    held: Held,
    record: [u64; 16],
    peer: &'s Peer,
    geometry: u64,
}

/// Assembles the leased datasets, and tensors without a header summary. Each value comes with its index in `values`.
fn assemble_others(session: &Session, others: Vec<(usize, Other<'_>)>, values: &mut [Option<Value>]) {
    let index = |(_, other): &(usize, Other<'_>)| {
        let (info, bytes) = contents(&other.held, &other.record)?;
        (info.kind == SlotKind::Dataset && bytes.len() <= LONG_BYTES).then_some(bytes)
    };
    let indices: Vec<Option<Bytes>> = others.iter().map(index).collect();
    indices.iter().flatten().for_each(fetch_index);
    // Copy the indices of datasets into one allocation before any check.
    let mut words = Vec::with_capacity(others.len() * USUAL_WORDS);
    let mut copy = |(other, index): (&(usize, Other<'_>), &Option<Bytes>)| {
        let from = copy_group(&other.1.record, index.as_ref()?, &mut words);
        Some(from..words.len())
    };
    let copies: Vec<_> = others.iter().zip(&indices).map(&mut copy).collect();
    let words: Arc<[u64]> = words.into();
    let value = |Other { held, record, peer, geometry }: Other<'_>, copy| {
        if let Some(copy) = copy {
            let segment_of = |slot| peer.segment(slot, geometry, &session.directory);
            let group = Group::plain(&words, copy, held.segment(), segment_of).ok()?;
            return Some(Value::Dataset(Dataset::of(group, held)));
        }
        let (info, bytes) = contents(&held, &record).filter(|(info, _)| info.kind == SlotKind::Tensor)?;
        Some(Value::Tensor(Lease::of(Tensor::read(&info, bytes, None).ok()?, held)))
    };
    for ((at, other), copy) in others.into_iter().zip(copies) {
        values[at] = value(other, copy);
    }
}

/// Returns the content of a leased slot's record, and the slot's bytes. Returns `None` if the record is not complete,
/// or the bytes are not in host memory.
#[inline(always)]
fn contents(held: &Held, record: &[u64; 16]) -> Option<(SlotInfo, Bytes)> {
    let (info, bytes) = take::contents(held, record).ok()?;
    Some((info, bytes?)).filter(|(info, _)| !info.extended)
}
