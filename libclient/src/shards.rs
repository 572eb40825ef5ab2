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
use tensorlend_os::fork;

const SHARED: usize = SHARDS - 1;

/// Shards of one session.
pub struct Shards {
    id: u64,
    table: Sheet<LeaseTable>,
    /// Bit i: shard i has an owner.
    owned: Mutex<u64>,
    shared: Mutex<()>,
    forks: u64,
}

struct Claim {
    session: u64,
    shard: usize,
    shards: Weak<Shards>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(shards) = self.shards.upgrade().filter(|shards| shards.forks == fork::generation()) else { return };
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
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            table,
            owned: Mutex::new(0),
            shared: Mutex::new(()),
            forks: fork::generation(),
        })
    }

    /// Calls `attempt` with a free entry; the entry is this thread's until `attempt` returns. `None`: no entry is free.
    pub fn with_free<R>(self: &Arc<Self>, attempt: impl FnOnce(&Word) -> R) -> Option<(R, Place)> {
        // Moved into whichever attempt takes place: only one does.
        let mut attempt = Some(attempt);
        let mut go = |entry: &Word| attempt.take().map(|attempt| attempt(entry));
        let own = CLAIMS.try_with(|claims| {
            let mut claims = claims.borrow_mut();
            for at in 0..claims.len() {
                if claims[at].session != self.id {
                    continue;
                }
                let shard = claims[at].shard;
                if let Some(entry) = Shard::new(&self.table, shard).free_entry() {
                    let done = (go(entry)?, self.place(shard, entry));
                    // Others may need the shards that this thread once needed.
                    if at + 1 < claims.len()
                        && claims.last().is_some_and(|c| c.session == self.id && self.is_empty(c.shard))
                    {
                        claims.pop();
                    }
                    return Some(done);
                }
            }
            while let Some(shard) = self.claim() {
                claims.retain(|c| c.shards.strong_count() > 0);
                claims.push(Claim { session: self.id, shard, shards: Arc::downgrade(self) });
                // A former owner may have left leases in it; then it may even be full.
                if let Some(entry) = Shard::new(&self.table, shard).free_entry() {
                    return Some((go(entry)?, self.place(shard, entry)));
                }
            }
            None
        });
        // A thread that is ending has no claims any more: it takes its turn with those that found no shard.
        if let Ok(Some(done)) = own {
            return Some(done);
        }
        let _turn = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = Shard::new(&self.table, SHARED).free_entry()?;
        Some((go(entry)?, self.place(SHARED, entry)))
    }

    fn is_empty(&self, shard: usize) -> bool {
        self.table.entries[shard].iter().all(|entry| entry.peek() == 0)
    }

    /// Leases that this client holds.
    pub fn held(&self) -> usize {
        self.table.entries.iter().flatten().filter(|entry| entry.peek() != 0).count()
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
