//! Holds of forked children: an entry remains while a child may read, and is cleared afterwards.
//!
//! A thread models the child. It reads the bytes, and the watching thread waits for its end, as the kernel reports a
//! process's end only after all its accesses.

use crate::{Bytes, OWNER, RACE, holds, holds_lease, reached, refuted};
use std::sync::Arc;
use tensorlend_layout::child_holds::ChildHolds;
use tensorlend_layout::describe::Model;
use tensorlend_layout::leases::{self, LeaseTable, Shard, acquire, scan_fence};
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::word::{Cell, Word};

const FIRST: Cell = Cell::new(1, SlotNo::new(0));
const SECOND: Cell = Cell::new(1, SlotNo::new(1));

struct World {
    cell: Word,
    table: LeaseTable,
    state: ChildHolds,
    bytes: Bytes,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            cell: Word::new(FIRST.0),
            table: LeaseTable::model(),
            state: ChildHolds::new(),
            bytes: Bytes::new(),
        })
    }

    fn entry(&self) -> &Word {
        &self.table.entries[0][0]
    }

    fn lease(&self) {
        let entry = Shard::new(&self.table, 0).free_entry().unwrap();
        assert!(acquire(entry, FIRST.lease(OWNER), &[(&self.cell, FIRST.0)]));
    }

    /// The owner replaces the value, scans, and fills the old slot again if it found no lease.
    fn reclaim(&self) {
        let before = Cell(self.cell.swap(SECOND.0));
        scan_fence();
        if !holds_lease(&self.table, before) {
            self.bytes.write(before.slot().get());
        }
    }
}

/// P forks a child, which reads and then releases the lease itself. The owner reclaims.
fn forked(release: fn(&ChildHolds, &Word)) {
    let w = World::new();
    w.lease();
    w.state.add();
    let (its, owners) = (w.clone(), w.clone());
    let child = crate::spawn(move || its.bytes.read(FIRST));
    let owner = crate::spawn(move || owners.reclaim());
    w.bytes.read(FIRST);
    release(&w.state, w.entry());
    child.join().unwrap();
    w.state.end(w.entry());
    owner.join().unwrap();
    assert_eq!(w.entry().peek(), 0, "the entry is cleared when nobody reads any more");
    reached();
}

#[test]
fn a_child_reads_after_its_parent_has_released() {
    holds("lease held for a child", None, || forked(ChildHolds::release));
}

#[test]
fn a_release_that_ignores_the_children() {
    refuted("lease released under a child", RACE, || forked(|_, entry| leases::release(entry)));
}

/// The holds of two forks end while another thread releases: one of the three clears the entry, after the last of them.
fn ends_meet(end: fn(&ChildHolds, &Word)) {
    let w = World::new();
    w.lease();
    w.state.add();
    w.state.add();
    let (first, second, owners) = (w.clone(), w.clone(), w.clone());
    let child = crate::spawn(move || {
        first.bytes.read(FIRST);
        end(&first.state, first.entry());
    });
    let releasing = crate::spawn(move || {
        second.bytes.read(FIRST);
        second.state.release(second.entry());
    });
    owners.reclaim();
    w.bytes.read(FIRST);
    end(&w.state, w.entry());
    child.join().unwrap();
    releasing.join().unwrap();
    assert_eq!(w.entry().peek(), 0, "the entry is cleared when nobody reads any more");
    reached();
}

#[test]
fn holds_end_while_the_lease_is_released() {
    holds("holds of two forks end", Some(2), || ends_meet(ChildHolds::end));
}
