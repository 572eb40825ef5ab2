//! Leases under which the children of a fork read.
//!
//! A child C reads its parent P's leased tensors at the same addresses: C inherits P's read-only mappings. P's leases
//! protect the tensors until C, and each process that C forks, has ended or executed another program.
//!
//! | step | by | effect | if P is killed after it |
//! |---|---|---|---|
//! | 1 | P | maps a [`Token`] and the lease table so that C gets them | nothing |
//! | 2 | P | sets `inherited` in its lease table, and counts a hold on each lease ([`ChildHolds`]) | the daemon asks the kernel whether a process has the lease table mapped; none has |
//! | 3 | P | forks | C has the lease table mapped: P's leases count until C ends |
//! | 4 | C | makes the lease table read-only in its own mapping | as 3 |
//! | 5 | P | gives up the token; a release keeps the entry of a lease with a hold | as 3 |
//! | 6 | C | ends: the kernel unmaps token and lease table | the daemon ends P's leases |
//! | 7 | P | learns from the kernel that the token is free, ends the holds, and clears the entries that it has released | |
//!
//! If C is killed at any step, step 6 follows. If P cannot create the token, C inherits none of P's mappings. Only P writes
//! its lease table. The daemon D reads `inherited` when P's session ends.
//!
//! [`ChildHolds`]: tensorlend_layout::child_holds::ChildHolds

use crate::link::shards::{LeaseEntry, Shards};
use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, Once, Weak};
use std::time::Duration;
use tensorlend_os::fork::{self, Hooks};
use tensorlend_os::mutex::lock;
use tensorlend_os::token::Token;
use tensorlend_os::{map, thread};

/// Shortest and longest pause between two checks whether the children of a fork have ended.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(320));

/// The holds of the children of one fork.
struct Hold {
    token: Token,
    leases: Vec<(Weak<Shards>, Vec<LeaseEntry>)>,
}

impl Hold {
    /// Creates the token and the holds for the children of a fork, before this process forks.
    fn new(sessions: &[Weak<Shards>]) -> io::Result<Self> {
        let mut token = Token::new()?;
        let live = || sessions.iter().filter_map(Weak::upgrade);
        if let Err(error) = live().try_for_each(|shards| shards.inherit(true)) {
            token.keep_to_children();
            live().for_each(forgo);
            return Err(error);
        }
        tensorlend_layout::crash_point!("fork: token mapped");
        let leases = sessions.iter().filter_map(|weak| Some((weak.clone(), weak.upgrade()?.hold_for_children())));
        let hold = Self { token, leases: leases.collect() };
        tensorlend_layout::crash_point!("fork: leases held");
        Ok(hold)
    }

    /// Leaves the token and the lease tables to the children of a fork, after this process has forked.
    fn settle(&mut self) {
        self.token.keep_to_children();
        tensorlend_layout::crash_point!("fork: token left to the children");
        self.leases.iter().filter_map(|(weak, _)| weak.upgrade()).for_each(forgo);
    }

    fn end(&self) {
        for (weak, entries) in &self.leases {
            // If the session has ended, its lease table is unmapped here, and the daemon waits for the children.
            if let Some(shards) = weak.upgrade() {
                for &entry in entries {
                    shards.end_hold(entry);
                }
            }
        }
    }
}

/// Keeps the lease table from the children of later forks. If this fails, they inherit it, and the leases last until they
/// end.
fn forgo(shards: Arc<Shards>) {
    let _ = shards.inherit(false);
}

struct Forks {
    /// The generation of the process to which the other fields belong.
    generation: u64,
    sessions: Vec<Weak<Shards>>,
    holds: Vec<Hold>,
    /// The holds for a fork in progress. In a child: the holds that protect the values that the child reads.
    forking: Option<Hold>,
    /// True while a thread checks whether children have ended. The second field is true if that thread should check soon.
    asks: bool,
    soon: bool,
    /// True if this process reads mappings of its parent. The second field is true if the child of a fork in progress may
    /// read them.
    inherits: bool,
    passes_on: bool,
}

static FORKS: Mutex<Forks> = Mutex::new(Forks {
    generation: 0,
    sessions: Vec::new(),
    holds: Vec::new(),
    forking: None,
    asks: false,
    soon: false,
    inherits: false,
    passes_on: false,
});

thread_local! {
    /// Held by the thread that forks: two forks at once would both change which children inherit the lease tables. The
    /// value has no destructor, so that a thread can fork while its thread-local values are destroyed.
    static FORKING: Cell<Option<ManuallyDrop<MutexGuard<'static, Forks>>>> = const { Cell::new(None) };
}

impl Forks {
    /// Forgets the parent's sessions and holds in a child. The parent ends them.
    fn own(&mut self) {
        if self.generation != fork::generation() {
            self.generation = fork::generation();
            self.sessions.clear();
            self.holds.clear();
            self.forking = None;
            self.asks = false;
        }
    }

    /// Ends the holds of children that have ended.
    fn end_free(&mut self) {
        for hold in self.holds.extract_if(.., |hold| hold.token.is_free()) {
            hold.end();
            tensorlend_layout::crash_point!("fork: holds ended");
        }
    }
}

/// Makes the children of later forks read under the leases of a session.
pub fn watch(shards: &Arc<Shards>) {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| fork::on_fork(Hooks { before, in_parent, in_child }));
    let mut forks = lock(&FORKS);
    forks.own();
    forks.sessions.retain(|session| session.strong_count() > 0);
    forks.sessions.push(Arc::downgrade(shards));
}

fn before() {
    let mut forks = lock(&FORKS);
    forks.own();
    forks.end_free();
    forks.sessions.retain(|session| session.strong_count() > 0);
    let leased = forks.sessions.iter().filter_map(Weak::upgrade).any(|shards| shards.has_leases());
    // If this process reads mappings of an ancestor, its children also read the mappings of this process.
    if leased || forks.inherits && !forks.sessions.is_empty() {
        forks.forking = Hold::new(&forks.sessions).ok();
        forks.passes_on = forks.forking.is_some();
    } else {
        forks.passes_on = forks.inherits;
    }
    FORKING.set(Some(ManuallyDrop::new(forks)));
}

fn in_parent() {
    let Some(mut forks) = FORKING.take().map(ManuallyDrop::into_inner) else { return };
    let Some(mut hold) = forks.forking.take() else { return };
    hold.settle();
    forks.holds.push(hold);
    forks.soon = true;
    if !forks.asks {
        // If this process cannot start a thread, the next fork checks.
        forks.asks = thread::spawn("tensorlend-forks", ask).is_ok();
    }
}

fn in_child() -> bool {
    let Some(mut forks) = FORKING.take().map(ManuallyDrop::into_inner) else { return false };
    tensorlend_layout::crash_point!("child: forked");
    let forks = &mut *forks;
    for (weak, _) in forks.forking.iter().flat_map(|hold| &hold.leases) {
        // The parent's strong references exist in the child, too. So this reference is never the last one.
        if let Some(shards) = weak.upgrade() {
            map::protect(shards.sheet().view());
        }
    }
    tensorlend_layout::crash_point!("child: lease table read-only");
    // Close these descriptors now. Later the child may have closed them, and may use their numbers for other files.
    for hold in forks.holds.iter_mut().chain(&mut forks.forking) {
        hold.token.close();
    }
    forks.inherits = forks.passes_on;
    forks.inherits
}

/// Checks from time to time whether children have ended, until all have ended.
fn ask() {
    let mut pause = PAUSE.0;
    loop {
        {
            let mut forks = lock(&FORKS);
            forks.end_free();
            if forks.holds.is_empty() {
                forks.asks = false;
                return;
            }
            if std::mem::take(&mut forks.soon) {
                pause = PAUSE.0;
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE.1);
    }
}
