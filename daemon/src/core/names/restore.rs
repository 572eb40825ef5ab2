//! The names of a directory that another daemon wrote last and may have left at any step.
//!
//! Places and entries contain all data. An entry is in use if a place of the current table leads to
//! it. If the other daemon ended between two steps, an entry may have a place and no owner word.
//! This module removes such an entry.

use super::{Blocks, Entries, EntrySet, INLINE_BYTES, Names, PLACE_BYTES, Table, owner_word_of};
use std::collections::BTreeSet;
use tensorlend_layout::directory::{Directory, LongName, PlaceWord};
use tensorlend_layout::number::EntryNo;
use tensorlend_layout::size;
use tensorlend_layout::word::OwnerKind;

/// Returns true if an entry's key is readable. The block of a long key must belong to no other
/// entry.
fn has_key(d: &Directory, entry: EntryNo, blocks: &mut BTreeSet<u32>) -> bool {
    let name = &d.names[entry.index()];
    let is_free = |block| (1..size::count(d.long_names.len())).contains(&block) && blocks.insert(block);
    name.key_bytes() <= INLINE_BYTES
        || name.key_bytes() <= INLINE_BYTES + size_of::<LongName>()
            && u32::try_from(name.key.peek() >> 16).is_ok_and(is_free)
}

impl Names {
    /// Restores the names of a directory. `now_ns` advances the versions of entries whose memory
    /// was freed.
    pub fn restore(d: &Directory, max: u32, discards: bool, now_ns: u64, secret: u64) -> Self {
        let mut it = Self::with_table(d, max, discards, secret);
        let end = size::count(d.names.len().min(size::index(d.head().names_end.peek())));
        let (mut used, mut blocks) = (EntrySet::below(end), BTreeSet::new());
        it.table = Table::restore(d, |place| {
            let is_own = |entry: EntryNo| PlaceWord::new(d.names[entry.index()].hash.peek(), entry) == place;
            let is_name = place.entry().get() < end
                && is_own(place.entry())
                && !used.contains(place.entry())
                && has_key(d, place.entry(), &mut blocks);
            is_name && used.insert(place.entry())
        });
        it.half_bytes = [0; 2];
        let half = it.half();
        it.half_bytes[half] = PLACE_BYTES << it.table.word().log2();
        it.entries = Entries::restore(d, end, &used, if discards { now_ns } else { 0 });
        it.blocks = Blocks::restore(size::count(d.long_names.len()), &blocks);
        for entry in used.iter() {
            it.count(d, entry, owner_word_of(d, entry), true);
        }
        for entry in used.iter().filter(|&entry| owner_word_of(d, entry).kind() != OwnerKind::Live) {
            it.set_tombstone(d, entry);
        }
        d.head().names_live.set(it.live);
        it.show_room(d);
        it
    }
}
