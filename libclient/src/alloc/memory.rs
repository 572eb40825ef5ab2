//! Requests to the daemon for segments of host memory, and their return.

use super::{Allocator, take_or_request};
use crate::alloc::heap::Wanted;
use crate::alloc::taken::Taken;
use crate::error::{Error, Result};
use crate::reused::boxed;
use crate::segment::mapping::{own_segment, records};
use crate::segment::pinned::PageLock;
use std::sync::MutexGuard;
use tensorlend_layout::header::Magic;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::wire::{PROTOCOL_OWN_VIEW, Refusal, Reply, Request};
use tensorlend_os::memfd::Access;
use tensorlend_os::mutex::lock;

impl Allocator {
    /// Reports to the daemon that this client returns a refusal of memory to its program. The daemon counts refusals by
    /// these reports, because this client requests memory several times.
    pub fn gave_up(&self, error: &Error) {
        let is_refused = error.is_limit() && matches!(error, Error::Refused { .. });
        if is_refused && self.control.needs_protocol(PROTOCOL_OWN_VIEW, "report a refusal", "").is_ok() {
            let _ = self.control.call(&Request::GaveUp, "report a refusal", "");
        }
    }

    /// Requests a segment, and records a refusal. If another thread got a segment with room in the meantime, takes a slot there
    /// instead.
    pub(super) fn grow(&self, bytes: u64, length: u64) -> Result<Option<Box<Taken>>> {
        let take = || lock(&self.heap).take(bytes).map(boxed);
        let grow = || take_or_request(lock(&self.growing), take, |growing| self.request_segment(length, growing));
        let grown = match grow() {
            Err(e) if e.is_limit() && self.peers.unmap_unused() => grow(),
            grown => grown,
        };
        if grown.as_ref().is_err_and(Error::is_limit) {
            lock(&self.heap).set_anywhere();
        }
        grown
    }

    /// Requests a segment. Releases the lock `growing` when the new segment serves drafts.
    fn request_segment(&self, length: u64, growing: MutexGuard<'_, ()>) -> Result<()> {
        let (bytes, slots_log2) = lock(&self.heap).wanted(length);
        let request = Request::Segment { bytes, slots_log2 };
        let mut answer = self.control.ask(&request, "ask for memory", "")?;
        let Reply::Segment { bytes, base, slots_log2, short, .. } = answer.reply else { return answer.unexpected() };
        // Acknowledge the descriptors even if the mapping fails.
        let mapped = (|| {
            let (segment, slots) = (answer.descriptor()?, answer.descriptor()?);
            let bytes = usize::try_from(bytes).map_err(|_| Error::Protocol { doing: "ask for memory" })?;
            let records = records(&slots, Access::Write, Magic::Slots, 1 << slots_log2)?;
            let map = own_segment(&segment, bytes)?;
            let locked = PageLock::of_mapped(&map, self.welcome.page_lock, false);
            tensorlend_layout::crash_point!("grow: mapped");
            // Add the segment before the acknowledgement: a client that reconnects after the daemon was replaced reports the
            // segments in its heap.
            lock(&self.heap).add(base, length, locked, map, records);
            tensorlend_layout::crash_point!("grow: taken over");
            Ok(())
        })();
        tensorlend_layout::crash_point!("grow: lent");
        let acknowledged = answer.acknowledge();
        drop(growing);
        match mapped {
            // If the acknowledgement was lost, the segment stays in the heap, and the client reports it to the next
            // daemon.
            Ok(()) => {
                acknowledged?;
                if short {
                    self.peers.note_short(true);
                    // Release twice the lent bytes, so that the client also releases segments from before the
                    // shortage.
                    self.release_for_spill(Wanted::Cold(2 * bytes));
                }
                Ok(())
            }
            Err(e) => {
                acknowledged?;
                // The mapping failed: return the segment.
                let _ = self.control.call(&Request::ReturnSegment { base }, "return a segment", "");
                Err(e)
            }
        }
    }

    /// Returns an unused segment to the daemon.
    pub fn return_segment(&self, base: SlotNo) {
        let Some(returned) = lock(&self.heap).remove(base) else { return };
        tensorlend_layout::crash_point!("return: taken out of use");
        // The daemon refuses the return while a reader has a short-lived lease on a slot of the segment. Then this
        // client keeps the segment.
        match self.control.call(&Request::ReturnSegment { base }, "return a segment", "") {
            // The client has already returned the segment: this request was repeated after the daemon was replaced, or the
            // client reconnected to the new daemon without the segment.
            Err(Error::Refused { refusal: Refusal::NotFound(_), .. }) => {}
            Err(e) if e.is_certain() => lock(&self.heap).put_back(returned),
            _ => {}
        }
    }

    /// Returns unused segments to the daemon.
    pub(super) fn return_segments(&self, bases: Vec<SlotNo>) {
        for base in bases {
            self.return_segment(base);
        }
    }

    /// Returns idle segments to the daemon. First empties all magazines, which may make further segments idle.
    pub fn return_idle(&self, mut idle: Vec<SlotNo>) {
        idle.extend(self.empty_magazines());
        self.return_segments(idle);
    }

    /// Puts the slots of all threads' magazines back into the heap. Returns the segments that are idle afterwards.
    pub(super) fn empty_magazines(&self) -> Vec<SlotNo> {
        // This check may miss a slot that another thread is putting into its magazine now. The effect is the same as if
        // that thread dropped the slot later.
        if self.magazines.bytes() == 0 {
            return Vec::new();
        }
        let kept = self.magazines.flush();
        let mut heap = lock(&self.heap);
        let unused = kept.into_iter().filter_map(|slot| heap.release_dropped(slot).segment());
        unused.collect()
    }

    /// Returns two numbers of bytes: of the slots in use, and of the segments.
    pub fn figures(&self) -> (u64, u64) {
        if self.is_forked() {
            // A thread of the parent may have held the lock during the fork. In the child, no thread would unlock it.
            return (0, 0);
        }
        let (used, segments) = lock(&self.heap).figures();
        // The heap counts the slots in magazines as in use. While other threads allocate, both values are approximate.
        (used.saturating_sub(self.magazines.bytes()), segments)
    }
}
