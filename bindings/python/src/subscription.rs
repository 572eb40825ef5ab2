//! The subscriber's end of a stream.

use crate::context::context_manager;
use crate::display;
use crate::end::End;
use crate::errors::argument;
use crate::event_loop::Descriptor;
use crate::lease::{Mode, Origin};
use crate::received::Received;
use crate::recipe::Recipe;
use crate::wait::{Awaited, timeout, wait};
use pyo3::prelude::*;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;
use tensorlend::{Error, Start};

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
    end: End<tensorlend::Subscription>,
    client: tensorlend::Client,
    origin: Origin,
    mode: Mode,
    pollable: bool,
    lends_devices: bool,
    awaited: Awaited,
}

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
        let end = End::new(subscription, "the subscription was closed: subscribe again");
        let lends_devices = client.lends_devices();
        Self { end, client, origin, mode, pollable, lends_devices, awaited }
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

    /// Waits at most `slice` for a message. If another thread is already waiting, sleeps briefly
    /// instead and returns a timeout error.
    fn wait_once(&self, slice: Duration) -> Result<tensorlend::Message, Error> {
        let what = || format!("a new message of stream {:?}", self.origin.name);
        self.end.turn(slice, what, |subscription| subscription.recv_timeout(slice))
    }

    fn received(&self, py: Python<'_>) -> PyResult<Option<tensorlend::Message>> {
        // Release the interpreter's lock if a message may be on a device. The first such tensor
        // starts the driver, which takes time.
        if self.lends_devices {
            self.end.with(py, tensorlend::Subscription::try_recv)
        } else {
            self.end.quickly(py, tensorlend::Subscription::try_recv)
        }
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
        self.end.news(&self.awaited, |subscription| subscription.has_news())
    }

    /// Returns a duplicate of the subscription's descriptor.
    fn _descriptor(&self, py: Python<'_>) -> PyResult<Descriptor> {
        self.end.quickly(py, |subscription| Ok(Descriptor::of(subscription.as_fd())))?
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
        self.end.quickly(py, |subscription| Ok(subscription.as_fd().as_raw_fd()))
    }

    /// Whether the subscription has a descriptor.
    #[getter]
    fn pollable(&self) -> bool {
        self.pollable
    }

    /// Total number of messages that the subscription has lost.
    #[getter]
    fn lost(&self, py: Python<'_>) -> PyResult<u64> {
        self.end.quickly(py, |subscription| Ok(subscription.lost()))
    }

    /// The number of the next message in the stream.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<u64> {
        self.end.quickly(py, |subscription| Ok(tensorlend::Subscription::position(subscription)))
    }

    /// The stream's name.
    #[getter]
    fn name(&self) -> &str {
        &self.origin.name
    }

    /// Ends the subscription. A wait in another thread raises ClosedError.
    fn close(&self, py: Python<'_>) {
        self.end.close(py);
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
        let name = display::quoted(&self.origin.name);
        let state = self.end.quickly(py, |open| Ok((tensorlend::Subscription::position(open), open.lost())));
        match state {
            Ok((position, lost)) => format!("<Subscription to {name}, next message {position}, {lost} lost>"),
            Err(_) => format!("<Subscription to {name}, closed>"),
        }
    }
}
