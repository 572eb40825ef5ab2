//! Items of a list, leased many at a time.
//!
//! What one lease costs is mostly waiting: for the words that lead to the value, which other processes wrote, and for
//! the fence between the lease and the second look at them. Here each step is done for a batch before the next one, so
//! that the processor fetches many items' words at once, and one fence stands for all leases of the batch. The steps and
//! their order are those of a single lease: `Session::try_lease`, to which everything out of the ordinary is left.

use crate::error::Result;
use crate::lease::group::{Group, copy_group};
use crate::lease::raw::Held;
use crate::lease::{Dataset, Lease, Value};
use crate::link::shards::Place;
use crate::peers::sheets::{Peer, PeerSegment};
use crate::segment::bytes::Bytes;
use crate::session::Session;
use crate::tensor::Tensor;
use crate::tensor::layout_of::fetch_index;
use std::ops::Range;
use std::sync::Arc;
use tensorlend_layout::Device;
use tensorlend_layout::directory::FoundName;
use tensorlend_layout::leases;
use tensorlend_layout::name::item_key;
use tensorlend_layout::tensor::{SlotInfo, SlotKind};
use tensorlend_layout::word::{Cell, Word};

/// Items whose leases are taken together: as many as a shard has entries, and few enough for a section.
const BATCH: u64 = 64;
/// Words of a dataset of four tensors: a guess.
const USUAL_WORDS: usize = 64;
/// Indices up to this length share their place with others, which may keep it longer than they would.
const LONG_BYTES: usize = 4096;

/// An item on its way to being leased.
struct Candidate<'s> {
    found: FoundName,
    word: &'s Word,
    seen: Cell,
    peer: &'s Peer,
    geometry: u64,
    segment: &'s Arc<PeerSegment>,
    place: Place,
}

impl Session {
    /// Leases items of the list with this id, up to the first that is gone: that happens only if the list was cleared, and
    /// then the rest is gone too.
    pub fn lease_items(
        self: &Arc<Self>,
        list: &str,
        id: u64,
        numbers: Range<u64>,
        values: &mut Vec<Value>,
    ) -> Result<()> {
        let mut next = 0;
        let mut from = numbers.start;
        while from < numbers.end {
            let end = numbers.end.min(from + BATCH);
            let found: Vec<_> = (from..end).map(|number| self.find_item(id, number, &mut next)).collect();
            let leased = self.lease_found(&found);
            for (number, value) in (from..end).zip(leased) {
                let value = match value {
                    Some(value) => Some(value),
                    None => self.item(list, id, number)?,
                };
                let Some(value) = value else { return Ok(()) };
                values.push(value);
            }
            from = end;
        }
        Ok(())
    }

    /// Finds an item in the directory. Its entry is mostly the one behind that of the item before, since the daemon takes
    /// the lowest that is free.
    #[inline]
    fn find_item(&self, id: u64, number: u64, next: &mut u32) -> Option<FoundName> {
        let key = item_key(id, number);
        let guess = self.directory.names.get(*next as usize).and_then(|entry| {
            // An entry says by itself whose it is; its hash is as good as the key's when the key is the same.
            let home = entry.probe(entry.hash.peek(), &key, &self.directory.long_names)?;
            Some(FoundName { entry: *next, home })
        });
        let found = guess.filter(|f| f.home.is_live()).or_else(|| self.find(&key).filter(|f| f.home.is_live()))?;
        *next = found.entry + 1;
        Some(found)
    }

    /// Leases what it can of these; `None` for the others.
    fn lease_found(&self, found: &[Option<FoundName>]) -> Vec<Option<Value>> {
        let section = self.shards.section();
        // The latest value of each ...
        let cell = |found: FoundName| {
            let catalogue = found.home.catalogue();
            let member = self.directory.members.get(usize::from(catalogue))?.member.read();
            let peer = self.peers().get(&section, catalogue).filter(|p| p.is_life(member))?;
            let word = peer.cell(found.home.cell())?;
            Some((found, peer, word, Cell(word.read())))
        };
        let cells: Vec<_> = found.iter().map(|found| found.and_then(cell)).collect();
        // ... is leased ...
        let lease = |cell| {
            let (found, peer, word, seen): (FoundName, _, _, Cell) = cell;
            if !seen.is_value() {
                return None;
            }
            let catalogue = found.home.catalogue();
            let geometry = self.directory.members[usize::from(catalogue)].geometry.read();
            let segment = Peer::segment(peer, seen.slot(), geometry, &self.directory)?;
            let lease = seen.lease(catalogue);
            let ((), place) = self.shards.with_free(&section, |entry| leases::store(entry, lease))?;
            Some(Candidate { found, word, seen, peer, geometry, segment, place })
        };
        let candidates: Vec<_> = cells.into_iter().map(|cell| cell.and_then(lease)).collect();
        leases::lease_fence();
        // ... and stands if all that led to it still does.
        let stands = |it: Candidate<'_>| {
            let home = &self.directory.names[it.found.entry as usize].home;
            if !leases::confirm(self.shards.entry(it.place), &[(home, it.found.home.0), (it.word, it.seen.0)]) {
                return None;
            }
            let catalogue = it.found.home.catalogue();
            let held = Held::new(it.segment.clone(), it.place, catalogue, it.seen, it.found.home.0);
            (self.directory.members[usize::from(catalogue)].geometry.peek() == it.geometry).then_some(held)
        };
        let held: Vec<_> = candidates
            .into_iter()
            .map(|it| {
                it.and_then(|it| {
                    let (peer, geometry) = (it.peer, it.geometry);
                    Some((stands(it)?, peer, geometry))
                })
            })
            .collect();
        if !self.is_member() {
            // This session has ended: its leases count for nothing.
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
        // The indices of datasets are copied, all into one place, before they are looked at.
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
                let segment_of = |slot| peer.segment(slot, geometry, &self.directory);
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
}

/// What a leased slot's record says, if it says all.
#[inline(always)]
fn contents(held: &Held, record: &[u64; 16]) -> Option<(SlotInfo, Bytes)> {
    let segment = held.segment();
    // What is on a device, or says so, takes the long way.
    let info = SlotInfo::unpack(record).ok().filter(|info| !info.extended)?;
    if segment.elsewhere.is_some() || info.device.kind() == Device::cuda(0).kind() {
        return None;
    }
    info.check(held.cell.generation(), segment.map.bytes() as u64).ok()?;
    Some((info, Bytes::new(&segment.map, info.data_offset, info.data_bytes)?))
}
