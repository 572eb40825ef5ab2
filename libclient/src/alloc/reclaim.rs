//! Reclaims retired slots: the client reuses a slot that no cell holds when no lease covers it any more.

use super::Allocator;
use super::heap::Heap;
use crate::peers::PeerTable;
use std::sync::{MutexGuard, TryLockError};
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::word::{Cell, LeaseWord};
use tensorlend_layout::{leases, size};
use tensorlend_os::mutex::lock;

/// Approximate cost of scanning one member, in nanoseconds.
const MEMBER_NS: u64 = 24;
/// Approximate cost of each lease of a member, in nanoseconds.
const LEASE_NS: u64 = 2;
/// Approximate fixed cost of a scan, in nanoseconds.
const SCAN_NS: u64 = 100;

/// The buffers of one round of reclaiming. The next round reuses them.
#[derive(Default)]
pub struct Reclaiming {
    slots: Vec<Cell>,
    /// A bit for each retired slot, at the hash of the lease word that would cover the slot. With it, one test
    /// excludes most other leases.
    bits: Vec<u64>,
    /// The lease words found whose bits are set, sorted.
    leased: Vec<u64>,
}

/// The number of members and leases that a scan read.
#[derive(Clone, Copy)]
struct Scanned {
    members: u64,
    leases: u64,
}

impl Scanned {
    fn ns(self) -> u64 {
        SCAN_NS + self.members * MEMBER_NS + self.leases * LEASE_NS
    }
}

impl Reclaiming {
    /// Collects the leases of the namespace that may cover one of the slots. Returns `None` if it could not read a
    /// member's table. Then the caller must not free any slot.
    fn scan(&mut self, peers: &PeerTable) -> Option<Scanned> {
        let me = peers.me();
        // About one bit in sixteen is set.
        let bits_log2 = (self.slots.len() * 16).next_power_of_two().ilog2().clamp(9, 20);
        // Fibonacci hashing: the factor is 2^64 divided by the golden ratio.
        let place = |lease: LeaseWord| {
            let bit = size::index(lease.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - bits_log2));
            (bit / 64, 1 << (bit % 64))
        };
        self.bits.clear();
        self.bits.resize((1 << bits_log2) / 64, 0);
        for value in &self.slots {
            let (word, bit) = place(value.lease(me));
            self.bits[word] |= bit;
        }
        self.leased.clear();
        let mut scanned = Scanned { members: 0, leases: 0 };
        let (bits, leased) = (&self.bits, &mut self.leased);
        let mut found = |lease: LeaseWord| {
            scanned.leases += 1;
            let (word, bit) = place(lease);
            if bits[word] & bit != 0 {
                leased.push(lease.0);
            }
        };
        leases::scan_fence();
        // Read the audience after the fence. A member that the daemon adds to the audience later cannot hold a lease
        // on a value that was replaced before the fence.
        let mut members = 0;
        let mut read = |number| {
            members += 1;
            peers.with_leases(number, |table| table.scan(&mut found))
        };
        // Without the daemon, a member's table cannot be mapped: its leases are unknown.
        for number in peers.directory.audience(me) {
            read(number).ok()?;
        }
        read(me).ok()?;
        scanned.members = members;
        self.leased.sort_unstable();
        Some(scanned)
    }

    /// Frees the slots that the scan has not found leased, and returns the segments that are idle afterwards. If a
    /// member's table could not be read, `scanned` is `None`, and every value counts as leased.
    fn free(&mut self, heap: &mut Heap, me: ClientNo, scanned: Option<Scanned>) -> Vec<SlotNo> {
        let Self { slots, leased, .. } = self;
        // A pin on a dataset's member is not a lease on the dataset, so check the pins separately.
        let pinned: Vec<Cell> = slots.iter().copied().filter(|value| heap.is_pinned(value.slot())).collect();
        let is_leased = |value: &Cell| {
            scanned.is_none() || leased.binary_search(&value.lease(me).0).is_ok() || pinned.contains(value)
        };
        let may_keep = scanned.is_none() || !leased.is_empty() || !pinned.is_empty();
        let kept = slots.extract_if(..if may_keep { slots.len() } else { 0 }, |value| is_leased(value));
        heap.still_retired(kept, scanned.map_or(SCAN_NS, Scanned::ns));
        let mut idle: Vec<SlotNo> = slots.drain(..).filter_map(|value| heap.release(value.slot()).segment()).collect();
        // Also return two kinds of released segments. The last slot of one kind was freed as part of a chain through
        // several segments. The daemon refused the return of the other kind earlier.
        idle.extend(heap.unused_released());
        idle.sort_unstable();
        idle.dedup();
        idle
    }
}

impl Allocator {
    /// Frees retired slots that no lease covers. If another thread is reclaiming, waits for that thread if `wait` is true;
    /// otherwise returns at once.
    pub fn reclaim(&self, wait: bool) {
        let Some(mut round) = self.begin_round(wait) else { return };
        round.slots.clear();
        lock(&self.heap).retired(&mut round.slots);
        if round.slots.is_empty() {
            let unused = lock(&self.heap).unused_released();
            drop(round);
            if !unused.is_empty() {
                self.return_idle(unused);
            }
            return;
        }
        tensorlend_layout::crash_point!("reclaim: gathered");
        let scanned = round.scan(&self.peers);
        tensorlend_layout::crash_point!("reclaim: scanned");
        self.peers.map_waiters();
        #[cfg(feature = "broken-for-tests")]
        let scanned = if crate::sabotage::broken() == Some(crate::sabotage::Broken::Scan) {
            round.leased.clear();
            Some(Scanned { members: 0, leases: 0 })
        } else {
            scanned
        };
        let idle = round.free(&mut lock(&self.heap), self.me(), scanned);
        tensorlend_layout::crash_point!("reclaim: freed");
        drop(round);
        if !idle.is_empty() {
            self.return_idle(idle);
        }
    }

    /// Takes the lock of the one thread that reclaims. Returns `None` if another thread has it and `wait` is false.
    fn begin_round(&self, wait: bool) -> Option<MutexGuard<'_, Reclaiming>> {
        if wait {
            return Some(lock(&self.reclaiming));
        }
        match self.reclaiming.try_lock() {
            Ok(round) => Some(round),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
