//! A stream's ring: the latest messages of one producer, for many subscribers.
//!
//! Writer: the producer. Readers: the subscribers, whose cursors lie in their own lease tables. Each entry is a cell, so
//! a subscriber leases a message as it leases a name's value: [`crate::leases::acquire`] over the entry.

use crate::describe::{pad, structure};
use crate::header::SheetHeader;
use crate::word::{Bell, Cell, Word};

/// Entries that a ring may have.
pub const CAPACITY_MAX: u32 = 1 << 16;

structure! {
    /// The head of a ring; its entries, one word each, follow at 4096.
    pub struct StreamRing [4096] {
        /// What this sheet is; `count` is the ring's capacity. Writer: the daemon, before lending.
        0 sheet: SheetHeader,
        /// Messages ever sent: storing it is the moment of a send.
        64 head: Word,
        /// The oldest message that the ring still holds. Moved before its entry is replaced.
        72 tail: Word,
        /// 1 once the producer has closed the stream.
        80 closed: Word,
        /// Kept 0.
        88 reserved: [Word; pad(5)],
        /// Rung after a send while a subscriber is parked.
        128 bell: Bell,
        /// Kept 0.
        136 reserved2: [Word; pad(7)],
        /// 1 while the producer waits for subscribers to move on.
        192 producer_parked: Word,
        /// Kept 0.
        200 reserved3: [Word; pad(487)],
    }
}

/// What a subscriber finds at a place of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The message: its entry, and the word that must still stand there after the lease.
    Message(Cell),
    /// Not sent yet.
    NotYet,
    /// Replaced: the oldest that is left has this number.
    Lost(u64),
}

/// A ring's words: head, and the entries that follow it.
#[derive(Clone, Copy)]
pub struct Ring<'a> {
    /// The ring's head.
    pub head: &'a StreamRing,
    /// Its entries; a power of two of them.
    pub entries: &'a [Word],
}

impl<'a> Ring<'a> {
    /// The entry of message `number`.
    #[inline]
    pub fn entry(&self, number: u64) -> &'a Word {
        &self.entries[(number % self.entries.len() as u64) as usize]
    }

    /// Producer: sends, and returns what the ring no longer holds. `head` is the producer's own count of messages.
    ///
    /// Order: tail, entry, head. A subscriber that finds the new entry also finds the tail that says it is not the
    /// message it looked for. A crash after `tail` loses the oldest message, after `entry` nothing: the message was not
    /// sent, and the slot is freed with the producer's other drafts.
    #[inline]
    pub fn send(&self, head: u64, message: Cell) -> Option<Cell> {
        let entry = self.entry(head);
        let before = Cell(entry.peek());
        let capacity = self.entries.len() as u64;
        if head >= capacity {
            self.head.tail.set(head - capacity + 1);
        }
        entry.set(message.0);
        self.head.head.set(head + 1);
        before.is_value().then_some(before)
    }

    /// Subscriber: looks for message `number`.
    #[inline]
    pub fn find(&self, number: u64) -> Found {
        if self.head.head.read() <= number {
            return Found::NotYet;
        }
        let entry = Cell(self.entry(number).read());
        // The tail is read after the entry: had the entry been replaced before we read it, the tail would show it.
        let tail = self.head.tail.read();
        if tail > number {
            return Found::Lost(tail);
        }
        if entry.is_value() { Found::Message(entry) } else { Found::NotYet }
    }
}
