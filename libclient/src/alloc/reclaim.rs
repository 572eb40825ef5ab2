//! From retired to free: what nobody holds any more is reused once nobody reads it.

use super::Allocator;
use crate::peers::PeerTable;
use std::sync::TryLockError;
use tensorlend_layout::leases;
use tensorlend_layout::word::{Cell, LeaseWord};
use tensorlend_os::mutex::lock;

/// About what a scan costs for each member, ...
const MEMBER_NS: u64 = 24;
/// ... for each of its leases, ...
const LEASE_NS: u64 = 2;
/// ... and in any case.
const SCAN_NS: u64 = 100;

/// What one round needs, kept from round to round.
#[derive(Default)]
pub struct Reclaiming {
    slots: Vec<Cell>,
    /// A bit for each of them, by the hash of the lease that would hold it. So a lease on something else costs a look.
    bits: Vec<u64>,
    /// Leases whose bits are set, sorted.
    leased: Vec<u64>,
}

/// What a scan found besides leases.
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
    /// Gathers the leases of the namespace that may be on one of the slots. `None`: a member's table could not be read, so
    /// that nothing may be freed.
    fn scan(&mut self, peers: &PeerTable) -> Option<Scanned> {
        let me = peers.me();
        // About one bit in sixteen set.
        let bits_log2 = (self.slots.len() * 16).next_power_of_two().ilog2().clamp(9, 20);
        // Fibonacci hashing: the factor is 2^64 over the golden ratio.
        let place = |lease: LeaseWord| {
            let bit = (lease.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - bits_log2)) as usize;
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
        // The audience is read after the fence: a member that was shown our segments later cannot have leased what was replaced
        // before it.
        let mut members = 0;
        for catalogue in peers.directory.audience(me).chain([me]) {
            members += 1;
            // The daemon is away, and this member's table is not mapped: what it reads is unknown.
            peers.with_leases(catalogue, |table| table.scan(&mut found)).ok()?;
        }
        // For a reader that was ended while it runs on: what it looked at after use shows it that it was.
        leases::reuse_fence();
        scanned.members = members;
        self.leased.sort_unstable();
        Some(scanned)
    }
}

impl Allocator {
    /// A cell or ring entry no longer holds this value. When nobody holds it any more, it is freed as soon as no lease
    /// is on it.
    #[inline]
    pub fn retire(&self, value: Cell) {
        let due = lock(&self.heap).retire(value);
        if due {
            self.reclaim(false);
        }
    }

    /// Frees what is retired and not leased. `wait`: stand in line if another thread is at it.
    pub fn reclaim(&self, wait: bool) {
        let mut round = if wait {
            lock(&self.reclaiming)
        } else {
            match self.reclaiming.try_lock() {
                Ok(round) => round,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            }
        };
        round.slots.clear();
        lock(&self.heap).retired(&mut round.slots);
        if round.slots.is_empty() {
            let unused = lock(&self.heap).unused_on_shelf();
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
        let Reclaiming { slots, leased, .. } = &mut *round;
        #[cfg(feature = "broken-for-tests")]
        let scanned = if crate::sabotage::broken() == Some(crate::sabotage::Broken::Scan) {
            leased.clear();
            Some(Scanned { members: 0, leases: 0 })
        } else {
            scanned
        };
        let mut idle = Vec::new();
        {
            let mut heap = lock(&self.heap);
            let heap = &mut *heap;
            let me = self.me();
            // A pin on a dataset's member is no lease on the dataset.
            let pinned: Vec<Cell> = slots.iter().copied().filter(|value| heap.is_pinned(value.slot())).collect();
            // A member's table could not be read: it may hold everything.
            let is_leased = |value: &Cell| {
                scanned.is_none()
                    || !leased.is_empty() && leased.binary_search(&value.lease(me).0).is_ok()
                    || pinned.contains(value)
            };
            let kept = slots.extract_if(.., |value| is_leased(value));
            heap.still_retired(kept, scanned.map_or(SCAN_NS, Scanned::ns));
            for value in slots.drain(..) {
                idle.extend(heap.release(value.slot()).segment());
            }
            // Of a chain through several of them, or what was refused when it was given back before.
            idle.extend(heap.unused_on_shelf());
            idle.sort_unstable();
            idle.dedup();
        }
        tensorlend_layout::crash_point!("reclaim: freed");
        drop(round);
        if !idle.is_empty() {
            self.return_idle(idle);
        }
    }
}
