//! A client ends: its last announcements, its leases, and its memory.

use crate::{Bytes, OWNER, RACE, holds, holds_lease, live, reached, refuted, spawn, then_tomb};
use std::sync::Arc;
use tensorlend_layout::describe::Model;
use tensorlend_layout::directory::{MemberEntry, NameEntry};
use tensorlend_layout::leases::{LeaseTable, Shard, acquire, release, reuse_fence, scan_fence};
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::publish::overwrite;
use tensorlend_layout::sync::{Ordering, fence};
use tensorlend_layout::word::{Absorbed, Cell, Member, MemberState, Word};

#[derive(Clone, Copy, PartialEq)]
enum Frees {
    WhenQuiescent,
    AtOnce,
    Unfenced,
}

/// The owner overwrites one last time and ends. The daemon deletes the name, and frees the whole segment if it finds no
/// lease in it.
fn frozen(frees: Frees, owner_word_again: bool) {
    struct World {
        owner_word: Word,
        cell: Word,
        /// The kernel's grant: no writable mapping is left.
        quiescent: Word,
        leases: LeaseTable,
        bytes: Bytes,
    }
    let w = Arc::new(World {
        owner_word: Word::new(live(OWNER, 0)),
        cell: Word::new(Cell::new(1, SlotNo::new(0)).0),
        quiescent: Word::new(0),
        leases: LeaseTable::model(),
        bytes: Bytes::new(),
    });
    let entry = Shard::new(&w.leases, 0).free_entry().unwrap();
    let owner = {
        let w = w.clone();
        spawn(move || {
            w.bytes.write(1);
            if let Some(before) = overwrite(&w.owner_word, live(OWNER, 0), &w.cell, Cell::new(1, SlotNo::new(1))) {
                scan_fence();
                if !holds_lease(&w.leases, before) {
                    w.bytes.write(before.slot().get());
                }
            }
            w.quiescent.set(1);
        })
    };
    let daemon = {
        let w = w.clone();
        spawn(move || {
            if frees != Frees::AtOnce && w.quiescent.read() == 0 {
                return;
            }
            w.owner_word.set(then_tomb(live(OWNER, 0)));
            if frees != Frees::Unfenced {
                scan_fence();
            }
            let mut leased = false;
            w.leases.scan(|lease| leased |= lease.owner() == OWNER && lease.slot() < SlotNo::new(2));
            if !leased {
                w.bytes.write(0);
                w.bytes.write(1);
            }
        })
    };
    let (owner_word, cell) = (w.owner_word.read(), Cell(w.cell.read()));
    let route = [(&w.cell, cell.0), (&w.owner_word, owner_word)];
    if owner_word == live(OWNER, 0) && acquire(entry, cell.lease(OWNER), &route[..=usize::from(owner_word_again)]) {
        reached();
        w.bytes.read(cell);
        release(entry);
    }
    owner.join().unwrap();
    daemon.join().unwrap();
}

#[test]
fn a_segment_is_freed_when_its_memory_is_quiescent() {
    holds("owner gone, segment freed", Some(3), || frozen(Frees::WhenQuiescent, true));
    refuted("owner gone, owner word not read again", RACE, || frozen(Frees::WhenQuiescent, false));
    refuted("owner gone, memory not quiet", RACE, || frozen(Frees::AtOnce, true));
    refuted("owner gone, no fence of the daemon", RACE, || frozen(Frees::Unfenced, true));
}

#[derive(Clone, Copy, PartialEq)]
enum Ends {
    InTwoSteps,
    AtOnce,
    ProducerUnfenced,
    DaemonUnfenced,
}

/// The daemon ends a client that is publishing for the first time: a put that returned without an error is in the
/// directory.
fn ended(how: Ends) {
    struct World {
        ring_head: Word,
        member: MemberEntry,
        name: NameEntry,
    }
    let w = Arc::new(World { ring_head: Word::new(0), member: MemberEntry::model(), name: NameEntry::model() });
    w.member.absorbed.set(Absorbed::new(MemberState::Open, 0).0);
    let daemon = {
        let w = w.clone();
        spawn(move || {
            if how != Ends::AtOnce {
                w.member.absorbed.set(Absorbed::new(MemberState::Ending, 0).0);
            }
            if how != Ends::DaemonUnfenced {
                fence(Ordering::SeqCst);
            }
            let drained = w.ring_head.read();
            if drained == 1 {
                w.name.owner_word.set(live(OWNER, 0));
            }
            w.member.absorbed.set(Absorbed::new(MemberState::Closed, drained).0);
        })
    };
    w.ring_head.set(1);
    if how != Ends::ProducerUnfenced {
        fence(Ordering::SeqCst);
    }
    let known = Absorbed(w.member.absorbed.read()).state() == MemberState::Open;
    daemon.join().unwrap();
    if known {
        reached();
        assert_eq!(w.name.owner_word.read(), live(OWNER, 0), "a put that returned is lost");
    }
}

#[test]
fn a_put_that_returned_survives_its_client() {
    holds("client ended while it announces", None, || ended(Ends::InTwoSteps));
    for how in [Ends::AtOnce, Ends::ProducerUnfenced, Ends::DaemonUnfenced] {
        refuted("client ended, a step left out", "a put that returned is lost", move || ended(how));
    }
}

/// A reader R is ended while it reads. Its lease no longer counts, so R must check its own epoch after the use. With
/// `leaves` the daemon also removes R from the owner's audience: after R's end, or before it.
fn reader_ended(looks: bool, owner_fence: bool, leaves: Option<bool>) {
    struct World {
        cell: Word,
        member: MemberEntry,
        leases: LeaseTable,
        /// The owner's line.
        owner: MemberEntry,
        /// Represents the bytes of slot 0.
        payload: Word,
    }
    let alive = Member::new(MemberState::Open, 1, 1);
    let w = Arc::new(World {
        cell: Word::new(Cell::new(1, SlotNo::new(0)).0),
        member: MemberEntry::model(),
        leases: LeaseTable::model(),
        owner: MemberEntry::model(),
        payload: Word::new(7),
    });
    w.member.member.set(alive.0);
    w.owner.audience[0].set(1);
    let entry = Shard::new(&w.leases, 0).free_entry().unwrap();
    let daemon = {
        let w = w.clone();
        spawn(move || {
            let ends = || w.member.member.set(alive.with_state(MemberState::Closed).0);
            if leaves == Some(true) || leaves.is_none() {
                ends();
            }
            if leaves.is_some() {
                w.owner.audience[0].set(0);
            }
            if leaves == Some(false) {
                ends();
            }
        })
    };
    let owner = {
        let w = w.clone();
        spawn(move || {
            let before = Cell(w.cell.swap(Cell::new(1, SlotNo::new(1)).0));
            scan_fence();
            let counts = match leaves {
                // The owner checks only that the bit is clear.
                Some(_) => w.owner.audience[0].read() != 0,
                None => Member(w.member.member.read()).state() == MemberState::Open,
            };
            if counts && holds_lease(&w.leases, before) {
                return;
            }
            if owner_fence {
                reuse_fence();
            }
            w.payload.put(8);
        })
    };
    let cell = Cell(w.cell.read());
    if cell == Cell::new(1, SlotNo::new(0)) && acquire(entry, cell.lease(OWNER), &[(&w.cell, cell.0)]) {
        let bytes = w.payload.read();
        if !looks || w.member.member.peek() == alive.0 {
            reached();
            assert_eq!(bytes, 7, "somebody else's bytes");
        }
        release(entry);
    }
    daemon.join().unwrap();
    owner.join().unwrap();
}

#[test]
fn an_ended_reader_notices() {
    holds("reader ended while it reads", Some(3), || reader_ended(true, true, None));
    holds("reader ended and off the audience", Some(3), || reader_ended(true, true, Some(true)));
    refuted("reader ended, does not look", "somebody else's bytes", || reader_ended(false, true, None));
    refuted("reader ended, bytes not ordered", "somebody else's bytes", || reader_ended(true, false, None));
    refuted("off the audience before its end", "somebody else's bytes", || reader_ended(true, true, Some(false)));
}
