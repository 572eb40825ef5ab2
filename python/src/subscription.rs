//! The subscriber's end of a stream.

use crate::client::show;
use crate::draft::lock;
use crate::errors::{OrRaise, argument};
use crate::lease::{Mode, Origin};
use crate::wait::{timeout, wait};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;
use tensorlend::{Error, Start};

/// A message of a stream.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Message {
    sequence: u64,
    lost: u64,
    timestamp: u64,
    is_tensor: bool,
    value: Py<PyAny>,
}

#[pymethods]
impl Message {
    /// Its number in the stream, from 0.
    #[getter]
    fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Messages that this subscription lost right before it.
    #[getter]
    fn lost(&self) -> u64 {
        self.lost
    }

    /// Its timestamp, in nanoseconds; 0 if none was set.
    #[getter]
    fn timestamp(&self) -> u64 {
        self.timestamp
    }

    /// A Lease or a Dataset.
    #[getter]
    fn value(&self, py: Python<'_>) -> Py<PyAny> {
        self.value.clone_ref(py)
    }

    /// The Lease, if it is one tensor.
    #[getter]
    fn tensor(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.is_tensor {
            Ok(self.value.clone_ref(py))
        } else {
            Err(PyTypeError::new_err("the message is a dataset"))
        }
    }

    /// The Dataset, if it is several tensors.
    #[getter]
    fn dataset(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.is_tensor {
            Err(PyTypeError::new_err("the message is one tensor"))
        } else {
            Ok(self.value.clone_ref(py))
        }
    }

    /// A numpy array that looks at the tensor in place and keeps it.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.tensor(py)?.bind(py).call_method0("numpy")
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<Message {}: {}>", self.sequence, self.value.bind(py).repr()?))
    }
}

/// A subscription to a stream: an iterator of messages that ends with the stream, synchronous and asynchronous.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Subscription {
    subscription: Mutex<Option<tensorlend::Subscription>>,
    client: tensorlend::Client,
    origin: Origin,
    mode: Mode,
    pollable: bool,
}

impl Subscription {
    /// One that was opened.
    pub fn new(
        subscription: tensorlend::Subscription,
        client: tensorlend::Client,
        origin: Origin,
        mode: Mode,
        pollable: bool,
    ) -> Self {
        Self { subscription: Mutex::new(Some(subscription)), client, origin, mode, pollable }
    }

    /// Where to begin, by the word.
    pub fn start(word: &str) -> PyResult<Start> {
        match word {
            "newest" => Ok(Start::Newest),
            "oldest" => Ok(Start::Oldest),
            "next" => Ok(Start::Next),
            _ => Err(argument(format!("start {word:?}: use \"newest\", \"oldest\" or \"next\""))),
        }
    }

    fn with<R>(&self, look: impl FnOnce(&mut tensorlend::Subscription) -> R) -> PyResult<R> {
        lock(&self.subscription).as_mut().map(look).ok_or_else(|| argument("the subscription was closed"))
    }

    fn message(&self, py: Python<'_>, message: tensorlend::Message) -> PyResult<Message> {
        let (sequence, lost, timestamp) = (message.sequence(), message.lost(), message.timestamp());
        let value = message.into_value();
        let is_tensor = value.as_tensor().is_some();
        let value = show(py, &self.client, value, self.mode, self.origin.clone())?;
        Ok(Message { sequence, lost, timestamp, is_tensor, value })
    }
}

#[pymethods]
impl Subscription {
    /// Waits for the next message, for `timeout` seconds at most.
    #[pyo3(signature = (timeout=None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        if let Some(message) = self.try_recv(py)? {
            return Ok(message);
        }
        let limit = self::timeout(timeout)?;
        let closed = || Error::Argument("the subscription was closed".into());
        let message =
            wait(py, limit, |slice| lock(&self.subscription).as_mut().ok_or_else(closed)?.recv_timeout(slice))?;
        self.message(py, message)
    }

    /// The next message, if there is one.
    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        let message = self.with(tensorlend::Subscription::try_recv)?.or_raise()?;
        message.map(|message| self.message(py, message)).transpose()
    }

    /// A descriptor that select and epoll find readable when there may be a message: see the manual for the rules.
    fn fileno(&self) -> PyResult<i32> {
        if !self.pollable {
            return Err(argument("subscribe with pollable=True to have a descriptor"));
        }
        self.with(|subscription| subscription.as_fd().as_raw_fd())
    }

    /// Whether it has a descriptor.
    #[getter]
    fn pollable(&self) -> bool {
        self.pollable
    }

    /// Messages that it lost, in all.
    #[getter]
    fn lost(&self) -> PyResult<u64> {
        self.with(|subscription| subscription.lost())
    }

    /// Number of the message that comes next.
    #[getter]
    fn position(&self) -> PyResult<u64> {
        self.with(|subscription| tensorlend::Subscription::position(subscription))
    }

    /// The stream's name.
    #[getter]
    fn name(&self) -> &str {
        &self.origin.name
    }

    /// Ends it.
    fn close(&self) {
        lock(&self.subscription).take();
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> bool {
        self.close();
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

    /// Awaits the next message: see recv.
    #[pyo3(signature = (timeout=None))]
    fn recv_async<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend._aio")?.call_method1("recv", (slf, timeout))
    }

    fn __repr__(&self) -> String {
        format!("<Subscription to {:?}>", self.origin.name)
    }
}
