//! Leases many values together.
//!
//! Most of the cost of one lease is waiting: for the words that lead to the value, which other processes wrote, and
//! for the fence between the lease and the second check of these words. This module does each step for a whole batch
//! before the next step. So the processor fetches the words of many values at once, and one fence serves all leases of
//! the batch. The steps and their order are those of a single lease in `take.rs`, which also handles all unusual
//! cases.

use crate::lease::dataset::Dataset;
use crate::lease::group::{Group, copy_group};
use crate::lease::lease::Lease;
use crate::lease::raw::Held;
use crate::lease::take::{self, At, Placed, Route, Seen};
use crate::lease::value::Value;
use crate::link::shards::LeaseEntry;
use crate::peers::sheets::Peer;
use crate::segment::bytes::Bytes;
use crate::session::Session;
use crate::tensor::Tensor;
use crate::tensor::layout_of::fetch_index;
use std::sync::Arc;
use tensorlend_layout::directory::FoundName;
use tensorlend_layout::leases;
use tensorlend_layout::tensor::{SlotInfo, SlotKind};

/// Maximum number of values leased together: as many as a shard has entries. One epoch guard may cover this number.
pub const BATCH: usize = 64;
/// Words of a dataset of four tensors: a typical size.
const USUAL_WORDS: usize = 64;
/// Indices up to this length share one allocation, which then lasts as long as the longest-lived of them.
const LONG_BYTES: usize = 4096;

/// Leases as many of the values as possible. The result has `None` for the others.
pub fn lease_found(session: &Session, found: &[Option<FoundName>]) -> Vec<Option<Value>> {
    let guard = session.shards.epoch_guard();
    // Step 1: read the latest value of each name.
    let read = |found: FoundName| {
        let route = Route::owner_word(&session.directory.names[found.entry as usize].owner_word, found.owner_word);
        Seen::read(session, &guard, found.owner_word.catalogue(), route, At::Cell(found.owner_word.cell())).ok()
    };
    let seen: Vec<_> = found.iter().map(|found| found.and_then(read)).collect();
    // Step 2: find the values, and store the leases. Both are loops of their own, so that the first one loads the records
    // of many values at once.
    let place = |seen| {
        let placed = Seen::place(seen, session).ok()?;
        placed.fetch_record();
        Some(placed)
    };
    let placed: Vec<_> = seen.into_iter().map(|seen| seen.and_then(place)).collect();
    let store = |placed: Option<_>| {
        let placed: Placed<'_> = placed?;
        let lease = placed.lease();
        let ((), place) = session.shards.with_free(&guard, |entry| leases::store(entry, lease))?;
        Some((placed, place))
    };
    let stored: Vec<_> = placed.into_iter().map(store).collect();
    leases::lease_fence();
    // Step 3: check that all words that led to the values are unchanged.
    let mut values: Vec<Option<Value>> = Vec::with_capacity(found.len());
    let mut others = Vec::new();
    for (at, stored) in stored.into_iter().enumerate() {
        values.push(None);
        let Some((placed, place)): Option<(Placed<'_>, LeaseEntry)> = stored else { continue };
        if !leases::confirm(session.shards.entry(place), &placed.words()) {
            continue;
        }
        let held = placed.held(place);
        if session.directory.members[usize::from(placed.catalogue)].geometry.peek() != placed.geometry {
            continue;
        }
        let record = placed.record();
        let summary = record.summary(placed.cell.generation());
        if let Some(summary) = summary.filter(|it| SlotInfo::check_summary(it, placed.segment.map.bytes() as u64)) {
            values[at] = Some(Value::Tensor(Lease::of_summary(summary, held)));
        } else {
            others.push((at, Other { held, record: record.copy(), peer: placed.peer, geometry: placed.geometry }));
        }
    }
    if !session.is_member() {
        // This session has ended, so its leases protect nothing.
        return found.iter().map(|_| None).collect();
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
    for (_, Other { held, record, .. }) in &others {
        if let Some((_, bytes)) = contents(held, record).filter(|(info, _)| info.kind == SlotKind::Dataset) {
            fetch_index(&bytes);
        }
    }
    // Copy the indices of datasets into one allocation before any check.
    let mut words = Vec::with_capacity(others.len() * USUAL_WORDS);
    let mut copy = |held: &Held, record: &[u64; 16]| match contents(held, record)? {
        (info, bytes) if info.kind == SlotKind::Dataset && bytes.len() <= LONG_BYTES => {
            Some(copy_group(record, &bytes, &mut words)..words.len())
        }
        _ => None,
    };
    let copies: Vec<_> = others.iter().map(|(_, other)| copy(&other.held, &other.record)).collect();
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
