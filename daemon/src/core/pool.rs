//! The pool of host memory. `bytes = lent + spare + idle + ordered`, at most `bytes_max`.

use super::account::{NamespaceId, is_above};
use super::clock::{Clock, Timer};
use super::event::MemId;
use std::collections::VecDeque;

/// Pause after a request for a segment before the daemon makes a spare segment. The requester first
/// receives and maps its segment, without competing with the allocation of the spare.
const SPARE_PAUSE_NS: u64 = 10_000_000;

/// The namespace and the user to whom memory is lent. No other borrower receives the same memory
/// later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Borrower {
    pub namespace: NamespaceId,
    pub uid: u32,
}

#[derive(Debug)]
struct Idle {
    mem: MemId,
    bytes: u64,
    borrower: Borrower,
}

/// The segments that no client has, and the bytes of all segments.
#[derive(Debug)]
pub struct Pool {
    /// Bytes of segments that exist or are being made.
    bytes: u64,
    bytes_max: u64,
    segment_bytes: u64,
    spare_target: usize,
    idle_bytes_max: u64,
    /// Fresh segments of the ordinary length, which were never lent.
    spares: Vec<MemId>,
    /// Spare segments on order.
    ordered: Vec<MemId>,
    /// Returned segments, the least recently used first. The daemon lends each segment only to the
    /// uid that wrote it.
    idle: VecDeque<Idle>,
    /// Earliest time of the next order of spares.
    spares_after_ns: u64,
    /// Whether the last spare could not be made. The daemon tries again after memory has been
    /// released.
    starved: bool,
}

/// A fresh segment of the ordinary length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spare {
    /// The segment exists.
    Ready(MemId),
    /// The segment is on order.
    Ordered(MemId),
}

impl Pool {
    pub fn new(bytes_max: u64, segment_bytes: u64, spare_target: u32, idle_bytes_max: u64) -> Self {
        Self {
            bytes: 0,
            bytes_max,
            segment_bytes,
            spare_target: spare_target as usize,
            idle_bytes_max,
            spares: Vec::new(),
            ordered: Vec::new(),
            spares_after_ns: 0,
            idle: VecDeque::new(),
            starved: false,
        }
    }

    /// Replaces the limits. Returns the unused segments to release. Existing loans survive.
    pub fn reload(&mut self, bytes_max: u64, spare_target: u32, idle_bytes_max: u64) -> Vec<MemId> {
        (self.bytes_max, self.spare_target, self.idle_bytes_max) = (bytes_max, spare_target as usize, idle_bytes_max);
        self.starved = false;
        let mut released = Vec::new();
        while let Some(idle) = self.idle.pop_front_if(|_| self.bytes > bytes_max) {
            self.bytes -= idle.bytes;
            released.push(idle.mem);
        }
        released.extend(self.bound_idle());
        while self.bytes > bytes_max || self.spares.len() + self.ordered.len() > self.spare_target {
            let Some(mem) = self.spares.pop() else { break };
            self.bytes -= self.segment_bytes;
            released.push(mem);
        }
        released
    }

    /// Checks that the bytes of unused segments are among the bytes that exist.
    ///
    /// # Panics
    /// Panics if the check fails.
    pub fn check(&self) {
        let unused = self.spare_bytes() + self.idle_bytes() + self.ordered.len() as u64 * self.segment_bytes;
        assert!(unused <= self.bytes, "{unused} bytes are unused of {}", self.bytes);
        assert!(self.idle_bytes() <= self.idle_bytes_max, "idle segments are bounded");
    }

    /// Returns the bytes of segments that exist or are being made.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Returns true if the lent bytes exceed `percent` percent of the maximum.
    pub fn is_above(&self, percent: u8) -> bool {
        is_above(self.lent_bytes(), self.bytes_max, percent)
    }

    /// Returns the bytes of spare segments that exist.
    pub fn spare_bytes(&self) -> u64 {
        self.spares.len() as u64 * self.segment_bytes
    }

    /// Returns the bytes that are lent, including those of disconnected clients.
    pub fn lent_bytes(&self) -> u64 {
        self.bytes - self.spare_bytes() - self.ordered.len() as u64 * self.segment_bytes - self.idle_bytes()
    }

    fn idle_bytes(&self) -> u64 {
        self.idle.iter().map(|i| i.bytes).sum()
    }

    /// Removes and returns the most recently used returned segment of exactly `bytes` that this
    /// borrower wrote. No client receives memory to which another user may still have access.
    pub fn take_idle(&mut self, borrower: Borrower, bytes: u64) -> Option<MemId> {
        let at = self.idle.iter().rposition(|i| (i.borrower, i.bytes) == (borrower, bytes))?;
        self.idle.remove(at).map(|i| i.mem)
    }

    /// Removes and returns a spare segment, if `bytes` is the ordinary length.
    pub fn take_spare(&mut self, bytes: u64) -> Option<Spare> {
        if bytes != self.segment_bytes {
            return None;
        }
        self.spares.pop().map(Spare::Ready).or_else(|| self.ordered.pop().map(Spare::Ordered))
    }

    /// Makes room for `bytes` and counts them. Returns the segments to release. Returns `None` if
    /// the pool has no room.
    pub fn reserve(&mut self, bytes: u64) -> Option<Vec<MemId>> {
        let reclaimable = self.idle_bytes() + self.spare_bytes();
        if bytes.checked_add(self.bytes - reclaimable).is_none_or(|sum| sum > self.bytes_max) {
            return None;
        }
        let mut released = Vec::new();
        while self.bytes + bytes > self.bytes_max {
            let (mem, freed) = match self.idle.pop_front() {
                Some(idle) => (idle.mem, idle.bytes),
                None => (self.spares.pop().expect("the sum above counted it"), self.segment_bytes),
            };
            self.bytes -= freed;
            released.push(mem);
        }
        self.bytes += bytes;
        Some(released)
    }

    /// Returns true if `bytes` can be added without overflow. A client may have invented the length
    /// of its memory.
    pub fn can_count(&self, bytes: u64) -> bool {
        self.bytes.checked_add(bytes).is_some_and(|sum| sum <= u64::MAX / 4)
    }

    /// Counts a lent segment of a previous daemon.
    pub fn count_recovered(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Subtracts a segment that was released.
    pub fn forget(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.starved = false;
    }

    /// Stores a returned segment for its namespace. Returns the segments to release. They include
    /// this segment if it is too long.
    pub fn keep_idle(&mut self, mem: MemId, bytes: u64, borrower: Borrower) -> Vec<MemId> {
        self.idle.push_back(Idle { mem, bytes, borrower });
        self.bound_idle()
    }

    fn bound_idle(&mut self) -> Vec<MemId> {
        let mut released = Vec::new();
        while self.idle_bytes() > self.idle_bytes_max {
            let idle = self.idle.pop_front().expect("some bytes are idle");
            self.forget(idle.bytes);
            released.push(idle.mem);
        }
        released
    }

    /// Removes the idle segments of a namespace that has ended.
    pub fn drop_namespace(&mut self, namespace: NamespaceId) -> Vec<MemId> {
        let mut released = Vec::new();
        let idle = std::mem::take(&mut self.idle);
        for i in idle {
            if i.borrower.namespace == namespace {
                self.forget(i.bytes);
                released.push(i.mem);
            } else {
                self.idle.push_back(i);
            }
        }
        released
    }

    /// Postpones the next order of spares by [`SPARE_PAUSE_NS`].
    pub fn postpone_spares(&mut self, clock: &mut Clock) {
        let after_ns = clock.now_ns() + SPARE_PAUSE_NS;
        if self.spares_after_ns < after_ns {
            self.spares_after_ns = after_ns;
            clock.set_timer_at(after_ns, Timer::Spares);
        }
    }

    /// Returns the length of another spare segment, if one is wanted and the pool has room. The
    /// bytes are counted, so the caller must call [`Pool::ordered`].
    pub fn wants_spare(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns < self.spares_after_ns {
            return None;
        }
        let wanted = self.spares.len() + self.ordered.len() < self.spare_target;
        if !wanted || self.starved || self.bytes + self.segment_bytes > self.bytes_max {
            return None;
        }
        self.bytes += self.segment_bytes;
        Some(self.segment_bytes)
    }

    /// Records a spare segment on order.
    pub fn ordered(&mut self, mem: MemId) {
        self.ordered.push(mem);
    }

    /// Handles the arrival of an ordered spare segment, or the failure to make it. Returns true for
    /// a surplus spare, which the caller must release.
    pub fn arrived(&mut self, mem: MemId, made: bool) -> bool {
        self.ordered.retain(|&m| m != mem);
        if !made {
            self.forget(self.segment_bytes);
            self.starved = true;
            return false;
        }
        let excess = self.spares.len() + self.ordered.len() >= self.spare_target || self.bytes > self.bytes_max;
        if excess {
            self.forget(self.segment_bytes);
        } else {
            self.spares.push(mem);
        }
        excess
    }

    /// Removes and returns all unused segments, at the end of the daemon.
    pub fn drain(&mut self) -> Vec<MemId> {
        self.bytes -= self.spare_bytes() + self.idle_bytes() + self.ordered.len() as u64 * self.segment_bytes;
        let idle = self.idle.drain(..).map(|i| i.mem);
        idle.chain(self.spares.drain(..)).chain(self.ordered.drain(..)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn borrower(namespace: NamespaceId, uid: u32) -> Borrower {
        Borrower { namespace, uid }
    }

    #[test]
    fn room_is_made_from_idle_then_spare_and_lent_is_never_touched() {
        let mut pool = Pool::new(10, 2, 1, 4);
        assert_eq!(pool.wants_spare(0), Some(2));
        pool.ordered(MemId(1));
        assert_eq!(pool.wants_spare(0), None, "one is on its way");
        assert!(!pool.arrived(MemId(1), true));
        assert_eq!(pool.reserve(6), Some(vec![]));
        assert!(pool.keep_idle(MemId(2), 3, borrower(7, 1)).is_empty());
        assert_eq!((pool.bytes(), pool.lent_bytes()), (8, 3));
        assert_eq!(pool.take_idle(borrower(8, 1), 3), None, "another namespace");
        assert_eq!(pool.take_idle(borrower(7, 2), 3), None, "another user");
        assert_eq!(pool.reserve(8), None);
        assert_eq!(pool.reserve(7), Some(vec![MemId(2), MemId(1)]));
        assert_eq!(pool.lent_bytes(), 10);
        pool.forget(10);
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn idle_segments_are_bounded_and_the_oldest_goes_first() {
        let mut pool = Pool::new(100, 2, 0, 4);
        pool.reserve(8).unwrap();
        assert!(pool.keep_idle(MemId(1), 2, borrower(7, 1)).is_empty());
        assert!(pool.keep_idle(MemId(2), 2, borrower(7, 1)).is_empty());
        assert_eq!(pool.keep_idle(MemId(3), 2, borrower(7, 1)), [MemId(1)]);
        assert_eq!(pool.take_idle(borrower(7, 1), 2), Some(MemId(3)));
        assert_eq!(pool.drop_namespace(7), [MemId(2)]);
        assert_eq!(pool.bytes(), 4);
    }

    #[test]
    fn a_smaller_pool_gives_up_what_nobody_has() {
        let mut pool = Pool::new(20, 2, 2, 8);
        for mem in [1, 2] {
            assert_eq!(pool.wants_spare(0), Some(2));
            pool.ordered(MemId(mem));
            assert!(!pool.arrived(MemId(mem), true));
        }
        pool.reserve(12).unwrap();
        for mem in 3..=5 {
            assert!(pool.keep_idle(MemId(mem), 2, borrower(7, 1)).is_empty());
        }
        // Lent: 6, spare: 4, idle: 6. The pool releases the surplus spare and idle segments.
        assert_eq!(pool.reload(20, 1, 4), [MemId(3), MemId(2)]);
        assert_eq!((pool.bytes(), pool.lent_bytes()), (12, 6));
        // The pool releases the idle segments, then the spare. Lent segments stay.
        assert_eq!(pool.reload(7, 1, 4), [MemId(4), MemId(5), MemId(1)]);
        assert_eq!((pool.bytes(), pool.lent_bytes()), (6, 6));
        assert_eq!((pool.reload(1, 1, 4), pool.reserve(1), pool.wants_spare(0)), (vec![], None, None));
        assert_eq!(pool.lent_bytes(), 6);
        assert_eq!(pool.reload(8, 1, 4), []);
        assert_eq!((pool.reserve(3), pool.wants_spare(0)), (None, Some(2)));
        // A spare that arrives after the reload is surplus.
        pool.ordered(MemId(6));
        assert_eq!(pool.reload(8, 0, 4), []);
        assert!(pool.arrived(MemId(6), true));
        assert_eq!(pool.bytes(), 6);
    }
}
