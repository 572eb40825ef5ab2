//! Leases many items of a list together.
//!
//! Most of the cost of one lease is waiting: for the words that lead to the value, which other processes wrote, and
//! for the fence between the lease and the second check of these words. This module does each step for a whole batch
//! before the next step. So the processor fetches the words of many items at once, and one fence serves all leases of
//! the batch. The steps and their order are those of a single lease in `take.rs`, which also handles all unusual
//! cases.

use crate::error::Result;
use crate::lease::assemble;
use crate::lease::dataset::Dataset;
use crate::lease::group::{Group, copy_group};
use crate::lease::lease::Lease;
use crate::lease::raw::Held;
use crate::lease::take::{self, At, Leasing, Placed, Route, Seen, lease};
use crate::lease::value::Value;
use crate::link::shards::LeaseEntry;
use crate::peers::sheets::Peer;
use crate::segment::bytes::Bytes;
use crate::session::Session;
use crate::tensor::Tensor;
use crate::tensor::layout_of::fetch_index;
use std::ops::Range;
use std::sync::Arc;
use tensorlend_layout::directory::FoundName;
use tensorlend_layout::leases;
use tensorlend_layout::name::item_key;
use tensorlend_layout::tensor::{SlotInfo, SlotKind};

/// Maximum number of items leased together: as many as a shard has entries. One epoch guard may cover this number.
const BATCH: u64 = 64;
/// Words of a dataset of four tensors: a typical size.
const USUAL_WORDS: usize = 64;
/// Indices up to this length share one allocation, which then lasts as long as the longest-lived of them.
const LONG_BYTES: usize = 4096;

/// Leases items of the list with this id. If the list is a queue, omits items that consumers have finished. If the list was
/// cleared in the meantime, leases only the items before the first missing one: later items may be missing for another
/// reason.
pub fn lease_items(
    session: &Arc<Session>,
    list: &str,
    id: u64,
    numbers: Range<u64>,
    exists: impl Fn() -> bool,
    values: &mut Vec<Value>,
) -> Result<()> {
    let (mut next, mut first_gone) = (0, None);
    let mut from = numbers.start;
    while from < numbers.end {
        let end = numbers.end.min(from + BATCH);
        let found: Vec<_> = (from..end).map(|number| find_item(session, id, number, &mut next)).collect();
        let leased = lease_found(session, &found);
        for (number, value) in (from..end).zip(leased) {
            let value = match value {
                Some(value) => Some(value),
                None => item(session, list, id, number)?,
            };
            if value.is_none() {
                first_gone.get_or_insert(values.len());
            }
            values.extend(value);
        }
        if let Some(length) = first_gone
            && !exists()
        {
            values.truncate(length);
            return Ok(());
        }
        from = end;
    }
    Ok(())
}

/// Finds an item in the directory. An item's entry usually follows the previous item's entry, because the daemon
/// takes the lowest free entry.
#[inline]
fn find_item(session: &Session, id: u64, number: u64, next: &mut u32) -> Option<FoundName> {
    let key = item_key(id, number);
    let guess = session.directory.names.get(*next as usize).and_then(|entry| {
        // The entry contains its key. If the key matches, the entry's hash is the hash of the key.
        let owner_word = entry.probe(entry.hash.peek(), &key, &session.directory.long_names)?;
        Some(FoundName { entry: *next, owner_word })
    });
    let found =
        guess.filter(|f| f.owner_word.is_live()).or_else(|| session.find(&key).filter(|f| f.owner_word.is_live()))?;
    *next = found.entry + 1;
    Some(found)
}

/// Leases as many of the items as possible. The result has `None` for the others.
fn lease_found(session: &Session, found: &[Option<FoundName>]) -> Vec<Option<Value>> {
    let guard = session.shards.epoch_guard();
    // Step 1: read the latest value of each item.
    let read = |found: FoundName| {
        let route = Route::owner_word(&session.directory.names[found.entry as usize].owner_word, found.owner_word);
        Seen::read(session, &guard, found.owner_word.catalogue(), route, At::Cell(found.owner_word.cell())).ok()
    };
    let seen: Vec<_> = found.iter().map(|found| found.and_then(read)).collect();
    // Step 2: store the leases.
    let store = |seen| {
        let placed = Seen::place(seen, session).ok()?;
        let lease = placed.lease();
        let ((), place) = session.shards.with_free(&guard, |entry| leases::store(entry, lease))?;
        Some((placed, place))
    };
    let stored: Vec<_> = seen.into_iter().map(|seen| seen.and_then(store)).collect();
    leases::lease_fence();
    // Step 3: check that all words that led to the values are unchanged.
    let stands = |stored| {
        let (placed, place): (Placed<'_>, LeaseEntry) = stored;
        if !leases::confirm(session.shards.entry(place), &placed.words()) {
            return None;
        }
        let held = placed.held(place);
        let geometry = session.directory.members[usize::from(placed.catalogue)].geometry.peek();
        (geometry == placed.geometry).then_some((held, placed.peer, placed.geometry))
    };
    let held: Vec<_> = stored.into_iter().map(|stored| stored.and_then(stands)).collect();
    if !session.is_member() {
        // This session has ended, so its leases protect nothing.
        return found.iter().map(|_| None).collect();
    }
    let record = |held: &Held| {
        let segment = held.segment();
        segment.records[(held.cell.slot() - segment.base) as usize].copy()
    };
    let records: Vec<_> = held.iter().map(|it| it.as_ref().map(|(held, ..)| record(held))).collect();
    for (held, record) in held.iter().zip(&records) {
        if let (Some((held, ..)), Some(record)) = (held, record)
            && let Some((_, bytes)) = contents(held, record).filter(|(info, _)| info.kind == SlotKind::Dataset)
        {
            fetch_index(&bytes);
        }
    }
    // Copy the indices of datasets into one allocation before any check.
    let mut words = Vec::with_capacity(found.len() * USUAL_WORDS);
    let mut copy = |held: &Held, record: &[u64; 16]| match contents(held, record)? {
        (info, bytes) if info.kind == SlotKind::Dataset && bytes.len() <= LONG_BYTES => {
            Some(copy_group(record, &bytes, &mut words)..words.len())
        }
        _ => None,
    };
    let copies: Vec<_> =
        held.iter().zip(&records).map(|(held, record)| copy(&held.as_ref()?.0, record.as_ref()?)).collect();
    let words: Arc<[u64]> = words.into();
    let value = |(held, peer, geometry): (Held, &Peer, u64), record: &[u64; 16], copy| {
        if let Some(copy) = copy {
            let segment_of = |slot| peer.segment(slot, geometry, &session.directory);
            let group = Group::plain(&words, copy, held.segment(), segment_of).ok()?;
            return Some(Value::Dataset(Dataset::of(group, held)));
        }
        let (info, bytes) = contents(&held, record).filter(|(info, _)| info.kind == SlotKind::Tensor)?;
        Some(Value::Tensor(Lease::of(Tensor::read(&info, bytes, None).ok()?, held)))
    };
    held.into_iter()
        .zip(&records)
        .zip(copies)
        .map(|((held, record), copy)| value(held?, record.as_ref()?, copy))
        .collect()
}

/// Returns one item of the list with this id. Returns `None` if the item does not exist any more.
pub fn item(session: &Arc<Session>, list: &str, id: u64, number: u64) -> Result<Option<Value>> {
    let key = item_key(id, number);
    loop {
        let Some(found) = session.find(&key).filter(|f| f.owner_word.is_live()) else { return Ok(None) };
        let owner_word = Route::owner_word(&session.directory.names[found.entry as usize].owner_word, found.owner_word);
        match lease(session, found.owner_word.catalogue(), owner_word, At::Cell(found.owner_word.cell()), list)? {
            Leasing::Held(leased) => return assemble::value(session, leased, list).map(Some),
            Leasing::Absent => return Ok(None),
            Leasing::Moved => {}
        }
    }
}

/// Returns the content of a leased slot's record, and the slot's bytes. Returns `None` if the record is not complete,
/// or the bytes are not in host memory.
#[inline(always)]
fn contents(held: &Held, record: &[u64; 16]) -> Option<(SlotInfo, Bytes)> {
    let (info, bytes) = take::contents(held, record).ok()?;
    Some((info, bytes?)).filter(|(info, _)| !info.extended)
}
