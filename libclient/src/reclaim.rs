//! From retired to free: what nobody holds any more is reused once nobody reads it.

use crate::heap::Unused;
use crate::session::{Session, lock};
use crate::stream::ClosedRing;
use std::collections::HashSet;
use std::sync::TryLockError;
use tensorlend_layout::leases;
use tensorlend_layout::word::Cell;

/// Slots that wait to be reclaimed: at least so many before the lease tables are read, ...
const RETIRED_MIN: usize = 64;
/// ... or so many bytes.
const RETIRED_BYTES: u64 = 1 << 20;

/// What waits.
#[derive(Default)]
pub struct Retired {
    slots: Vec<(u32, u64)>,
    bytes: u64,
    /// Leases seen by the last scan: reading them again is worth while when half as many slots wait.
    leases_seen: usize,
    /// Bytes that the last scan found leased: no use to look again before more has come.
    bytes_kept: u64,
}

impl Retired {
    /// (slot, generation) of each.
    pub fn slots(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.slots.iter().copied()
    }
}

impl Session {
    /// A cell or ring entry no longer holds this value. When nobody holds it any more, it is freed as soon as no lease
    /// is on it.
    pub fn retire(&self, value: Cell) {
        if lock(&self.heap).let_go(value) {
            self.retire_again(value);
        }
    }

    /// Nobody holds this value any more, but somebody may have a lease on it.
    pub fn retire_again(&self, value: Cell) {
        let bytes = lock(&self.heap).chain_bytes(value.slot());
        let due = {
            let mut retired = lock(&self.retired);
            retired.slots.push((value.slot(), value.generation()));
            retired.bytes += bytes;
            retired.slots.len() >= RETIRED_MIN.max(retired.leases_seen / 2)
                || retired.bytes >= retired.bytes_kept + RETIRED_BYTES
        };
        if due {
            self.reclaim(false);
        }
    }

    /// Frees what is retired and not leased. `wait`: stand in line if another thread is at it.
    pub fn reclaim(&self, wait: bool) {
        let mut retired = if wait {
            lock(&self.retired)
        } else {
            match self.retired.try_lock() {
                Ok(retired) => retired,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            }
        };
        if retired.slots.is_empty() {
            return;
        }
        let Some(leased) = self.scan() else { return };
        retired.leases_seen = leased.len();
        let slots = std::mem::take(&mut retired.slots);
        let (kept, free): (Vec<_>, Vec<_>) =
            slots.into_iter().partition(|&(slot, generation)| leased.contains(&(slot, generation as u32 & 0xFF_FFFF)));
        let mut idle = Vec::new();
        {
            let mut heap = lock(&self.heap);
            for (slot, _) in free {
                if let Unused::Segment(base) = heap.release(slot) {
                    idle.push(base);
                }
            }
            retired.bytes = kept.iter().map(|&(slot, _)| heap.chain_bytes(slot)).sum();
        }
        retired.bytes_kept = retired.bytes;
        retired.slots = kept;
        drop(retired);
        for base in idle {
            self.return_segment(base);
        }
    }

    /// Every lease of the namespace on a slot of this client: (slot, low generation). `None`: a member's table could
    /// not be read, so that nothing may be freed.
    fn scan(&self) -> Option<HashSet<(u32, u32)>> {
        leases::scan_fence();
        // The members are read after the fence: who joined later cannot have leased what was replaced before it.
        let mut leased = HashSet::new();
        let members: Vec<u16> = self.directory.present().collect();
        for catalogue in members {
            let seen = self.with_leases(catalogue, |table| {
                table.scan(|lease| {
                    if lease.catalogue() == self.me() {
                        leased.insert((lease.slot(), lease.generation_low()));
                    }
                });
            });
            match seen {
                Ok(_) => {}
                // The daemon is away: what this member reads is unknown.
                Err(_) => return None,
            }
        }
        // For a reader that was ended while it runs on: what it looked at after use shows it that it was.
        leases::reuse_fence();
        Some(leased)
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
