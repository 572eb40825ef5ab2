//! A ring between its producer and its subscribers: a subscriber finds the message with the wanted number, and every
//! sleeping thread is woken.

use crate::{Bytes, OWNER, RACE, holds, holds_lease, live, reached, refuted, spawn, then_live, then_tomb};
use loom::sync::atomic::{Ordering, fence};
use std::sync::Arc;
use tensorlend_layout::describe::Model;
use tensorlend_layout::directory::StreamEntry;
use tensorlend_layout::leases::{LeaseTable, Shard, acquire, release, scan_fence};
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::stream::{Found, HeaderSummary, Ring, RingEntry, StreamRing};
use tensorlend_layout::wake::news_fence;
use tensorlend_layout::word::{Cell, LeaseWord, Word};

pub struct World {
    pub head: StreamRing,
    entries: Vec<RingEntry>,
    pub leases: LeaseTable,
    stream: StreamEntry,
    /// The owner word of the stream's name.
    owner_word: Word,
    /// Represents the packet on the control socket.
    reply: Word,
    bytes: Bytes,
}

/// Message `number`, in the slot of the same number. Its generation identifies it.
pub const fn message(number: u64) -> Cell {
    Cell::new(number + 1, SlotNo::new(number as u32))
}

pub const fn summary(number: u64) -> HeaderSummary {
    [number + 7]
}

impl World {
    pub fn new(capacity: usize) -> Self {
        Self {
            head: StreamRing::model(),
            entries: (0..capacity).map(|_| RingEntry::model()).collect(),
            leases: LeaseTable::model(),
            stream: StreamEntry::model(),
            owner_word: Word::new(live(OWNER, 0)),
            reply: Word::new(0),
            bytes: Bytes::new(),
        }
    }

    pub fn ring(&self) -> Ring<'_> {
        Ring { head: &self.head, entries: &self.entries }
    }

    pub fn next(&self) -> &Word {
        &self.leases.cursors[0].next
    }

    fn retire(&self, before: Option<Cell>) {
        scan_fence();
        if let Some(before) = before
            && !holds_lease(&self.leases, before)
        {
            self.bytes.write(before.slot().get());
        }
    }

    pub fn send(&self, number: u64) {
        self.bytes.write(number as u32);
        self.retire(self.ring().send(number, message(number), &summary(number)));
    }

    /// The subscriber looks for a message and reads it. Returns true if it read it.
    fn take(&self, number: u64, look: fn(&Ring, u64) -> Found) -> bool {
        let ring = self.ring();
        let Found::Message(cell, found) = look(&ring, number) else { return false };
        let entry = Shard::new(&self.leases, 0).free_entry().unwrap();
        let taken = acquire(entry, cell.lease(OWNER), &[(&ring.entry(number).cell, cell.0)]);
        if taken {
            reached();
            assert_eq!(cell, message(number), "another message");
            assert_eq!(found, summary(number), "another message's summary");
            self.bytes.read(cell);
            release(entry);
        }
        taken
    }
}

fn find(ring: &Ring, number: u64) -> Found {
    ring.find(number)
}

/// The producer drops the oldest; the subscriber looks for one message.
fn dropped(capacity: usize, sent: u64, number: u64, send: fn(&World, u64), look: fn(&Ring, u64) -> Found) {
    let w = Arc::new(World::new(capacity));
    w.send(0);
    let producer = {
        let w = w.clone();
        spawn(move || (1..sent).for_each(|n| send(&w, n)))
    };
    w.take(number, look);
    producer.join().unwrap();
}

#[test]
fn a_message_found_is_the_one_looked_for() {
    holds("drop the oldest, ring of 1", None, || dropped(1, 3, 0, World::send, find));
    holds("drop the oldest, ring of 1, next message", None, || dropped(1, 3, 1, World::send, find));
    holds("drop the oldest, ring of 2", None, || dropped(2, 4, 1, World::send, find));
}

/// The steps of [`Ring::send`] in a ring with capacity 1, without one of them.
fn write(w: &World, number: u64, empty: bool, ordered: bool) {
    w.bytes.write(number as u32);
    let entry = &w.entries[0];
    let before = Cell(entry.cell.peek());
    w.head.tail.set(number);
    if empty {
        entry.cell.set(Cell::EMPTY.0);
    }
    if ordered {
        fence(Ordering::Release);
    }
    entry.number.put(number);
    entry.summary[0].put(summary(number)[0]);
    entry.cell.set(message(number).0);
    w.retire(Some(before));
}

#[test]
fn a_ring_written_or_read_in_another_order() {
    refuted("words written under the old cell", "another message", || {
        dropped(1, 2, 0, |w, n| write(w, n, false, true), find);
    });
    refuted("words not ordered behind the emptied cell", "another message", || {
        dropped(1, 2, 0, |w, n| write(w, n, true, false), find);
    });
    refuted("the cell stored before the words", "another message", || {
        let send = |w: &World, number: u64| {
            w.bytes.write(number as u32);
            let entry = &w.entries[0];
            entry.cell.set(message(number).0);
            entry.number.put(number);
            entry.summary[0].put(summary(number)[0]);
        };
        dropped(1, 2, 1, send, find);
    });
    refuted("tail moved after the entry", "waits for what is lost", || {
        let w = Arc::new(World::new(1));
        w.send(0);
        let producer = {
            let w = w.clone();
            spawn(move || {
                w.entries[0].cell.set(Cell::EMPTY.0);
                w.head.tail.set(1);
            })
        };
        reached();
        assert_ne!(w.ring().find(0), Found::NotYet, "waits for what is lost");
        producer.join().unwrap();
    });
    refuted("no fence before the leases are read", RACE, || {
        let send = |w: &World, number: u64| {
            let before = w.ring().send(number, message(number), &summary(number)).unwrap();
            if !holds_lease(&w.leases, before) {
                w.bytes.write(before.slot().get());
            }
        };
        dropped(1, 2, 0, send, find);
    });
}

/// The producer ends its stream: a message that was sent is read or known as lost, but never waited for.
fn emptied(tail_first: bool) {
    let w = Arc::new(World::new(1));
    w.send(0);
    let producer = {
        let w = w.clone();
        spawn(move || {
            if tail_first {
                w.head.tail.set(1);
            }
            let before = Cell(w.entries[0].cell.swap(Cell::EMPTY.0));
            w.head.tail.set(1);
            w.retire(Some(before));
        })
    };
    reached();
    let found = w.ring().find(0);
    assert_ne!(found, Found::NotYet, "waits for what was sent");
    w.take(0, find);
    producer.join().unwrap();
}

#[test]
fn a_ring_is_emptied() {
    holds("ring emptied, tail first", None, || emptied(true));
    refuted("ring emptied, entry first", "waits for what was sent", || emptied(false));
}

/// Policy block: the producer replaces a message only when the subscriber's cursor has passed it.
fn blocked(leases_first: bool) {
    let w = Arc::new(World::new(1));
    w.send(0);
    let producer = {
        let w = w.clone();
        spawn(move || {
            if w.next().read() > 0 {
                w.send(1);
            }
        })
    };
    if !leases_first {
        w.next().set(1);
    }
    let found = w.ring().find(0);
    assert_eq!(found, Found::Message(message(0), summary(0)), "a message of a blocking stream is lost");
    assert!(w.take(0, find), "a message of a blocking stream is lost");
    w.next().set(1);
    producer.join().unwrap();
}

#[test]
fn a_blocking_stream_loses_nothing() {
    holds("block until the cursor has passed", None, || blocked(true));
    refuted("cursor moved before the lease", "is lost", || blocked(false));
}

/// A subscriber joins while the producer of a blocking stream sends. From the cursor's first position on, no message is
/// lost.
fn subscribed(fenced: bool, first: u64) {
    let w = Arc::new(World::new(1));
    w.next().set(first);
    let daemon = {
        let w = w.clone();
        spawn(move || {
            w.stream.subscribers[0].set(1);
            w.stream.subscribers_version.set(1);
            w.reply.set(1);
        })
    };
    let producer = {
        let w = w.clone();
        spawn(move || {
            for n in 0..2 {
                let listed = w.stream.subscribers_version.read() != 0 && w.stream.subscribers[0].read() != 0;
                // Capacity 1: message n replaces message n - 1.
                if n > 0 && listed && w.next().read() < n {
                    return;
                }
                w.ring().send(n, message(n), &summary(n));
                news_fence();
            }
        })
    };
    if w.reply.read() == 1 {
        if fenced {
            news_fence();
        }
        let start = w.head.head.read();
        w.next().set(start);
        daemon.join().unwrap();
        producer.join().unwrap();
        reached();
        assert!(!matches!(w.ring().find(start), Found::Lost(_)), "a message of a blocking stream is lost");
    } else {
        daemon.join().unwrap();
        producer.join().unwrap();
    }
}

#[test]
fn a_subscriber_misses_nothing_from_its_first_message_on() {
    holds("subscribe to a blocking stream", None, || subscribed(true, 0));
    refuted("start read without a fence", "is lost", || subscribed(false, 0));
    refuted("cursor set ahead before the start is known", "is lost", || subscribed(true, u64::MAX));
}

/// The id of the stream that a cursor belongs to.
const STREAM: u64 = 9;

/// The mistakes of a subscriber of a blocking stream that reads without leases.
#[derive(Clone, Copy, PartialEq)]
enum Borrow {
    Right,
    /// Its cursor names the stream too late.
    NamedLate,
    /// It does not lease its first message.
    NotLeasedFirst,
    /// It does not check the cell again.
    NotLookedAgain,
    /// Its cursor passes the message while it is read.
    PassedEarly,
}

impl World {
    /// Looks for a message and reads it under the cursor alone.
    fn borrow(&self, how: Borrow, number: u64) {
        let Found::Message(cell, found) = self.ring().find(number) else { return };
        if how != Borrow::NotLookedAgain && !self.ring().still_has(number, cell) {
            return;
        }
        reached();
        assert_eq!((cell, found), (message(number), summary(number)), "another message");
        if how == Borrow::PassedEarly {
            self.next().set(number + 1);
        }
        self.bytes.read(cell);
        self.next().set(number + 1);
    }

    /// Leases a message by the stream's owner word, and reads it.
    fn take_by_owner_word(&self, owner_word: u64, number: u64) -> bool {
        let Found::Message(cell, _) = self.ring().find(number) else { return false };
        let entry = Shard::new(&self.leases, 0).free_entry().unwrap();
        let words = [(&self.owner_word, owner_word), (&self.ring().entry(number).cell, cell.0)];
        let taken = acquire(entry, cell.lease(OWNER), &words);
        if taken {
            self.bytes.read(cell);
            release(entry);
            self.next().set(number + 1);
        }
        taken
    }
}

/// A stream of two messages is deleted while a subscriber comes, leases the first and borrows the second.
fn deleted(how: Borrow) {
    let w = Arc::new(World::new(2));
    w.send(0);
    w.send(1);
    let owner_word = w.owner_word.read();
    let producer = {
        let w = w.clone();
        spawn(move || {
            w.owner_word.set(then_tomb(owner_word));
            for number in 0..2 {
                scan_fence();
                if !w.leases.cursors[0].keeps(STREAM, 2) && !holds_lease(&w.leases, message(number)) {
                    w.bytes.write(number as u32);
                }
            }
        })
    };
    let cursor = &w.leases.cursors[0];
    if how != Borrow::NamedLate {
        cursor.stream.set(STREAM);
    }
    news_fence();
    let first = how == Borrow::NotLeasedFirst || w.take_by_owner_word(owner_word, 0);
    if how == Borrow::NamedLate {
        cursor.stream.set(STREAM);
    }
    if first {
        w.borrow(how, 1);
    }
    producer.join().unwrap();
}

#[test]
fn a_cursor_keeps_the_messages_of_a_deleted_stream() {
    holds("borrowed while the stream is deleted", None, || deleted(Borrow::Right));
    for how in [Borrow::NamedLate, Borrow::NotLeasedFirst, Borrow::PassedEarly] {
        refuted("borrowed while the stream is deleted, a step left out", RACE, move || deleted(how));
    }
}

/// The producer has ended, and the stream is deleted. The daemon frees the segment if it finds no lease. A subscriber has
/// leased a message, then leases the message's segment, and borrows the next message.
fn segment_leased(by_owner_word: bool) {
    let w = Arc::new(World::new(2));
    w.send(0);
    w.send(1);
    let owner_word = w.owner_word.read();
    let daemon = {
        let w = w.clone();
        spawn(move || {
            w.owner_word.set(then_tomb(owner_word));
            scan_fence();
            let mut leased = false;
            w.leases.scan(|lease| leased |= lease.owner() == OWNER);
            if !leased {
                w.bytes.write(1);
            }
        })
    };
    let shard = Shard::new(&w.leases, 0);
    let of_message = shard.free_entry().unwrap();
    let words = [(&w.owner_word, owner_word), (&w.ring().entry(0).cell, message(0).0)];
    if acquire(of_message, message(0).lease(OWNER), &words) {
        let of_segment = shard.free_entry().unwrap();
        let leased =
            acquire(of_segment, LeaseWord::of_segment(OWNER, SlotNo::new(0)), &words[..usize::from(by_owner_word)]);
        release(of_message);
        if leased {
            w.borrow(Borrow::Right, 1);
            release(of_segment);
        }
    }
    daemon.join().unwrap();
}

#[test]
fn a_lease_on_a_segment_keeps_the_messages_of_a_deleted_stream() {
    holds("segment leased while the stream is deleted", Some(3), || segment_leased(true));
    refuted("segment leased without the owner word", RACE, || segment_leased(false));
}

/// A stream of two messages is opened again while a subscriber comes, leases the first and borrows the second. The former
/// producer sees the end of its stream in the owner word, or in the id of the stream's line.
fn opened_again(by_id: bool) {
    let w = Arc::new(World::new(2));
    w.send(0);
    w.send(1);
    w.stream.id.set(STREAM);
    let owner_word = w.owner_word.read();
    let daemon = {
        let w = w.clone();
        spawn(move || {
            w.stream.id.set(0);
            w.stream.id.set(STREAM + 1);
            w.owner_word.set(then_live(owner_word, OWNER, 0));
        })
    };
    let producer = {
        let w = w.clone();
        spawn(move || {
            let is_current = if by_id { w.stream.id.read() == STREAM } else { w.owner_word.read() == owner_word };
            for number in 0..2 {
                scan_fence();
                if !is_current && !w.leases.cursors[0].keeps(STREAM, 2) && !holds_lease(&w.leases, message(number)) {
                    w.bytes.write(number as u32);
                }
            }
        })
    };
    w.leases.cursors[0].stream.set(STREAM);
    news_fence();
    if w.take_by_owner_word(owner_word, 0) {
        w.borrow(Borrow::Right, 1);
    }
    daemon.join().unwrap();
    producer.join().unwrap();
}

#[test]
fn a_cursor_keeps_the_messages_of_a_stream_that_is_opened_again() {
    holds("borrowed while the stream is opened again", Some(3), || opened_again(false));
    refuted("borrowed while the stream is opened again, its end seen in the id", RACE, || opened_again(true));
}

/// A subscriber comes while the producer of a blocking stream sends: it leases one message and borrows the next.
fn joined(how: Borrow) {
    let w = Arc::new(World::new(1));
    let daemon = {
        let w = w.clone();
        spawn(move || {
            w.stream.subscribers[0].set(1);
            w.stream.subscribers_version.set(1);
            w.reply.set(1);
        })
    };
    let producer = {
        let w = w.clone();
        spawn(move || {
            for n in 0..3 {
                let listed = w.stream.subscribers_version.read() != 0 && w.stream.subscribers[0].read() != 0;
                if n > 0 && listed && w.next().read() < n {
                    return;
                }
                w.send(n);
            }
        })
    };
    if w.reply.read() == 1 {
        news_fence();
        let start = w.head.head.read().saturating_sub(1).max(w.head.tail.read());
        w.next().set(start);
        if how == Borrow::NotLeasedFirst {
            w.borrow(how, start);
        } else if w.take_by_owner_word(live(OWNER, 0), start) {
            w.borrow(how, start + 1);
        }
    }
    daemon.join().unwrap();
    producer.join().unwrap();
}

#[test]
fn a_cursor_keeps_what_comes_after_a_leased_message() {
    holds("borrowed after the first", Some(3), || joined(Borrow::Right));
    refuted("borrowed from the first on", RACE, || joined(Borrow::NotLeasedFirst));
    refuted("borrowed without a second look", "another message", || joined(Borrow::NotLookedAgain));
}
