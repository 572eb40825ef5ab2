//! The subscriber's end of a stream.

use crate::context::context_manager;
use crate::errors::{self, OrRaise, argument, raise};
use crate::event_loop::{self, Descriptor};
use crate::lease::{Mode, Origin};
use crate::received::Received;
use crate::recipe::Recipe;
use crate::shown;
use crate::wait::{Awaited, timeout, wait};
use pyo3::prelude::*;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, TryLockError};
use std::time::Duration;
use tensorlend::{Error, Start};
use tensorlend_os::fork;
use tensorlend_os::mutex::lock;

/// A message of a stream. As a context manager, the message releases its value at the end of the
/// block.
///
/// Notes
/// -----
/// Thread-safe. The message holds a lease on its value until `release`, or until the message and
/// all arrays of the value are gone.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Message {
    sequence: u64,
    lost: u64,
    timestamp: u64,
    received: Received,
}

context_manager!(Message, |message, py| message.received.release(py)?);

#[pymethods]
impl Message {
    /// The message's number in the stream, counted from 0.
    #[getter]
    fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Number of messages that the subscription lost immediately before this message.
    #[getter]
    fn lost(&self) -> u64 {
        self.lost
    }

    /// The message's timestamp in nanoseconds; 0 if none was set.
    #[getter]
    fn timestamp(&self) -> u64 {
        self.timestamp
    }

    /// The message's value: a Lease, a DeviceLease or a Dataset.
    #[getter]
    fn value(&self, py: Python<'_>) -> Py<PyAny> {
        self.received.value(py)
    }

    /// The Lease or DeviceLease of a message that is one tensor. Raises TypeError for a dataset.
    #[getter]
    fn tensor(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.received.tensor(py)
    }

    /// The Dataset of a message that is several tensors. Raises TypeError for one tensor.
    #[getter]
    fn dataset(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.received.dataset(py)
    }

    /// Returns a numpy array that views the tensor in place, and keeps it alive.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray
    ///     The array; read-only unless the mode is "cow".
    ///
    /// Raises
    /// ------
    /// TypeError
    ///     The message is a dataset.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.received.numpy(py)
    }

    /// Ends the lease on the value now, or when the last array that views the value is gone.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.received.release(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<Message {}: {}>", self.sequence, self.received.repr(py)?))
    }
}

/// The subscriber's end of a stream, as a synchronous and asynchronous iterator of messages. The
/// iterator ends with the stream.
///
/// `Client.subscribe` opens a subscription.
///
/// Notes
/// -----
/// Thread-safe: each message goes to one of the threads that wait. Only the process that opened the
/// subscription may use it. Close the subscription, or use it as a context manager.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Subscription {
    consumer: Mutex<Option<tensorlend::Subscription>>,
    client: tensorlend::Client,
    origin: Origin,
    mode: Mode,
    pollable: bool,
    lends_devices: bool,
    awaited: Awaited,
    forks: u64,
}

const CLOSED: &str = "the subscription was closed: subscribe again";

#[cold]
fn closed() -> PyErr {
    raise(errors::closed(CLOSED))
}

/// Interval at which a waiting thread checks whether another thread has finished its use of a
/// subscription.
const TURN: Duration = Duration::from_millis(1);

impl Subscription {
    /// Creates the object for an open subscription.
    pub fn new(
        subscription: tensorlend::Subscription,
        client: tensorlend::Client,
        awaited: Awaited,
        origin: Origin,
        mode: Mode,
        pollable: bool,
    ) -> Self {
        let (forks, lends_devices) = (fork::generation(), client.lends_devices());
        Self { consumer: Mutex::new(Some(subscription)), client, origin, mode, pollable, lends_devices, awaited, forks }
    }

    /// Parses the start position: "newest", "oldest" or "next".
    pub fn start(word: &str) -> PyResult<Start> {
        match word {
            "newest" => Ok(Start::Newest),
            "oldest" => Ok(Start::Oldest),
            "next" => Ok(Start::Next),
            _ => Err(argument(format!("start {word:?}: use \"newest\", \"oldest\" or \"next\""))),
        }
    }

    /// Calls a function with the subscription if it belongs to this process and is open. If another
    /// thread holds the subscription's lock, releases the interpreter's lock before waiting for it.
    /// Such a thread may wait for a message and hold the lock for a slice of its wait.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&mut tensorlend::Subscription) -> R + Send,
    ) -> PyResult<R> {
        // A lock that another thread held at the fork is never released in the child.
        if self.forks != fork::generation() {
            return Err(raise(Error::Forked));
        }
        let open = |held: &mut Option<tensorlend::Subscription>| held.as_mut().map(look);
        let looked = match self.consumer.try_lock() {
            Ok(mut held) => open(&mut held),
            Err(TryLockError::Poisoned(left)) => open(&mut left.into_inner()),
            Err(TryLockError::WouldBlock) => py.detach(|| open(&mut lock(&self.consumer))),
        };
        looked.ok_or_else(closed)
    }

    /// Calls a function with the subscription as `with` does, but without the interpreter's lock.
    fn with_detached<R: Send>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&mut tensorlend::Subscription) -> R + Send,
    ) -> PyResult<R> {
        if self.forks != fork::generation() {
            return Err(raise(Error::Forked));
        }
        py.detach(|| lock(&self.consumer).as_mut().map(look)).ok_or_else(closed)
    }

    /// Waits at most `slice` for a message. If another thread is already waiting, sleeps briefly
    /// instead and returns a timeout error.
    fn wait_once(&self, slice: Duration) -> Result<tensorlend::Message, Error> {
        match self.consumer.try_lock() {
            Ok(mut held) => match held.as_mut() {
                Some(subscription) => subscription.recv_timeout(slice),
                None => Err(errors::closed(CLOSED)),
            },
            Err(TryLockError::Poisoned(_)) => Err(errors::closed(CLOSED)),
            Err(TryLockError::WouldBlock) => {
                let nap = slice.min(TURN);
                std::thread::sleep(nap);
                Err(Error::Timeout {
                    what: format!("a message of stream {:?}: its producer has sent none", self.origin.name),
                    waited: nap,
                })
            }
        }
    }

    fn received(&self, py: Python<'_>) -> PyResult<Option<tensorlend::Message>> {
        // Release the interpreter's lock if a message may be on a device. The first such tensor
        // starts the driver, which takes time.
        let received = if self.lends_devices {
            self.with_detached(py, tensorlend::Subscription::try_recv)?
        } else {
            self.with(py, tensorlend::Subscription::try_recv)?
        };
        received.or_raise()
    }

    fn message(&self, py: Python<'_>, message: tensorlend::Message) -> PyResult<Message> {
        let (sequence, lost, timestamp) = (message.sequence(), message.lost(), message.timestamp());
        let (value, origin) = (message.into_value(), self.origin.clone());
        let received = Received::new(py, "message", &self.client, value, self.mode, origin)?;
        Ok(Message { sequence, lost, timestamp, received })
    }
}

context_manager!(Subscription, |subscription, py| subscription.close(py));

#[pymethods]
impl Subscription {
    /// Waits for the next message.
    ///
    /// Parameters
    /// ----------
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    ///
    /// Returns
    /// -------
    /// Message
    ///     The message.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     No message arrived within `timeout`.
    /// StreamEndedError
    ///     The stream has ended, and no message is left.
    /// ClosedError
    ///     The subscription was closed.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (timeout=None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        if let Some(message) = self.try_recv(py)? {
            return Ok(message);
        }
        let limit = self::timeout(timeout)?;
        let message = wait(py, &self.awaited, limit, |slice| self.wait_once(slice))?;
        self.message(py, message)
    }

    /// Returns the next message without waiting.
    ///
    /// Returns
    /// -------
    /// Message or None
    ///     The message; None if there is none.
    ///
    /// Raises
    /// ------
    /// StreamEndedError
    ///     The stream has ended, and every message was taken.
    /// ClosedError
    ///     The subscription was closed.
    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        self.received(py)?.map(|message| self.message(py, message)).transpose()
    }

    /// Returns the next message as `try_recv` does. If the message has this timestamp and the
    /// recipe applies to it, returns its batch instead.
    fn _take(&self, py: Python<'_>, timestamp: u64, recipe: &Bound<'_, Recipe>) -> PyResult<Option<Py<PyAny>>> {
        let Some(message) = self.received(py)? else { return Ok(None) };
        let recipe = recipe.get();
        let is_plain = self.mode == Mode::Read && message.timestamp() == timestamp;
        if is_plain && recipe.is_for(py, message.value())? {
            return recipe.batch(py, message.into_value()).map(Some);
        }
        Ok(Some(Py::new(py, self.message(py, message)?)?.into_any()))
    }

    /// Returns whether `try_recv` would return a message or raise an exception. Does not arm the
    /// descriptor.
    fn _news(&self) -> PyResult<bool> {
        if self.forks != fork::generation() {
            return Err(raise(Error::Forked));
        }
        self.awaited.check()?;
        match self.consumer.try_lock() {
            Ok(held) => held.as_ref().ok_or_else(closed)?.has_news().or_raise(),
            // Another thread is receiving, and will get the message.
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Poisoned(_)) => Err(closed()),
        }
    }

    /// Returns a duplicate of the subscription's descriptor.
    fn _descriptor(&self, py: Python<'_>) -> PyResult<Descriptor> {
        self.with(py, |subscription| Descriptor::of(subscription.as_fd()))?
    }

    /// Returns a descriptor for select and epoll.
    ///
    /// The descriptor becomes readable when there may be a message.
    ///
    /// Returns
    /// -------
    /// int
    ///     The descriptor, which belongs to the subscription.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The subscription is not pollable.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        if !self.pollable {
            return Err(argument("subscribe with pollable=True to have a descriptor"));
        }
        self.with(py, |subscription| subscription.as_fd().as_raw_fd())
    }

    /// Whether the subscription has a descriptor.
    #[getter]
    fn pollable(&self) -> bool {
        self.pollable
    }

    /// Total number of messages that the subscription has lost.
    #[getter]
    fn lost(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |subscription| subscription.lost())
    }

    /// The number of the next message in the stream.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |subscription| tensorlend::Subscription::position(subscription))
    }

    /// The stream's name.
    #[getter]
    fn name(&self) -> &str {
        &self.origin.name
    }

    /// Ends the subscription. A wait in another thread raises ClosedError.
    fn close(&self, py: Python<'_>) {
        if self.forks == fork::generation() {
            py.detach(|| drop(lock(&self.consumer).take()));
            event_loop::poll_all(py);
        }
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        match self.recv(py, None) {
            Ok(message) => Ok(Some(message)),
            Err(error) => {
                let ended = py.import("tensorlend._errors")?.getattr("StreamEndedError")?;
                if error.matches(py, ended)? { Ok(None) } else { Err(error) }
            }
        }
    }

    fn __aiter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend._aio")?.call_method1("messages", (slf,))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let name = shown::quoted(&self.origin.name);
        let state = self.with(py, |open| (tensorlend::Subscription::position(open), open.lost()));
        match state {
            Ok((position, lost)) => format!("<Subscription to {name}, next message {position}, {lost} lost>"),
            Err(_) => format!("<Subscription to {name}, closed>"),
        }
    }
}
