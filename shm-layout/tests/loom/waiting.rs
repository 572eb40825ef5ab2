//! No client sleeps on a value that was replaced.

use crate::{OWNER, holds, live, reached, refuted, spawn, then_live};
use std::sync::Arc;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::publish::overwrite;
use tensorlend_layout::sync::{Ordering, fence};
use tensorlend_layout::wake::{declare, news_fence, park};
use tensorlend_layout::word::{Bell, Cell, Word, parked_bit};

struct World {
    owner_word: Word,
    cell: Word,
    /// The owner's bell, in its catalogue.
    bell: Bell,
    /// The directory's.
    directory_bell: Bell,
    parked: Word,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            owner_word: Word::new(live(OWNER, 0)),
            cell: Word::new(Cell::new(1, SlotNo::new(0)).0),
            bell: Bell::new(),
            directory_bell: Bell::new(),
            parked: Word::new(0),
        })
    }

    fn look(&self) -> (u64, u64) {
        (self.owner_word.read(), self.cell.read())
    }

    /// Returns true if a sleep on these samples would end: the kernel compares them with the bells, now and at every
    /// ring.
    fn woken(&self, samples: (u32, u32)) -> bool {
        (self.bell.read(), self.directory_bell.read()) != samples
    }

    fn put(&self, new: Cell, fenced: bool) {
        if fenced {
            overwrite(&self.owner_word, live(OWNER, 0), &self.cell, new);
        } else {
            self.cell.swap(new.0);
        }
        if self.parked.read() & parked_bit(OWNER) != 0 {
            self.bell.ring();
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Sleeper {
    Right,
    NoFence,
    SampledLate,
}

/// Parks on the value that the client has seen. Returns the samples if it would sleep.
fn wait(w: &World, seen: (u64, u64), how: Sleeper) -> Option<(u32, u32)> {
    let mark = parked_bit(OWNER);
    let directory = if how == Sleeper::SampledLate { 0 } else { w.directory_bell.read() };
    let mut samples = match how {
        Sleeper::Right => (park(&w.bell, &w.parked, mark), directory),
        Sleeper::NoFence => {
            let sample = w.bell.read();
            w.parked.set(mark);
            (sample, directory)
        }
        Sleeper::SampledLate => {
            declare(&w.parked, mark);
            (0, 0)
        }
    };
    let stale = w.look() == seen;
    if how == Sleeper::SampledLate {
        samples = (w.bell.read(), w.directory_bell.read());
    }
    stale.then_some(samples)
}

/// The owner overwrites while another client waits for a newer value.
fn overwritten(how: Sleeper, fenced: bool) {
    let w = World::new();
    let seen = w.look();
    let owner = {
        let w = w.clone();
        spawn(move || w.put(Cell::new(1, SlotNo::new(1)), fenced))
    };
    let asleep = wait(&w, seen, how);
    owner.join().unwrap();
    if let Some(samples) = asleep {
        reached();
        assert!(w.woken(samples), "asleep for ever");
    }
}

#[test]
fn an_overwrite_wakes() {
    holds("wait for a newer value", None, || overwritten(Sleeper::Right, true));
    refuted("no fence of the sleeper", "asleep for ever", || overwritten(Sleeper::NoFence, true));
    refuted("no fence of the producer", "asleep for ever", || overwritten(Sleeper::Right, false));
    refuted("bell sampled after the look", "asleep for ever", || overwritten(Sleeper::SampledLate, true));
}

/// Two overwrites, and a sleeper that waits twice and removes its mark in between.
#[test]
fn two_overwrites_wake_twice() {
    holds("wait for a newer value, twice", None, || {
        let w = World::new();
        let seen = w.look();
        let owner = {
            let w = w.clone();
            spawn(move || {
                w.put(Cell::new(1, SlotNo::new(1)), true);
                w.put(Cell::new(1, SlotNo::new(2)), true);
            })
        };
        let mut asleep = wait(&w, seen, Sleeper::Right);
        if asleep.is_none() {
            w.parked.set(0);
            let seen = w.look();
            if seen.1 != Cell::new(1, SlotNo::new(2)).0 {
                asleep = wait(&w, seen, Sleeper::Right);
            }
        }
        owner.join().unwrap();
        if let Some(samples) = asleep {
            reached();
            assert!(w.woken(samples), "asleep for ever");
        }
    });
}

/// The daemon moves the name: the sleeper waits on the directory's bell as well.
fn moved(fenced: bool) {
    let w = World::new();
    let seen = w.look();
    let daemon = {
        let w = w.clone();
        spawn(move || {
            w.owner_word.set(then_live(live(OWNER, 0), ClientNo::new(2), 0));
            if fenced {
                news_fence();
            }
            if w.parked.read() != 0 {
                w.directory_bell.ring();
            }
        })
    };
    let asleep = wait(&w, seen, Sleeper::Right);
    daemon.join().unwrap();
    if let Some(samples) = asleep {
        reached();
        assert!(w.woken(samples), "asleep for ever");
    }
}

#[test]
fn a_takeover_wakes() {
    holds("wait while the name is taken over", None, || moved(true));
    refuted("no fence of the daemon", "asleep for ever", || moved(false));
}

/// Two threads of one client share the parked word. The second mark must not overwrite the first.
fn two_sleepers(keeps: bool) {
    let w = World::new();
    let seen = w.look();
    let other = {
        let w = w.clone();
        spawn(move || {
            // Waits for a value of another catalogue.
            let mark = parked_bit(ClientNo::new(OWNER.get() + 1));
            assert_ne!(mark, parked_bit(OWNER));
            if keeps {
                w.parked.set_bits(mark);
            } else {
                w.parked.set(mark);
            }
            fence(Ordering::SeqCst);
        })
    };
    let owner = {
        let w = w.clone();
        spawn(move || w.put(Cell::new(1, SlotNo::new(1)), true))
    };
    let sample = w.bell.read();
    w.parked.set_bits(parked_bit(OWNER));
    fence(Ordering::SeqCst);
    let asleep = (w.look() == seen).then_some((sample, 0));
    owner.join().unwrap();
    other.join().unwrap();
    if let Some(samples) = asleep {
        reached();
        assert!(w.woken(samples), "asleep for ever");
    }
}

#[test]
fn the_mark_is_the_union_of_the_sleepers() {
    holds("two threads park", None, || two_sleepers(true));
    refuted("one thread's mark replaces another's", "asleep for ever", || two_sleepers(false));
}
