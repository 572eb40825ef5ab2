//! A name changes owner through the daemon while the former owner's threads overwrite it.

use crate::{Bytes, OWNER, RACE, holds, holds_lease, live, reached, refuted, spawn, then_live, then_tomb};
use std::sync::Arc;
use tensorlend_layout::describe::Model;
use tensorlend_layout::leases::{LeaseTable, Shard, acquire, release, scan_fence};
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::publish::{change_owner, is_lasting, overwrite};
use tensorlend_layout::word::{Cell, LifeWord, OwnerWord, Word};

const RIVAL: ClientNo = ClientNo::new(2);
/// The rival's value.
const TAKEN: Cell = Cell::new(70, SlotNo::new(0));

struct World {
    owner_word: Word,
    /// The owner's cells.
    cells: [Word; 2],
    rival: Word,
    leases: LeaseTable,
    bytes: Bytes,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            owner_word: Word::new(live(OWNER, 0)),
            cells: [Word::new(Cell::new(1, SlotNo::new(0)).0), Word::new(Cell::EMPTY.0)],
            rival: Word::new(TAKEN.0),
            leases: LeaseTable::model(),
            bytes: Bytes::new(),
        })
    }

    fn cell(&self, owner_word: OwnerWord) -> &Word {
        if owner_word.owner() == RIVAL { &self.rival } else { &self.cells[owner_word.cell().index()] }
    }

    /// Leases and reads the latest value. Returns `None` if a word changed in the meantime.
    fn get(&self) -> Option<Cell> {
        let owner_word = OwnerWord(self.owner_word.read());
        let word = self.cell(owner_word);
        let cell = Cell(word.read());
        let entry = Shard::new(&self.leases, 0).free_entry().unwrap();
        let route = [(&self.owner_word, owner_word.0), (word, cell.0)];
        (cell.is_value() && acquire(entry, cell.lease(owner_word.owner()), &route)).then(|| {
            if owner_word.owner() == OWNER {
                self.bytes.read(cell);
            }
            release(entry);
            cell
        })
    }

    fn retire(&self, cell: Cell) {
        scan_fence();
        if cell.is_value() && !holds_lease(&self.leases, cell) {
            self.bytes.write(cell.slot().get());
        }
    }
}

/// One thread overwrites. At the same time a rival takes the name, and another thread of the owner takes it back with
/// `cell`.
fn taken_back(cell: u32) {
    let w = World::new();
    let thread_1 = {
        let w = w.clone();
        spawn(move || {
            overwrite(&w.owner_word, live(OWNER, 0), &w.cells[0], Cell::new(2, SlotNo::new(1)))?;
            // After the put has returned, reads return this value or a later one.
            w.get()
        })
    };
    let thread_2 = {
        let w = w.clone();
        spawn(move || {
            let taken = then_live(live(OWNER, 0), RIVAL, 0);
            w.owner_word.set(taken);
            w.cells[cell as usize].swap(Cell::new(3, SlotNo::new(2)).0);
            w.owner_word.set(then_live(taken, OWNER, cell));
        })
    };
    let early = thread_1.join().unwrap();
    thread_2.join().unwrap();
    let late = w.get();
    if early == Some(TAKEN) {
        // The rival's value followed the first put. Only the second thread's put may follow the rival's.
        reached();
        assert_eq!(late, Some(Cell::new(3, SlotNo::new(2))), "a put lands after it was over");
    }
}

#[test]
fn a_stalled_overwrite_lands_in_a_dead_cell() {
    holds("takeover and back with a fresh cell", None, || taken_back(1));
    refuted("taken back with the same cell", "a put lands after it was over", || taken_back(0));
}

/// The owner overwrites, sees that another client took the name, and reclaims everything. A reader continues to read.
fn housekeeping(owner_word_again: bool) {
    let w = World::new();
    let owner = {
        let w = w.clone();
        spawn(move || {
            w.bytes.write(1);
            if let Some(before) = overwrite(&w.owner_word, live(OWNER, 0), &w.cells[0], Cell::new(2, SlotNo::new(1))) {
                w.retire(before);
            }
            if w.owner_word.read() != live(OWNER, 0) {
                w.retire(Cell(w.cells[0].swap(Cell::DELETED.0)));
            }
        })
    };
    let daemon = {
        let w = w.clone();
        spawn(move || w.owner_word.set(then_live(live(OWNER, 0), RIVAL, 0)))
    };
    let entry = Shard::new(&w.leases, 0).free_entry().unwrap();
    let owner_word = OwnerWord(w.owner_word.read());
    let word = w.cell(owner_word);
    let cell = Cell(word.read());
    if !cell.is_value() {
        reached();
        assert!(owner_word_again && w.owner_word.read() != owner_word.0, "a name that was never deleted is absent");
    } else if acquire(entry, cell.lease(owner_word.owner()), &[(&w.owner_word, owner_word.0), (word, cell.0)]) {
        if owner_word.owner() == OWNER {
            w.bytes.read(cell);
        }
        release(entry);
    }
    owner.join().unwrap();
    daemon.join().unwrap();
}

#[test]
fn the_former_owners_housekeeping_is_no_delete() {
    holds("overwrite, takeover, housekeeping, get", Some(3), || housekeeping(true));
    refuted("deleted cell believed without a second look at owner word", "is absent", || housekeeping(false));
}

/// The former owner frees its cell's value without emptying the cell, and the reader does not check the owner word
/// again.
#[test]
fn a_cell_alone_is_no_route() {
    refuted("taken over, owner word not read again", RACE, || {
        let w = World::new();
        let owner = {
            let w = w.clone();
            spawn(move || {
                if w.owner_word.read() != live(OWNER, 0) {
                    w.retire(Cell(w.cells[0].peek()));
                }
            })
        };
        let daemon = {
            let w = w.clone();
            spawn(move || w.owner_word.set(then_live(live(OWNER, 0), RIVAL, 0)))
        };
        let entry = Shard::new(&w.leases, 0).free_entry().unwrap();
        if w.owner_word.read() == live(OWNER, 0) {
            let cell = Cell(w.cells[0].read());
            if acquire(entry, cell.lease(OWNER), &[(&w.cells[0], cell.0)]) {
                w.bytes.read(cell);
                release(entry);
            }
        }
        owner.join().unwrap();
        daemon.join().unwrap();
    });
}

/// A lifetime ends while the owner overwrites the name with a value that has none. The owner does so only without a lifetime.
fn ended(is_lasting: fn(&Word) -> bool) {
    let (w, life) = (World::new(), Arc::new(Word::new(LifeWord::new(1, false).0)));
    let daemon = {
        let (w, life) = (w.clone(), life.clone());
        spawn(move || {
            change_owner(&life, LifeWord::FOREVER, || w.owner_word.set(then_tomb(live(OWNER, 0))));
        })
    };
    if is_lasting(&life) {
        reached();
        let put = overwrite(&w.owner_word, live(OWNER, 0), &w.cells[0], Cell::new(2, SlotNo::new(1)));
        assert!(put.is_none(), "a put succeeds on a name that has ended");
    }
    daemon.join().unwrap();
}

#[test]
fn an_owner_that_sees_no_lifetime_sees_the_end_of_the_name() {
    holds("a name ends, and its owner overwrites it", None, || ended(is_lasting));
    refuted("lifetime read without Acquire", "name that has ended", || ended(|life| life.peek() == 0));
}

/// A rival takes a lasting name with a lifetime, and overwrites it with a value that has none.
fn timed(change: fn(&Word, &World)) {
    let (w, life) = (World::new(), Arc::new(Word::new(LifeWord::FOREVER.0)));
    let daemon = {
        let (w, life) = (w.clone(), life.clone());
        spawn(move || change(&life, &w))
    };
    if OwnerWord(w.owner_word.read()).owner() == RIVAL {
        reached();
        assert!(!is_lasting(&life), "the owner misses the lifetime");
    }
    daemon.join().unwrap();
}

#[test]
fn an_owner_that_sees_its_name_sees_the_lifetime() {
    const LIFE: LifeWord = LifeWord::new(1, false);
    holds("a name is taken for a time", None, || {
        timed(|life, w| change_owner(life, LIFE, || w.owner_word.set(then_live(live(OWNER, 0), RIVAL, 0))));
    });
    refuted("lifetime stored after the owner word", "misses the lifetime", || {
        timed(|life, w| {
            w.owner_word.set(then_live(live(OWNER, 0), RIVAL, 0));
            life.set(LIFE.0);
        });
    });
}
