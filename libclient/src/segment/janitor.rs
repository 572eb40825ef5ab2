//! What ends later than the call that ends it: leases whose streams have not come past yet, and device memory that was lent
//! no more.
//!
//! One thread for each session that has device memory. It sleeps on two bells, the directory's for segments that were taken
//! back and its own, and looks again after a timeout in any case. While events are outstanding it asks for them, at first
//! often: so the memory of a lease comes back soon, and nobody waits in the driver for one stream while another has come past.

use crate::error::Result;
use crate::gpu::Gpu;
use crate::segment::map::TakenOn;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tensorlend_cuda::{Event, capture::Relaxed, pool::Pool};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::word::Bell;
use tensorlend_os::mutex::lock;
use tensorlend_os::{futex, thread};

/// Between two looks at events that are outstanding, from ... to.
const NAP: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(2));
/// Between two looks at what is lent, if no bell rings.
const LOOK: Duration = Duration::from_secs(2);

/// What is to be done once these events have fired.
pub struct Ending {
    pub gpu: Arc<Gpu>,
    pub events: Vec<Event>,
    /// Is told whether the work was done; else its context is lost, and it never will be.
    pub then: Box<dyn FnOnce(bool) + Send>,
    /// What another draft in the same stream may have before, if its work is made to begin after these events.
    pub dropped: Option<Dropped>,
}

/// The slot of a draft that was dropped, and the one stream in which it was used.
pub struct Dropped {
    pub taken: TakenOn,
    pub stream: usize,
}

impl Ending {
    /// Whether all have fired; `Some(false)`: the context is lost, where nothing runs any more. Any other failure of the question
    /// says nothing about the work, and it is asked again.
    fn is_over(&mut self) -> Option<bool> {
        let (gpu, mut lost) = (&self.gpu, false);
        let over = self.events.extract_if(.., |event| {
            event.query().unwrap_or_else(|error| {
                lost |= error.is_lost();
                error.is_lost()
            })
        });
        over.for_each(|event| gpu.give_event(event));
        self.events.is_empty().then_some(!lost)
    }
}

/// What the janitor does for its session, as long as there is one.
pub trait Upkeep: Send + Sync {
    /// Unmaps what is no longer lent.
    fn sweep(&self);
    /// Reports to the daemon what is gone. False: the session has ended.
    fn report(&self) -> bool;
}

/// One session's.
pub struct Janitor {
    bell: Bell,
    endings: Mutex<Vec<Ending>>,
    upkeep: OnceLock<(Directory, Arc<dyn Upkeep>)>,
    started: AtomicBool,
    stopped: AtomicBool,
    /// Pools that are imported, by the daemon's number: the same for all of their blocks.
    pools: Mutex<BTreeMap<u64, Pool>>,
}

impl Default for Janitor {
    fn default() -> Self {
        Self {
            bell: Bell::new(),
            endings: Mutex::new(Vec::new()),
            upkeep: OnceLock::new(),
            started: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            pools: Mutex::new(BTreeMap::new()),
        }
    }
}

impl Janitor {
    /// Has it look.
    pub fn ring(&self) {
        self.bell.ring();
        futex::wake_all(&self.bell);
    }

    /// There is nothing more to see to.
    pub fn stop(&self) {
        // Relaxed: the bell orders it.
        self.stopped.store(true, Ordering::Relaxed);
        self.ring();
    }

    /// Sees to it that something is done once its events have fired.
    pub fn leave(&self, ending: Ending) {
        let first = {
            let mut endings = lock(&self.endings);
            endings.push(ending);
            endings.len() == 1
        };
        // While something is outstanding, it does not sleep for long.
        if first {
            self.ring();
        }
    }

    /// The ending of a draft of the same length that was dropped in this stream, the last one first.
    pub fn take_dropped(&self, extent: (u16, u64), stream: usize) -> Option<Ending> {
        let fits = |it: &Dropped| it.stream == stream && it.taken.extent == extent;
        let mut endings = lock(&self.endings);
        let at = endings.iter().rposition(|ending| ending.dropped.as_ref().is_some_and(fits))?;
        Some(endings.swap_remove(at))
    }

    /// Another daemon has other pools.
    pub fn forget_pools(&self) {
        lock(&self.pools).clear();
    }

    /// An imported pool.
    pub fn pool(&self, number: u64, import: impl FnOnce(Option<Pool>) -> Result<Pool>) -> Result<Pool> {
        let mut pools = lock(&self.pools);
        let pool = import(pools.get(&number).cloned())?;
        pools.entry(number).or_insert_with(|| pool.clone());
        Ok(pool)
    }

    /// Whose directory it watches, and what it does there.
    pub fn know(&self, directory: Directory, upkeep: Arc<dyn Upkeep>) {
        let _ = self.upkeep.set((directory, upkeep));
    }

    /// Starts the thread with the session's first device memory.
    pub fn start(self: &Arc<Self>) {
        let Some((directory, upkeep)) = self.upkeep.get() else { return };
        // Relaxed: whoever finds it started needs nothing of it.
        if self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        let its = Thread { janitor: self.clone(), directory: directory.clone(), upkeep: upkeep.clone() };
        if thread::spawn("tensorlend-device", move || its.run()).is_err() {
            // Tried again with the next.
            self.started.store(false, Ordering::Relaxed);
        }
    }

    /// Does what can be done; whether that was anything, and whether something is still outstanding.
    pub fn finish(&self) -> (bool, bool) {
        // Somebody may be recording a graph, which is no affair of ours.
        let _relaxed = Relaxed::enter();
        let (mut any, mut over, mut others) = (false, Vec::new(), Vec::new());
        {
            let mut endings = lock(&self.endings);
            for mut ending in std::mem::take(&mut *endings) {
                // Who creates a draft finds the slot that was dropped in its stream at any time, also while the driver is asked.
                if ending.dropped.is_none() {
                    others.push(ending);
                } else if let Some(done) = ending.is_over() {
                    over.push((ending, done));
                } else {
                    endings.push(ending);
                }
            }
        }
        // Without the lock: the driver is asked for each, and what ends may be the last that holds a session.
        let mut outstanding = Vec::new();
        for mut ending in others {
            match ending.is_over() {
                Some(done) => over.push((ending, done)),
                None => outstanding.push(ending),
            }
        }
        for (ending, done) in over {
            any = true;
            (ending.then)(done);
        }
        let mut endings = lock(&self.endings);
        // Those that came meanwhile are younger.
        outstanding.append(&mut endings);
        *endings = outstanding;
        (any, !endings.is_empty())
    }
}

struct Thread {
    janitor: Arc<Janitor>,
    directory: Directory,
    upkeep: Arc<dyn Upkeep>,
}

impl Thread {
    fn run(self) {
        let returned = &self.directory.head().returned;
        let (mut nap, mut seen, mut looked) = (NAP.0, returned.read().wrapping_sub(1), Instant::now());
        loop {
            let (own, theirs) = (self.janitor.bell.read(), returned.read());
            let (any, outstanding) = self.janitor.finish();
            if seen != theirs || looked.elapsed() >= LOOK {
                (seen, looked) = (theirs, Instant::now());
                self.upkeep.sweep();
            }
            // Relaxed: see `stop`.
            if self.janitor.stopped.load(Ordering::Relaxed) || !self.upkeep.report() {
                return;
            }
            nap = if any { NAP.0 } else { (nap * 2).min(NAP.1) };
            let sleep = if outstanding { nap } else { LOOK };
            futex::wait_any(&[(returned, theirs), (&self.janitor.bell, own)], sleep);
        }
    }
}
