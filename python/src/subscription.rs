//! The subscriber's end of a stream.

use crate::draft::lock;
use crate::errors::{self, OrRaise, argument, raise};
use crate::event_loop::Descriptor;
use crate::lease::{Mode, Origin};
use crate::received::Received;
use crate::recipe::Recipe;
use crate::shown;
use crate::wait::{Awaited, timeout, wait};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, TryLockError};
use std::time::Duration;
use tensorlend::{Error, Start};
use tensorlend_os::fork;

/// A message of a stream. As a context manager it releases its value on leaving.
///
/// Notes
/// -----
/// Thread-safe. It holds a lease on its value until it is released, or until the message and all arrays of it are gone.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Message {
    sequence: u64,
    lost: u64,
    timestamp: u64,
    received: Received,
}

#[pymethods]
impl Message {
    /// The message's number in the stream, from 0.
    #[getter]
    fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Number of messages that the subscription lost right before this message.
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

    /// The Lease or DeviceLease, if the message is one tensor; otherwise TypeError is raised.
    #[getter]
    fn tensor(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.received.tensor(py)
    }

    /// The Dataset, if the message is several tensors; otherwise TypeError is raised.
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

    /// Ends the lease on the value now, or when the last array that views it is gone.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.received.release(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<bool> {
        self.received.release(py).map(|()| false)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<Message {}: {}>", self.sequence, self.received.repr(py)?))
    }
}

/// The subscriber's end of a stream: an iterator of messages that ends with the stream, synchronous and asynchronous.
///
/// `Client.subscribe` opens it.
///
/// Notes
/// -----
/// Thread-safe: each message goes to one of the threads that wait. It belongs to the process that opened it. Close it,
/// or use it as a context manager.
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

/// Interval at which a thread checks whether another thread has finished its use of a subscription.
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

    /// Calls a function with the subscription if it belongs to this process and is open. While it holds the
    /// interpreter, it never waits for the subscription's lock: a thread that waits for a message may hold that lock
    /// for a slice of its wait.
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

    /// Waits for a message for one slice of time. If another thread already waits, waits until that thread has
    /// finished.
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
        // Release the interpreter if a message may be on a device, because the first such tensor starts the driver,
        // which takes time.
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
    ///     The timeout passed before the event.
    /// StreamEndedError
    ///     The stream has ended, and every message was taken.
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

    /// As try_recv, but returns the batch of a message with this timestamp to which the recipe applies.
    fn _take(&self, py: Python<'_>, timestamp: u64, recipe: &Bound<'_, Recipe>) -> PyResult<Option<Py<PyAny>>> {
        let Some(message) = self.received(py)? else { return Ok(None) };
        let recipe = recipe.get();
        let is_plain = self.mode == Mode::Read && message.timestamp() == timestamp;
        if is_plain && recipe.is_for(py, message.value())? {
            return recipe.batch(py, message.into_value()).map(Some);
        }
        Ok(Some(Py::new(py, self.message(py, message)?)?.into_any()))
    }

    /// Raises if the client was closed or the daemon has ended: no message will arrive.
    fn _check(&self) -> PyResult<()> {
        self.awaited.check()
    }

    /// Returns whether try_recv would find or raise something, without arming the descriptor.
    fn _news(&self) -> PyResult<bool> {
        if self.forks != fork::generation() {
            return Err(raise(Error::Forked));
        }
        self.awaited.check()?;
        match self.consumer.try_lock() {
            Ok(held) => held.as_ref().ok_or_else(closed)?.has_news().or_raise(),
            // A thread that receives will find it.
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Poisoned(_)) => Err(closed()),
        }
    }

    /// The key of the tasks that wait for this object.
    #[getter]
    fn _key(slf: &Bound<'_, Self>) -> (&'static str, usize) {
        ("messages", slf.as_ptr() as usize)
    }

    /// Returns a duplicate of the descriptor.
    fn _descriptor(&self, py: Python<'_>) -> PyResult<Descriptor> {
        self.with(py, |subscription| Descriptor::of(subscription.as_fd()))?
    }

    /// Returns a descriptor that becomes readable for select and epoll when there may be a message.
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

    /// Total number of lost messages.
    #[getter]
    fn lost(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |subscription| subscription.lost())
    }

    /// Number of the next message.
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
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> bool {
        self.close(py);
        false
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

    /// Awaits the next message. The event loop watches the descriptor; no thread waits. Several tasks may wait: each message
    /// goes to one of them, and a cancelled task takes none.
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
    ///     The timeout passed before the event.
    /// StreamEndedError
    ///     The stream has ended, and every message was taken.
    /// ArgumentError
    ///     The subscription is not pollable.
    /// ClosedError
    ///     The subscription was closed.
    #[pyo3(signature = (timeout=None))]
    fn recv_async<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend._aio")?.call_method1("recv", (slf, timeout))
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
