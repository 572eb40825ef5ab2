//! Threads that make long memory beside the loop. They sleep until something is ordered.

use super::memory::{Made, make};
use crate::core::{MemId, SheetPlan};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// So that one long order does not keep a short one waiting.
const THREADS: usize = 2;

struct Order {
    mem: MemId,
    bytes: u64,
    sheet: Option<SheetPlan>,
}

/// The threads, and what they have made.
pub struct Workers {
    orders: Option<Sender<Order>>,
    made: Receiver<(MemId, Made)>,
    bell: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts them.
    pub fn start() -> io::Result<Self> {
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
                        let Ok(Order { mem, bytes, sheet }) = next else { return };
                        if outgoing.send((mem, make(bytes, sheet))).is_err() {
                            return;
                        }
                        // Full means that the loop has not slept since 2^64 - 1 orders.
                        let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
                    }
                })
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { orders: Some(orders), made, bell, threads })
    }

    /// Orders memory.
    pub fn order(&self, mem: MemId, bytes: u64, sheet: Option<SheetPlan>) {
        let orders = self.orders.as_ref().expect("taken by drop only");
        orders.send(Order { mem, bytes, sheet }).expect("the threads live as long as this");
    }

    /// What epoll waits for.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// What has been made since.
    pub fn collect(&self) -> Vec<(MemId, Made)> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
        self.made.try_iter().collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.orders = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
