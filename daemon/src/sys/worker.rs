//! Threads that make long memory beside the loop. They sleep until something is ordered.

use super::memory::{Made, make};
use crate::core::{MemId, SheetPlan};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tensorlend_layout::header::Magic;

/// So that one long order does not keep a short one waiting.
const THREADS: usize = 2;

struct Order {
    mem: MemId,
    bytes: u64,
    sheet: Option<SheetPlan>,
    /// Set when nobody wants it any more.
    cancelled: Arc<AtomicBool>,
}

impl Order {
    fn make(&self, seal_seals: bool) -> Finished {
        // It guards no memory: a stale answer costs one more step.
        let go_on = || !self.cancelled.load(Ordering::Relaxed);
        let directory = self.sheet.is_some_and(|plan| plan.magic == Magic::Directory);
        Finished { mem: self.mem, directory, made: make(self.bytes, self.sheet, seal_seals, &go_on) }
    }
}

/// What a thread has made.
pub struct Finished {
    /// Its name.
    pub mem: MemId,
    /// Whether it is a directory.
    pub directory: bool,
    /// It, or why there is none.
    pub made: Made,
}

/// The threads, and what they have made.
pub struct Workers {
    orders: Option<Sender<Order>>,
    made: Receiver<Finished>,
    /// The orders that are not made yet.
    open: BTreeMap<MemId, Arc<AtomicBool>>,
    bell: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts them. `seal_seals`: as [`make`] wants it.
    pub fn start(seal_seals: bool) -> io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (orders, incoming) = channel::<Order>();
        let (outgoing, made) = channel();
        let incoming = Arc::new(Mutex::new(incoming));
        let threads = (0..THREADS)
            .map(|_| {
                let (incoming, outgoing, bell) = (Arc::clone(&incoming), outgoing.clone(), Arc::clone(&bell));
                std::thread::Builder::new().name("tensorlend-mem".into()).spawn(move || {
                    loop {
                        let next = incoming.lock().unwrap_or_else(PoisonError::into_inner).recv();
                        let Ok(order) = next else { return };
                        if outgoing.send(order.make(seal_seals)).is_err() {
                            return;
                        }
                        // Full means that the loop has not slept since 2^64 - 1 orders.
                        let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
                    }
                })
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { orders: Some(orders), made, open: BTreeMap::new(), bell, threads })
    }

    /// Orders memory.
    pub fn order(&mut self, mem: MemId, bytes: u64, sheet: Option<SheetPlan>) {
        let orders = self.orders.as_ref().expect("taken by drop only");
        let cancelled = Arc::new(AtomicBool::new(false));
        self.open.insert(mem, Arc::clone(&cancelled));
        orders.send(Order { mem, bytes, sheet, cancelled }).expect("the threads live as long as this");
    }

    /// An order that nobody wants any more. It is finished in any case, if only by an error.
    pub fn cancel(&self, mem: MemId) {
        if let Some(cancelled) = self.open.get(&mem) {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// What epoll waits for.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// What has been made since.
    pub fn collect(&mut self) -> Vec<Finished> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
        let finished: Vec<Finished> = self.made.try_iter().collect();
        for one in &finished {
            self.open.remove(&one.mem);
        }
        finished
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.orders = None;
        for cancelled in self.open.values() {
            cancelled.store(true, Ordering::Relaxed);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
