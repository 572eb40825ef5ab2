//! A word that two processes share, and the bit fields that the protocol packs into one.
//!
//! A word has one writer process. The readers may map the word read-only, where Rust defines only
//! relaxed loads of at most 8 bytes. So a reader's load is relaxed and a fence follows
//! ([`Word::read`]). The writer's stores are `Release`.

use crate::number::{CellNo, ClientNo, CursorNo, ListLine, SlotNo, StreamLine};
use crate::sync::{AtomicU64, Ordering, fence};
use core::fmt;

pub use crate::bell::Bell;
pub use process::ProcessWord;

mod process;

/// A shared `u64`.
#[repr(transparent)]
pub struct Word(AtomicU64);

impl Word {
    /// Creates a word outside shared memory, for models and simulations.
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Loads the word, and orders all later accesses after the load. Readers of words that another
    /// process writes use this method.
    #[inline]
    pub fn read(&self) -> u64 {
        let value = self.0.load(Ordering::Relaxed);
        // Acquire: everything that the writer stored before it released this value is visible from
        // here on.
        fence(Ordering::Acquire);
        value
    }

    /// Loads the word without ordering, for a check after a fence or for payload words that a later
    /// check validates.
    #[inline]
    pub fn peek(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Records a store that is about to change the word to `after`, for tests. Does nothing without the feature
    /// `crash-points`.
    #[inline]
    fn record(&self, after: impl FnOnce(u64) -> u64) {
        #[cfg(feature = "crash-points")]
        crate::crash::record(self, after);
        #[cfg(not(feature = "crash-points"))]
        let _ = (self, after);
    }

    /// Writer only: stores a value, and publishes everything that this thread stored before.
    #[inline]
    pub fn set(&self, value: u64) {
        self.record(|_| value);
        self.0.store(value, Ordering::Release);
    }

    /// Writer only: stores a payload word that a later [`Word::set`] publishes.
    #[inline]
    pub fn put(&self, value: u64) {
        self.record(|_| value);
        self.0.store(value, Ordering::Relaxed);
    }

    /// Writer only: exchanges the value. Release publishes the new value. Acquire sees the value
    /// that another thread of the same process stored, so each value is retired exactly once.
    #[inline]
    pub fn swap(&self, value: u64) -> u64 {
        self.record(|_| value);
        self.0.swap(value, Ordering::AcqRel)
    }

    /// Writer only: stores `value` if the word equals `before`. Returns true if it did. The
    /// ordering is that of [`Word::swap`].
    #[inline]
    pub fn replace(&self, before: u64, value: u64) -> bool {
        self.record(|now| if now == before { value } else { now });
        self.0.compare_exchange(before, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Writer only: sets the bits of `mask`. Returns the previous value.
    #[inline]
    pub fn set_bits(&self, mask: u64) -> u64 {
        self.record(|now| now | mask);
        self.0.fetch_or(mask, Ordering::AcqRel)
    }

    /// Writer only: clears the bits of `mask`. Returns the previous value.
    #[inline]
    pub fn clear_bits(&self, mask: u64) -> u64 {
        self.record(|now| now & !mask);
        self.0.fetch_and(!mask, Ordering::AcqRel)
    }

    /// Writer only: adds to a counter that several threads of the writer update.
    #[inline]
    pub fn add(&self, value: u64) -> u64 {
        self.record(|now| now.wrapping_add(value));
        self.0.fetch_add(value, Ordering::AcqRel)
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.peek())
    }
}

const fn field(word: u64, shift: u32, bits: u32) -> u64 {
    (word >> shift) & ((1 << bits) - 1)
}

/// Returns the low 32 bits of a word.
#[inline]
pub const fn low32(word: u64) -> u32 {
    (word & 0xFFFF_FFFF) as u32
}

/// Returns the low 16 bits of a word.
#[inline]
pub const fn low16(word: u64) -> u16 {
    (word & 0xFFFF) as u16
}

/// Returns the low 8 bits of a word.
#[inline]
pub const fn low8(word: u64) -> u8 {
    (word & 0xFF) as u8
}

/// The state of an entry, according to its owner word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerKind {
    /// The entry has no name, or its name has ended.
    Tomb,
    /// The name's value is in a cell of the owner's catalogue.
    Live,
    /// The daemon is deciding which client owns the name.
    Reserved,
}

/// The owner of a name, and the cell of its value. Fields, highest first: kind (2 bits), version (22), catalogue
/// (16), cell (24).
///
/// Only the daemon stores this word, and every store advances the version. So a reader that finds
/// an equal word knows that the daemon has stored nothing between the reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OwnerWord(pub u64);

/// Versions of owner words count modulo 2^22.
pub const VERSION_MASK: u32 = 0x3F_FFFF;

impl OwnerWord {
    /// Returns the next word of the entry, with these fields. Its version follows that of `self`.
    const fn then(self, kind: u64, low: u64) -> Self {
        Self(kind << 62 | ((field(self.0, 40, 22) + 1) & VERSION_MASK as u64) << 40 | low)
    }

    /// Returns the next word of the entry: its name is in a cell of this owner.
    pub const fn then_live(self, owner: ClientNo, cell: CellNo) -> Self {
        self.then(1, (owner.get() as u64) << 24 | (cell.get() & 0xFF_FFFF) as u64)
    }

    /// Returns the next word of the entry: its name is that of a stream of this producer.
    pub const fn then_stream(self, producer: ClientNo, line: StreamLine) -> Self {
        self.then_live(producer, CellNo::new(line.get()))
    }

    /// Returns the next word of the entry: its name is that of a list.
    pub const fn then_list(self, line: ListLine) -> Self {
        self.then_live(ClientNo::DAEMON, CellNo::new(line.get()))
    }

    /// Returns the next word of the entry: it has no name.
    pub const fn then_tomb(self) -> Self {
        self.then(0, 0)
    }

    /// Returns the next word of the entry: the daemon is deciding which client owns the name.
    pub const fn then_reserved(self) -> Self {
        self.then(2, 0)
    }

    /// Returns the word of an entry without a name, with this version modulo 2^22.
    pub const fn with_version(version: u64) -> Self {
        Self(field(version, 0, 22) << 40)
    }

    /// Returns the state of the entry.
    pub const fn kind(self) -> OwnerKind {
        match self.0 >> 62 {
            1 => OwnerKind::Live,
            2 => OwnerKind::Reserved,
            _ => OwnerKind::Tomb,
        }
    }

    /// Returns true if the name has a cell.
    pub const fn is_live(self) -> bool {
        self.0 >> 62 == 1
    }

    /// Returns the number of times that the daemon has stored this word, modulo 2^22.
    pub const fn version(self) -> u32 {
        low32(field(self.0, 40, 22))
    }

    /// Returns the owner.
    pub const fn owner(self) -> ClientNo {
        ClientNo::low(self.0 >> 24)
    }

    /// Returns the cell in the owner's catalogue.
    pub const fn cell(self) -> CellNo {
        CellNo::low(self.0)
    }

    /// Returns the line of the stream that has this name.
    pub const fn stream(self) -> StreamLine {
        StreamLine::new(self.cell().get())
    }

    /// Returns the line of the list that has this name.
    pub const fn list(self) -> ListLine {
        ListLine::new(self.cell().get())
    }
}

impl fmt::Debug for OwnerWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} v{} owner {} cell {}", self.kind(), self.version(), self.owner(), self.cell())
    }
}

/// The lifetime of a name, unless a client overwrites the name. Fields, highest first: ends with its owner's session
/// (1 bit), deadline in nanoseconds of CLOCK_BOOTTIME (63). 0: until a client deletes the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LifeWord(pub u64);

impl LifeWord {
    /// The value lives until a client deletes it.
    pub const FOREVER: Self = Self(0);

    /// Returns the word with these fields. A deadline of 0 means none.
    pub const fn new(deadline_ns: u64, ephemeral: bool) -> Self {
        let most = u64::MAX >> 1;
        let deadline_ns = if deadline_ns > most { most } else { deadline_ns };
        Self((ephemeral as u64) << 63 | deadline_ns)
    }

    /// Returns true if the name ends with its owner's session.
    pub const fn is_ephemeral(self) -> bool {
        self.0 >> 63 == 1
    }

    /// Returns the deadline. Returns `None` if there is none.
    pub const fn deadline_ns(self) -> Option<u64> {
        match self.0 & (u64::MAX >> 1) {
            0 => None,
            deadline => Some(deadline),
        }
    }
}

/// The slot number that means "deleted by the owner".
pub const SLOT_NONE: SlotNo = SlotNo::new(0xFF_FFFF);
/// Maximum number of slots of one catalogue.
pub const SLOTS_MAX: u32 = SLOT_NONE.get();

/// The latest value of a name. Fields, highest first: generation (40 bits), slot (24).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cell(pub u64);

impl Cell {
    /// A cell that never held a value.
    pub const EMPTY: Self = Self(0);
    /// The owner has deleted the value.
    pub const DELETED: Self = Self(SLOT_NONE.get() as u64);

    /// The owner has deleted the value and asked the daemon to forget the name. The owner does not
    /// use the cell any more.
    pub const CLOSING: Self = Self(1 << 24 | SLOT_NONE.get() as u64);

    /// Returns the value in `slot` with this generation.
    pub const fn new(generation: u64, slot: SlotNo) -> Self {
        Self(generation << 24 | (slot.get() & 0xFF_FFFF) as u64)
    }

    /// Returns the slot's generation.
    pub const fn generation(self) -> u64 {
        self.0 >> 24
    }

    /// Returns the slot in the owner's catalogue.
    pub const fn slot(self) -> SlotNo {
        SlotNo::low(self.0)
    }

    /// Returns true if the cell has a value.
    pub const fn is_value(self) -> bool {
        self.slot().get() != SLOT_NONE.get() && self.0 != 0
    }

    /// Returns the lease that pins this value.
    pub const fn lease(self, owner: ClientNo) -> LeaseWord {
        LeaseWord((owner.get() as u64) << 48 | (self.slot().get() as u64) << 24 | field(self.generation(), 0, 24))
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} generation {}", self.slot(), self.generation())
    }
}

/// Returns the following generation of 40 bits. The result is never 0. Its low 24 bits are never
/// all ones, because leases of a whole segment use that value.
pub const fn next_generation(generation: u64) -> u64 {
    let mut next = (generation + 1) & 0xFF_FFFF_FFFF;
    if next & 0xFF_FFFF == 0xFF_FFFF {
        next = (next + 1) & 0xFF_FFFF_FFFF;
    }
    if next == 0 { 1 } else { next }
}

/// A lease. Fields, highest first: catalogue (16 bits), slot (24), low bits of the generation (24). 0: none.
///
/// A scanner uses the generation only to *exclude* leases. The 24 bits may match by chance. A
/// chance match delays freeing a slot, but no slot is freed too early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseWord(pub u64);

impl LeaseWord {
    /// Returns a lease of a whole segment, identified by the segment's first slot. While the lease
    /// exists, the daemon neither frees nor relends the segment. The lease pins none of the slots:
    /// the owner still reuses slots without leases.
    pub const fn of_segment(owner: ClientNo, base: SlotNo) -> Self {
        Cell::new(0xFF_FFFF, base).lease(owner)
    }

    /// Returns true if the lease is of a whole segment.
    pub const fn is_of_segment(self) -> bool {
        self.generation_low() == 0xFF_FFFF
    }

    /// Returns the slot's owner.
    pub const fn owner(self) -> ClientNo {
        ClientNo::low(self.0 >> 48)
    }

    /// Returns the slot.
    pub const fn slot(self) -> SlotNo {
        SlotNo::low(self.0 >> 24)
    }

    /// Returns the low bits of the slot's generation.
    pub const fn generation_low(self) -> u32 {
        low32(field(self.0, 0, 24))
    }
}

/// The state of a client, in its member word and its word `absorbed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// No client has this number.
    Vacant,
    /// The client is live.
    Open,
    /// The daemon is entering the client's last announcements into the directory. The reader tries
    /// again.
    Ending,
    /// The client has ended. Its leases no longer count, and its cells stay valid.
    Closed,
}

impl MemberState {
    const fn from_bits(bits: u64) -> Self {
        match bits {
            0 => Self::Vacant,
            1 => Self::Open,
            2 => Self::Ending,
            _ => Self::Closed,
        }
    }
}

/// One epoch of one client. Fields, highest first: state (2 bits), epoch (30), sheet (32).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member(pub u64);

impl Member {
    /// Returns the word with these fields. The epoch is taken modulo 2^30.
    pub const fn new(state: MemberState, epoch: u32, sheet: u32) -> Self {
        Self((state as u64) << 62 | ((epoch & 0x3FFF_FFFF) as u64) << 32 | sheet as u64)
    }

    /// Returns the state.
    pub const fn state(self) -> MemberState {
        MemberState::from_bits(self.0 >> 62)
    }

    /// Returns the epoch of this client number.
    pub const fn epoch(self) -> u32 {
        low32(field(self.0, 32, 30))
    }

    /// Returns the number of the client's sheets, which are the lease table and the catalogue.
    pub const fn sheet(self) -> u32 {
        low32(self.0)
    }

    /// Returns the same epoch in another state.
    pub const fn with_state(self, state: MemberState) -> Self {
        Self::new(state, self.epoch(), self.sheet())
    }
}

/// The number of a client's announcements that the daemon has entered into the directory. Fields, highest first:
/// state (2 bits), index (62).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Absorbed(pub u64);

impl Absorbed {
    /// Returns the word with these fields.
    pub const fn new(state: MemberState, index: u64) -> Self {
        Self((state as u64) << 62 | field(index, 0, 62))
    }

    /// Returns the state. The daemon absorbs only an open client's announcements.
    pub const fn state(self) -> MemberState {
        MemberState::from_bits(self.0 >> 62)
    }

    /// Returns the number of the next announcement to enter into the directory.
    pub const fn index(self) -> u64 {
        field(self.0, 0, 62)
    }
}

/// The location of the directory's current table of names. Fields, highest first: log2 of its places (8 bits), number
/// of rebuilds (16), index of its first place (40). A table that the daemon rebuilds in place gets another word, so
/// that concurrent look-ups notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableWord(pub u64);

impl TableWord {
    /// Returns the word with these fields.
    pub const fn new(log2: u8, first: u64) -> Self {
        Self((log2 as u64) << 56 | field(first, 0, 40))
    }

    /// Returns the word of the same table after the `rebuilds`th rebuild, modulo 2^16.
    pub const fn with_rebuilds(self, rebuilds: u16) -> Self {
        Self(self.0 & !(0xFFFF << 40) | (rebuilds as u64) << 40)
    }

    /// Returns the number of times that the daemon has rebuilt tables, modulo 2^16.
    pub const fn rebuilds(self) -> u16 {
        low16(self.0 >> 40)
    }

    /// Returns log2 of the number of places.
    pub const fn log2(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// Returns the number of places.
    pub const fn places(self) -> u64 {
        1 << self.log2()
    }

    /// Returns the index of the table's first place in the directory's array of places.
    pub const fn first(self) -> u64 {
        field(self.0, 0, 40)
    }

    /// Returns the half of the directory's places in which the table is: 0 or 1.
    #[inline]
    pub const fn half(self) -> usize {
        (self.first() != 0) as usize
    }
}

/// A segment's range of its client's slot numbers. Fields, highest first: state (8 bits), log2 of slots (8),
/// catalogue (16), base (24), unused (8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeWord(pub u64);

impl RangeWord {
    /// Returns a lent range.
    pub const fn new(log2: u8, owner: ClientNo, base: SlotNo) -> Self {
        Self(1 << 56 | (log2 as u64) << 48 | (owner.get() as u64) << 32 | ((base.get() & 0xFF_FFFF) as u64) << 8)
    }

    /// Returns true if a segment is lent here.
    pub const fn is_lent(self) -> bool {
        self.0 >> 56 == 1
    }

    /// Returns the segment's owner.
    pub const fn owner(self) -> ClientNo {
        ClientNo::low(self.0 >> 32)
    }

    /// Returns the segment's first slot number.
    pub const fn base(self) -> SlotNo {
        SlotNo::low(self.0 >> 8)
    }

    /// Returns the segment's number of slots, or 0 if the number overflows.
    pub const fn slots(self) -> u32 {
        let log2 = field(self.0, 48, 8);
        if log2 < 32 { 1 << log2 } else { 0 }
    }
}

/// A stream's subscriber. Fields, highest first: catalogue (16 bits), cursor (16), epoch (30), unused (1), has a wake
/// descriptor (1). 0: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubscriberWord(pub u64);

impl SubscriberWord {
    /// Returns the word with these fields. The epoch is taken modulo 2^30.
    pub const fn new(client: ClientNo, cursor: CursorNo, epoch: u32, wake: bool) -> Self {
        let who = (client.get() as u64) << 48 | (cursor.get() as u64) << 32;
        Self(who | ((epoch & 0x3FFF_FFFF) as u64) << 2 | wake as u64)
    }

    /// Returns the subscriber.
    pub const fn client(self) -> ClientNo {
        ClientNo::low(self.0 >> 48)
    }

    /// Returns the index of the cursor in the subscriber's lease table.
    pub const fn cursor(self) -> CursorNo {
        CursorNo::low(self.0 >> 32)
    }

    /// Returns the member's epoch at the time of the subscription.
    pub const fn epoch(self) -> u32 {
        low32(field(self.0, 2, 30))
    }

    /// Returns true if the producer may fetch a wake descriptor of the subscriber.
    pub const fn has_wake(self) -> bool {
        self.0 & 1 == 1
    }
}

/// Returns the bit of a client in a parked word: a Bloom filter with one hash, without the top bit.
pub const fn parked_bit(client: ClientNo) -> u64 {
    1 << ((client.get() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58 & 0x3F).wrapping_rem(63)
}

/// Set in a parked word by a client that waits for any new name.
pub const PARKED_ANY: u64 = 1 << 63;

#[cfg(test)]
mod tests;
