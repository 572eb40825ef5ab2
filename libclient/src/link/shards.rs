//! Which thread takes leases in which shard of this client's lease table, and when it is inside the client's tables.
//!
//! A thread owns a shard, so that neither taking a lease nor looking into the tables needs a lock or a
//! read-modify-write. When every shard has an owner, the remaining threads share the last one under locks.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};
use tensorlend_layout::leases::{LeaseTable, SHARDS, Shard};
use tensorlend_layout::raw::Sheet;
use tensorlend_layout::word::{LeaseWord, Word};
use tensorlend_os::{barrier, fork};

const SHARED: usize = SHARDS - 1;

/// Odd while the shard's thread is inside a [`Section`]. Two lines apart, for the processor's prefetcher fetches pairs.
#[repr(align(128))]
#[derive(Default)]
struct Flag(AtomicU64);

/// Shards of one session.
pub struct Shards {
    id: u64,
    table: Sheet<LeaseTable>,
    /// Bit i: shard i has an owner.
    owned: Mutex<u64>,
    shared: Mutex<()>,
    forks: u64,
    flags: Box<[Flag; SHARDS]>,
    /// Held to read by the sections of threads without a shard.
    crowd: RwLock<()>,
    /// Whether the kernel orders our threads for us, so that a section begins without a fence.
    asymmetric: bool,
}

struct Claim {
    session: u64,
    shard: usize,
    shards: Weak<Shards>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Destructors of other thread-local values may still come here: they find no shard.
        LAST.set(Last::NONE);
        let Some(shards) = self.shards.upgrade().filter(|shards| shards.forks == fork::generation()) else { return };
        let mut owned = shards.owned.lock().unwrap_or_else(PoisonError::into_inner);
        // Leases that outlive their thread stay where they are; the next owner works around them.
        Shard::new(&shards.table, self.shard).retire();
        *owned &= !(1 << self.shard);
    }
}

thread_local! {
    static CLAIMS: RefCell<Vec<Claim>> = const { RefCell::new(Vec::new()) };
    static LAST: Cell<Last> = const { Cell::new(Last::NONE) };
}

/// The session that a thread was last in, and what it owns there.
#[derive(Clone, Copy)]
struct Last {
    session: u64,
    /// Its first shard, which it keeps: the one whose flag its sections raise.
    first: u8,
    /// The shard in which it takes leases.
    current: u8,
    /// Whether it owns more than these.
    more: bool,
}

impl Last {
    const NONE: Self = Self { session: 0, first: 0, current: 0, more: false };
}

/// A place in the lease table.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    shard: u8,
    entry: u8,
}

/// A stretch of code in which what the tables lead to stays: who takes something out of them waits for the end of every
/// section that may have seen it ([`Shards::wait_for_sections`]). Short, never nested, and nothing in it waits.
pub struct Section<'s> {
    shards: &'s Shards,
    shard: usize,
    /// The shard in which leases are taken, and the entry from which on one may be free: those before it were taken when
    /// this section looked.
    current: Cell<usize>,
    from: Cell<usize>,
    _crowd: Option<RwLockReadGuard<'s, ()>>,
    /// The flag is this thread's.
    _here: PhantomData<*const ()>,
}

impl Section<'_> {
    /// Whose section it is.
    pub fn is_of(&self, shards: &Shards) -> bool {
        std::ptr::eq(self.shards, shards)
    }

    /// The shard that is this thread's alone; `None` if it has none of its own.
    #[inline]
    pub fn own_shard(&self) -> Option<usize> {
        (self.shard != SHARED).then_some(self.shard)
    }
}

impl Drop for Section<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.shard != SHARED {
            let flag = &self.shards.flags[self.shard].0;
            // Release: what was read inside is read before this, and so before whoever waited for it frees anything.
            flag.store(flag.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
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
            forks: fork::generation(),
            flags: Box::new([const { Flag(AtomicU64::new(0)) }; SHARDS]),
            crowd: RwLock::new(()),
            asymmetric: barrier::register(),
        })
    }

    /// Begins a section.
    #[inline(always)]
    pub fn section(self: &Arc<Self>) -> Section<'_> {
        let last = self.last();
        if usize::from(last.first) == SHARED { self.section_in_the_crowd(last) } else { self.enter(last) }
    }

    /// Begins a section, if this thread has a shard of its own or can have one.
    #[inline(always)]
    pub fn own_section(self: &Arc<Self>) -> Option<Section<'_>> {
        let last = self.last();
        (usize::from(last.first) != SHARED).then(|| self.enter(last))
    }

    #[inline(always)]
    fn last(self: &Arc<Self>) -> Last {
        let last = LAST.get();
        if last.session == self.id { last } else { self.first_shard() }
    }

    #[cold]
    fn section_in_the_crowd(&self, last: Last) -> Section<'_> {
        let crowd = Some(self.crowd.read().unwrap_or_else(PoisonError::into_inner));
        self.section_of(last, crowd)
    }

    #[inline(always)]
    fn section_of<'s>(&'s self, last: Last, crowd: Option<RwLockReadGuard<'s, ()>>) -> Section<'s> {
        Section {
            shards: self,
            shard: last.first.into(),
            current: usize::from(last.current).into(),
            from: 0.into(),
            _crowd: crowd,
            _here: PhantomData,
        }
    }

    /// Raises the flag of this thread's own shard.
    #[inline(always)]
    fn enter(&self, last: Last) -> Section<'_> {
        let flag = &self.flags[usize::from(last.first)].0;
        // Relaxed: this thread alone writes it.
        let before = flag.load(Ordering::Relaxed);
        debug_assert!(before.is_multiple_of(2), "sections do not nest");
        flag.store(before.wrapping_add(1), Ordering::Relaxed);
        // The store comes before every look into the tables. The compiler keeps that order here; the processor is made
        // to keep it by whoever waits, who interrupts every running thread of this process.
        if self.asymmetric {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        self.section_of(last, None)
    }

    /// Waits until every section that is open now has ended. What was taken out of the tables before is then seen by
    /// nobody. Must not be called inside a section.
    pub fn wait_for_sections(&self) {
        // SeqCst, against the order of a section's begin: either its flag is seen below, or it sees the tables as they
        // are now.
        fence(Ordering::SeqCst);
        if self.asymmetric {
            barrier::all_threads();
        }
        for flag in self.flags.iter() {
            // Acquire, from the Release of its end.
            let seen = flag.0.load(Ordering::Acquire);
            while !seen.is_multiple_of(2) && flag.0.load(Ordering::Acquire) == seen {
                // Its thread may have been stopped inside, and need this processor.
                std::thread::yield_now();
            }
        }
        drop(self.crowd.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// What this thread owns, a shard claimed if it has none; `SHARED` if there is none to be had.
    #[cold]
    fn first_shard(self: &Arc<Self>) -> Last {
        let shared = Last { first: SHARED as u8, current: SHARED as u8, ..Last::NONE };
        let found = CLAIMS.try_with(|claims| {
            let mut claims = claims.borrow_mut();
            let mut own = claims.iter().filter(|c| c.session == self.id).map(|c| c.shard as u8);
            if let Some(first) = own.next() {
                let current = own.next_back().unwrap_or(first);
                return Last { session: self.id, first, current, more: own.next().is_some() };
            }
            let Some(shard) = self.claim() else { return shared };
            claims.retain(|c| c.shards.strong_count() > 0);
            claims.push(Claim { session: self.id, shard, shards: Arc::downgrade(self) });
            Last { session: self.id, first: shard as u8, current: shard as u8, more: false }
        });
        // A thread that is ending has no claims any more: it takes its turn with those that found no shard.
        let last = found.unwrap_or(shared);
        if last.session != 0 {
            LAST.set(last);
        }
        last
    }

    /// Calls `attempt` with a free entry; the entry is this thread's until `attempt` returns. `None`: no entry is free.
    #[inline]
    pub fn with_free<R>(
        self: &Arc<Self>,
        section: &Section<'_>,
        attempt: impl FnOnce(&Word) -> R,
    ) -> Option<(R, Place)> {
        debug_assert!(section.is_of(self));
        let shard = section.current.get();
        if section.shard != SHARED
            && let Some((at, entry)) = Shard::new(&self.table, shard).free_entry_from(section.from.get())
            && (at != 0 || shard == section.shard || self.is_settled(section))
        {
            section.from.set(at + 1);
            return Some((attempt(entry), Place { shard: shard as u8, entry: at as u8 }));
        }
        self.with_free_elsewhere(section, attempt)
    }

    /// Whether a thread that takes leases in a shard behind its first should go on there. Else it can do with fewer.
    fn is_settled(&self, section: &Section<'_>) -> bool {
        !self.is_empty(section.current.get())
            || !LAST.get().more && Shard::new(&self.table, section.shard).free_entry().is_none()
    }

    /// As [`Shards::with_free`], when the thread's shard is full, or empty, or not its own.
    #[cold]
    fn with_free_elsewhere<R>(
        self: &Arc<Self>,
        section: &Section<'_>,
        attempt: impl FnOnce(&Word) -> R,
    ) -> Option<(R, Place)> {
        if section.shard != SHARED
            && let Ok(Some(shard)) = CLAIMS.try_with(|claims| self.next_shard(section.shard, &mut claims.borrow_mut()))
            && let Some((at, entry)) = Shard::new(&self.table, shard).free_entry_from(0)
        {
            section.current.set(shard);
            section.from.set(at + 1);
            return Some((attempt(entry), Place { shard: shard as u8, entry: at as u8 }));
        }
        let _turn = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, entry) = Shard::new(&self.table, SHARED).free_entry_from(0)?;
        Some((attempt(entry), Place { shard: SHARED as u8, entry: at as u8 }))
    }

    /// A shard of this thread that has a free entry, claimed if need be.
    fn next_shard(self: &Arc<Self>, first: usize, claims: &mut Vec<Claim>) -> Option<usize> {
        let has_free = |shard: usize| Shard::new(&self.table, shard).free_entry().is_some();
        let own = |c: &Claim| c.session == self.id && c.shard != first;
        // Others may need the shards that this thread once needed. One is kept as long as the first is full.
        let mut spare = !has_free(first);
        claims.retain(|c| !own(c) || !self.is_empty(c.shard) || std::mem::take(&mut spare));
        let mut found = has_free(first).then_some(first);
        if found.is_none() {
            // The last one first: the others were full when it was claimed.
            found = claims.iter().rev().find(|c| own(c) && has_free(c.shard)).map(|c| c.shard);
        }
        while found.is_none() {
            let shard = self.claim()?;
            claims.push(Claim { session: self.id, shard, shards: Arc::downgrade(self) });
            // A former owner may have left leases in it; then it may even be full.
            found = Some(shard).filter(|&shard| has_free(shard));
        }
        let current = found? as u8;
        let more = claims.iter().any(|c| own(c) && c.shard != usize::from(current));
        LAST.set(Last { session: self.id, first: first as u8, current, more });
        found
    }

    fn is_empty(&self, shard: usize) -> bool {
        self.table.entries[shard].iter().all(|entry| entry.peek() == 0)
    }

    /// Leases that this client holds, on values.
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
