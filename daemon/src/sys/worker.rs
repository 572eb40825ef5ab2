//! Orders for memory that lanes make, spill and read back outside the loop, and their results.

use super::backing::SheetRange;
use super::device::{Devices, MadeOnDevice};
use super::lanes::{Lane, Lanes};
use super::memory::{Made, Making, Plan, make};
use super::room::Claim;
use super::spill::{Files, Spilled, Written};
use crate::core::Borrower;
use crate::core::MemId;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tensorlend_layout::raw::View;
use tensorlend_os::memfd;

/// Maximum time for which the daemon's end waits for orders that are running. A cancelled order ends at its next step.
const END_MAX: Duration = Duration::from_millis(500);

/// A part of a directory. The directory's lane allocates the part's pages.
pub struct Part {
    /// The directory's descriptor.
    pub fd: OwnedFd,
    /// The mapped directory.
    pub sheet: View,
    /// Offset of the part.
    pub at: u64,
    /// Length of the part in bytes.
    pub bytes: u64,
}

impl Part {
    /// Frees the part's pages, if the directory's seals allow it. The kernel walks all mappings of all members for this.
    fn discard(&self, may_continue: &dyn Fn() -> bool) {
        // The next daemon may use the part already.
        if may_continue()
            && let Err(error) = memfd::punch_part(self.fd.as_fd(), self.at, self.bytes)
        {
            tracing::warn!("giving a part of a directory back: {error}");
        }
    }

    /// Allocates the part's pages.
    pub fn make(&self, (_, backing): Making, may_continue: &dyn Fn() -> bool) -> io::Result<()> {
        let range = SheetRange { fd: self.fd.as_fd(), sheet: &self.sheet, at: self.at, bytes: self.bytes };
        backing.allocate(range, Claim::Users, may_continue)
    }
}

/// The work of an order.
pub enum Job {
    Memory(Plan),
    Device {
        device: usize,
        borrower: Borrower,
        bytes: u64,
    },
    /// Pages of a part of a directory.
    Part(Part),
    /// The end of the pages of a part of a directory.
    Discard(Part),
    /// The memory of a segment, which is written to a new file.
    Spill {
        files: Files,
        memory: OwnedFd,
        bytes: u64,
    },
    /// New memory with the bytes of a spilled segment.
    Recall {
        file: Arc<Spilled>,
        plan: Plan,
    },
}

impl Job {
    /// Returns the result of an order that panics.
    fn failed(&self) -> Done {
        const WHY: &str = "the daemon panicked, see its log";
        match self {
            Self::Memory(plan) => Done::Memory { directory: plan.is_directory(), made: Err(io::Error::other(WHY)) },
            Self::Recall { .. } => Done::Memory { directory: false, made: Err(io::Error::other(WHY)) },
            Self::Device { .. } => Done::Device { made: Err(WHY.into()) },
            Self::Spill { .. } => Done::Spilled { written: Err(WHY.to_owned().into()) },
            Self::Part(part) => Done::Part { at: part.at, made: Err(io::Error::other(WHY)) },
            Self::Discard(_) => Done::Discarded,
        }
    }
}

/// Creates memory with the bytes of a spilled segment. In user mode the memory is sealed against
/// writers, because its readers have the daemon's uid.
fn recall(file: &Spilled, plan: Plan, how: Making, may_continue: &dyn Fn() -> bool) -> Made {
    let (memory, view) = make(plan, how, may_continue)?;
    file.read_back(memory.as_fd(), may_continue)?;
    let (system, _) = how;
    if !system {
        memfd::seal_writers(memory.as_fd())?;
    }
    Ok((memory, view))
}

struct Order {
    mem: MemId,
    lane: Lane,
    job: Job,
    cancelled: Arc<AtomicBool>,
}

impl Order {
    fn make(self, how: Making, devices: &Devices) -> Finished {
        // Relaxed: the flag orders no other memory access, and a stale value costs only one more
        // step.
        let may_continue = || !self.cancelled.load(Ordering::Relaxed);
        let done = match self.job {
            Job::Memory(plan) => Done::Memory { directory: plan.is_directory(), made: make(plan, how, &may_continue) },
            Job::Device { device, borrower, bytes } => {
                let made = if may_continue() {
                    devices.make(device, borrower, bytes)
                } else {
                    Err("it was called off".into())
                };
                Done::Device { made }
            }
            Job::Spill { files, memory, bytes } => {
                Done::Spilled { written: files.write(&memory, bytes, &may_continue) }
            }
            Job::Recall { file, plan } => {
                Done::Memory { directory: false, made: recall(&file, plan, how, &may_continue) }
            }
            Job::Part(part) => Done::Part { at: part.at, made: part.make(how, &may_continue) },
            Job::Discard(part) => {
                part.discard(&may_continue);
                Done::Discarded
            }
        };
        Finished { mem: self.mem, lane: self.lane, done }
    }
}

/// An order that a lane has finished.
pub struct Finished {
    /// The id of the memory or the file in the order.
    pub mem: MemId,
    /// The lane of the order, which frees the memory if no client gets it.
    pub lane: Lane,
    pub done: Done,
}

/// The result of an order.
pub enum Done {
    /// The result of an order to create memory.
    Memory { directory: bool, made: Made },
    /// The result of an order to allocate device memory.
    Device {
        /// The memory, or an error.
        made: MadeOnDevice,
    },
    /// The result of an order to spill a segment.
    Spilled {
        /// The file, or an error.
        written: Written,
    },
    /// The result of an order to allocate a part of a directory.
    Part {
        /// Offset of the part.
        at: u64,
        /// The error, if the allocation failed.
        made: io::Result<()>,
    },
    /// A part of a directory has no pages any more, if the kernel has freed them.
    Discarded,
}

/// The orders that run in lanes, and their results.
pub struct Workers {
    devices: Devices,
    /// The mode and the backing for [`make`].
    how: Making,
    outgoing: Sender<Finished>,
    made: Receiver<Finished>,
    /// The flags that cancel orders for new memory, until the orders are finished.
    open: BTreeMap<MemId, Arc<AtomicBool>>,
    /// Number of orders that are not finished.
    running: usize,
    /// The flag that the daemon sets when it ends. The flag cancels spills and allocations of parts
    /// of directories.
    stopping: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
}

impl Workers {
    /// Prepares for orders. `how` contains the mode and the backing for [`make`].
    pub fn new(how: Making, devices: Devices) -> io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (outgoing, made) = channel();
        Ok(Self { devices, how, outgoing, made, open: BTreeMap::new(), running: 0, stopping: Arc::default(), bell })
    }

    /// Orders work in a lane. The result has the id `mem`: of the memory, or of the file of a spilled segment.
    pub fn order(&mut self, mem: MemId, lane: Lane, job: Job, lanes: &Lanes) {
        let is_new = matches!(job, Job::Memory(_) | Job::Device { .. } | Job::Recall { .. });
        let cancelled = if is_new { self.open(mem) } else { Arc::clone(&self.stopping) };
        let failed = job.failed();
        let order = Order { mem, lane, job, cancelled };
        let (how, devices, outgoing, bell) =
            (self.how, self.devices.clone(), self.outgoing.clone(), Arc::clone(&self.bell));
        self.running += 1;
        lanes.order(lane, move || {
            // The core waits for the result of each order, even of one with a bug.
            let made = catch_unwind(AssertUnwindSafe(|| order.make(how, &devices)));
            // Both results are ignored. The send fails if the daemon has ended. The write would fail only after 2^64 - 1
            // orders without a read.
            let _ = outgoing.send(made.unwrap_or(Finished { mem, lane, done: failed }));
            let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
        });
    }

    /// Records an order for new memory, and returns the flag that cancels the order.
    fn open(&mut self, mem: MemId) -> Arc<AtomicBool> {
        let cancelled = Arc::new(AtomicBool::new(false));
        let former = self.open.insert(mem, Arc::clone(&cancelled));
        debug_assert!(former.is_none(), "each memory is ordered once");
        cancelled
    }

    /// Cancels an order for new memory. The order still finishes, possibly with an error.
    pub fn cancel(&self, mem: MemId) {
        if let Some(cancelled) = self.open.get(&mem) {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the eventfd that becomes readable when an order is finished.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Returns the orders finished since the last call.
    pub fn collect(&mut self) -> Vec<Finished> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
        let finished: Vec<Finished> = self.made.try_iter().collect();
        self.running -= finished.len();
        for one in &finished {
            if let Done::Memory { .. } | Done::Device { .. } = one.done {
                let order = self.open.remove(&one.mem);
                debug_assert!(order.is_some(), "each order finishes once");
            }
        }
        finished
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for cancelled in self.open.values().chain([&self.stopping]) {
            cancelled.store(true, Ordering::Relaxed);
        }
        // An order behind memory that another process keeps from being freed may wait without limit.
        let end = Instant::now() + END_MAX;
        while self.running > 0 && self.made.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {
            self.running -= 1;
        }
    }
}
