//! Room in a full pool: segments in which nothing is left to write are let go of, so that the daemon can have them in files.
//!
//! That costs no copy and moves nothing: what is shelved stays in memory until somebody needs room. But it serves no draft any more
//! until all of it is free. So it is done when the daemon says that memory is short, with the segment that it lends then, or
//! refuses to lend one.

use super::Allocator;
use crate::alloc::heap::Wanted;
use crate::error::{Error, Result};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tensorlend_layout::wire::{Item, LimitKind, Request};
use tensorlend_os::mutex::lock;

/// How long it is not tried again after there was nothing to shelve: each look goes over all slots.
const PAUSE: Duration = Duration::from_millis(100);

/// When it may be tried.
#[derive(Debug, Default)]
pub struct Shelving {
    after: Option<Instant>,
}

/// Whether the daemon refused because of the bytes of tensors in host memory.
pub fn is_full(error: &Error) -> bool {
    error.limit_kind().is_some_and(LimitKind::is_tensor_memory)
}

impl Allocator {
    /// Lets go of segments in which nothing is left to write. Whether there were any.
    #[cold]
    pub fn shelve(&self, mut wanted: Wanted) -> bool {
        if self.shelve_refused.load(Ordering::Relaxed) {
            return false;
        }
        let mut shelving = lock(&self.shelving);
        if shelving.after.is_some_and(|after| Instant::now() < after) {
            return false;
        }
        let mut any = false;
        while let Some(shelved) = self.shelve_one(wanted) {
            any = true;
            if let Wanted::Cold(bytes) = &mut wanted {
                *bytes = bytes.saturating_sub(shelved);
            }
        }
        if any {
            // What was read of them here is mapped a second time.
            self.peers.unmap_own();
        } else if matches!(wanted, Wanted::All) {
            shelving.after = Some(Instant::now() + PAUSE);
        }
        any
    }

    fn shelve_one(&self, wanted: Wanted) -> Option<u64> {
        let (base, bytes) = lock(&self.heap).shelve(wanted)?;
        tensorlend_layout::crash_point!("shelve: closed");
        if let Err(error) = self.say_shelved(base) {
            // Until the daemon is another one.
            self.shelve_refused.fetch_or(error.is_limit(), Ordering::Relaxed);
            lock(&self.heap).unshelve(base);
            return None;
        }
        tensorlend_layout::crash_point!("shelve: told");
        // Who sealed a slot of it a moment ago has left it: the records are plain words, and this orders what was written before
        // them in other threads.
        self.shards.wait_for_sections();
        let gone = {
            // Both or none: who gives it back, since its last slot is free, takes it out of the heap first.
            let mut estate = self.descriptors.lock();
            let map = lock(&self.heap).unmap(base);
            map.map(|map| (map, estate.remove(&Item::Segment { base })))
        };
        drop(gone);
        tensorlend_layout::crash_point!("shelve: let go");
        Some(bytes)
    }

    fn say_shelved(&self, base: u32) -> Result<()> {
        self.control.call(&Request::Shelve { base }, "have a segment spilled", "").map(|_| ())
    }

    /// After the daemon was replaced: says what is shelved, if that was too much to be said on coming back.
    pub fn shelve_again(&self) {
        let untold = lock(&self.heap).untold();
        for base in untold {
            let _ = self.say_shelved(base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend_layout::wire::Refusal;

    /// A namespace's name is part of the settings' texts, and may look like one of them.
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
