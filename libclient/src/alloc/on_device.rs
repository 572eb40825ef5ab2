//! This client's own device memory: slots from its heap, segments from the daemon.

use super::{Allocator, Outside, take_or_request};
use crate::alloc::heap::arenas::ArenaKey;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::gpu::stream::OnStream;
use crate::segment::map::TakenOn;
use crate::segment::map::Use;
use crate::segment::mapping::records;
use crate::segment::pinned::{PageLock, range_of};
use std::sync::MutexGuard;
use std::time::Duration;
use tensorlend_layout::Uuid;
use tensorlend_layout::header::Magic;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::size::bytes_text;
use tensorlend_layout::wire::{DeviceOffer, Reply, Request};
use tensorlend_os::memfd::Access;
use tensorlend_os::mutex::lock;

/// Shortest and longest pause between two requests while other processes unmap memory that this client returned. The pauses
/// double, and their sum is about 60 ms.
const NAP_MIN: Duration = Duration::from_millis(1);
const NAP_MAX: Duration = Duration::from_millis(32);
/// Maximum number of attempts. After each attempt, another thread may take the slot that the attempt made available.
const ATTEMPTS: usize = 16;

impl Allocator {
    /// Returns two numbers of bytes on a device: of the slots in use, and of the segments.
    pub fn figures_on(&self, uuid: Uuid) -> (u64, u64) {
        lock(&self.heap).figures_on(uuid)
    }

    /// Returns the host segment that holds a slot: its start, its length, and its page lock.
    pub fn host_segment(&self, slot: SlotNo) -> Option<((*mut u8, usize), PageLock)> {
        lock(&self.heap).host_segment(slot).map(|(map, locked)| (range_of(map), locked.clone()))
    }

    /// Takes the slot of a dropped draft of the same length in this stream, if there is one. Work that is queued in the
    /// stream from now on begins after the dropped draft's work, so no thread waits. Nevertheless this function makes the
    /// stream wait for that work, because the stream may be a new one with the number of a destroyed stream.
    pub fn take_dropped(
        &self,
        key: ArenaKey,
        offer: &DeviceOffer,
        bytes: u64,
        gpu: &Gpu,
        stream: &OnStream,
    ) -> Option<TakenOn> {
        let extent = {
            let mut heap = lock(&self.heap);
            let place = heap.arena(key, offer);
            (place, heap.extent_in(place, bytes)?)
        };
        let ending = self.lendings.janitor.take_dropped(extent, stream.as_raw())?;
        let order = |event| gpu.order(stream, event, "create a tensor on a device");
        if ending.events.iter().try_for_each(order).is_err() {
            self.lendings.janitor.leave(ending);
            return None;
        }
        for event in ending.events {
            // Other code may record the event again: the stream waits for the state that the event had at the call
            // above.
            gpu.give_event(event);
        }
        ending.dropped.map(|dropped| TakenOn { bytes, ..dropped.taken })
    }

    /// Takes a slot of `bytes` bytes on a device, within the memory limit. If an instrument is on, records the slot.
    pub fn take_on(
        &self,
        outside: &impl Outside,
        key: ArenaKey,
        offer: &DeviceOffer,
        bytes: u64,
        doing: &str,
    ) -> Result<TakenOn> {
        self.check()?;
        let take =
            || self.take_on_unwatched(outside, key, offer, bytes, doing).inspect_err(|error| self.gave_up(error));
        if self.instruments.are_off() {
            return take();
        }
        let length = {
            let mut heap = lock(&self.heap);
            let place = heap.arena(key, offer);
            heap.extent_in(place, bytes)
        };
        length.map_or_else(&take, |length| self.watch(outside, length, &take, |taken| taken.value))
    }

    /// Takes a slot of `bytes` bytes on a device: from freed memory, from memory that can be reclaimed, or from a new
    /// segment.
    fn take_on_unwatched(
        &self,
        outside: &impl Outside,
        key: ArenaKey,
        offer: &DeviceOffer,
        bytes: u64,
        doing: &str,
    ) -> Result<TakenOn> {
        let place = lock(&self.heap).arena(key, offer);
        let take = || lock(&self.heap).take_in(place, bytes);
        for _ in 0..ATTEMPTS {
            if let Some(taken) = take() {
                return Ok(taken);
            }
            // Streams may have reached their events in the meantime.
            self.lendings.janitor.finish();
            self.reclaim(true);
            if let Some(taken) = take() {
                return Ok(taken);
            }
            // The daemon may have taken names from this client, whose slots no process reads any more.
            let _ = outside.notices();
            outside.retire_closed();
            self.reclaim(true);
            if let Some(taken) = take() {
                return Ok(taken);
            }
            match self.grow_in(place, key, bytes, doing) {
                Err(error) if error.is_limit() => {
                    // Free the slots kept for other lengths and the superblocks of other streams.
                    let idle = lock(&self.heap).flush_on(key.uuid);
                    if let Some(taken) = take() {
                        return Ok(taken);
                    }
                    for base in idle {
                        self.return_segment(base);
                    }
                    if let Some(taken) = self.grow_after_return(place, key, bytes, doing)? {
                        return Ok(taken);
                    }
                }
                grown => {
                    if let Some(taken) = grown? {
                        return Ok(taken);
                    }
                }
            }
        }
        Err(Error::Protocol { doing: "ask for device memory" })
    }

    /// Requests a segment again after the client returned one. The daemon counts a returned segment until every
    /// process has unmapped it.
    fn grow_after_return(&self, place: u16, key: ArenaKey, bytes: u64, doing: &str) -> Result<Option<TakenOn>> {
        let mut nap = NAP_MIN;
        loop {
            // This client may have mapped the returned segment as a reader, too.
            self.peers.sweep();
            let _ = self.lendings.tell(&self.control);
            match self.grow_in(place, key, bytes, doing) {
                // The daemon has notified the other holders, which need a moment to unmap the segment.
                Err(error) if error.is_limit() && nap <= NAP_MAX && self.lendings.is_lately_gone() => {
                    std::thread::sleep(nap);
                    nap *= 2;
                }
                grown => return grown,
            }
        }
    }

    /// Requests a segment. If another thread got a segment with room in the meantime, takes a slot there instead.
    fn grow_in(&self, place: u16, key: ArenaKey, bytes: u64, doing: &str) -> Result<Option<TakenOn>> {
        let take = || lock(&self.heap).take_in(place, bytes);
        let request = |telling: MutexGuard<'_, ()>| self.request_segment_in(place, key, bytes, doing, telling);
        take_or_request(self.lendings.telling(), take, request)
    }

    /// Requests a segment. Releases the lock `telling` when the new segment serves drafts.
    fn request_segment_in(
        &self,
        place: u16,
        key: ArenaKey,
        bytes: u64,
        doing: &str,
        telling: MutexGuard<'_, ()>,
    ) -> Result<()> {
        let wanted = lock(&self.heap).wanted_in(place, bytes);
        let Some((bytes, slots_log2)) = wanted else {
            return Err(Error::Argument(format!(
                "{} are more than any device has: check the shape",
                bytes_text(bytes)
            )));
        };
        let request = Request::DeviceSegment { uuid: key.uuid, bytes, slots_log2 };
        let mut answer = self.control.ask(&request, "ask for device memory", "")?;
        let Reply::DeviceSegment(lent) = answer.reply.clone() else { return answer.unexpected() };
        let (lending, base, slots_log2) = (lent.lending, lent.lending.base, lent.slots_log2);
        // Acknowledge the descriptors even if the mapping fails.
        let mapped = (|| {
            let (segment, slots) = (answer.descriptor()?, answer.descriptor()?);
            let records = records(&slots, Access::Write, Magic::Slots, 1 << slots_log2)?;
            let map = self.lendings.find_or_add(&self.link, lent, segment, Use::Write);
            map.mapped(doing)?;
            lock(&self.heap).add_in(place, map, records);
            Ok(())
        })();
        let acknowledged = answer.acknowledge();
        drop(telling);
        match mapped {
            Ok(()) => acknowledged,
            Err(error) => {
                acknowledged?;
                // The mapping failed: return the segment.
                let _ = self.control.call(&Request::ReturnSegment { base }, "return a segment", "");
                self.lendings.never_mapped(lending);
                Err(error)
            }
        }
    }
}
