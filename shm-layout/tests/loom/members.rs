//! A newcomer is registered while an owner lists the members whose lease tables it must scan.

use crate::{Bytes, OWNER, RACE, holds, holds_lease, live, reached, refuted, spawn};
use std::sync::Arc;
use tensorlend_layout::describe::Model;
use tensorlend_layout::directory::{DirectoryHead, MemberEntry, bits};
use tensorlend_layout::leases::{LeaseTable, Shard, acquire, release, scan_fence};
use tensorlend_layout::publish::overwrite;
use tensorlend_layout::word::{Cell, Member, MemberState, Word};

const NEWCOMER: u16 = 2;

struct World {
    head: DirectoryHead,
    /// Entry of [`NEWCOMER`].
    member: MemberEntry,
    /// Stands for the packet on the control socket.
    reply: Word,
    home: Word,
    cell: Word,
    table: LeaseTable,
    bytes: Bytes,
}

impl World {
    /// Whether a member that counts holds a lease of the value.
    fn somebody_holds(&self, cell: Cell, listed: impl Iterator<Item = u16>) -> bool {
        let mut held = false;
        for catalogue in listed {
            assert_eq!(catalogue, NEWCOMER);
            held |= Member(self.member.member.read()).state() == MemberState::Open && holds_lease(&self.table, cell);
        }
        held
    }
}

fn model(listed_after_fence: bool, stored_before_reply: bool) {
    let w = Arc::new(World {
        head: DirectoryHead::model(),
        member: MemberEntry::model(),
        reply: Word::new(0),
        home: Word::new(live(OWNER, 0)),
        cell: Word::new(Cell::new(1, 0).0),
        table: LeaseTable::model(),
        bytes: Bytes::new(),
    });
    let daemon = {
        let w = w.clone();
        spawn(move || {
            if !stored_before_reply {
                w.reply.set(1);
            }
            w.member.member.set(Member::new(MemberState::Open, 1, 5).0);
            w.head.present[0].set_bits(1 << NEWCOMER);
            if stored_before_reply {
                w.reply.set(1);
            }
        })
    };
    let owner = {
        let w = w.clone();
        spawn(move || {
            let early: Vec<u16> = if listed_after_fence { Vec::new() } else { bits(&w.head.present, 64).collect() };
            let before = overwrite(&w.home, live(OWNER, 0), &w.cell, Cell::new(1, 1)).unwrap();
            scan_fence();
            let held = if listed_after_fence {
                w.somebody_holds(before, bits(&w.head.present, 64))
            } else {
                w.somebody_holds(before, early.into_iter())
            };
            if !held {
                w.bytes.write(before.slot());
            }
        })
    };
    if w.reply.read() == 1 {
        let shard = Shard::new(&w.table, 0);
        let (home, cell) = (w.home.read(), Cell(w.cell.read()));
        let entry = shard.free_entry().unwrap();
        if cell == Cell::new(1, 0) && acquire(entry, cell.lease(OWNER), &[(&w.home, home), (&w.cell, cell.0)]) {
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
    holds("member stored, then told; members listed behind the fence", None, || model(true, true));
}

#[test]
fn a_newcomer_overlooked() {
    refuted("members listed before the fence", RACE, || model(false, true));
    refuted("newcomer told before it is stored", RACE, || model(true, false));
}
