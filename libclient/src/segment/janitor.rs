//! The janitor ends leases whose streams still have work, and unmaps device memory that is no longer lent.
//!
//! Each session with device memory has one janitor thread. It sleeps on two bells. The directory's bell rings when the
//! daemon takes segments back. The thread's own bell rings for new work. After a timeout the thread polls in any case. While
//! events are pending, the thread polls them, at first often. So the memory of a lease is soon free again. The driver never
//! blocks the thread on one stream while another stream has finished.

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

/// Work to do after these events have fired.
pub struct Ending {
    pub gpu: Arc<Gpu>,
    pub events: Vec<Event>,
    /// Receives true if the device work is done, and false if its context is lost, so that the work never finishes.
    pub then: Box<dyn FnOnce(bool) + Send>,
    /// A slot that a later draft in the same stream may take before these events fire, because its work begins after
    /// them.
    pub dropped: Option<Dropped>,
}

/// The slot of a dropped draft, and the only stream that used the slot.
pub struct Dropped {
    pub taken: TakenOn,
    pub stream: usize,
}

impl Ending {
    /// Returns `Some(true)` if all events have fired, and `Some(false)` if the context is lost, so that nothing runs in it
    /// any more. Any other failure of the query proves nothing about the work, so the janitor repeats the query.
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

/// The janitor's work for its session, while the session exists.
pub trait Upkeep: Send + Sync {
    /// Unmaps segments that are no longer lent.
    fn sweep(&self);
    /// Reports unmapped memory to the daemon. Returns false if the session has ended.
    fn report(&self) -> bool;
}

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
    pub fn ring(&self) {
        self.bell.ring();
        futex::wake_all(&self.bell);
    }

    pub fn stop(&self) {
        // Relaxed: the bell orders this store.
        self.stopped.store(true, Ordering::Relaxed);
        self.ring();
    }

    /// Gives work to the janitor, which executes the work when its events have fired.
    pub fn leave(&self, ending: Ending) {
        let first = {
            let mut endings = lock(&self.endings);
            endings.push(ending);
            endings.len() == 1
        };
        // While an event is pending, the thread only sleeps briefly, so only the first event needs the bell.
        if first {
            self.ring();
        }
    }

    /// Removes and returns the newest ending of a dropped draft of the same length in this stream.
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

    /// Returns the pool with this number. Calls `import` if the pool is not imported yet.
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

    /// Starts the thread, when the session gets its first device memory.
    pub fn start(self: &Arc<Self>) {
        let Some((directory, upkeep)) = self.upkeep.get() else { return };
        // Relaxed: a caller that finds the thread started needs no data from it.
        if self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        let its = Thread { janitor: self.clone(), directory: directory.clone(), upkeep: upkeep.clone() };
        if thread::spawn("tensorlend-device", move || its.run()).is_err() {
            // The thread did not start: the next call tries again.
            self.started.store(false, Ordering::Relaxed);
        }
    }

    /// Executes the work whose events have fired. Returns whether there was any, and whether events are still pending.
    pub fn finish(&self) -> (bool, bool) {
        // The program may be capturing a graph. This guard keeps the queries from invalidating the capture.
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
        // Endings that were added in the meantime are newer, so they come last.
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
            // Relaxed: the bell orders the store in `stop`.
            if self.janitor.stopped.load(Ordering::Relaxed) || !self.upkeep.report() {
                return;
            }
            nap = if any { NAP.0 } else { (nap * 2).min(NAP.1) };
            let sleep = if outstanding { nap } else { POLL };
            futex::wait_any(&[(returned, theirs), (&self.janitor.bell, own)], sleep);
        }
    }
}
