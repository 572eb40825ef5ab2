//! Which thread takes leases in which shard of this client's lease table.
//!
//! A thread owns a shard, so that taking a lease needs neither a lock nor a read-modify-write. When every shard has an
//! owner, the remaining threads share the last one under a lock.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tensorlend_layout::leases::{LeaseTable, SHARDS, Shard};
use tensorlend_layout::raw::Sheet;
use tensorlend_layout::word::Word;

const SHARED: usize = SHARDS - 1;

/// Shards of one session.
pub struct Shards {
    id: u64,
    table: Sheet<LeaseTable>,
    /// Bit i: shard i has an owner.
    owned: Mutex<u64>,
    shared: Mutex<()>,
}

struct Claim {
    session: u64,
    shard: usize,
    shards: Weak<Shards>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(shards) = self.shards.upgrade() else { return };
        let mut owned = shards.owned.lock().unwrap_or_else(PoisonError::into_inner);
        // Leases that outlive their thread stay where they are; the next owner works around them.
        Shard::new(&shards.table, self.shard).retire();
        *owned &= !(1 << self.shard);
    }
}

thread_local! {
    static CLAIMS: RefCell<Vec<Claim>> = const { RefCell::new(Vec::new()) };
}

/// A place in the lease table.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    shard: u8,
    entry: u8,
}

impl Shards {
    pub fn new(table: Sheet<LeaseTable>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self { id: NEXT.fetch_add(1, Ordering::Relaxed), table, owned: Mutex::new(0), shared: Mutex::new(()) })
    }

    /// Calls `attempt` with a free entry; the entry is this thread's until `attempt` returns. `None`: no entry is free.
    pub fn with_free<R>(self: &Arc<Self>, attempt: impl FnOnce(&Word) -> R) -> Option<(R, Place)> {
        CLAIMS.with_borrow_mut(|claims| {
            for claim in claims.iter().filter(|c| c.session == self.id) {
                if let Some(entry) = Shard::new(&self.table, claim.shard).free_entry() {
                    return Some((attempt(entry), self.place(claim.shard, entry)));
                }
            }
            while let Some(shard) = self.claim() {
                claims.retain(|c| c.shards.strong_count() > 0);
                claims.push(Claim { session: self.id, shard, shards: Arc::downgrade(self) });
                // A former owner may have left leases in it; then it may even be full.
                if let Some(entry) = Shard::new(&self.table, shard).free_entry() {
                    return Some((attempt(entry), self.place(shard, entry)));
                }
            }
            let _turn = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = Shard::new(&self.table, SHARED).free_entry()?;
            Some((attempt(entry), self.place(SHARED, entry)))
        })
    }

    fn claim(&self) -> Option<usize> {
        let mut owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
        let shard = (!*owned).trailing_zeros() as usize;
        if shard >= SHARED {
            return None;
        }
        *owned |= 1 << shard;
        Some(shard)
    }

    fn place(&self, shard: usize, entry: &Word) -> Place {
        let first = std::ptr::from_ref(&self.table.entries[shard][0]).addr();
        let entry = (std::ptr::from_ref(entry).addr() - first) / size_of::<Word>();
        Place { shard: shard as u8, entry: entry as u8 }
    }

    /// The entry at a place.
    #[inline]
    pub fn entry(&self, place: Place) -> &Word {
        &self.table.entries[usize::from(place.shard)][usize::from(place.entry)]
    }

    /// The table, to keep mapped.
    pub fn sheet(&self) -> &Sheet<LeaseTable> {
        &self.table
    }

    /// The table itself.
    pub fn table(&self) -> &LeaseTable {
        &self.table
    }
}
