//! The lease table: a client's leases, its positions in streams, and whether it sleeps.
//!
//! Writer: its client. Readers: the daemon, the client's callers, and the producers of the
//! namespace. A producer reads the table before it reuses a slot.
//!
//! Producers ignore a cursor without a stream (`stream` is 0). A server of requests has such a
//! cursor. Callers read its `next` as the server's load (`libclient/src/call/load.rs`).
//!
//! One rule explains every ordering in this file: *each party stores its own word, fences, and then
//! reads the others' words*. Of two parties that follow the rule, at least one sees the other's
//! store.

use crate::describe::{pad, structure};
use crate::header::SheetHeader;
#[cfg(not(loom))]
use crate::raw::View;
use crate::size;
use crate::sync::{Ordering, fence};
use crate::word::{Bell, LeaseWord, Word};
#[cfg(not(loom))]
use core::mem::offset_of;

/// Number of entries of a shard.
pub const SHARD_ENTRIES: usize = if cfg!(loom) { 2 } else { 64 };
/// Number of shards of a table. Only one thread at a time uses a shard.
pub const SHARDS: usize = if cfg!(loom) { 2 } else { 64 };
/// Maximum number of simultaneous subscriptions of a client.
pub const CURSORS: usize = if cfg!(loom) { 1 } else { 256 };

#[cfg(not(feature = "next-layout-for-tests"))]
structure! {
    /// A subscriber's position in one stream. It has two cache lines. The producer reads the first line only when its
    /// ring is full, and the second line at every send. The second line changes only when the subscriber goes to sleep
    /// or wakes.
    pub struct Cursor [128] {
        /// Absolute number of the next message to take. Writer: the subscriber, after it has taken (leased) a message.
        0 next: Word,
        /// Messages that the subscriber missed. Writer: the subscriber. For monitoring only.
        8 lost: Word,
        /// The subscriber rings this bell when it advances `next`, if the producer sleeps on the bell.
        16 bell: Bell,
        /// The id of the cursor's stream; 0: none yet. Writer: the subscriber, before the fence after which it polls for
        /// its first message. From then on, if the stream's policy is block or error, `next` preserves that message and
        /// all later ones, even if the stream ends: see [`Cursor::keeps`].
        24 stream: Word,
        /// Reserved; always 0.
        32 reserved: [Word; pad(4)],
        /// 0 awake, 1 asleep on the stream's bell, 2 wants a byte through its wake descriptor. Writer: the subscriber,
        /// before it polls the ring's head again, with a fence between.
        64 parked: Word,
        /// Reserved; always 0.
        72 reserved2: [Word; pad(7)],
    }
}

#[cfg(feature = "next-layout-for-tests")]
structure! {
    /// A subscriber's position in one stream. It has two cache lines. The producer reads the first line only when its
    /// ring is full, and the second line at every send. The second line changes only when the subscriber goes to sleep
    /// or wakes.
    pub struct Cursor [128] {
        /// Absolute number of the next message to take. Writer: the subscriber, after it has taken (leased) a message.
        0 next: Word,
        /// Messages that the subscriber missed. Writer: the subscriber. For monitoring only.
        8 lost: Word,
        /// The subscriber rings this bell when it advances `next`, if the producer sleeps on the bell.
        16 bell: Bell,
        /// The id of the cursor's stream; 0: none yet. Writer: the subscriber, before the fence after which it polls for
        /// its first message. From then on, if the stream's policy is block or error, `next` preserves that message and
        /// all later ones, even if the stream ends: see [`Cursor::keeps`].
        24 stream: Word,
        /// 1 if the writer has set `stream` for a subscription; 0: not said. Writer: the subscriber, before `stream`.
        32 follows: Word,
        /// Reserved; always 0.
        40 reserved: [Word; pad(3)],
        /// 0 awake, 1 asleep on the stream's bell, 2 wants a byte through its wake descriptor. Writer: the subscriber,
        /// before it polls the ring's head again, with a fence between.
        64 parked: Word,
        /// Reserved; always 0.
        72 reserved2: [Word; pad(7)],
    }
}

structure! {
    /// A client's lease table.
    pub struct LeaseTable [69632] {
        /// The sheet's header. Writer: the daemon, before lending.
        0 sheet: SheetHeader,
        /// 0: no thread sleeps. Otherwise a Bloom filter of the catalogues for which threads wait; the top bit stands for any
        ///    new name. The sleeper stores it before it polls again, with a fence between.
        64 parked: Word,
        /// Reserved; always 0.
        72 reserved: [Word; pad(7)],
        /// Bit i: shard i may hold leases. The client sets the bit before it stores the first lease of the shard, and
        /// clears the bit only when the shard is empty and no thread owns it.
        128 shards_used: Word,
        /// 1: the client has forked while it held leases, which count until its children have ended. 0: the client has
        /// not done so. The client sets it before the fork; the daemon reads it when the session ends.
        136 inherited: Word,
        /// Reserved; always 0.
        144 reserved2: [Word; pad(6)],
        /// Number of entries of shard i, from the lowest on, that were ever used. The client raises it before it stores the
        /// lease.
        192 high_water: [Word; SHARDS],
        /// Reserved; always 0.
        704 reserved3: [Word; pad(424)],
        /// Cursors of the streams that this client follows.
        4096 cursors: [Cursor; CURSORS],
        /// The leases: catalogue 16 . slot 24 . low 24 bits of the generation. 0: none. A lease never moves to another entry.
        /// Every store of an entry is Release, also the store that clears it.
        36864 entries: [[Word; SHARD_ENTRIES]; SHARDS],
    }
}

impl Cursor {
    /// Subscriber: stores the id of the cursor's stream; 0: none.
    pub fn set_stream(&self, id: u64) {
        #[cfg(feature = "next-layout-for-tests")]
        self.follows.set(u64::from(id != 0));
        self.stream.set(id);
    }

    /// Producer P of a deleted stream, after [`scan_fence`]: returns true if subscriber S may still
    /// read one of the stream's messages without a lease. `sent - 1` is the number of the last
    /// message.
    ///
    /// S reads messages without a lease after it has leased an earlier message through the stream's
    /// owner word. That lease was valid, so the owner word had not changed before S's fence. P has
    /// seen the owner word change and has fenced. So P sees the words that S stored before S's
    /// fence. `next` only grows, and S advances it after reading. An early check by P can therefore
    /// only delay the release of the messages.
    pub fn keeps(&self, stream: u64, sent: u64) -> bool {
        // Acquire (in `read`) pairs with the Release store of `next`. S's reads of the messages
        // happened before that store.
        self.next.read() < sent && self.stream.read() == stream
    }
}

/// Takes a lease. Stores the lease, then checks *every* word that led to the slot again.
///
/// Returns true if the value is valid. The owner does not reuse the slot before [`release`].
/// Returns false if a word has changed. The entry is then empty again, and the caller starts over.
///
/// A crash before the check leaves an entry for a slot that no thread reads. The entry stops
/// counting when the daemon ends the client.
#[inline]
pub fn acquire(entry: &Word, lease: LeaseWord, route: &[(&Word, u64)]) -> bool {
    store(entry, lease);
    crate::crash_point!("lease: stored");
    lease_fence();
    confirm(entry, route)
}

/// Performs the first step of [`acquire`], for taking many leases at once. The caller stores all
/// leases, calls [`lease_fence`] once, and then calls [confirm] for each lease.
#[inline]
pub fn store(entry: &Word, lease: LeaseWord) {
    // Release: a scanner that finds this lease in place of an earlier one infers that all reads
    // under the earlier lease have ended.
    entry.set(lease.0);
}

/// Performs the second step of [`acquire`]: the fence between storing leases and checking their
/// routes.
#[inline]
pub fn lease_fence() {
    // SeqCst pairs with the owner's fence between replacing the value and reading this table.
    // Either the owner sees the lease, or this thread sees that the owner has replaced the value.
    fence(Ordering::SeqCst);
}

/// Performs the last step of [`acquire`]. Returns true if the stored lease is valid. Otherwise the
/// entry is empty again.
#[inline]
pub fn confirm(entry: &Word, route: &[(&Word, u64)]) -> bool {
    if route.iter().all(|(word, seen)| word.peek() == *seen) {
        // Acquire: the caller reads the value's bytes after the words that led to the value.
        crate::crash_point!("lease: confirmed");
        fence(Ordering::Acquire);
        true
    } else {
        entry.set(0);
        false
    }
}

/// Ends a lease, from any thread of its client.
#[inline]
pub fn release(entry: &Word) {
    entry.set(0);
    crate::crash_point!("lease: released");
}

/// Called by an owner after it replaces values and before it reads the list of members and the
/// lease tables. The scan that follows finds every reader that took a lease before it noticed the
/// replacement.
#[inline]
pub fn scan_fence() {
    fence(Ordering::SeqCst);
}

/// Called by the thread of an owner that fills a freed slot, before it does so. The last read of members and lease tables, by
/// this or another thread of the owner, happens before this call.
///
/// The daemon may end reader R while R reads the slot. R's lease is then invalid, and R checks its
/// own member word after the use. If R saw the new bytes, R also sees that the daemon has ended it.
#[inline]
pub fn reuse_fence() {
    // Release orders the read of the member word before the stores of the new bytes.
    fence(Ordering::Release);
}

impl LeaseTable {
    /// Calls `found` for every lease in the table. Ends with a fence, after which the caller may
    /// reuse slots without leases.
    pub fn scan(&self, mut found: impl FnMut(LeaseWord)) {
        for shard in shards(self.shards_used.read()) {
            let used = size::index(self.high_water[shard].read()).min(SHARD_ENTRIES);
            self.entries[shard][..used].iter().map(Word::peek).for_each(|word| note(word, &mut found));
        }
        // Acquire: a reader's last read of the bytes precedes the store that clears its lease. That
        // store precedes the reuse of the slot.
        fence(Ordering::Acquire);
    }

    /// Scans a table like [`LeaseTable::scan`], through a view that may copy words in parts. This is safe: the scan must find
    /// the leases that were stored before the caller's [`scan_fence`], and no word of these changes until the reader releases
    /// the lease. Each bit of `shards_used` counts alone, and `high_water` is one byte.
    #[cfg(not(loom))]
    pub fn scan_view(table: &View, mut found: impl FnMut(LeaseWord)) {
        // The entries of this many shards are copied together.
        const RUN: usize = 8;
        let (mut used, mut high_water, mut leases) = ([0], [0; SHARDS], [[0; SHARD_ENTRIES]; RUN]);
        table.words(offset_of!(Self, shards_used), &mut used);
        table.words(offset_of!(Self, high_water), &mut high_water);
        for first in (0..SHARDS).step_by(RUN) {
            let used = used[0] >> first & ((1 << RUN) - 1);
            let end = u64::BITS as usize - used.leading_zeros() as usize;
            // The copies end with a fence, as the other scan does.
            let at = offset_of!(Self, entries) + first * size_of::<[Word; SHARD_ENTRIES]>();
            table.words(at, leases[..end].as_flattened_mut());
            for shard in shards(used) {
                for &word in &leases[shard][..size::index(high_water[first + shard]).min(SHARD_ENTRIES)] {
                    note(word, &mut found);
                }
            }
        }
    }
}

/// Returns the numbers of the bits that are set.
fn shards(mut bits: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let shard = (bits != 0).then(|| bits.trailing_zeros() as usize % SHARDS)?;
        bits &= bits - 1;
        Some(shard)
    })
}

fn note(word: u64, found: &mut impl FnMut(LeaseWord)) {
    if word != 0 {
        found(LeaseWord(word));
    }
}

/// One shard, in which one thread takes leases.
pub struct Shard<'t> {
    table: &'t LeaseTable,
    index: usize,
}

impl<'t> Shard<'t> {
    /// Creates shard `index` of `table`. The caller ensures that only one thread at a time uses the
    /// shard.
    pub fn new(table: &'t LeaseTable, index: usize) -> Self {
        Self { table, index }
    }

    /// Returns the lowest free entry, ready for [`acquire`]; `None` if all entries are taken. The
    /// entry is not reserved: the next call returns the same entry until a lease is stored in it.
    #[inline]
    pub fn free_entry(&self) -> Option<&'t Word> {
        self.free_entry_from(0).map(|(_, entry)| entry)
    }

    /// Returns the lowest free entry from number `from` on, and the entry's number. Like
    /// [`Shard::free_entry`], does not reserve the entry.
    #[inline]
    pub fn free_entry_from(&self, from: usize) -> Option<(usize, &'t Word)> {
        let entries = &self.table.entries[self.index];
        // Acquire (in `read`): another thread may have freed the entry. This thread takes the entry
        // only after it has read 0, so the other thread's reads under the old lease have ended.
        let at = from + entries.get(from..)?.iter().position(|e| e.read() == 0)?;
        let high = &self.table.high_water[self.index];
        if high.peek() <= at as u64 {
            high.set(at as u64 + 1);
        }
        if self.table.shards_used.peek() >> self.index & 1 == 0 {
            self.table.shards_used.set_bits(1 << self.index);
        }
        Some((at, &entries[at]))
    }

    /// Gives the shard up. Returns false if the shard still contains leases. The shard then stays
    /// marked as used, and its next owner continues with the leases.
    pub fn retire(self) -> bool {
        if self.table.entries[self.index].iter().any(|e| e.read() != 0) {
            return false;
        }
        self.table.high_water[self.index].set(0);
        self.table.shards_used.clear_bits(1 << self.index);
        true
    }
}
