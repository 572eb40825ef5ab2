//! From retired to free: what nobody holds any more is reused once nobody reads it.

use crate::heap::Unused;
use crate::session::{Session, lock};
use crate::stream::ClosedRing;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::TryLockError;
use tensorlend_layout::leases;
use tensorlend_layout::word::{Cell, LeaseWord};

/// What one round needs, kept from round to round.
#[derive(Default)]
pub struct Reclaiming {
    slots: Vec<Cell>,
    leased: HashSet<u64, BuildHasherDefault<Mix>>,
}

/// Hashes a lease word: it is made by clients of this namespace, who could harm their own reclaiming only.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, word: u64) {
        // Fibonacci hashing: the factor is 2^64 over the golden ratio; the high bits are the good ones.
        let mixed = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// So many slots more are waited for with each member, so that reading their tables stays cheap per slot.
const PER_MEMBER: usize = 4;

impl Session {
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
        let Reclaiming { slots, leased } = &mut *round;
        slots.clear();
        lock(&self.heap).retired(slots);
        if slots.is_empty() {
            return;
        }
        let members = self.scan(leased);
        let mut idle = Vec::new();
        {
            let mut heap = lock(&self.heap);
            let heap = &mut *heap;
            // A member's table could not be read: it may hold everything.
            let is_leased = |value: &Cell| members.is_none() || leased.contains(&value.lease(self.me()).0);
            let enough = (leased.len() / 2).max(members.unwrap_or(0) * PER_MEMBER);
            let kept = slots.extract_if(.., |value| is_leased(value));
            heap.still_retired(kept, enough);
            for value in slots.drain(..) {
                if let Unused::Segment(base) = heap.release(value.slot()) {
                    idle.push(base);
                }
            }
        }
        drop(round);
        for base in idle {
            self.return_segment(base);
        }
    }

    /// Finds every lease of the namespace on a slot of this client; returns the number of members. `None`: a member's
    /// table could not be read, so that nothing may be freed.
    fn scan(&self, leased: &mut HashSet<u64, BuildHasherDefault<Mix>>) -> Option<usize> {
        leased.clear();
        let mut found = |lease: LeaseWord| {
            if lease.catalogue() == self.me() {
                leased.insert(lease.0);
            }
        };
        leases::scan_fence();
        // The members are read after the fence: who joined later cannot have leased what was replaced before it.
        let mut members = 0;
        for catalogue in self.directory.present() {
            members += 1;
            // The daemon is away, and this member's table is not mapped: what it reads is unknown.
            self.with_leases(catalogue, |table| table.scan(&mut found)).ok()?;
        }
        // For a reader that was ended while it runs on: what it looked at after use shows it that it was.
        leases::reuse_fence();
        Some(members)
    }

    /// Retires the messages of streams that were closed here and have since been deleted or opened anew.
    pub fn retire_closed(&self) {
        let gone: Vec<ClosedRing> = {
            let mut closed = lock(&self.closed);
            closed.extract_if(.., |ring| ring.is_gone(&self.directory)).collect()
        };
        for value in gone.iter().flat_map(ClosedRing::values) {
            self.retire(value);
        }
    }
}
