//! The producer's end of a stream.

use crate::array::beside;
use crate::client::{Lasting, To, drafted, sizes};
use crate::device::draft::Wish;
use crate::device::stream::Given;
use crate::device::{DeviceDraft, Place};
use crate::draft::{Draft, lock};
use crate::dtype;
use crate::errors::{OrRaise, argument, closed, raise};
use crate::wait::{Awaited, timeout, wait};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensorlend::{Error, Policy, TensorSpec, TrySendError, ValueDraft};

/// The producer's end of a stream. Context manager; subscribers still receive the messages sent before it was closed.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Stream {
    producer: Mutex<Option<Arc<tensorlend::Stream>>>,
    client: tensorlend::Client,
    awaited: Awaited,
    name: String,
}

impl Stream {
    /// Creates the object for an open stream.
    pub fn new(stream: tensorlend::Stream, client: tensorlend::Client, awaited: Awaited) -> Self {
        let name = stream.name().to_owned();
        Self { producer: Mutex::new(Some(Arc::new(stream))), client, awaited, name }
    }

    /// Parses a policy.
    pub fn policy(word: &str) -> PyResult<Policy> {
        match word {
            "block" => Ok(Policy::Block),
            "drop-oldest" => Ok(Policy::DropOldest),
            "error" => Ok(Policy::Error),
            _ => Err(argument(format!("policy {word:?}: use \"block\", \"drop-oldest\" or \"error\""))),
        }
    }

    fn open(&self) -> PyResult<Arc<tensorlend::Stream>> {
        lock(&self.producer).clone().ok_or_else(|| raise(closed(&self.closed())))
    }

    fn closed(&self) -> String {
        format!("the stream {:?} was closed here: open it again", self.name)
    }
}

/// Sends a draft as soon as there is room, unless this stream is closed in the meantime.
fn send(
    py: Python<'_>,
    owner: &Stream,
    stream: &tensorlend::Stream,
    message: ValueDraft,
    limit: Option<Duration>,
) -> PyResult<u64> {
    let mut kept = Some(message);
    let mut once = |nap: Duration| {
        let message = kept.take().expect("it came back");
        match stream.try_send(message) {
            Ok(sequence) => Ok(sequence),
            Err(TrySendError::Full(message)) => {
                kept = Some(message);
                if lock(&owner.producer).is_none() {
                    return Err(closed(&owner.closed()));
                }
                stream.wait_room(nap)?;
                Err(Error::Timeout {
                    what: format!("room in stream {:?}: its slowest subscriber is a whole ring behind", stream.name()),
                    waited: nap,
                })
            }
            Err(TrySendError::Failed(error)) => Err(error),
        }
    };
    // The common case keeps the interpreter's lock: there is room.
    match once(Duration::ZERO) {
        Ok(sequence) => Ok(sequence),
        Err(Error::Timeout { .. }) => wait(py, &owner.awaited, limit, once),
        Err(other) => Err(raise(other)),
    }
}

#[pymethods]
impl Stream {
    /// Sends a tensor, or a mapping of several, to every subscriber; returns its sequence number. If the policy is
    /// "block" and the stream is full, waits up to `timeout` seconds. `device` and `stream`: as in Client.put.
    #[pyo3(signature = (value, timeout=None, *, metadata=None, timestamp=0, device=None, stream=None))]
    #[allow(clippy::too_many_arguments)]
    fn send(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let to = To::parse(device, stream)?;
        let (stream, limit) = (self.open()?, self::timeout(timeout)?);
        send(py, self, &stream, drafted(&self.client, value, &to, metadata, timestamp)?, limit)
    }

    /// As send, without waiting: raises StreamFullError if there is no room.
    #[pyo3(signature = (value, *, metadata=None, timestamp=0, device=None, stream=None))]
    fn try_send(
        &self,
        value: &Bound<'_, PyAny>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let to = To::parse(device, stream)?;
        let stream = self.open()?;
        // Checks before anything is copied, and before a draft is taken from its owner.
        match stream.wait_room(Duration::ZERO) {
            Err(Error::Timeout { .. }) => return Err(raise(Error::StreamFull(self.name.clone()))),
            other => other.or_raise()?,
        }
        let sent = stream.try_send(drafted(&self.client, value, &to, metadata, timestamp)?);
        sent.map_err(|error| match error {
            TrySendError::Full(_) => raise(Error::StreamFull(self.name.clone())),
            TrySendError::Failed(error) => raise(error),
        })
    }

    /// Creates a tensor to be written in place, and sent. `device` and `stream`: as in Client.create.
    #[pyo3(signature = (shape, dtype=None, *, device=None, stream=None))]
    fn create(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let dtype = dtype.map_or(Ok(tensorlend::DType::F64), dtype::parse)?;
        let spec = TensorSpec::new(dtype, &sizes(shape)?);
        if let Some(on) = Place::parse(device)?.device() {
            let stream = stream.map(|stream| Given::parse(Some(stream))).transpose()?;
            let wish = Wish { spec, on, stream, name: None, lasting: Lasting::default() };
            return Ok(Py::new(py, DeviceDraft::create(py, &self.client, wish, |_| Ok(()))?)?.into_any());
        }
        let bytes = spec.bytes().or_raise()?;
        let draft = beside(py, bytes, || self.client.create_spec(spec)).or_raise()?;
        Ok(Py::new(py, Draft::new(draft, &self.client, None, Lasting::default()))?.into_any())
    }

    /// Waits until it has this many subscribers, so that they receive the first message.
    #[pyo3(signature = (count, timeout=None))]
    fn wait_subscribers(&self, py: Python<'_>, count: usize, timeout: Option<f64>) -> PyResult<()> {
        let (stream, limit) = (self.open()?, self::timeout(timeout)?);
        wait(py, &self.awaited, limit, |slice| stream.wait_subscribers(count, slice))
    }

    /// Number of messages sent.
    #[getter]
    fn sent(&self) -> PyResult<u64> {
        Ok(self.open()?.sent())
    }

    /// Number of messages that it keeps for subscribers that lag.
    #[getter]
    fn capacity(&self) -> PyResult<u32> {
        Ok(self.open()?.capacity())
    }

    /// Number of the stream's present subscribers.
    #[getter]
    fn subscribers(&self) -> PyResult<usize> {
        Ok(self.open()?.subscribers())
    }

    /// The stream's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Ends the stream; subscribers still receive the messages sent before. Another thread that waits for room raises
    /// ArgumentError.
    fn close(&self) {
        lock(&self.producer).take();
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> bool {
        self.close();
        false
    }

    fn __repr__(&self) -> String {
        let closed = if lock(&self.producer).is_some() { "" } else { ", closed" };
        format!("<Stream {:?}{closed}>", self.name)
    }
}
