//! A stream's ring: the latest messages of one producer, for many subscribers.
//!
//! Writer: the producer. Readers: the subscribers, whose cursors are in their own lease tables. An entry is one cache
//! line and contains everything that a subscriber polls and reads: the message's cell, its number, and a summary
//! of its record. A subscriber leases a message as it leases a name's value: by [`crate::leases::acquire`]
//! over the entry's cell.

use crate::describe::{pad, structure};
use crate::header::SheetHeader;
use crate::sync::{Ordering, fence};
use crate::word::{Bell, Cell, Word};

/// Maximum number of entries of a ring.
pub const CAPACITY_MAX: u32 = 1 << 16;

/// Number of words of a summary.
pub const SUMMARY_WORDS: usize = if cfg!(loom) { 1 } else { 6 };

/// A summary of a message's record, as [`crate::tensor::SlotInfo::summary`] packs it. All zero: the slot's record must be
/// read.
pub type HeaderSummary = [u64; SUMMARY_WORDS];

structure! {
    /// An entry of a ring: one message. A cache line, so that one transfer brings all of it.
    pub struct RingEntry [64] {
        /// generation 40 . slot 24: the message. EMPTY while the words below are written. Storing the message is the moment
        /// of a send.
        0 cell: Word,
        /// The message's number.
        8 number: Word,
        /// The message's summary.
        16 summary: [Word; SUMMARY_WORDS],
    }
}

structure! {
    /// The head of a ring; its entries follow at 4096. `closed`, which a waiting subscriber polls, is not in the cache
    /// line that every send writes.
    pub struct StreamRing [4096] {
        /// The sheet's header; `count` is the ring's capacity. Writer: the daemon, before lending.
        0 sheet: SheetHeader,
        /// Number of messages ever sent. The producer stores a message's entry first, so one more message may be readable
        /// already.
        64 head: Word,
        /// The oldest message that the ring still holds. The producer moves it before it replaces that message's entry.
        72 tail: Word,
        /// Reserved; always 0.
        80 reserved: [Word; pad(6)],
        /// The producer rings it after a send, if a subscriber is parked.
        128 bell: Bell,
        /// Reserved; always 0.
        136 reserved2: [Word; pad(7)],
        /// 1 while the producer waits for subscribers to take messages.
        192 producer_parked: Word,
        /// 1 once the producer has closed the stream.
        200 closed: Word,
        /// Reserved; always 0.
        208 reserved3: [Word; pad(486)],
    }
}

/// The state of a message in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The message, and its summary. Both are valid only if the entry's cell is unchanged after the lease, or
    /// [stands](Ring::stands).
    Message(Cell, HeaderSummary),
    /// Not sent yet.
    NotYet,
    /// Replaced: the oldest remaining message has this number.
    Lost(u64),
}

/// A ring's words: the header, and the entries that follow it.
#[derive(Clone, Copy)]
pub struct Ring<'a> {
    /// The ring's header.
    pub head: &'a StreamRing,
    /// The ring's entries. Their number is a power of two.
    pub entries: &'a [RingEntry],
}

impl<'a> Ring<'a> {
    /// Returns the entry of message `number`.
    #[inline]
    pub fn entry(&self, number: u64) -> &'a RingEntry {
        // The number of entries is a power of two, so the mask computes the remainder without a division.
        &self.entries[number as usize & (self.entries.len() - 1)]
    }

    /// Producer: sends a message, and returns the cell that the ring no longer holds. `head` is the producer's own
    /// count of messages.
    ///
    /// Order of the stores: tail, the emptied cell of the entry, the entry's other words, its new cell, head. Subscriber S that
    /// has read a new word of the entry sees on its next read that the old cell is gone, and sees the tail, which shows the
    /// lost messages.
    ///
    /// A crash after the store of `tail` loses the oldest message. If the crash comes before the store of the new cell, it
    /// loses nothing else: the message was not sent, and the daemon frees its slot with the producer's other drafts. After that
    /// store the message was sent; `head` then stays one behind, and later subscribers begin one message earlier.
    #[inline]
    pub fn send(&self, head: u64, message: Cell, summary: &HeaderSummary) -> Option<Cell> {
        let entry = self.entry(head);
        let before = Cell(entry.cell.peek());
        let capacity = self.entries.len() as u64;
        if head >= capacity {
            self.head.tail.set(head - capacity + 1);
        }
        // Release: a subscriber that finds the entry empty finds the tail.
        crate::crash_point!("send: tail moved");
        entry.cell.set(Cell::EMPTY.0);
        crate::crash_point!("send: entry emptied");
        // Release, between the emptied cell and the words: a subscriber that reads one of the words finds the cell
        // changed.
        fence(Ordering::Release);
        entry.number.put(head);
        for (word, value) in entry.summary.iter().zip(summary) {
            word.put(*value);
        }
        crate::crash_point!("send: words written");
        entry.cell.set(message.0);
        crate::crash_point!("send: cell stored");
        self.head.head.set(head + 1);
        crate::crash_point!("send: head moved");
        before.is_value().then_some(before)
    }

    /// Subscriber: returns true if a message's number and summary still belong to this cell. For a message that the
    /// subscriber's cursor keeps, this check replaces a lease.
    #[inline]
    pub fn stands(&self, number: u64, cell: Cell) -> bool {
        // Acquire pairs with the producer's Release fence after it has emptied the cell: a subscriber that has read a
        // word of the next message in this entry finds another cell here.
        fence(Ordering::Acquire);
        self.entry(number).cell.peek() == cell.0
    }

    /// Subscriber: reads message `number`. While it is not sent yet, this reads its entry only.
    #[inline]
    pub fn find(&self, number: u64) -> Found {
        let entry = self.entry(number);
        // Acquire: the words of a message are read after its cell.
        let cell = Cell(entry.cell.read());
        let empty = !cell.is_value();
        if !empty {
            let found = entry.number.peek();
            if found == number {
                return Found::Message(cell, core::array::from_fn(|i| entry.summary[i].peek()));
            }
            if found < number {
                return Found::NotYet;
            }
            // Acquire: this subscriber reads the tail after the entry's number, which was ahead of the wanted message.
            fence(Ordering::Acquire);
        }
        // The entry was never used, has a later message, or is about to get one.
        let tail = self.head.tail.read();
        if tail > number { Found::Lost(tail) } else { Found::NotYet }
    }
}
