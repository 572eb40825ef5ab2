//! The janitor: ends leases whose streams have not passed yet, and releases device memory that is no longer lent.
//!
//! Each session with device memory has one such thread. It sleeps on two bells: the directory's rings for segments that the
//! daemon takes back, and the thread's own rings for new work. After a timeout it polls in any case. While events are pending,
//! it polls them, at first often. So the memory of a lease returns soon, and the driver never blocks the thread on one stream
//! while another has passed.

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

/// Shortest and longest pause between two polls of pending events.
const NAP: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(2));
/// Pause between two checks of the lent segments, if no bell rings.
const POLL: Duration = Duration::from_secs(2);

/// Work to do once these events have fired.
pub struct Ending {
    pub gpu: Arc<Gpu>,
    pub events: Vec<Event>,
    /// Receives whether the device work is done; false if its context is lost, so that it never will be.
    pub then: Box<dyn FnOnce(bool) + Send>,
    /// A slot that another draft in the same stream may take earlier, if its work begins after these events.
    pub dropped: Option<Dropped>,
}

/// The slot of a dropped draft, and the only stream in which it was used.
pub struct Dropped {
    pub taken: TakenOn,
    pub stream: usize,
}

impl Ending {
    /// Returns whether all events have fired; `Some(false)` if the context is lost, so that nothing runs in it any more. Any
    /// other failure of the query proves nothing about the work, and the query is repeated.
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

/// The janitor's work for its session, as long as the session exists.
pub trait Upkeep: Send + Sync {
    /// Unmaps segments that are no longer lent.
    fn sweep(&self);
    /// Reports unmapped memory to the daemon. Returns false if the session has ended.
    fn report(&self) -> bool;
}

/// The janitor of one session.
pub struct Janitor {
    bell: Bell,
    endings: Mutex<Vec<Ending>>,
    upkeep: OnceLock<(Directory, Arc<dyn Upkeep>)>,
    started: AtomicBool,
    stopped: AtomicBool,
    /// Imported pools, by the daemon's number: one pool has many blocks.
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
    /// Wakes the janitor.
    pub fn ring(&self) {
        self.bell.ring();
        futex::wake_all(&self.bell);
    }

    /// Stops the janitor.
    pub fn stop(&self) {
        // Relaxed: the bell orders it.
        self.stopped.store(true, Ordering::Relaxed);
        self.ring();
    }

    /// Leaves work to the janitor, for when its events have fired.
    pub fn leave(&self, ending: Ending) {
        let first = {
            let mut endings = lock(&self.endings);
            endings.push(ending);
            endings.len() == 1
        };
        // While an event is pending, the thread does not sleep for long.
        if first {
            self.ring();
        }
    }

    /// Takes the newest ending of a draft of the same length that was dropped in this stream.
    pub fn take_dropped(&self, extent: (u16, u64), stream: usize) -> Option<Ending> {
        let fits = |it: &Dropped| it.stream == stream && it.taken.extent == extent;
        let mut endings = lock(&self.endings);
        let at = endings.iter().rposition(|ending| ending.dropped.as_ref().is_some_and(fits))?;
        Some(endings.swap_remove(at))
    }

    /// Forgets the pools of the former daemon.
    pub fn forget_pools(&self) {
        lock(&self.pools).clear();
    }

    /// Returns the pool with this number, which `import` imports if need be.
    pub fn pool(&self, number: u64, import: impl FnOnce(Option<Pool>) -> Result<Pool>) -> Result<Pool> {
        let mut pools = lock(&self.pools);
        let pool = import(pools.get(&number).cloned())?;
        pools.entry(number).or_insert_with(|| pool.clone());
        Ok(pool)
    }

    /// Sets the directory that the janitor watches, and the janitor's work for the session.
    pub fn know(&self, directory: Directory, upkeep: Arc<dyn Upkeep>) {
        let _ = self.upkeep.set((directory, upkeep));
    }

    /// Starts the thread, with the session's first device memory.
    pub fn start(self: &Arc<Self>) {
        let Some((directory, upkeep)) = self.upkeep.get() else { return };
        // Relaxed: a caller that finds it started needs nothing from the thread.
        if self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        let its = Thread { janitor: self.clone(), directory: directory.clone(), upkeep: upkeep.clone() };
        if thread::spawn("tensorlend-device", move || its.run()).is_err() {
            // The next call tries again.
            self.started.store(false, Ordering::Relaxed);
        }
    }

    /// Executes the work whose events have fired; returns whether there was any, and whether events are still pending.
    pub fn finish(&self) -> (bool, bool) {
        // The program may be capturing a graph, which this must not disturb.
        let _relaxed = Relaxed::enter();
        let (mut any, mut over, mut others) = (false, Vec::new(), Vec::new());
        {
            let mut endings = lock(&self.endings);
            for mut ending in std::mem::take(&mut *endings) {
                // An ending with a dropped slot stays in the list, and is queried under the lock. So `take_dropped`
                // finds the slot even while this thread queries the other endings without the lock.
                if ending.dropped.is_none() {
                    others.push(ending);
                } else if let Some(done) = ending.is_over() {
                    over.push((ending, done));
                } else {
                    endings.push(ending);
                }
            }
        }
        // Query without the lock: each query asks the driver, and an ending may hold the last reference to a session.
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
        // Endings that were added in the meantime are younger.
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
        let (mut nap, mut seen, mut polled) = (NAP.0, returned.read().wrapping_sub(1), Instant::now());
        loop {
            let (own, theirs) = (self.janitor.bell.read(), returned.read());
            let (any, outstanding) = self.janitor.finish();
            if seen != theirs || polled.elapsed() >= POLL {
                (seen, polled) = (theirs, Instant::now());
                self.upkeep.sweep();
            }
            // Relaxed: see `stop`.
            if self.janitor.stopped.load(Ordering::Relaxed) || !self.upkeep.report() {
                return;
            }
            nap = if any { NAP.0 } else { (nap * 2).min(NAP.1) };
            let sleep = if outstanding { nap } else { POLL };
            futex::wait_any(&[(returned, theirs), (&self.janitor.bell, own)], sleep);
        }
    }
}
