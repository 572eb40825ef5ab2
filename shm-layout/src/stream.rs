//! A stream's ring: the latest messages of one producer, for many subscribers.
//!
//! Writer: the producer. Readers: the subscribers, whose cursors are in their own lease tables.
//!
//! An entry is one cache line. It contains everything that a subscriber polls and reads: the
//! message's cell, the message's number, and a summary of its record. A subscriber leases a message
//! like a name's value, by [`crate::leases::acquire`] over the entry's cell.

use crate::describe::{pad, structure};
use crate::header::SheetHeader;
use crate::size;
use crate::sync::{Ordering, fence};
use crate::word::{Bell, Cell, Word};

/// Maximum number of entries of a ring.
pub const CAPACITY_MAX: u32 = 1 << 16;

/// Number of words of a summary.
pub const SUMMARY_WORDS: usize = if cfg!(loom) { 1 } else { 6 };

/// A summary of a message's record, as packed by [`crate::tensor::SlotInfo::summary`]. Without the flag of a summary in
/// the first word, the reader must read the slot's record. The words are then zeros, or the message's
/// [`crate::tensor::Origin`].
pub type HeaderSummary = [u64; SUMMARY_WORDS];

structure! {
    /// An entry of a ring: one message. An entry is one cache line, so one transfer delivers all of it.
    pub struct RingEntry [64] {
        /// generation 40 . slot 24: the message. EMPTY while the producer writes the words below. Storing the message
        /// is the linearization point of a send.
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
        /// Number of the oldest message that the ring still holds. The producer moves it before it replaces that
        /// message's entry.
        72 tail: Word,
        /// Reserved; always 0.
        80 reserved: [Word; pad(6)],
        /// The producer rings it after a send, if a subscriber is parked.
        128 bell: Bell,
        /// Reserved; always 0.
        136 reserved2: [Word; pad(7)],
        /// 1 while the producer waits for subscribers to take messages.
        192 producer_parked: Word,
        /// 0: open. Otherwise the producer has closed the stream: lost messages 56 . reason 8, as [`Closed`] packs them.
        200 closed: Word,
        /// Reserved; always 0.
        208 reserved3: [Word; pad(486)],
    }
}

/// The reason why a producer has closed a stream. Every word other than 0 means that it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The stream has ended. This many messages that preceded its end never got into the ring: a gateway did not
    /// receive them.
    Ended {
        /// The number of these messages.
        lost: u64,
    },
    /// The gateway that received the stream from another machine receives it no more. The stream itself may continue.
    Left,
}

impl Closed {
    /// Returns the word `closed`.
    pub fn pack(self) -> u64 {
        match self {
            Self::Ended { lost } => lost.min(u64::MAX >> 8) << 8 | 1,
            Self::Left => 2,
        }
    }

    /// Returns the meaning of the word `closed`; `None` while the stream is open.
    pub fn unpack(word: u64) -> Option<Self> {
        match word {
            0 => None,
            word if word & 0xFF == 2 => Some(Self::Left),
            word => Some(Self::Ended { lost: word >> 8 }),
        }
    }
}

/// The state of a message in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The message and its summary. Both are valid only if the entry's cell is unchanged after the
    /// lease, or if the message [is still there](Ring::still_has).
    Message(Cell, HeaderSummary),
    /// The producer has not sent the message yet.
    NotYet,
    /// The producer has replaced the message. The oldest remaining message has this number.
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
        // The number of entries is a power of two, so a mask computes the remainder without a
        // division.
        &self.entries[size::index(number) & (self.entries.len() - 1)]
    }

    /// Producer: sends a message, and returns the cell that the ring no longer contains. `head` is
    /// the producer's own count of messages.
    ///
    /// Order of the stores: tail, the emptied cell of the entry, the entry's other words, its new
    /// cell, head. Subscriber S may read a new word of the entry. On its next read S then sees that
    /// the old cell is gone. S also sees the tail, which shows the lost messages.
    ///
    /// A crash after the store of `tail` loses the oldest message. If the crash precedes the store
    /// of the new cell, the message was not sent, and nothing else is lost. The daemon then frees
    /// the message's slot with the producer's other drafts. After the store of the new cell the
    /// message was sent. `head` then stays one behind, and later subscribers begin one message
    /// earlier.
    #[inline]
    pub fn send(&self, head: u64, message: Cell, summary: &HeaderSummary) -> Option<Cell> {
        let entry = self.entry(head);
        let before = Cell(entry.cell.peek());
        let capacity = self.entries.len() as u64;
        if head >= capacity {
            self.head.tail.set(head - capacity + 1);
        }
        // Release: a subscriber that finds the entry empty also finds the new tail.
        crate::crash_point!("send: tail moved");
        entry.cell.set(Cell::EMPTY.0);
        crate::crash_point!("send: entry emptied");
        // Release orders the emptied cell before the words below. A subscriber that reads one of
        // these words finds the cell changed.
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

    /// Subscriber: returns true if a message's number and summary still belong to this cell. For a
    /// message that the subscriber's cursor keeps, this check replaces a lease.
    #[inline]
    pub fn still_has(&self, number: u64, cell: Cell) -> bool {
        // Acquire pairs with the producer's Release fence after it has emptied the cell. A
        // subscriber that has read a word of this entry's next message finds another cell here.
        fence(Ordering::Acquire);
        self.entry(number).cell.peek() == cell.0
    }

    /// Subscriber: returns whether the entry of message `number` has this message or a later one. A hint for loops that poll:
    /// false also while the entry is empty, when [`Ring::find`] may find that the message is lost.
    #[inline]
    pub fn is_sent(&self, number: u64) -> bool {
        let entry = self.entry(number);
        // Relaxed: the caller reads the message by `find`.
        Cell(entry.cell.peek()).is_value() && entry.number.peek() >= number
    }

    /// Subscriber: reads message `number`. While it is not sent yet, this reads its entry only.
    #[inline]
    pub fn find(&self, number: u64) -> Found {
        let entry = self.entry(number);
        // Acquire: the subscriber reads the words of a message after its cell.
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
            // Acquire: the subscriber reads the tail after the entry's number, which was ahead of
            // the requested message.
            fence(Ordering::Acquire);
        }
        // The entry was never used, has a later message, or the producer is about to overwrite it.
        let tail = self.head.tail.read();
        if tail > number { Found::Lost(tail) } else { Found::NotYet }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::number::SlotNo;
    use crate::raw::{Records, Sheet, View};
    use crate::tensor::{Origin, SlotInfo};

    #[test]
    fn a_closed_stream_says_why_and_an_entry_says_where_its_message_is_from() {
        for closed in [Closed::Ended { lost: 0 }, Closed::Ended { lost: 300 }, Closed::Left] {
            assert_eq!(Closed::unpack(closed.pack()), Some(closed));
        }
        // Builds that know one reason store 1, and read every other word as closed.
        assert_eq!((Closed::unpack(0), Closed::Ended { lost: 0 }.pack()), (None, 1));
        assert_eq!(Closed::Ended { lost: u64::MAX }.pack(), u64::MAX << 8 | 1);
        let origin = Origin { stream: 7, number: u64::MAX };
        assert_eq!(Origin::unpack(&origin.pack()), Some(origin));
        assert_eq!(Origin::unpack(&[0; SUMMARY_WORDS]), None);
        // Builds without origins find no summary in such an entry.
        assert!(SlotInfo::of_summary(&origin.pack(), 1).is_none() && !SlotInfo::check_summary(&origin.pack(), 1 << 20));
    }

    #[test]
    fn a_message_counts_as_sent_from_its_cell_on_and_also_when_it_is_replaced() {
        let head = Sheet::new(View::anonymous(size_of::<StreamRing>())).unwrap();
        let entries = Records::new(&View::anonymous(2 * size_of::<RingEntry>()), 0, 2).unwrap();
        let ring = Ring { head: &head, entries: &entries };
        assert!(!ring.is_sent(0));
        for number in 0..4 {
            assert!(!ring.is_sent(number), "{number} is not sent, and a former message is in its entry");
            ring.send(number, Cell::new(1 + number, SlotNo::new(7)), &[0; SUMMARY_WORDS]);
            assert!(ring.is_sent(number));
        }
        assert!(ring.is_sent(0) && ring.find(0) == Found::Lost(2));
        // The producer writes message 4.
        ring.entry(4).cell.set(Cell::EMPTY.0);
        assert!(!ring.is_sent(4) && !ring.is_sent(2));
    }
}
