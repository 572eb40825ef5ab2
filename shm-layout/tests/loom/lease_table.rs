//! Threads pass entries to each other, shards are taken and retired, and the scan skips unused shards.

use crate::{Bytes, OWNER, RACE, holds, holds_lease, reached, refuted};
use loom::thread::JoinHandle;
use std::sync::Arc;
use tensorlend_layout::describe::Model;
use tensorlend_layout::leases::{LeaseTable, Shard, acquire, release, scan_fence};
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::sync::{Ordering, fence};
use tensorlend_layout::word::{Cell, LeaseWord, Word};

const FIRST: Cell = Cell::new(1, SlotNo::new(0));
const SECOND: Cell = Cell::new(1, SlotNo::new(1));
const OTHER: LeaseWord = Cell::new(9, SlotNo::new(3)).lease(ClientNo::new(7));

struct World {
    cell: Word,
    table: LeaseTable,
    bytes: Bytes,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self { cell: Word::new(FIRST.0), table: LeaseTable::model(), bytes: Bytes::new() })
    }

    /// The owner replaces the value, scans, and refills the old slot if it found no lease.
    fn reclaim(&self) {
        let before = Cell(self.cell.swap(SECOND.0));
        scan_fence();
        if !holds_lease(&self.table, before) {
            self.bytes.write(before.slot().get());
        }
    }

    fn spawn<T: 'static>(self: &Arc<Self>, run: impl FnOnce(&Self) -> T + 'static) -> JoinHandle<T> {
        let w = self.clone();
        crate::spawn(move || run(&w))
    }

    /// A lease of the first value, validated, in the shard's first entry.
    fn leased(&self) -> &Word {
        let entry = Shard::new(&self.table, 0).free_entry().unwrap();
        assert!(acquire(entry, FIRST.lease(OWNER), &[(&self.cell, FIRST.0)]));
        entry
    }

    /// A complete read through a shard of its own.
    fn read(&self, shard: &Shard) {
        let cell = Cell(self.cell.read());
        let entry = shard.free_entry().unwrap();
        if acquire(entry, cell.lease(OWNER), &[(&self.cell, cell.0)]) {
            reached();
            if cell == FIRST {
                self.bytes.read(cell);
            }
            release(entry);
        }
    }
}

/// One thread reads and releases, another takes the next free entry, the owner scans.
fn hand_over(end: fn(&Word), take: fn(&World) -> &Word) {
    let w = World::new();
    let entry = w.leased();
    let taker = w.spawn(move |w| {
        let entry = take(w);
        if core::ptr::eq(entry, &raw const w.table.entries[0][0]) {
            reached();
        }
        acquire(entry, OTHER, &[]);
    });
    let owner = w.spawn(World::reclaim);
    w.bytes.read(FIRST);
    end(entry);
    taker.join().unwrap();
    owner.join().unwrap();
}

fn free_entry(w: &World) -> &Word {
    Shard::new(&w.table, 0).free_entry().unwrap()
}

#[test]
fn an_entry_goes_from_thread_to_thread() {
    holds("entry handed over between threads", None, || hand_over(release, free_entry));
}

#[test]
fn an_entry_handed_over_carelessly() {
    refuted("entry freed with a relaxed store", RACE, || hand_over(|entry| entry.put(0), free_entry));
    refuted("entry taken with a relaxed load", RACE, || {
        hand_over(release, |w| w.table.entries[0].iter().find(|e| e.peek() == 0).unwrap());
    });
}

/// One thread ends a lease and takes another in the same entry.
fn reuse(end: fn(&Word), next: fn(&Word)) {
    let w = World::new();
    let entry = w.leased();
    let owner = w.spawn(World::reclaim);
    w.bytes.read(FIRST);
    end(entry);
    next(entry);
    reached();
    owner.join().unwrap();
}

#[test]
fn an_entry_is_reused() {
    holds("entry reused", None, || reuse(release, |e| assert!(acquire(e, OTHER, &[]))));
    holds("entry rewritten in place", None, || reuse(|_| (), |e| assert!(acquire(e, OTHER, &[]))));
    refuted("entry reused with relaxed stores", RACE, || reuse(|e| e.put(0), |e| e.put(OTHER.0)));
}

/// A lease that is moved to the entry that the scan has passed already.
fn moved(moves: bool) {
    let w = World::new();
    let low = w.leased();
    let high = Shard::new(&w.table, 0).free_entry().unwrap();
    assert!(acquire(high, FIRST.lease(OWNER), &[(&w.cell, FIRST.0)]));
    release(low);
    let owner = w.spawn(World::reclaim);
    let held = if moves {
        low.set(FIRST.lease(OWNER).0);
        fence(Ordering::SeqCst);
        release(high);
        low
    } else {
        high
    };
    reached();
    w.bytes.read(FIRST);
    release(held);
    owner.join().unwrap();
}

#[test]
fn a_lease_stays_in_its_entry() {
    holds("lease stays in its entry", None, || moved(false));
    refuted("lease moved between entries", RACE, || moved(true));
}

#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    HighWaterLate,
    HighWaterLowered,
    BitLate,
    BitCleared,
}

/// The steps of `Shard::free_entry`, `acquire` and `release`, with a mistake.
fn read_wrongly(w: &World, mistake: Mistake) {
    let (high, used, entry) = (&w.table.high_water[0], &w.table.shards_used, &w.table.entries[0][0]);
    let cell = Cell(w.cell.read());
    let raise = || high.set(1);
    let mark = || {
        used.set_bits(1);
    };
    if mistake != Mistake::HighWaterLate {
        raise();
    }
    if mistake != Mistake::BitLate {
        mark();
    }
    entry.set(cell.lease(OWNER).0);
    fence(Ordering::SeqCst);
    match mistake {
        Mistake::HighWaterLate => raise(),
        Mistake::BitLate => mark(),
        _ => {}
    }
    if w.cell.peek() == cell.0 {
        fence(Ordering::Acquire);
        match mistake {
            Mistake::HighWaterLowered => high.set(0),
            Mistake::BitCleared => {
                used.clear_bits(1);
            }
            _ => {}
        }
        if cell == FIRST {
            w.bytes.read(cell);
        }
    }
    release(entry);
}

/// A thread takes the shard, reads and retires the shard, while the owner scans.
fn shard_life(read: fn(&World)) {
    let w = World::new();
    let owner = w.spawn(World::reclaim);
    read(&w);
    owner.join().unwrap();
}

fn take_read_retire(w: &World) {
    let shard = Shard::new(&w.table, 0);
    w.read(&shard);
    assert!(shard.retire());
}

#[test]
fn high_water_and_the_bitmap_hide_no_lease() {
    holds("shard taken, used, retired", None, || shard_life(take_read_retire));
    holds("shard taken, used, retired, twice", None, || {
        shard_life(|w| {
            take_read_retire(w);
            take_read_retire(w);
        });
    });
}

#[test]
fn high_water_and_the_bitmap_out_of_order() {
    refuted("high-water raised after the fence", RACE, || shard_life(|w| read_wrongly(w, Mistake::HighWaterLate)));
    refuted("high-water lowered before the end", RACE, || shard_life(|w| read_wrongly(w, Mistake::HighWaterLowered)));
    refuted("shard marked after the fence", RACE, || shard_life(|w| read_wrongly(w, Mistake::BitLate)));
    refuted("shard's mark cleared before the end", RACE, || shard_life(|w| read_wrongly(w, Mistake::BitCleared)));
}

/// A thread ends a lease of the shard while the shard's owner retires it and another thread takes it over.
fn retired_meanwhile(retire: fn(&World) -> bool) {
    let w = World::new();
    let entry = w.leased();
    let owner = w.spawn(World::reclaim);
    let shards = w.spawn(move |w| {
        if retire(w) {
            reached();
            w.read(&Shard::new(&w.table, 0));
        }
    });
    w.bytes.read(FIRST);
    release(entry);
    shards.join().unwrap();
    owner.join().unwrap();
}

fn clear(w: &World) -> bool {
    w.table.high_water[0].set(0);
    w.table.shards_used.clear_bits(1);
    true
}

#[test]
fn a_shard_is_retired_when_it_is_empty() {
    holds("shard retired while another thread ends its lease", Some(3), || {
        retired_meanwhile(|w| Shard::new(&w.table, 0).retire());
    });
    refuted("shard retired with leases in it", RACE, || retired_meanwhile(clear));
    // This model cannot show that the load that finds the shard empty must be Acquire: loom's acquire fence at the end
    // of the scan also synchronizes with values that *other* threads have loaded, and so is stronger than the
    // language's fence.
}

/// Two threads of one client: one retires its shard, the other takes a lease in its own.
fn two_shards(retire: fn(&World)) {
    let w = World::new();
    release(w.leased());
    let owner = w.spawn(World::reclaim);
    let other = w.spawn(retire);
    w.read(&Shard::new(&w.table, 1));
    other.join().unwrap();
    owner.join().unwrap();
}

#[test]
fn two_threads_move_the_bitmap() {
    holds("one shard retired, another taken", Some(3), || two_shards(|w| assert!(Shard::new(&w.table, 0).retire())));
    refuted("bitmap moved by load and store", RACE, || {
        two_shards(|w| {
            w.table.high_water[0].set(0);
            w.table.shards_used.set(w.table.shards_used.peek() & !1);
        });
    });
}
