//! This client's own memory: slots from its heap, segments from the daemon.

use crate::error::{Error, Result};
use crate::heap::{Taken, Unused, extent_bytes};
use crate::session::{Session, lock};
use crate::sheets::records;
use tensorlend_layout::header::Magic;
use tensorlend_layout::wire::{Reply, Request};
use tensorlend_os::map;
use tensorlend_os::memfd::Access;

impl Session {
    /// Takes a slot of `bytes` bytes: from what was freed, from what can be reclaimed, from a new segment.
    #[inline]
    pub fn take(&self, bytes: u64) -> Result<Taken> {
        if self.instruments.are_off() { self.take_unwatched(bytes) } else { self.take_watched(bytes) }
    }

    /// As [`Session::take`], without a word to the instruments.
    pub fn take_unwatched(&self, bytes: u64) -> Result<Taken> {
        self.check()?;
        if let Some(taken) = lock(&self.heap).take(bytes) {
            return Ok(taken);
        }
        self.take_slowly(bytes)
    }

    #[cold]
    fn take_slowly(&self, bytes: u64) -> Result<Taken> {
        self.reclaim(true);
        if let Some(taken) = lock(&self.heap).take(bytes) {
            return Ok(taken);
        }
        self.notices()?;
        self.retire_closed();
        self.reclaim(true);
        lock(&self.heap).flush();
        if let Some(taken) = lock(&self.heap).take(bytes) {
            return Ok(taken);
        }
        match self.request_segment(bytes) {
            Err(e) if e.is_limit() => {
                let idle = lock(&self.heap).flush();
                if idle.is_empty() {
                    return Err(e);
                }
                for base in idle {
                    self.return_segment(base);
                }
                self.request_segment(bytes)?;
            }
            other => other?,
        }
        // Another thread may have taken what came: then there is another segment to ask for.
        let taken = lock(&self.heap).take(bytes);
        taken.map_or_else(|| self.take_unwatched(bytes), Ok)
    }

    fn request_segment(&self, bytes: u64) -> Result<()> {
        let Some((length, _)) = extent_bytes(bytes) else {
            return Err(Error::Argument(format!("{bytes} bytes are more than any machine has")));
        };
        let (bytes, slots_log2) = lock(&self.heap).wanted(length, self.welcome.segment_bytes);
        let request = Request::Segment { bytes, slots_log2 };
        let mut answer = self.control.ask(&request, &[], "ask for memory", "")?;
        let Reply::Segment { bytes, base, slots_log2, .. } = answer.reply else { return answer.unexpected() };
        // Whatever comes of the mapping, the daemon hears that the descriptors have arrived.
        let mapped = (|| {
            let (segment, slots) = (answer.descriptor()?, answer.descriptor()?);
            let bytes = usize::try_from(bytes).map_err(|_| Error::Protocol { doing: "ask for memory" })?;
            let records = records(&slots, Access::Write, Magic::Slots, 1 << slots_log2)?;
            let map = map::segment(&segment, bytes, Access::Write, true).map_err(Error::system("map a segment"))?;
            Ok((map, records))
        })();
        answer.acknowledge()?;
        match mapped {
            Ok((map, records)) => {
                lock(&self.heap).add(base, slots_log2, map, records);
                Ok(())
            }
            Err(e) => {
                // Of no use to us: back with it.
                let _ = self.control.call(&Request::ReturnSegment { base }, "return a segment", "");
                Err(e)
            }
        }
    }

    /// Gives an unused segment back.
    pub fn return_segment(&self, base: u32) {
        let Some(returned) = lock(&self.heap).remove(base) else { return };
        // Refused while a reader has a short-lived entry on one of its slots: then we keep it a while longer.
        match self.control.call(&Request::ReturnSegment { base }, "return a segment", "") {
            Err(e) if e.is_certain() => lock(&self.heap).put_back(returned),
            _ => {}
        }
    }

    /// Drops a slot that was never published.
    #[inline]
    pub fn drop_slot(&self, slot: u32) {
        let unused = lock(&self.heap).release(slot);
        if let Unused::Segment(base) = unused {
            self.return_segment(base);
        }
    }
}
