//! Models of the protocol. loom runs each of them over every interleaving and every value that the memory model lets a
//! load return.
//!
//! Each model uses the crate's own words and functions. Next to each proof are its refutations: the same model without
//! one ordering, fence or second check. A refutation must fail; otherwise the model would prove nothing.
//!
//! `just loom`, or `RUSTFLAGS="--cfg loom" cargo test --release -p tensorlend-layout --test loom`. Models are
//! exhaustive unless they state a bound on preemptions, which `LOOM_MAX_PREEMPTIONS` replaces. `--nocapture` shows the
//! counts.
//!
//! Loom reduces the interleavings that it tries: for each access, it tries the opposite order only with the *last*
//! access of the same word by another thread. A writer that reads its own word immediately before it stores (as
//! `Shard::free_entry` and `Ring::send` do) hides a reader's load in this way. The opposite order starts from the
//! reader and hides nothing. So every model is explored once for each set of threads that are held back at first.
#![cfg(loom)]
#![allow(clippy::arc_with_non_send_sync, reason = "loom runs all threads of a model on one thread")]

#[path = "loom/acquire.rs"]
mod acquire;
#[path = "loom/children.rs"]
mod children;
#[path = "loom/death.rs"]
mod death;
#[path = "loom/description.rs"]
mod description;
#[path = "loom/first.rs"]
mod first;
#[path = "loom/lease_table.rs"]
mod lease_table;
#[path = "loom/members.rs"]
mod members;
#[path = "loom/names.rs"]
mod names;
#[path = "loom/stream_sleeps.rs"]
mod stream_sleeps;
#[path = "loom/streams.rs"]
mod streams;
#[path = "loom/takeover.rs"]
mod takeover;
#[path = "loom/waiting.rs"]
mod waiting;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::thread::{self, JoinHandle};
use std::cell::Cell as Local;
use std::sync::{Arc, Once};
use std::time::Instant;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::number::{CellNo, ClientNo};
use tensorlend_layout::word::{Cell, OwnerWord};

/// Catalogue of the client that owns the name, in models with one owner.
const OWNER: ClientNo = ClientNo::new(1);

/// A race on tensor bytes, in loom's words.
const RACE: &str = "Causality violation";

thread_local! {
    static RUNS: Local<usize> = const { Local::new(0) };
    static REACHED: Local<usize> = const { Local::new(0) };
    static EXPECTED: Local<bool> = const { Local::new(false) };
    /// Bit t is set if thread t is held back at first; bit 0 is the model's main thread.
    static HELD_BACK: Local<u32> = const { Local::new(0) };
    static SPAWNED: Local<u32> = const { Local::new(0) };
}

/// Starts a thread of a model.
fn spawn<T: 'static>(run: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    SPAWNED.set(SPAWNED.get() + 1);
    let held_back = HELD_BACK.get() >> SPAWNED.get() & 1 == 1;
    let handle = thread::spawn(move || {
        if held_back {
            thread::yield_now();
        }
        run()
    });
    if HELD_BACK.get() & 1 == 1 {
        thread::yield_now();
    }
    handle
}

/// Counts an execution in which the model took the path that it is about.
fn reached() {
    REACHED.set(REACHED.get() + 1);
}

/// The bytes of four slots. loom reports every access that neither happens before nor after each other thread's write.
struct Bytes([UnsafeCell<u64>; 4]);

impl Bytes {
    fn new() -> Self {
        Self(core::array::from_fn(|_| UnsafeCell::new(0)))
    }

    fn read(&self, cell: Cell) {
        self.0[cell.slot().index()].with(|_| ());
    }

    /// Fills the slot. The owner calls this when it believes that no process reads the slot.
    fn write(&self, slot: u32) {
        self.0[slot as usize].with_mut(|_| ());
    }
}

/// The owner word of a name in an owner's cell, as the entry's first.
fn live(owner: ClientNo, cell: u32) -> u64 {
    OwnerWord(0).then_live(owner, CellNo::new(cell)).0
}

/// The owner word that follows `before`, of a name in an owner's cell.
fn then_live(before: u64, owner: ClientNo, cell: u32) -> u64 {
    OwnerWord(before).then_live(owner, CellNo::new(cell)).0
}

/// The owner word that follows `before`, without a name.
fn then_tomb(before: u64) -> u64 {
    OwnerWord(before).then_tomb().0
}

/// Whether a table holds a lease of this value of [`OWNER`].
fn holds_lease(table: &LeaseTable, cell: Cell) -> bool {
    let mut found = false;
    table.scan(|lease| found |= lease == cell.lease(OWNER));
    found
}

fn run(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    RUNS.set(0);
    REACHED.set(0);
    let model = Arc::new(model);
    let mut held_back = 0;
    while held_back == 0 || held_back < 2 << SPAWNED.get() {
        HELD_BACK.set(held_back);
        let mut builder = Builder::new();
        builder.max_branches = 20_000;
        builder.preemption_bound = preemptions;
        let model = model.clone();
        builder.check(move || {
            RUNS.set(RUNS.get() + 1);
            SPAWNED.set(0);
            model();
        });
        held_back += 1;
    }
}

/// Checks that the model holds in every execution, and that at least one execution took the path that the model is
/// about.
fn holds(name: &str, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let started = Instant::now();
    let preemptions = preemptions.map(|stated| Builder::new().preemption_bound.unwrap_or(stated));
    run(preemptions, model);
    let bound = preemptions.map_or("exhaustive".into(), |n| format!("{n} preemptions"));
    let (runs, hits) = (RUNS.get(), REACHED.get());
    println!("holds    {name}: {runs} executions, {hits} reached, {bound}, {:.1?}", started.elapsed());
    assert!(hits > 0, "{name}: the path that the model is about is never taken");
}

/// Checks that the model with one mistake fails as `expected`.
fn refuted(name: &str, expected: &str, model: impl Fn() + Send + Sync + 'static) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !EXPECTED.get() {
                loud(panic);
            }
        }));
    });
    let started = Instant::now();
    EXPECTED.set(true);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(None, model)));
    EXPECTED.set(false);
    let Err(panic) = outcome else {
        panic!("{name}: no execution of {} fails", RUNS.get());
    };
    let text = (panic.downcast_ref::<String>().map(String::as_str))
        .or(panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without words");
    assert!(text.contains(expected), "{name}: failed otherwise than expected: {text}");
    println!("refuted  {name}: after {} executions, {:.1?}", RUNS.get(), started.elapsed());
}
