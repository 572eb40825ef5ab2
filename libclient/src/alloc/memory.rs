//! This client's own memory: slots from its heap, segments from the daemon.

use super::{Allocator, Outside};
use crate::alloc::heap::{Taken, Wanted, extent_bytes};
use crate::alloc::shelving;
use crate::error::{Error, Result};
use crate::segment::mapping::records;
use tensorlend_layout::header::Magic;
use tensorlend_layout::wire::{Item, Refusal, Reply, Request};
use tensorlend_os::map;
use tensorlend_os::memfd::Access;
use tensorlend_os::mutex::lock;

impl Allocator {
    /// Takes a slot of `bytes` bytes: from what was freed, from what can be reclaimed, from a new segment.
    #[inline]
    pub fn take(&self, outside: &impl Outside, bytes: u64) -> Result<Box<Taken>> {
        if !self.instruments.are_off() {
            return self.take_watched(outside, bytes);
        }
        self.check()?;
        match self.magazines.take(bytes) {
            Some(taken) => Ok(taken),
            None => self.take_unwatched(outside, bytes),
        }
    }

    /// As [`Allocator::take`], without a word to the instruments.
    pub fn take_unwatched(&self, outside: &impl Outside, bytes: u64) -> Result<Box<Taken>> {
        self.check()?;
        tensorlend_layout::crash_point!("draft: memory looked for");
        if let Some(taken) = lock(&self.heap).take(bytes) {
            return Ok(Box::new(taken));
        }
        self.take_slowly(outside, bytes)
    }

    #[cold]
    fn take_slowly(&self, outside: &impl Outside, bytes: u64) -> Result<Box<Taken>> {
        let Some((length, _)) = extent_bytes(bytes) else {
            return Err(Error::Argument(format!("{bytes} bytes are more than any machine has")));
        };
        self.empty_magazines();
        // Without a segment, be it that there is no room or no daemon, what waits has to do.
        let may_grow = lock(&self.heap).may_grow(length);
        if !may_grow || self.grow(length).is_err() {
            self.reclaim(true);
        }
        if let Some(taken) = lock(&self.heap).take(bytes) {
            return Ok(Box::new(taken));
        }
        // A daemon that is gone cannot say which names it took from us; what we know of ourselves may do.
        let _ = outside.notices();
        outside.retire_closed();
        self.reclaim(true);
        lock(&self.heap).flush();
        if let Some(taken) = lock(&self.heap).take(bytes) {
            return Ok(Box::new(taken));
        }
        let gone = lock(&self.heap).make_way(length);
        for base in gone {
            self.return_segment(base);
        }
        let mut grown = self.grow(length);
        if grown.as_ref().is_err_and(Error::is_limit) {
            // Better beside slots of another kind, or in a segment of theirs, than to exchange segments with the daemon
            // each time. But not small ones: they would soon use up the few numbers there, and pin the segment.
            let beside = {
                let mut heap = lock(&self.heap);
                if heap.is_small(length) { None } else { heap.take(bytes) }
            };
            if let Some(taken) = beside {
                return Ok(Box::new(taken));
            }
            let idle = lock(&self.heap).flush();
            if !idle.is_empty() {
                for base in idle {
                    self.return_segment(base);
                }
                grown = self.grow(length);
            }
        }
        // Last: what is shelved serves no draft any more.
        if grown.as_ref().is_err_and(shelving::is_full) && self.shelve(Wanted::All) {
            grown = self.grow(length);
        }
        if let Err(e) = grown {
            let beside = if e.is_limit() { lock(&self.heap).take(bytes) } else { None };
            return beside.map(Box::new).ok_or(e);
        }
        // Another thread may have taken what came: then there is another segment to ask for.
        let taken = lock(&self.heap).take(bytes);
        taken.map_or_else(|| self.take_unwatched(outside, bytes), |taken| Ok(Box::new(taken)))
    }

    /// Asks for a segment, and remembers if there is none.
    fn grow(&self, length: u64) -> Result<()> {
        let grown = match self.request_segment(length) {
            Err(e) if e.is_limit() && self.peers.unmap_unused() => self.request_segment(length),
            grown => grown,
        };
        if grown.as_ref().is_err_and(Error::is_limit) {
            lock(&self.heap).set_anywhere();
        }
        grown
    }

    fn request_segment(&self, length: u64) -> Result<()> {
        let (bytes, slots_log2) = lock(&self.heap).wanted(length);
        let request = Request::Segment { bytes, slots_log2 };
        let mut answer = self.control.ask(&request, &[], "ask for memory", "")?;
        let Reply::Segment { bytes, base, slots_log2, short, .. } = answer.reply else { return answer.unexpected() };
        // Whatever comes of the mapping, the daemon hears that the descriptors have arrived.
        let mapped = (|| {
            let (segment, slots) = (answer.descriptor()?, answer.descriptor()?);
            let bytes = usize::try_from(bytes).map_err(|_| Error::Protocol { doing: "ask for memory" })?;
            let records = records(&slots, Access::Write, Magic::Slots, 1 << slots_log2)?;
            let map = map::segment(&segment, bytes, Access::Write, true).map_err(Error::system("map a segment"))?;
            tensorlend_layout::crash_point!("grow: mapped");
            self.descriptors.lock().extend([(Item::Segment { base }, segment), (Item::Slots { base }, slots)]);
            // Before anybody else speaks: who comes back to another daemon says what he has.
            lock(&self.heap).add(base, slots_log2, map, records);
            tensorlend_layout::crash_point!("grow: taken over");
            Ok(())
        })();
        tensorlend_layout::crash_point!("grow: lent");
        let acknowledged = answer.acknowledge();
        match mapped {
            // If that was not heard, it is said again with the next daemon.
            Ok(()) => {
                acknowledged?;
                if short {
                    self.peers.note_short(true);
                    // Twice as much as came, so that what was there before memory was short goes, too.
                    self.shelve(Wanted::Cold(2 * bytes));
                }
                Ok(())
            }
            Err(e) => {
                acknowledged?;
                // Of no use to us: back with it.
                let _ = self.control.call(&Request::ReturnSegment { base }, "return a segment", "");
                Err(e)
            }
        }
    }

    /// Gives an unused segment back.
    pub fn return_segment(&self, base: u32) {
        let Some(returned) = lock(&self.heap).remove(base) else { return };
        let items = [Item::Segment { base }, Item::Slots { base }];
        let descriptors = items.map(|item| self.descriptors.lock().remove_entry(&item));
        tensorlend_layout::crash_point!("return: taken out of use");
        // Refused while a reader has a short-lived entry on one of its slots: then we keep it a while longer.
        match self.control.call(&Request::ReturnSegment { base }, "return a segment", "") {
            // Taken back already: by this request, asked twice since its daemon was replaced, or when we came back without it.
            Err(Error::Refused { refusal: Refusal::NotFound(_), .. }) => {}
            Err(e) if e.is_certain() => {
                self.descriptors.lock().extend(descriptors.into_iter().flatten());
                lock(&self.heap).put_back(returned);
            }
            _ => {}
        }
    }

    /// Gives segments back that are idle, and with them what they find idle when no magazine pins anything any more.
    pub fn return_idle(&self, mut idle: Vec<u32>) {
        idle.extend(self.empty_magazines());
        for base in idle {
            self.return_segment(base);
        }
    }

    /// Puts the slots of all threads' magazines back into the heap; returns segments that are idle then.
    fn empty_magazines(&self) -> Vec<u32> {
        // What another thread keeps in this moment may be missed: as if it came later.
        if self.magazines.bytes() == 0 {
            return Vec::new();
        }
        let kept = self.magazines.flush();
        let mut heap = lock(&self.heap);
        let unused = kept.into_iter().filter_map(|slot| heap.release_dropped(slot).segment());
        unused.collect()
    }

    /// Drops a slot that was never published.
    #[inline]
    pub fn drop_slot(&self, slot: u32) {
        let unused = lock(&self.heap).drop_slot(slot);
        if let Some(base) = unused.segment() {
            self.return_idle(vec![base]);
        }
    }

    /// As [`Allocator::drop_slot`], for a draft's slot: the next draft on this thread may have it as it is.
    #[inline]
    pub fn drop_taken(&self, taken: Box<Taken>) {
        if !self.instruments.are_off() || self.has_pins() {
            return self.drop_slot(taken.slot());
        }
        if let Some(taken) = self.magazines.keep(taken) {
            self.drop_unkept(taken.slot());
        }
    }

    /// Drops a slot of which the instruments were told nothing.
    pub fn drop_unkept(&self, slot: u32) {
        let unused = lock(&self.heap).release_dropped(slot);
        if let Some(base) = unused.segment() {
            self.return_idle(vec![base]);
        }
    }

    /// Bytes of slots in use, and of segments.
    pub fn figures(&self) -> (u64, u64) {
        if self.is_forked() {
            // Another thread of the parent may have held the lock, and nobody here would let it go.
            return (0, 0);
        }
        let (used, segments) = lock(&self.heap).figures();
        // To the heap, the slots in magazines are in use. Beside other threads that draft just now, both figures are
        // about right.
        (used.saturating_sub(self.magazines.bytes()), segments)
    }
}
