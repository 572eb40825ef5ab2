//! Waits that release the interpreter's lock. Ctrl-C ends them.

use crate::errors::{ResultExt, argument, closed as closed_here, named, raise};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorlend::{Client, Error};
use tensorlend_os::mutex::lock;

/// Interval at which a wait checks for signals.
const SLICE: Duration = Duration::from_millis(50);

/// Parses a timeout in seconds. `None` means no limit.
pub fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else { return Ok(None) };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(argument(format!("a timeout of {seconds} seconds: give 0 or more, or None for no limit")));
    }
    // A timeout that exceeds the range of Duration means no limit.
    Ok(Duration::try_from_secs_f64(seconds).ok())
}

/// The client on whose behalf a thread waits. The wait ends when the client is closed or the daemon
/// ends.
#[derive(Clone)]
pub struct Awaited {
    closed: Arc<AtomicBool>,
    client: Client,
}

impl Awaited {
    /// Creates the state of waits on this client's behalf. `Client.close` sets `closed`.
    pub fn new(closed: &Arc<AtomicBool>, client: &Client) -> Self {
        Self { closed: closed.clone(), client: client.clone() }
    }

    /// Returns an error if the client was closed or the daemon has ended.
    pub fn check(&self) -> PyResult<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        self.client.check_daemon().or_raise()
    }
}

/// Returns the exception for a wait that `Client.close` has ended.
#[cold]
pub fn closed() -> PyErr {
    named("DisconnectedError", "the client was closed: connect again".into())
}

/// Calls `once`, which waits for one slice of time, until it returns a value or an error other than
/// a timeout. Checks the client only after `once`, so that even a closed client returns a value
/// that has arrived.
pub fn wait<T: Send>(
    py: Python<'_>,
    awaited: &Awaited,
    timeout: Option<Duration>,
    mut once: impl FnMut(Duration) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let began = Instant::now();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        match py.detach(|| once(slice)) {
            Ok(done) => return Ok(done),
            Err(Error::Timeout { what, .. }) => {
                if is_cancelled() {
                    return Err(raise(closed_here(&format!("the wait for {what} was cancelled"))));
                }
                py.check_signals()?;
                awaited.check()?;
                // Compare with the clock, because `once` may have waited for less than its slice.
                if timeout.is_some_and(|timeout| began.elapsed() >= timeout) {
                    return Err(raise(Error::Timeout { what, waited: timeout.unwrap_or_default() }));
                }
            }
            Err(other) => return Err(raise(other)),
        }
    }
}

thread_local! {
    /// Whether the coroutine for which this thread works was cancelled. `None` in all other
    /// threads.
    static CANCELLED: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Returns true if this thread works for a coroutine that was cancelled.
fn is_cancelled() -> bool {
    // Relaxed: waiters poll the flag, which orders no other memory.
    CANCELLED.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)))
}

/// Ends the waits of one thread that works for a coroutine.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Cancel(Arc<AtomicBool>);

#[pymethods]
impl Cancel {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    /// Ends the thread's present wait and all later waits.
    fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Calls `work` in this thread. `cancel` ends the waits of `work`.
    fn run<'py>(
        &self,
        work: &Bound<'py, PyAny>,
        arguments: &Bound<'py, PyTuple>,
        options: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        CANCELLED.set(Some(self.0.clone()));
        let result = work.call(arguments, Some(options));
        CANCELLED.set(None);
        result
    }
}

/// Ends waits of other threads, for example because an object is closed.
#[derive(Default)]
pub struct Interrupt {
    /// Number of calls of [`Interrupt::all`]. A wait ends when the number changes.
    count: AtomicU64,
}

impl Interrupt {
    /// Starts a wait, which ends when the client is closed or [`Interrupt::all`] is called.
    pub fn watch<'i>(&'i self, awaited: &'i Awaited) -> Watch<'i> {
        Watch { interrupt: self, awaited, since: self.count.load(Ordering::Relaxed), raised: Mutex::new(None) }
    }

    /// Ends all waits that have started before this call.
    pub fn all(&self) {
        // Relaxed: waiters poll the counter, which orders no other memory.
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Decides whether one wait continues. The client library performs the wait in slices.
pub struct Watch<'i> {
    interrupt: &'i Interrupt,
    awaited: &'i Awaited,
    since: u64,
    /// The exception of a signal handler, or the error that ended the wait.
    raised: Mutex<Option<PyErr>>,
}

impl Watch<'_> {
    /// Returns false if the wait must end. The client library calls this between slices, without the interpreter's
    /// lock.
    pub fn continues(&self) -> bool {
        if self.interrupt.count.load(Ordering::Relaxed) != self.since || is_cancelled() {
            return false;
        }
        let raised = Python::attach(|py| py.check_signals().err()).or_else(|| self.awaited.check().err());
        let continues = raised.is_none();
        *lock(&self.raised) = raised;
        continues
    }

    /// Returns the result of the wait. If `outcome` is `None`, the wait was interrupted, and this
    /// function returns the exception.
    pub fn unless_interrupted<T>(self, outcome: PyResult<Option<T>>, name: &str) -> PyResult<T> {
        let raised = lock(&self.raised).take();
        outcome?.ok_or_else(|| {
            raised.unwrap_or_else(|| {
                raise(closed_here(&format!(
                    "the wait for {name:?} was ended in this process: its object was closed, or the wait was cancelled"
                )))
            })
        })
    }
}
