//! Worker threads, which create and spill long memory outside the loop. They sleep until the loop
//! orders work.

use super::device::{Devices, MadeOnDevice};
use super::memory::{Made, Making, Plan, make};
use super::room::Claim;
use super::spill::{Files, Spilled, Written};
use crate::core::Borrower;
use crate::core::MemId;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tensorlend_layout::raw::View;
use tensorlend_os::memfd;

/// Number of threads. With two, one long order does not delay a short one.
const THREADS: usize = 2;

/// A part of a directory. A worker allocates the part's pages.
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
    /// Allocates the part's pages.
    pub fn make(&self, (_, backing): Making, go_on: &dyn Fn() -> bool) -> io::Result<()> {
        backing.allocate(self.fd.as_fd(), &self.sheet, self.at, self.bytes, Claim::Users, go_on)
    }
}

enum What {
    Memory(Plan),
    Device { device: usize, borrower: Borrower, bytes: u64 },
    Part(Part),
    Spill { files: Files, memory: OwnedFd, bytes: u64 },
    Recall { file: Arc<Spilled>, plan: Plan },
}

/// Creates memory with the bytes of a spilled segment. In user mode the memory is sealed against
/// writers, because its readers have the daemon's uid.
fn recall(file: &Spilled, plan: Plan, how: Making, go_on: &dyn Fn() -> bool) -> Made {
    let (memory, view) = make(plan, how, go_on)?;
    file.read_back(memory.as_fd(), go_on)?;
    let (system, _) = how;
    if !system {
        memfd::seal_writers(memory.as_fd())?;
    }
    Ok((memory, view))
}

struct Order {
    mem: MemId,
    what: What,
    /// Whether the order was cancelled.
    cancelled: Arc<AtomicBool>,
}

impl Order {
    fn make(self, how: Making, devices: &Devices) -> Finished {
        // Relaxed: the flag orders no other memory access, and a stale value costs only one more
        // step.
        let go_on = || !self.cancelled.load(Ordering::Relaxed);
        let done = match self.what {
            What::Memory(plan) => Done::Memory { directory: plan.is_directory(), made: make(plan, how, &go_on) },
            What::Device { device, borrower, bytes } => {
                let made =
                    if go_on() { devices.make(device, borrower, bytes) } else { Err("it was called off".into()) };
                Done::Device { made }
            }
            What::Spill { files, memory, bytes } => Done::Spilled { written: files.write(&memory, bytes, &go_on) },
            What::Recall { file, plan } => Done::Memory { directory: false, made: recall(&file, plan, how, &go_on) },
            What::Part(part) => Done::Part { at: part.at, made: part.make(how, &go_on) },
        };
        Finished { mem: self.mem, done }
    }
}

/// An order that a worker has finished.
pub struct Finished {
    /// The id of the memory or the file in the order.
    pub mem: MemId,
    pub done: Done,
}

/// The result of an order.
pub enum Done {
    /// The result of an order to create memory.
    Memory {
        /// Whether the memory is a directory.
        directory: bool,
        /// The memory, or an error.
        made: Made,
    },
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
}

/// The worker threads, and the results of their orders.
pub struct Workers {
    orders: Option<Sender<Order>>,
    made: Receiver<Finished>,
    /// The flags that cancel orders for new memory, until the orders are finished.
    open: BTreeMap<MemId, Arc<AtomicBool>>,
    /// The flag that the daemon sets when it ends. The flag cancels spills and allocations of parts
    /// of directories.
    stopping: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts the threads. `how` contains the mode and the backing for [`make`].
    pub fn start(how: Making, devices: &Devices) -> io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (orders, incoming) = channel::<Order>();
        let (outgoing, made) = channel();
        let incoming = Arc::new(Mutex::new(incoming));
        let threads = (0..THREADS)
            .map(|_| {
                let (incoming, outgoing, bell) = (Arc::clone(&incoming), outgoing.clone(), Arc::clone(&bell));
                let devices = devices.clone();
                std::thread::Builder::new().name("tensorlend-mem".into()).spawn(move || {
                    loop {
                        let next = incoming.lock().unwrap_or_else(PoisonError::into_inner).recv();
                        let Ok(order) = next else { return };
                        if outgoing.send(order.make(how, &devices)).is_err() {
                            return;
                        }
                        // The result is ignored, because the write would fail only after 2^64 - 1
                        // orders without a read.
                        let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
                    }
                })
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { orders: Some(orders), made, open: BTreeMap::new(), stopping: Arc::default(), bell, threads })
    }

    /// Orders new memory. The result has the id `mem`.
    pub fn order(&mut self, mem: MemId, plan: Plan) {
        let cancelled = self.open(mem);
        self.send(Order { mem, what: What::Memory(plan), cancelled });
    }

    /// Orders device memory. The result has the id `mem`.
    pub fn order_on_device(&mut self, mem: MemId, device: usize, borrower: Borrower, bytes: u64) {
        let cancelled = self.open(mem);
        self.send(Order { mem, what: What::Device { device, borrower, bytes }, cancelled });
    }

    /// Orders the write of a segment to a file with this id.
    pub fn order_spill(&mut self, file: MemId, files: Files, memory: OwnedFd, bytes: u64) {
        let cancelled = Arc::clone(&self.stopping);
        self.send(Order { mem: file, what: What::Spill { files, memory, bytes }, cancelled });
    }

    /// Orders new memory with the bytes of a spilled segment.
    pub fn order_recall(&mut self, mem: MemId, file: Arc<Spilled>, plan: Plan) {
        let cancelled = self.open(mem);
        self.send(Order { mem, what: What::Recall { file, plan }, cancelled });
    }

    /// Orders the allocation of a part of a directory.
    pub fn order_part(&mut self, mem: MemId, part: Part) {
        let cancelled = Arc::clone(&self.stopping);
        self.send(Order { mem, what: What::Part(part), cancelled });
    }

    /// Records an order for new memory, and returns the flag that cancels the order.
    fn open(&mut self, mem: MemId) -> Arc<AtomicBool> {
        let cancelled = Arc::new(AtomicBool::new(false));
        let former = self.open.insert(mem, Arc::clone(&cancelled));
        debug_assert!(former.is_none(), "each memory is ordered once");
        cancelled
    }

    fn send(&self, order: Order) {
        let orders = self.orders.as_ref().expect("taken by drop only");
        orders.send(order).expect("the threads live as long as this");
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
        self.orders = None;
        for cancelled in self.open.values().chain([&self.stopping]) {
            cancelled.store(true, Ordering::Relaxed);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
