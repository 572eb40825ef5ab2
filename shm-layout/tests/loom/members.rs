//! The daemon registers a new member, or shows an owner's segment to a member, while the owner lists the members whose
//! lease tables it must scan.

use crate::{Bytes, OWNER, RACE, holds, holds_lease, live, reached, refuted, spawn};
use std::sync::Arc;
use tensorlend_layout::describe::Model;
use tensorlend_layout::directory::{DirectoryHead, MemberEntry, audience, audience_bit, bits};
use tensorlend_layout::leases::{LeaseTable, Shard, acquire, release, scan_fence};
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::publish::overwrite;
use tensorlend_layout::word::{Cell, Member, MemberState, Word};

const NEWCOMER: ClientNo = ClientNo::new(2);

struct World {
    head: DirectoryHead,
    /// Entry of [`NEWCOMER`].
    member: MemberEntry,
    /// Entry of [`OWNER`].
    owner: MemberEntry,
    /// Represents the packet on the control socket.
    reply: Word,
    owner_word: Word,
    cell: Word,
    table: LeaseTable,
    bytes: Bytes,
}

impl World {
    /// Returns true if a listed member holds a lease of the value.
    fn somebody_holds(&self, cell: Cell, listed: impl Iterator<Item = ClientNo>) -> bool {
        let mut held = false;
        for catalogue in listed {
            assert_eq!(catalogue, NEWCOMER);
            held |= Member(self.member.member.read()).state() == MemberState::Open && holds_lease(&self.table, cell);
        }
        held
    }
}

/// The daemon's reply to the newcomer.
#[derive(Clone, Copy, PartialEq)]
enum Told {
    /// It is a member now.
    Joined,
    /// The location of the owner's segment. The receiver joined long before.
    Lent,
}

impl Told {
    fn store(self, w: &World) {
        match self {
            Self::Joined => {
                w.member.member.set(Member::new(MemberState::Open, 1, 5).0);
                w.head.present[0].set_bits(1 << NEWCOMER.get());
            }
            Self::Lent => {
                let (word, bit) = audience_bit(NEWCOMER);
                w.owner.audience[word].set_bits(bit);
            }
        }
    }

    /// The members that the owner scans.
    fn listed(self, w: &World) -> Vec<ClientNo> {
        match self {
            Self::Joined => bits(&w.head.present, 64).collect(),
            Self::Lent => audience(&w.head.present, &w.owner.audience, 64).collect(),
        }
    }
}

fn model(told: Told, listed_after_fence: bool, stored_before_reply: bool) {
    let w = Arc::new(World {
        head: DirectoryHead::model(),
        member: MemberEntry::model(),
        owner: MemberEntry::model(),
        reply: Word::new(0),
        owner_word: Word::new(live(OWNER, 0)),
        cell: Word::new(Cell::new(1, SlotNo::new(0)).0),
        table: LeaseTable::model(),
        bytes: Bytes::new(),
    });
    if told == Told::Lent {
        Told::Joined.store(&w);
    }
    let daemon = {
        let w = w.clone();
        spawn(move || {
            if !stored_before_reply {
                w.reply.set(1);
            }
            told.store(&w);
            if stored_before_reply {
                w.reply.set(1);
            }
        })
    };
    let owner = {
        let w = w.clone();
        spawn(move || {
            let early = if listed_after_fence { Vec::new() } else { told.listed(&w) };
            let before = overwrite(&w.owner_word, live(OWNER, 0), &w.cell, Cell::new(1, SlotNo::new(1))).unwrap();
            scan_fence();
            let listed = if listed_after_fence { told.listed(&w) } else { early };
            let held = w.somebody_holds(before, listed.into_iter());
            if !held {
                w.bytes.write(before.slot().get());
            }
        })
    };
    if w.reply.read() == 1 {
        let shard = Shard::new(&w.table, 0);
        let (owner_word, cell) = (w.owner_word.read(), Cell(w.cell.read()));
        let entry = shard.free_entry().unwrap();
        if cell == Cell::new(1, SlotNo::new(0))
            && acquire(entry, cell.lease(OWNER), &[(&w.owner_word, owner_word), (&w.cell, cell.0)])
        {
            reached();
            w.bytes.read(cell);
            release(entry);
        }
    }
    daemon.join().unwrap();
    owner.join().unwrap();
}

#[test]
fn a_newcomer_is_seen_by_every_later_scan() {
    holds("member stored, then told; members listed behind the fence", None, || model(Told::Joined, true, true));
}

#[test]
fn a_newcomer_overlooked() {
    refuted("members listed before the fence", RACE, || model(Told::Joined, false, true));
    refuted("newcomer told before it is stored", RACE, || model(Told::Joined, true, false));
}

#[test]
fn who_was_shown_a_segment_is_seen_by_every_later_scan() {
    holds("bit stored, then shown; audience read behind the fence", None, || model(Told::Lent, true, true));
}

#[test]
fn an_audience_overlooked() {
    refuted("audience read before the fence", RACE, || model(Told::Lent, false, true));
    refuted("shown before the bit is stored", RACE, || model(Told::Lent, true, false));
}
