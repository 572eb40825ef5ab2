//! The producer's end of a stream.

use crate::arguments::sizes;
use crate::context::context_manager;
use crate::display;
use crate::dtype;
use crate::errors::{ResultExt, argument, closed, raise};
use crate::lasting::Lasting;
use crate::values::{DraftParameters, To, create, drafted};
use crate::wait::{Awaited, timeout, wait};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensorlend::{Error, Policy, TensorSpec, TrySendError, ValueDraft};
use tensorlend_os::mutex::lock;

/// The producer's end of a stream. `Client.stream` opens it.
///
/// Notes
/// -----
/// Thread-safe. Only the process that opened the stream may use it. Close the stream, or use it as
/// a context manager. Subscribers still receive the messages that were sent before.
///
/// Examples
/// --------
/// >>> with client.stream("camera", policy="drop-oldest") as camera:
/// ...     frames = client.subscribe("camera", start="next")
/// ...     _ = camera.send(np.zeros((4, 4), np.uint8), timestamp=17)
/// ...     frames.recv(timeout=10).timestamp
/// 17
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

    /// Parses the name of a policy: "block", "drop-oldest" or "error".
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
        format!("the stream {:?} was closed in this process: open it again", self.name)
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
    // Try once without releasing the interpreter's lock, because the stream usually has room.
    match once(Duration::ZERO) {
        Ok(sequence) => Ok(sequence),
        Err(Error::Timeout { .. }) => wait(py, &owner.awaited, limit, once),
        Err(other) => Err(raise(other)),
    }
}

context_manager!(Stream, |stream, _py| stream.close());

#[pymethods]
impl Stream {
    /// Sends a tensor, or a mapping of several tensors, to every subscriber.
    ///
    /// The call waits only if the policy is "block" and a subscriber lags by the stream's whole
    /// capacity.
    ///
    /// Parameters
    /// ----------
    /// value : array_like, Draft, tensor or mapping of these
    ///     The message. A mapping becomes a dataset.
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    /// metadata : mapping or bytes or None, default None
    ///     A dict, stored as JSON, or bytes; 64 KiB at most.
    /// timestamp : int, default 0
    ///     Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
    /// device : str, int or device or None, default None
    ///     The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
    ///     or "cpu". None keeps the memory in which the array is.
    /// stream : int or stream or None, default None
    ///     The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
    ///     or cuda.core. None is the stream of the array's producer.
    ///
    /// Returns
    /// -------
    /// int
    ///     The message's sequence number.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The stream was full for the whole `timeout`.
    /// StreamFullError
    ///     The stream is full, and its policy is "error".
    /// ClosedError
    ///     The stream was closed.
    /// DTypeError
    ///     The elements cannot be lent.
    #[pyo3(signature = (value, timeout=None, *, metadata=None, timestamp=0, device=None, stream=None))]
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

    /// Sends as `send` does, without waiting.
    ///
    /// Parameters
    /// ----------
    /// value : array_like, Draft, tensor or mapping of these
    ///     The message. A mapping becomes a dataset.
    /// metadata : mapping or bytes or None, default None
    ///     A dict, stored as JSON, or bytes; 64 KiB at most.
    /// timestamp : int, default 0
    ///     Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
    /// device : str, int or device or None, default None
    ///     The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
    ///     or "cpu". None keeps the memory in which the array is.
    /// stream : int or stream or None, default None
    ///     The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
    ///     or cuda.core. None is the stream of the array's producer.
    ///
    /// Returns
    /// -------
    /// int
    ///     The message's sequence number.
    ///
    /// Raises
    /// ------
    /// StreamFullError
    ///     The stream has no room. A draft stays open.
    /// ClosedError
    ///     The stream was closed.
    /// DTypeError
    ///     The elements cannot be lent.
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
        // Check for room before copying the value, or taking the caller's draft.
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

    /// Creates a tensor in shared memory. The program writes the tensor in place and sends it.
    ///
    /// Parameters
    /// ----------
    /// shape : int or sequence of int
    ///     Sizes, in elements.
    /// dtype : dtype or None, default None
    ///     A dtype as for `numpy.dtype`, a dtype of torch, or a name of ml_dtypes. None is float64.
    /// device : str, int or device or None, default None
    ///     The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch.
    ///     None and "cpu" are host memory.
    /// stream : int or stream or None, default None
    ///     The CUDA stream that will write a tensor on a device.
    ///
    /// Returns
    /// -------
    /// Draft or DeviceDraft
    ///     The tensor; a DeviceDraft if `device` names a device.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The shape is invalid.
    /// DTypeError
    ///     Elements of this dtype cannot be lent.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
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
        let parameters =
            DraftParameters { spec, name: None, lasting: Lasting::default(), metadata: None, timestamp: 0 };
        create(py, &self.client, parameters, &To::parse(device, stream)?)
    }

    /// Waits until the stream has `count` subscribers. Then all of them receive the first message.
    ///
    /// Parameters
    /// ----------
    /// count : int
    ///     Number of subscribers.
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The stream did not have `count` subscribers within `timeout`.
    /// ClosedError
    ///     The stream was closed.
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

    /// Number of messages that the stream keeps for subscribers that lag.
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

    /// Ends the stream. Subscribers still receive the messages that were sent before.
    ///
    /// A send in another thread that waits for room raises ClosedError.
    fn close(&self) {
        lock(&self.producer).take();
    }

    fn __repr__(&self) -> String {
        let name = display::quoted(&self.name);
        match &*lock(&self.producer) {
            Some(stream) => format!(
                "<Stream {name}, capacity {}, {} sent, {}>",
                stream.capacity(),
                stream.sent(),
                display::count(stream.subscribers() as u64, "subscriber")
            ),
            None => format!("<Stream {name}, closed>"),
        }
    }
}
