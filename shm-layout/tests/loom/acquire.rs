//! A reader takes a lease while the owner overwrites, reclaims and refills, and a third process deletes the name.

use crate::{Bytes, OWNER, RACE, holds, holds_lease, live, reached, refuted, spawn, then_tomb};
use std::sync::Arc;
use tensorlend_layout::describe::Model;
use tensorlend_layout::leases::{LeaseTable, Shard, acquire, release, scan_fence};
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::publish::overwrite;
use tensorlend_layout::sync::{Ordering, fence};
use tensorlend_layout::word::{Cell, LeaseWord, OwnerWord, Word};

/// The steps that a model may leave out. The default leaves out nothing.
#[derive(Clone, Copy)]
struct Steps {
    /// The reader checks the owner word again.
    owner_word_again: bool,
    /// The reader checks the cell again.
    cell_again: bool,
    /// The reader's fence.
    reader_fence: bool,
    /// The owner's fences, after the swap and before the scan.
    owner_fence: bool,
    /// The owner empties its cell before it frees the value of a deleted name.
    owner_clears: bool,
    /// The owner fills a freed slot and publishes it again under the same name.
    republishes: bool,
    /// The daemon deletes the name during the read.
    deleted: bool,
}

const ALL: Steps = Steps {
    owner_word_again: true,
    cell_again: true,
    reader_fence: true,
    owner_fence: true,
    owner_clears: true,
    republishes: false,
    deleted: true,
};

struct World {
    owner_word: Word,
    cell: Word,
    table: LeaseTable,
    bytes: Bytes,
}

fn unfenced(entry: &Word, lease: LeaseWord, route: &[(&Word, u64)]) -> bool {
    entry.set(lease.0);
    if route.iter().all(|(word, seen)| word.peek() == *seen) {
        fence(Ordering::Acquire);
        return true;
    }
    entry.set(0);
    false
}

fn reader(w: &World, entry: &Word, steps: Steps) {
    let owner_word = OwnerWord(w.owner_word.read());
    let cell = Cell(w.cell.read());
    if !owner_word.is_live() || !cell.is_value() {
        return;
    }
    let route = [(&w.owner_word, owner_word.0), (&w.cell, cell.0)];
    let route = &route[usize::from(!steps.owner_word_again)..=usize::from(steps.cell_again)];
    let lease = cell.lease(OWNER);
    if if steps.reader_fence { acquire(entry, lease, route) } else { unfenced(entry, lease, route) } {
        reached();
        w.bytes.read(cell);
        release(entry);
    }
}

impl World {
    fn retire(&self, cell: Cell, steps: Steps) -> bool {
        if steps.owner_fence {
            scan_fence();
        }
        let free = cell.is_value() && !holds_lease(&self.table, cell);
        if free {
            self.bytes.write(cell.slot().get());
        }
        free
    }

    fn put(&self, new: Cell, steps: Steps) -> Option<Cell> {
        if steps.owner_fence {
            return overwrite(&self.owner_word, live(OWNER, 0), &self.cell, new);
        }
        (self.owner_word.read() == live(OWNER, 0)).then(|| Cell(self.cell.swap(new.0)))
    }

    fn owner(&self, steps: Steps) {
        self.bytes.write(1);
        if let Some(before) = self.put(Cell::new(1, SlotNo::new(1)), steps)
            && self.retire(before, steps)
            && steps.republishes
            && let Some(before) = self.put(Cell::new(2, SlotNo::new(0)), steps)
        {
            self.retire(before, steps);
        }
        if self.owner_word.read() != live(OWNER, 0) {
            // Another process deleted the name, so the owner reclaims the value in the cell.
            let left = if steps.owner_clears { Cell(self.cell.swap(Cell::DELETED.0)) } else { Cell(self.cell.peek()) };
            self.retire(left, steps);
        }
    }
}

fn model(steps: Steps) {
    let w = Arc::new(World {
        owner_word: Word::new(live(OWNER, 0)),
        cell: Word::new(Cell::new(1, SlotNo::new(0)).0),
        table: LeaseTable::model(),
        bytes: Bytes::new(),
    });
    let shard = Shard::new(&w.table, 0);
    let entry = shard.free_entry().unwrap();
    let owner = w.clone();
    let owner = spawn(move || owner.owner(steps));
    let daemon = steps.deleted.then(|| {
        let w = w.clone();
        spawn(move || w.owner_word.set(then_tomb(live(OWNER, 0))))
    });
    reader(&w, entry, steps);
    owner.join().unwrap();
    if let Some(daemon) = daemon {
        daemon.join().unwrap();
    }
}

#[test]
fn acquire_against_overwrite_and_delete() {
    holds("acquire, overwrite, delete by a third", Some(3), || model(ALL));
}

#[test]
fn acquire_against_overwrite_and_republish() {
    let steps = Steps { republishes: true, deleted: false, ..ALL };
    holds("acquire, overwrite, slot published again", None, move || model(steps));
}

#[test]
fn acquire_against_a_cell_that_is_not_emptied() {
    let steps = Steps { owner_clears: false, ..ALL };
    holds("acquire, the dead name's cell keeps its value", Some(3), move || model(steps));
}

#[test]
fn without_the_second_looks() {
    let steps = Steps { owner_word_again: false, owner_clears: false, ..ALL };
    refuted("acquire, owner word not read again", RACE, move || model(steps));
    let steps = Steps { cell_again: false, ..ALL };
    refuted("acquire, cell not read again", RACE, move || model(steps));
}

#[test]
fn without_the_fences() {
    let steps = Steps { reader_fence: false, ..ALL };
    refuted("acquire, no fence of the reader", RACE, move || model(steps));
    let steps = Steps { owner_fence: false, ..ALL };
    refuted("acquire, no fence of the owner", RACE, move || model(steps));
}
