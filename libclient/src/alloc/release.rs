//! Releases segments for spill when the pool is full. The daemon can move a segment to a file if its owner no longer
//! writes to it.
//!
//! A release copies nothing: the bytes stay in memory until the daemon needs their space. But a released segment serves
//! no more drafts until all its slots are free. So the client releases segments only when the daemon reports that
//! memory is short. The daemon reports this in a reply that lends a segment, or by a refusal.

use super::Allocator;
use crate::alloc::heap::Wanted;
use crate::error::{Error, Result};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::wire::{LimitKind, Request};
use tensorlend_os::mutex::lock;

/// Pause after an attempt that released nothing, because each attempt visits all slots.
const PAUSE: Duration = Duration::from_millis(100);

/// The time of the next attempt.
#[derive(Debug, Default)]
pub struct Release {
    after: Option<Instant>,
}

/// Returns whether the daemon refused a request because of a limit on the bytes of tensors in host memory.
pub fn is_full(error: &Error) -> bool {
    error.limit_kind().is_some_and(LimitKind::is_tensor_memory)
}

impl Allocator {
    /// Releases segments to which this client no longer writes. Returns whether it released any.
    #[cold]
    pub fn release_for_spill(&self, mut wanted: Wanted) -> bool {
        if self.release_refused.load(Ordering::Relaxed) {
            return false;
        }
        let mut release = lock(&self.release);
        if release.after.is_some_and(|after| Instant::now() < after) {
            return false;
        }
        let mut any = false;
        while let Some(released) = self.release_one(wanted) {
            any = true;
            if let Wanted::Cold(bytes) = &mut wanted {
                *bytes = bytes.saturating_sub(released);
            }
        }
        if any {
            // Unmap them here: read-only mappings of own segments would keep the released memory mapped.
            self.peers.unmap_own();
        } else if matches!(wanted, Wanted::All) {
            release.after = Some(Instant::now() + PAUSE);
        }
        any
    }

    fn release_one(&self, wanted: Wanted) -> Option<u64> {
        let (base, bytes) = lock(&self.heap).release_for_spill(wanted)?;
        tensorlend_layout::crash_point!("release: closed");
        if let Err(error) = self.report_released(base) {
            // `daemon_replaced` resets this flag, because the next daemon may spill.
            self.release_refused.fetch_or(error.is_limit(), Ordering::Relaxed);
            lock(&self.heap).take_back(base);
            return None;
        }
        tensorlend_layout::crash_point!("release: reported");
        // Another thread T may have sealed a slot a moment ago. Reading the slot's record, a plain word, does not order T's
        // writes before the unmapping. This wait orders them: T closes its epoch guard after its writes.
        self.shards.wait_for_guards();
        // A thread that returns the segment after its last slot was freed removes it from the heap first. The guard of the
        // heap ends before the unmapping.
        let gone = lock(&self.heap).unmap(base);
        drop(gone);
        tensorlend_layout::crash_point!("release: unmapped");
        Some(bytes)
    }

    fn report_released(&self, base: SlotNo) -> Result<()> {
        self.control.call(&Request::ReleaseForSpill { base }, "have a segment spilled", "").map(|_| ())
    }

    /// Reports the released segments to the new daemon after the daemon was replaced. Does nothing unless they were
    /// too many for the request with which the client reconnected.
    pub fn report_released_again(&self) {
        let unreported = lock(&self.heap).unreported();
        for base in unreported {
            let _ = self.report_released(base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend_layout::wire::Refusal;

    /// A namespace's name is part of the settings' texts and may look like a setting.
    #[test]
    fn a_limit_is_known_by_its_kind() {
        for (kind, setting, full) in [
            (LimitKind::PoolBytes, "pool.bytes_max", true),
            (LimitKind::PoolShare, "pool.bytes_max, or set uid.share to false,", true),
            (LimitKind::NamespaceBytes, "namespace.lab.bytes_max", true),
            (LimitKind::Segments, "namespace.x.bytes_max.segments_max", false),
            (LimitKind::DeviceBytes, "cuda.bytes_max", false),
        ] {
            let refusal = Refusal::Limit { kind, what: "it".into(), setting: setting.into(), limit: "1".into() };
            assert_eq!(is_full(&Error::Refused { doing: "ask".into(), refusal }), full, "{setting}");
        }
    }
}
