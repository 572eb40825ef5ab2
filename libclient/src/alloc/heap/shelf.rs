//! Segments that their owner has let go of, so that the daemon may have them in a file.
//!
//! A slot is written between the moment at which it is handed out and the one at which its record is ("sealed"), and never
//! again in the same life. So a segment in which every slot in use is sealed can be unmapped: its bytes are for readers alone,
//! this client being one of them like any other, by a mapping of its own. What is left to do with it touches no byte: its slots are
//! retired and freed as ever, and when the last one is, it goes back. Nothing more is handed out in it, and it is never mapped for
//! writing again.

use super::{HOST, Heap, Memory, Own, SHELF};
use tensorlend_os::map::Segment;

/// What is to be shelved.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// All that can be: memory was refused.
    All,
    /// So many bytes, and nothing in which something was freed since the last but one segment was lent: who overwrites what
    /// he has published writes there again.
    Cold(u64),
}

/// Bytes of slots in use, and of segments.
#[derive(Clone, Copy, Default)]
pub struct Figures {
    pub used_bytes: u64,
    pub segment_bytes: u64,
}

impl Own {
    /// Bytes of slots that are in use.
    fn used_bytes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.capacity).sum()
    }

    /// Whether nothing will be written to its bytes unless a slot is handed out.
    fn is_sealed(&self) -> bool {
        let mut used = self.slots.iter().enumerate().filter(|(_, slot)| slot.capacity > 0);
        used.all(|(place, slot)| slot.holders > 0 && self.records[place].generation() == slot.generation)
    }

    /// Whether its pages are a device's to copy from or to.
    #[cfg_attr(not(feature = "cuda"), expect(clippy::unused_self, reason = "as with the feature"))]
    fn is_locked(&self) -> bool {
        #[cfg(feature = "cuda")]
        return self.locked.is_locked();
        #[cfg(not(feature = "cuda"))]
        false
    }
}

impl Heap {
    /// Puts a segment on the shelf: the one lent first of those in which there is nothing to write any more, and more in use than not.
    /// Returns its base and bytes; it is mapped still.
    pub fn shelve(&mut self, wanted: Wanted) -> Option<(u32, u64)> {
        let is_cold = |own: &Own| own.freed + 1 < self.lent;
        let is_wanted = |own: &Own| match wanted {
            Wanted::All => true,
            Wanted::Cold(bytes) => bytes > 0 && is_cold(own),
        };
        let host = self.segments.iter().enumerate().filter(|(_, own)| own.place == HOST);
        let mut oldest: Vec<(u64, usize)> =
            host.filter(|(_, own)| is_wanted(own)).map(|(at, own)| (own.age, at)).collect();
        if oldest.is_empty() {
            return None;
        }
        // What is kept for the next of its length looks as if it were in use.
        for slot in self.recent.flush() {
            self.free(slot);
        }
        let is_pinned = |own: &Own| {
            let end = own.base + own.slots.len() as u32;
            self.pins.range(own.base..end).next().is_some()
        };
        oldest.sort_unstable();
        let (at, used_bytes) = oldest.into_iter().find_map(|(_, at)| {
            let own = &self.segments[at];
            let used_bytes = own.used_bytes();
            let fits = used_bytes > own.memory.bytes() / 2 && !own.is_locked() && !is_pinned(own) && own.is_sealed();
            fits.then_some((at, used_bytes))
        })?;
        self.move_to(at, SHELF, used_bytes);
        let own = &self.segments[at];
        Some((own.base, own.memory.bytes()))
    }

    /// The daemon does not want it: as it was.
    pub fn unshelve(&mut self, base: u32) {
        let Ok(at) = self.segments.binary_search_by_key(&base, |own| own.base) else { return };
        // It may have been given back meanwhile, and this be another one, or the same, in use.
        if self.segments[at].place == SHELF {
            let used_bytes = self.segments[at].used_bytes();
            self.move_to(at, HOST, used_bytes);
        }
    }

    fn move_to(&mut self, at: usize, place: super::Place, used_bytes: u64) {
        let own = &mut self.segments[at];
        let (bytes, from) = (own.memory.bytes(), std::mem::replace(&mut own.place, place));
        for (place, add) in [(from, false), (place, true)] {
            let step = |figure: &mut u64, by: u64| *figure = if add { *figure + by } else { *figure - by };
            step(self.segment_bytes_of(place), bytes);
            step(if place == SHELF { &mut self.shelved.used_bytes } else { &mut self.used_bytes }, used_bytes);
        }
    }

    /// The segments on the shelf in which nothing is any more.
    pub fn unused_on_shelf(&self) -> Vec<u32> {
        if self.shelved.segment_bytes == 0 { Vec::new() } else { self.unused(SHELF) }
    }

    /// First slots of all segments on the shelf, where they are too many to say with [`Heap::bases`].
    pub fn untold(&self) -> Vec<u32> {
        if self.are_too_many() { self.on_shelf().collect() } else { Vec::new() }
    }

    /// First slots of the segments on the shelf.
    pub(super) fn on_shelf(&self) -> impl Iterator<Item = u32> + '_ {
        self.segments.iter().filter(|own| own.place == SHELF).map(|own| own.base)
    }

    /// The mapping of a segment that is on the shelf, to be dropped. Whoever freed the last slot meanwhile has given it back.
    pub fn unmap(&mut self, base: u32) -> Option<Segment> {
        let at = self.segments.binary_search_by_key(&base, |own| own.base).ok()?;
        let own = &mut self.segments[at];
        if own.place != SHELF {
            return None;
        }
        // What is unmapped already stays as it is: no device's memory is on the shelf.
        let shelved = Memory::Shelved(own.memory.bytes());
        if let Memory::Host(map) = std::mem::replace(&mut own.memory, shelved) { Some(map) } else { None }
    }
}
