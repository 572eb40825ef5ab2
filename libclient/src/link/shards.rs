//! Assigns shards of this client's lease table to threads.
//!
//! A thread owns a shard, so that the thread takes leases and opens epoch guards without a lock and without a
//! read-modify-write. When every shard has an owner, the remaining threads share the last shard under locks.

use crate::link::epoch::{EpochGuard, Flag};
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, RwLock, Weak};
use tensorlend_layout::child_holds::ChildHolds;
use tensorlend_layout::leases::{LeaseTable, SHARD_ENTRIES, SHARDS, Shard, release};
use tensorlend_layout::raw::Sheet;
use tensorlend_layout::size;
use tensorlend_layout::word::{LeaseWord, Word, low8};
use tensorlend_os::{fork, map};

pub(super) const SHARED: usize = SHARDS - 1;

pub struct Shards {
    id: u64,
    table: Sheet<LeaseTable>,
    /// Bit i: shard i has an owner.
    owned: Mutex<u64>,
    shared: Mutex<()>,
    /// Holds of forked children, by entry. The first fork with leases creates this table.
    holds: OnceLock<Box<[ChildHolds]>>,
    forks: u64,
    /// Whether two threads may have held guards at the same time. Never false again.
    shared_by_threads: AtomicBool,
    sharing: Once,
    pub(super) flags: Box<[Flag; SHARDS]>,
    /// Read-locked by the epoch guards of threads without a shard.
    pub(super) shared_guards: RwLock<()>,
}

struct Claim {
    session: u64,
    shard: usize,
    shards: Weak<Shards>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Destructors of other thread-local values may run later and use this table. They find no shard.
        LAST.set(Last::NONE);
        let Some(shards) = self.shards.upgrade().filter(|shards| shards.forks == fork::generation()) else { return };
        let mut owned = shards.owned.lock().unwrap_or_else(PoisonError::into_inner);
        debug_assert_ne!(*owned & 1 << self.shard, 0, "a shard has one owner, until its claim is dropped");
        // Leases that outlive this thread keep their entries. The shard's next owner skips these entries.
        Shard::new(&shards.table, self.shard).retire();
        *owned &= !(1 << self.shard);
    }
}

thread_local! {
    static CLAIMS: RefCell<Vec<Claim>> = const { RefCell::new(Vec::new()) };
    static LAST: Cell<Last> = const { Cell::new(Last::NONE) };
}

/// The session that this thread used last, and the shards that the thread owns there. All fields are in one word, so
/// that a thread reads them with one load. Bits 0 to 5: the thread's first shard, which the thread keeps, and whose
/// flag its epoch guards use. Bits 8 to 13: the shard in which the thread takes leases. Bit 14: whether the thread
/// owns further shards. Bits 16 and above: the session's number.
#[derive(Clone, Copy)]
pub(super) struct Last(u64);

impl Last {
    const NONE: Self = Self(0);

    fn new(session: u64, first: usize, current: usize, more: bool) -> Self {
        const { assert!(SHARDS.is_power_of_two() && SHARDS <= 1 << 6) };
        debug_assert!(first < SHARDS && current < SHARDS);
        Self(session << 16 | u64::from(more) << 14 | (current as u64) << 8 | first as u64)
    }

    #[inline(always)]
    fn session(self) -> u64 {
        self.0 >> 16
    }

    #[inline(always)]
    pub(super) fn first(self) -> usize {
        size::index(self.0) % SHARDS
    }

    #[inline(always)]
    pub(super) fn current(self) -> usize {
        size::index(self.0 >> 8) % SHARDS
    }

    fn has_more(self) -> bool {
        self.0 >> 14 & 1 != 0
    }
}

/// The position of an entry in the lease table.
#[derive(Clone, Copy, Debug)]
pub struct LeaseEntry {
    shard: u8,
    entry: u8,
}

impl LeaseEntry {
    #[inline(always)]
    fn new(shard: usize, entry: usize) -> Self {
        const { assert!(SHARDS <= 1 << 8 && SHARD_ENTRIES <= 1 << 8) };
        Self { shard: low8(shard as u64), entry: low8(entry as u64) }
    }

    fn number(self) -> usize {
        usize::from(self.shard) * SHARD_ENTRIES + usize::from(self.entry)
    }
}

impl Shards {
    pub fn new(table: Sheet<LeaseTable>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            table,
            owned: Mutex::new(0),
            shared: Mutex::new(()),
            holds: OnceLock::new(),
            forks: fork::generation(),
            shared_by_threads: AtomicBool::new(false),
            sharing: Once::new(),
            flags: Box::new([const { Flag::new() }; SHARDS]),
            shared_guards: RwLock::new(()),
        })
    }

    #[inline(always)]
    pub(super) fn last(self: &Arc<Self>) -> Last {
        let last = LAST.get();
        if last.session() == self.id { last } else { self.first_shard() }
    }

    /// Returns the shards of this thread, and claims one if the thread has none. Returns `SHARED` if no shard is
    /// free.
    #[cold]
    fn first_shard(self: &Arc<Self>) -> Last {
        let shared = Last::new(0, SHARED, SHARED, false);
        let found = CLAIMS.try_with(|claims| {
            let mut claims = claims.borrow_mut();
            let mut own = claims.iter().filter(|c| c.session == self.id).map(|c| c.shard);
            if let Some(first) = own.next() {
                let current = own.next_back().unwrap_or(first);
                return Last::new(self.id, first, current, own.next().is_some());
            }
            let Some(shard) = self.claim() else { return shared };
            if *self.owned.lock().unwrap_or_else(PoisonError::into_inner) != 1 << shard {
                self.begin_sharing();
            }
            claims.retain(|c| c.shards.strong_count() > 0);
            claims.push(Claim { session: self.id, shard, shards: Arc::downgrade(self) });
            Last::new(self.id, shard, shard, false)
        });
        // A thread that is ending has lost its claims, so it uses the shared shard.
        let last = found.unwrap_or(shared);
        if last.session() == 0 {
            self.begin_sharing();
        } else {
            LAST.set(last);
        }
        last
    }

    /// Notes, before a second thread opens its first guard, that several threads use this client.
    fn begin_sharing(&self) {
        // A forked child only reads, and nothing there closes the guards of its parent's other threads.
        if self.forks != fork::generation() {
            return;
        }
        // A third thread waits here for the second one.
        self.sharing.call_once(|| {
            self.shared_by_threads.store(true, Ordering::Release);
            // The first thread may hold a guard under which it found itself alone. Its later guards find the word above.
            self.wait_for_guards();
        });
    }

    /// Returns whether no other thread holds a guard until this thread's guard closes.
    #[inline(always)]
    pub fn is_alone(&self, guard: &EpochGuard<'_>) -> bool {
        debug_assert!(guard.is_of(self));
        !self.shared_by_threads.load(Ordering::Relaxed)
    }

    /// Calls `attempt` with a free entry, which no other thread uses until `attempt` returns. Returns `None` if no
    /// entry is free.
    #[inline]
    pub fn with_free<R>(
        self: &Arc<Self>,
        guard: &EpochGuard<'_>,
        attempt: impl FnOnce(&Word) -> R,
    ) -> Option<(R, LeaseEntry)> {
        debug_assert!(guard.is_of(self));
        let shard = guard.current.get();
        if guard.shard != SHARED
            && let Some((at, entry)) = Shard::new(&self.table, shard).free_entry_from(guard.from.get())
            && (at != 0 || shard == guard.shard || self.is_settled(guard))
        {
            guard.from.set(at + 1);
            return Some((attempt(entry), LeaseEntry::new(shard, at)));
        }
        self.with_free_elsewhere(guard, attempt)
    }

    /// Returns true if a thread that takes leases in a later shard should continue there. Otherwise the thread can give
    /// up shards.
    fn is_settled(&self, guard: &EpochGuard<'_>) -> bool {
        !self.is_empty(guard.current.get())
            || !LAST.get().has_more() && Shard::new(&self.table, guard.shard).free_entry().is_none()
    }

    /// Does the work of [`Shards::with_free`] if the current shard is full, empty, or shared.
    #[cold]
    fn with_free_elsewhere<R>(
        self: &Arc<Self>,
        guard: &EpochGuard<'_>,
        attempt: impl FnOnce(&Word) -> R,
    ) -> Option<(R, LeaseEntry)> {
        if guard.shard != SHARED
            && let Ok(Some(shard)) = CLAIMS.try_with(|claims| self.next_shard(guard.shard, &mut claims.borrow_mut()))
            && let Some((at, entry)) = Shard::new(&self.table, shard).free_entry_from(0)
        {
            guard.current.set(shard);
            guard.from.set(at + 1);
            return Some((attempt(entry), LeaseEntry::new(shard, at)));
        }
        let _turn = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, entry) = Shard::new(&self.table, SHARED).free_entry_from(0)?;
        Some((attempt(entry), LeaseEntry::new(SHARED, at)))
    }

    /// Returns a shard of this thread with a free entry. Claims another shard if all of the thread's shards are full.
    fn next_shard(self: &Arc<Self>, first: usize, claims: &mut Vec<Claim>) -> Option<usize> {
        let has_free = |shard: usize| Shard::new(&self.table, shard).free_entry().is_some();
        let own = |c: &Claim| c.session == self.id && c.shard != first;
        // Give up empty shards, which other threads may need. Keep one spare shard while the first shard is full.
        let mut spare = !has_free(first);
        claims.retain(|c| !own(c) || !self.is_empty(c.shard) || std::mem::take(&mut spare));
        let mut found = has_free(first).then_some(first);
        if found.is_none() {
            // Try the last claimed shard first: the earlier ones were full when this thread claimed it.
            found = claims.iter().rev().find(|c| own(c) && has_free(c.shard)).map(|c| c.shard);
        }
        while found.is_none() {
            let shard = self.claim()?;
            claims.push(Claim { session: self.id, shard, shards: Arc::downgrade(self) });
            // A former owner may have left leases in the shard, possibly so many that the shard is full.
            found = Some(shard).filter(|&shard| has_free(shard));
        }
        let current = found?;
        let more = claims.iter().any(|c| own(c) && c.shard != current);
        LAST.set(Last::new(self.id, first, current, more));
        found
    }

    fn is_empty(&self, shard: usize) -> bool {
        self.table.entries[shard].iter().all(|entry| entry.peek() == 0)
    }

    /// Returns the number of leases on values that this client holds.
    pub fn held(&self) -> usize {
        let is_held = |entry: &&Word| entry.peek() != 0 && !LeaseWord(entry.peek()).is_of_segment();
        self.table.entries.iter().flatten().filter(is_held).count()
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

    #[inline]
    pub fn word(&self, entry: LeaseEntry) -> &Word {
        &self.table.entries[usize::from(entry.shard)][usize::from(entry.entry)]
    }

    /// Ends the lease in an entry: now, or when no forked child can read under the lease any more.
    #[inline]
    pub fn release(&self, entry: LeaseEntry) {
        let word = self.word(entry);
        debug_assert_ne!(word.peek(), 0, "a lease uses its entry until its release");
        match self.holds.get() {
            None => release(word),
            Some(holds) => holds[entry.number()].release(word),
        }
    }

    pub fn has_leases(&self) -> bool {
        let used = self.table.shards_used.peek();
        (0..SHARDS).any(|shard| used >> shard & 1 != 0 && !self.is_empty(shard))
    }

    /// Adds a hold on each lease for the children of the next fork, and marks the lease table as inherited. Returns the
    /// entries of the leases.
    pub fn hold_for_children(&self) -> Vec<LeaseEntry> {
        let mut held = Vec::new();
        let mut used = self.table.shards_used.peek();
        while used != 0 {
            let shard = used.trailing_zeros() as usize % SHARDS;
            used &= used - 1;
            let entries = self.table.entries[shard].iter().enumerate().filter(|(_, entry)| entry.peek() != 0);
            held.extend(entries.map(|(at, _)| LeaseEntry::new(shard, at)));
        }
        if !held.is_empty() {
            self.table.inherited.set(1);
            let holds = self.holds.get_or_init(|| (0..SHARDS * SHARD_ENTRIES).map(|_| ChildHolds::new()).collect());
            for entry in &held {
                holds[entry.number()].add();
            }
        }
        held
    }

    /// Returns whether the lease in an entry protects reads of this process. In a forked child, only a lease with a hold
    /// does: a lease that another thread took during the fork has no hold.
    #[inline]
    pub fn counts_here(&self, entry: LeaseEntry) -> bool {
        self.forks == fork::generation() || self.holds.get().is_some_and(|holds| holds[entry.number()].is_held())
    }

    /// Ends the hold of children that have ended on one entry.
    pub fn end_hold(&self, entry: LeaseEntry) {
        if let Some(holds) = self.holds.get() {
            holds[entry.number()].end(self.word(entry));
        }
    }

    /// Chooses whether the children of a fork inherit the lease table.
    pub fn inherit(&self, inherited: bool) -> io::Result<()> {
        map::inherit(self.table.view(), inherited)
    }

    /// Returns the table's mapping, so that the caller can keep the table mapped.
    pub fn sheet(&self) -> &Sheet<LeaseTable> {
        &self.table
    }

    pub fn table(&self) -> &LeaseTable {
        &self.table
    }
}
