//! Waits of asyncio's event loops. An event loop sleeps on descriptors, and no other thread runs
//! Python code for it.

use pyo3::prelude::*;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use tensorlend::Error;
use tensorlend_os::mutex::lock;

/// The numbers of the waits that are over, and a descriptor that is readable while this list is not
/// empty.
///
/// The waiting thread adds a number under the lock. If the list was empty, this thread also writes
/// one byte. The loop's thread first reads all bytes, and then takes the list under the lock. If
/// the waiting thread adds a number before the loop takes the list, the loop gets this number. If
/// it adds a number later, the list was empty, so the loop's thread finds a new byte at its next
/// read.
#[pyclass(frozen, name = "_Wakeups", module = "tensorlend._native")]
pub struct Wakeups {
    ours: UnixStream,
    shared: Arc<Shared>,
}

struct Shared {
    told: Mutex<Vec<u64>>,
    theirs: UnixStream,
}

impl Wakeups {
    /// Returns a function that reports the end of a wait. The function never blocks, and needs no
    /// interpreter.
    pub fn tell(&self, number: u64) -> impl FnOnce(Result<(), Error>) + Send + 'static {
        let shared = self.shared.clone();
        // Ignore the result, because the task polls again and raises the error itself.
        move |_| {
            let mut told = lock(&shared.told);
            told.push(number);
            if told.len() == 1 {
                // Ignore an error. A full buffer means that the descriptor is readable already.
                let _ = (&shared.theirs).write(&[1]);
            }
        }
    }
}

/// Makes all event loops that wait for objects of this package poll these objects, because one of them was closed.
pub fn poll_all(py: Python<'_>) {
    let poll = || {
        // No loop waits before this module is imported.
        let modules = py.import("sys")?.getattr("modules")?;
        let module = modules.call_method1("get", ("tensorlend._line",))?;
        if module.is_none() { Ok(module) } else { module.call_method0("poll_all") }
    };
    // After an error, the loops find the closed object at their next poll.
    let _: PyResult<_> = poll();
}

#[pymethods]
impl Wakeups {
    #[new]
    fn new() -> PyResult<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        Ok(Self { ours, shared: Arc::new(Shared { told: Mutex::default(), theirs }) })
    }

    fn fileno(&self) -> i32 {
        self.ours.as_raw_fd()
    }

    /// Returns the numbers of the waits that are over, and removes them from the list.
    fn take(&self) -> PyResult<Vec<u64>> {
        let mut bytes = [0; 64];
        loop {
            match (&self.ours).read(&mut bytes) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
                _ => return Ok(std::mem::take(&mut *lock(&self.shared.told))),
            }
        }
    }
}

/// A wait of a task, performed by the waiting thread. Dropping this object ends the wait.
#[pyclass(frozen, name = "_Ticket", module = "tensorlend._native")]
pub struct Ticket {
    _ticket: tensorlend::Ticket,
}

impl From<tensorlend::Ticket> for Ticket {
    fn from(ticket: tensorlend::Ticket) -> Self {
        Self { _ticket: ticket }
    }
}

/// An event loop's own duplicate of a wakeup descriptor. The duplicate stays open when the original
/// is closed.
#[pyclass(frozen, name = "_Descriptor", module = "tensorlend._native")]
pub struct Descriptor(OwnedFd);

impl Descriptor {
    pub fn of(wake: BorrowedFd<'_>) -> PyResult<Self> {
        Ok(Self(wake.try_clone_to_owned()?))
    }
}

#[pymethods]
impl Descriptor {
    fn fileno(&self) -> i32 {
        self.0.as_raw_fd()
    }
}
