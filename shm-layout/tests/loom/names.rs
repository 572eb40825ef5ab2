//! Look-ups while entries change owner, are given to other names, and move to a larger table.

use crate::{Bytes, OWNER, holds, holds_lease, live, reached, refuted, spawn, then_live, then_tomb};
use std::sync::Arc;
use tensorlend_layout::describe::Model;
use tensorlend_layout::directory::{
    FoundName, LongName, NameEntry, PlaceWord, Replaced, begin_table_in, find_in, key_word,
};
use tensorlend_layout::leases::{LeaseTable, Shard, acquire, release, scan_fence};
use tensorlend_layout::number::{CellNo, ClientNo, EntryNo, SlotNo};
use tensorlend_layout::word::{Cell, OwnerWord, TableWord, Word};

/// All keys of a model have this hash: only their bytes tell them apart.
const HASH: u64 = 0;
const A_VALUE: Cell = Cell::new(1, SlotNo::new(0));
const B_VALUE: Cell = Cell::new(1, SlotNo::new(1));

struct World {
    table: Word,
    seeds: [Word; 2],
    /// Place 0 is the first table, places 1 and 2 are the second.
    places: [Word; 3],
    /// Number 0 is none.
    names: [NameEntry; 3],
    long_names: [LongName; 1],
    cell: Word,
    leases: LeaseTable,
    bytes: Bytes,
}

impl World {
    /// `key` lives in entry 1, and in the first place of a table of 2^`log2` places.
    fn new(log2: u8, key: &[u8]) -> Arc<Self> {
        let w = Self {
            table: Word::new(TableWord::new(log2, 0).0),
            seeds: Model::model(),
            places: Model::model(),
            names: Model::model(),
            long_names: Model::model(),
            cell: Word::new(A_VALUE.0),
            leases: LeaseTable::model(),
            bytes: Bytes::new(),
        };
        w.names[1].set_key(HASH, key, 0, &w.long_names);
        w.names[1].owner_word.set(live(OWNER, 0));
        w.lead(0, 1);
        Arc::new(w)
    }

    /// A place leads to an entry.
    fn lead(&self, place: usize, entry: u32) {
        self.places[place].set(PlaceWord::new(HASH, EntryNo::new(entry)).0);
    }

    fn find(&self, key: &[u8]) -> Result<Option<FoundName>, Replaced> {
        find_in(&self.table, &self.seeds, &self.places, &self.names, &self.long_names, HASH, key)
    }

    /// The value that a name leads to, if nothing moved meanwhile.
    fn get(&self, found: FoundName) -> Option<Cell> {
        let entry = Shard::new(&self.leases, 0).free_entry().unwrap();
        let owner_word = &self.names[found.entry.index()].owner_word;
        let cell = Cell(self.cell.read());
        let route = [(owner_word, found.owner_word.0), (&self.cell, cell.0)];
        (found.owner_word.is_live() && cell.is_value() && acquire(entry, cell.lease(OWNER), &route)).then(|| {
            reached();
            self.bytes.read(cell);
            release(entry);
            cell
        })
    }

    fn name_moves(&self, entry: usize, owner: ClientNo, cell: u32) {
        let owner_word = &self.names[entry].owner_word;
        owner_word.set(then_live(owner_word.peek(), owner, cell));
    }

    fn name_ends(&self, entry: usize) {
        let owner_word = &self.names[entry].owner_word;
        owner_word.set(then_tomb(owner_word.peek()));
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Reuse {
    Right,
    NoTomb,
    NoVersion,
    KeyFirst,
    NoFence,
}

/// The entry of A is given to B, and so is A's cell; a reader looks for `key`.
fn reused(how: Reuse, key: &'static [u8], wrong: Cell) {
    let w = World::new(0, b"a");
    let daemon = {
        let w = w.clone();
        spawn(move || {
            let entry = &w.names[1];
            if how != Reuse::NoTomb {
                w.name_ends(1);
            }
            if matches!(how, Reuse::NoTomb | Reuse::NoFence) {
                entry.name[0].put(key_word(b"b"));
            } else {
                entry.set_key(HASH, b"b", 0, &w.long_names);
            }
            w.cell.set(B_VALUE.0);
            if how == Reuse::NoVersion {
                entry.owner_word.set(live(OWNER, 0));
            } else {
                w.name_moves(1, OWNER, 0);
            }
        })
    };
    let found = if how == Reuse::KeyFirst {
        let same = w.names[1].name[0].read() == key_word(key);
        let owner_word = OwnerWord(w.names[1].owner_word.read());
        Ok(same.then_some(FoundName { entry: EntryNo::new(1), owner_word }))
    } else {
        w.find(key)
    };
    if let Some(found) = found.unwrap()
        && let Some(cell) = w.get(found)
    {
        assert_ne!(cell, wrong, "another name's value");
    }
    daemon.join().unwrap();
}

#[test]
fn an_entry_is_given_to_another_name() {
    holds("entry reused, looking for the old name", None, || reused(Reuse::Right, b"a", B_VALUE));
    holds("entry reused, looking for the new name", None, || reused(Reuse::Right, b"b", A_VALUE));
}

#[test]
fn an_entry_given_away_carelessly() {
    let wrong = "another name's value";
    refuted("owner word without a version", wrong, || reused(Reuse::NoVersion, b"a", B_VALUE));
    refuted("key replaced under a live owner word", wrong, || reused(Reuse::NoTomb, b"b", A_VALUE));
    refuted("key stored without a fence behind the tomb", wrong, || reused(Reuse::NoFence, b"b", A_VALUE));
    refuted("key compared before owner word is read", wrong, || reused(Reuse::KeyFirst, b"a", B_VALUE));
}

/// A name is taken over while a list of names copies it.
fn listed(again: bool) {
    let w = World::new(0, b"a");
    let daemon = {
        let w = w.clone();
        spawn(move || w.name_moves(1, ClientNo::new(2), 2))
    };
    reached();
    let copy = |entry: &NameEntry| Some(entry.name[0].peek());
    let key = if again {
        w.names[1].live_key(copy).map(|(_, key)| key)
    } else {
        let owner_word = w.names[1].owner_word.read();
        let key = copy(&w.names[1]);
        key.filter(|_| w.names[1].owner_word.read() == owner_word)
    };
    assert_eq!(key, Some(key_word(b"a")), "false miss");
    daemon.join().unwrap();
}

#[test]
fn a_list_has_a_name_that_is_being_taken_over() {
    holds("listed during a takeover", None, || listed(true));
    refuted("an entry that changed is passed over", "false miss", || listed(false));
}

/// The block of A's tail is given to B, which stands in the next entry; both keys have the same head and hash.
fn block_reused(clears: bool) {
    let w = World::new(1, b"headhead.a");
    let bound = Arc::new(Word::new(0));
    let daemon = {
        let (w, bound) = (w.clone(), bound.clone());
        spawn(move || {
            w.name_ends(1);
            if clears {
                w.names[1].clear_key();
            }
            w.names[2].set_key(HASH, b"headhead.b", 0, &w.long_names);
            w.lead(1, 2);
            w.name_moves(2, OWNER, 1);
            bound.set(1);
        })
    };
    let bound = bound.read() == 1;
    let found = w.find(b"headhead.b").unwrap();
    if bound {
        reached();
        assert!(found.is_some_and(|f| f.owner_word.is_live()), "the name is there");
    }
    if let Some(found) = found.filter(|f| f.owner_word.is_live()) {
        assert_eq!(found.owner_word.cell(), CellNo::new(1), "another name's owner word");
    }
    daemon.join().unwrap();
}

#[test]
fn a_long_names_block_is_given_to_another_name() {
    holds("long name's block reused", None, || block_reused(true));
    refuted("long name's block reused under a tomb's key", "the name is there", || block_reused(false));
}

/// The name is taken over, again and again; it is never absent.
fn taken_over(find: fn(&World) -> bool) {
    let w = World::new(1, b"a");
    let daemon = {
        let w = w.clone();
        spawn(move || {
            w.name_moves(1, ClientNo::new(2), 5);
            w.name_moves(1, OWNER, 0);
        })
    };
    reached();
    assert!(find(&w), "false miss");
    daemon.join().unwrap();
}

#[test]
fn a_look_up_finds_a_name_that_is_being_taken_over() {
    holds("look-up during takeovers", None, || taken_over(|w| w.find(b"a").unwrap().is_some()));
    refuted("look-up that goes on when owner word moved", "false miss", || {
        taken_over(|w| {
            let entry = &w.names[1];
            let owner_word = entry.owner_word.read();
            entry.name[0].peek() == key_word(b"a") && entry.owner_word_after_key() == owner_word
        });
    });
}

/// A name is deleted and bound again, in another entry and another place; a reader looks for it afterwards.
fn bound_again(frees_early: bool) {
    let w = World::new(1, b"b");
    // The name stands in the second place, behind another one.
    w.names[2].set_key(HASH, b"a", 0, &w.long_names);
    w.lead(1, 2);
    w.name_moves(2, OWNER, 0);
    let daemon = {
        let w = w.clone();
        spawn(move || {
            w.name_ends(1);
            w.places[0].set(if frees_early { PlaceWord::FREE.0 } else { PlaceWord::PASSED.0 });
            w.name_moves(2, ClientNo::new(2), 5);
        })
    };
    reached();
    assert!(w.find(b"a").unwrap().is_some_and(|f| f.owner_word.is_live()), "false miss");
    daemon.join().unwrap();
}

#[test]
fn a_place_is_passed_while_a_search_needs_it() {
    holds("place passed, name behind it", None, || bound_again(false));
    refuted("place freed before one that a search must reach", "false miss", || bound_again(true));
}

#[derive(Clone, Copy, PartialEq)]
enum Growth {
    Right,
    /// The old table is given back before the new one is announced.
    GivenBackEarly,
    /// The new table is announced before it is complete.
    AnnouncedEarly,
    /// A reader believes a miss without another look at the table word.
    MissBelieved,
    /// The old table's places are wiped for the next table without the fence before it.
    WipedWithoutFence,
}

/// The event in the new table.
#[derive(Clone, Copy, PartialEq)]
enum After {
    Nothing,
    /// The client deletes the name and fills the slot of its value again.
    Deleted,
    /// The name is deleted, its entry given to another one, and the name bound again in a third place.
    BoundAgain,
}

/// The table grows. The daemon frees the old one, or initializes it again with another seed: it reads as zeroes.
fn grown(how: Growth, after: After) {
    let w = World::new(0, b"a");
    let again = Arc::new(Word::new(0));
    let daemon = {
        let (w, again) = (w.clone(), again.clone());
        spawn(move || {
            let announce = || w.table.set(TableWord::new(1, 1).0);
            if how == Growth::GivenBackEarly {
                w.places[0].set(0);
            }
            if how == Growth::AnnouncedEarly {
                announce();
            }
            w.lead(1, 1);
            if how != Growth::AnnouncedEarly {
                announce();
            }
            if how != Growth::WipedWithoutFence {
                begin_table_in(&w.seeds, TableWord::new(0, 0), 7);
            }
            w.places[0].put(0);
            if after == After::Nothing {
                return;
            }
            w.name_ends(1);
            w.places[1].set(PlaceWord::PASSED.0);
            if after == After::Deleted {
                scan_fence();
                if !holds_lease(&w.leases, A_VALUE) {
                    w.bytes.write(A_VALUE.slot().get());
                }
                return;
            }
            w.names[1].set_key(HASH, b"b", 0, &w.long_names);
            w.name_moves(1, ClientNo::new(2), 5);
            w.names[2].set_key(HASH, b"a", 0, &w.long_names);
            w.lead(2, 2);
            w.name_moves(2, OWNER, 0);
            again.set(1);
        })
    };
    let bound_again = again.read() == 1;
    let find = || {
        if how != Growth::MissBelieved {
            return w.find(b"a");
        }
        let word = w.table.read();
        let still = Word::new(word);
        find_in(&still, &w.seeds, &w.places, &w.names, &w.long_names, HASH, b"a")
    };
    for _ in 0..2 {
        match find() {
            Ok(Some(found)) => {
                assert!(!bound_again || found.owner_word.is_live(), "false miss");
                w.get(found);
                break;
            }
            Ok(None) => {
                assert!(after != After::Nothing && !bound_again, "false miss");
                break;
            }
            Err(Replaced) => {}
        }
    }
    daemon.join().unwrap();
}

#[test]
fn a_table_is_replaced() {
    holds("growth", None, || grown(Growth::Right, After::Nothing));
    holds("growth, then delete and reclaim", None, || grown(Growth::Right, After::Deleted));
    holds("growth, then bound again elsewhere", Some(3), || grown(Growth::Right, After::BoundAgain));
    refuted("growth, old table given back too early", "false miss", || grown(Growth::GivenBackEarly, After::Nothing));
    refuted("growth, new table announced too early", "false miss", || grown(Growth::AnnouncedEarly, After::Nothing));
    refuted("growth, a miss in the old table believed", "false miss", || grown(Growth::MissBelieved, After::Nothing));
    refuted("growth, old table wiped without a fence", "false miss", || {
        grown(Growth::WipedWithoutFence, After::Nothing)
    });
}
