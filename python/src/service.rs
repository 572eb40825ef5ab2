//! Requests and responses: callers and servers.

use crate::draft::lock;
use crate::errors::{OrRaise, argument, closed, raise};
use crate::given::{To, drafted};
use crate::lease::{Mode, Origin};
use crate::received::{Received, show};
use crate::shown;
use crate::wait::{Awaited, Interrupt, in_thread, options, timeout, wait};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::collections::VecDeque;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;
use tensorlend::{Error, Reply};
use tensorlend_os::fork;

/// Interval at which a thread checks whether another has finished with a server.
const TURN: Duration = Duration::from_millis(1);

const SERVER_CLOSED: &str = "the server was closed: serve again";
const CALLER_CLOSED: &str = "the caller was closed: make another";

/// Rejects use in a forked child: a lock that another thread held at the fork is never released there.
fn ours(forks: u64) -> PyResult<()> {
    if forks == fork::generation() { Ok(()) } else { Err(raise(Error::Forked)) }
}

/// One server of a service: an iterator of requests, synchronous and asynchronous. `Client.serve` opens it.
///
/// Notes
/// -----
/// Thread-safe: each request goes to one of the threads that wait. It belongs to the process that opened it. Close
/// it, or use it as a context manager.
///
/// Examples
/// --------
/// >>> with client.serve("double") as server:
/// ...     server.try_recv() is None
/// True
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Server {
    end: Mutex<Option<tensorlend::Server>>,
    /// Requests received for a task that was cancelled.
    kept: Mutex<VecDeque<Py<Call>>>,
    client: tensorlend::Client,
    awaited: Awaited,
    origin: Origin,
    mode: Mode,
    forks: u64,
}

impl Server {
    /// Creates the object for an open server.
    pub fn new(
        server: tensorlend::Server,
        client: tensorlend::Client,
        awaited: Awaited,
        origin: Origin,
        mode: Mode,
    ) -> Self {
        let forks = fork::generation();
        Self { end: Mutex::new(Some(server)), kept: Mutex::default(), client, awaited, origin, mode, forks }
    }

    /// Waits for a request for one slice of time; if another thread is waiting already, waits for its turn.
    fn wait_once(&self, slice: Duration) -> Result<tensorlend::Call, Error> {
        match self.end.try_lock() {
            Ok(mut held) => match held.as_mut() {
                Some(server) if slice.is_zero() => server.try_recv()?.ok_or_else(|| self.nothing(slice)),
                Some(server) => server.recv_timeout(slice),
                None => Err(closed(SERVER_CLOSED)),
            },
            Err(TryLockError::Poisoned(_)) => Err(closed(SERVER_CLOSED)),
            Err(TryLockError::WouldBlock) => {
                let nap = slice.min(TURN);
                std::thread::sleep(nap);
                Err(self.nothing(nap))
            }
        }
    }

    fn nothing(&self, waited: Duration) -> Error {
        Error::Timeout { what: format!("a request to {:?}: no client has called it", self.origin.name), waited }
    }

    fn call(&self, py: Python<'_>, call: tensorlend::Call) -> PyResult<Py<Call>> {
        let (value, reply) = call.split();
        let received = Received::new(py, "request", &self.client, value, self.mode, self.origin.clone())?;
        let (client, forks) = (self.client.clone(), self.forks);
        Py::new(py, Call { received, reply: Mutex::new(Some(reply)), client, forks })
    }
}

#[pymethods]
impl Server {
    /// Waits for the next request.
    ///
    /// Parameters
    /// ----------
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    ///
    /// Returns
    /// -------
    /// Call
    ///     The request.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// ClosedError
    ///     The server was closed.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (timeout=None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<Call>> {
        ours(self.forks)?;
        if let Some(kept) = lock(&self.kept).pop_front() {
            return Ok(kept);
        }
        let limit = self::timeout(timeout)?;
        let call = wait(py, &self.awaited, limit, |slice| self.wait_once(slice))?;
        self.call(py, call)
    }

    /// Returns the next request without waiting.
    ///
    /// Returns
    /// -------
    /// Call or None
    ///     The request; None if there is none.
    ///
    /// Raises
    /// ------
    /// ClosedError
    ///     The server was closed.
    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Py<Call>>> {
        ours(self.forks)?;
        if let Some(kept) = lock(&self.kept).pop_front() {
            return Ok(Some(kept));
        }
        match py.detach(|| self.wait_once(Duration::ZERO)) {
            Ok(call) => self.call(py, call).map(Some),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(raise(error)),
        }
    }

    /// Awaits `recv`, which runs in a thread of its own. Cancelling ends the wait and loses no request.
    ///
    /// Parameters
    /// ----------
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    ///
    /// Returns
    /// -------
    /// Call
    ///     The request.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// ClosedError
    ///     The server was closed.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (timeout=None))]
    fn recv_async<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        in_thread(slf, "recv", (timeout,), None, Some("_keep"))
    }

    /// Puts a request back, for the next receiver.
    fn _keep(&self, call: Py<Call>) {
        lock(&self.kept).push_back(call);
    }

    /// Number of callers that it serves at the moment.
    #[getter]
    fn callers(&self, py: Python<'_>) -> PyResult<usize> {
        ours(self.forks)?;
        let callers = py.detach(|| lock(&self.end).as_ref().map(tensorlend::Server::callers));
        callers.ok_or_else(|| raise(closed(SERVER_CLOSED)))
    }

    /// The service's name.
    #[getter]
    fn service(&self) -> &str {
        &self.origin.name
    }

    /// Ends the service of this server. A wait in another thread raises ClosedError.
    ///
    /// Its callers move to another server, if there is one.
    fn close(&self, py: Python<'_>) {
        if self.forks == fork::generation() {
            let kept = std::mem::take(&mut *lock(&self.kept));
            drop(kept);
            py.detach(|| drop(lock(&self.end).take()));
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

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<Call>> {
        self.recv(py, None)
    }

    fn __aiter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend._aio")?.call_method1("requests", (slf,))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let name = shown::quoted(&self.origin.name);
        match self.callers(py) {
            Ok(callers) => format!("<Server of {name}, {}>", shown::count(callers as u64, "caller")),
            Err(_) => format!("<Server of {name}, closed>"),
        }
    }
}

/// A request that waits for its response: call `respond` or `fail`.
///
/// As a context manager it sends an exception that leaves the block to the caller, and lets it propagate.
///
/// Notes
/// -----
/// Thread-safe. A request that is dropped without a response has failed for its caller.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Call {
    received: Received,
    reply: Mutex<Option<Reply>>,
    client: tensorlend::Client,
    forks: u64,
}

impl Call {
    fn take(&self) -> PyResult<Reply> {
        ours(self.forks)?;
        lock(&self.reply).take().ok_or_else(|| argument("the request has its response already"))
    }
}

#[pymethods]
impl Call {
    /// The request: a Lease, a DeviceLease or a Dataset.
    #[getter]
    fn value(&self, py: Python<'_>) -> Py<PyAny> {
        self.received.value(py)
    }

    /// The Lease or DeviceLease, if the request is one tensor; otherwise TypeError is raised.
    #[getter]
    fn tensor(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.received.tensor(py)
    }

    /// The Dataset, if the request is several tensors; otherwise TypeError is raised.
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
    ///     The request is a dataset.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.received.numpy(py)
    }

    /// Responds with a tensor, or a mapping of several. A disconnected caller is not an error.
    ///
    /// Parameters
    /// ----------
    /// value : array_like, Draft, tensor or mapping of these
    ///     The response. A mapping becomes a dataset.
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
    /// Raises
    /// ------
    /// ArgumentError
    ///     The request has its response already, or an argument is invalid. The request stays open.
    /// DTypeError
    ///     The elements cannot be lent. The request stays open.
    #[pyo3(signature = (value, *, metadata=None, timestamp=0, device=None, stream=None))]
    fn respond(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        ours(self.forks)?;
        let to = To::parse(device, stream)?;
        if !self.is_open() {
            return Err(argument("the request has its response already"));
        }
        // A value that cannot be sent leaves the request open.
        let draft = drafted(&self.client, value, &to, metadata, timestamp)?;
        let reply = self.take()?;
        py.detach(|| reply.respond(draft)).or_raise()
    }

    /// Does the same as `respond`, whose former name this is.
    ///
    /// Parameters
    /// ----------
    /// value : array_like, Draft, tensor or mapping of these
    ///     The response, as in `respond`.
    /// metadata : mapping or bytes or None, default None
    ///     As in `respond`.
    /// timestamp : int, default 0
    ///     As in `respond`.
    /// device : str, int or device or None, default None
    ///     As in `respond`.
    /// stream : int or stream or None, default None
    ///     As in `respond`.
    #[pyo3(signature = (value, *, metadata=None, timestamp=0, device=None, stream=None))]
    fn answer(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.respond(py, value, metadata, timestamp, device, stream)
    }

    /// Responds with an error: the caller raises ServiceError.
    ///
    /// Parameters
    /// ----------
    /// why : str
    ///     The error's text.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The request has its response already.
    fn fail(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        let reply = self.take()?;
        py.detach(|| reply.fail(why)).or_raise()
    }

    /// Whether the request has no response yet.
    #[getter]
    fn is_open(&self) -> bool {
        self.forks == fork::generation() && lock(&self.reply).is_some()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        exception: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        if !exception.is_none() && self.is_open() {
            let kind = exception.get_type().name()?;
            self.fail(py, &format!("{kind}: {}", exception.str()?))?;
        }
        Ok(false)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let answered = if self.is_open() { "" } else { ", answered" };
        Ok(format!("<Call: {}{answered}>", self.received.repr(py)?))
    }
}

/// Sends requests to the servers of a service. `Client.caller` opens it.
///
/// Notes
/// -----
/// Thread-safe; a call in one thread waits for the call in another. So each thread should have a caller of its own. It
/// belongs to the process that opened it. Close it, or use it as a context manager.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Caller {
    end: Mutex<Option<tensorlend::Caller>>,
    /// Responses received for a task that was cancelled.
    kept: Mutex<VecDeque<(u64, Py<PyAny>)>>,
    /// Ends waits in other threads.
    interrupt: Interrupt,
    client: tensorlend::Client,
    awaited: Awaited,
    origin: Origin,
    mode: Mode,
    forks: u64,
}

impl Caller {
    /// Creates the object for a caller.
    pub fn new(
        caller: tensorlend::Caller,
        client: tensorlend::Client,
        awaited: Awaited,
        origin: Origin,
        mode: Mode,
    ) -> Self {
        let (interrupt, forks) = (Interrupt::default(), fork::generation());
        let (end, kept) = (Mutex::new(Some(caller)), Mutex::default());
        Self { end, kept, interrupt, client, awaited, origin, mode, forks }
    }

    /// Calls `ask` with the caller, without the interpreter's lock.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&mut tensorlend::Caller) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        ours(self.forks)?;
        let closed = || closed(CALLER_CLOSED);
        py.detach(|| lock(&self.end).as_mut().ok_or_else(closed).and_then(ask)).or_raise()
    }

    fn show(&self, py: Python<'_>, value: tensorlend::Value) -> PyResult<Py<PyAny>> {
        show(py, &self.client, value, self.mode, self.origin.clone())
    }
}

#[pymethods]
impl Caller {
    /// Sends a request, and waits for its response.
    ///
    /// After a timeout, or Ctrl-C, the caller gives the server up. The next request goes to another server, if there is
    /// one.
    ///
    /// Parameters
    /// ----------
    /// value : array_like, Draft, tensor or mapping of these
    ///     The request. A mapping becomes a dataset.
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
    /// Lease, DeviceLease or Dataset
    ///     The response.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// ServiceError
    ///     The server reported an error, or ended before it answered.
    /// ClosedError
    ///     The caller was closed.
    /// DTypeError
    ///     The elements cannot be lent.
    #[pyo3(signature = (value, timeout=None, *, metadata=None, timestamp=0, device=None, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords to who calls")]
    fn call(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (to, limit) = (To::parse(device, stream)?, self::timeout(timeout)?);
        let draft = drafted(&self.client, value, &to, metadata, timestamp)?;
        let watch = self.interrupt.watch(&self.awaited);
        let answer = self.with(py, |caller| caller.call_while(draft, limit, || watch.goes_on()));
        self.show(py, watch.unless_interrupted(answer, &self.origin.name)?)
    }

    /// Awaits `call`, which runs in a thread of its own. Cancelling gives the server up.
    ///
    /// Parameters
    /// ----------
    /// value : array_like, Draft, tensor or mapping of these
    ///     The request. A mapping becomes a dataset.
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
    /// Lease, DeviceLease or Dataset
    ///     The response.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// ServiceError
    ///     The server reported an error, or ended before it answered.
    /// ClosedError
    ///     The caller was closed.
    /// DTypeError
    ///     The elements cannot be lent.
    #[pyo3(signature = (value, timeout=None, *, metadata=None, timestamp=0, device=None, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords to who calls")]
    fn call_async<'py>(
        slf: &Bound<'py, Self>,
        value: &Bound<'py, PyAny>,
        timeout: Option<f64>,
        metadata: Option<&Bound<'py, PyAny>>,
        timestamp: u64,
        device: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = options!(slf.py(), metadata, timestamp, device, stream);
        in_thread(slf, "call", (value, timeout), options, None)
    }

    /// Sends a request without waiting for its response. Waits for a server if there is none.
    ///
    /// Parameters
    /// ----------
    /// value : array_like, Draft, tensor or mapping of these
    ///     The request. A mapping becomes a dataset.
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
    ///     The request's number, which `recv` returns with the response.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// ArgumentError
    ///     As many requests as the caller's capacity are in flight.
    /// ClosedError
    ///     The caller was closed.
    #[pyo3(signature = (value, timeout=None, *, metadata=None, timestamp=0, device=None, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords to who calls")]
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
        let (to, limit) = (To::parse(device, stream)?, self::timeout(timeout)?);
        let draft = drafted(&self.client, value, &to, metadata, timestamp)?;
        let watch = self.interrupt.watch(&self.awaited);
        let sent = self.with(py, |caller| caller.send_while(draft, limit, || watch.goes_on()));
        watch.unless_interrupted(sent, &self.origin.name)
    }

    /// Awaits `send`, which runs in a thread of its own. Cancelling ends the wait for a server.
    ///
    /// Parameters
    /// ----------
    /// value : array_like, Draft, tensor or mapping of these
    ///     The request. A mapping becomes a dataset.
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
    ///     The request's number, which `recv` returns with the response.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// ArgumentError
    ///     As many requests as the caller's capacity are in flight.
    /// ClosedError
    ///     The caller was closed.
    #[pyo3(signature = (value, timeout=None, *, metadata=None, timestamp=0, device=None, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords to who calls")]
    fn send_async<'py>(
        slf: &Bound<'py, Self>,
        value: &Bound<'py, PyAny>,
        timeout: Option<f64>,
        metadata: Option<&Bound<'py, PyAny>>,
        timestamp: u64,
        device: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = options!(slf.py(), metadata, timestamp, device, stream);
        in_thread(slf, "send", (value, timeout), options, None)
    }

    /// Waits for the response to the oldest request in flight. After a timeout the request stays in flight.
    ///
    /// Parameters
    /// ----------
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    ///
    /// Returns
    /// -------
    /// tuple of (int, Lease, DeviceLease or Dataset)
    ///     The request's number, and its response.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// ServiceError
    ///     The server reported an error, or ended before it answered.
    /// ArgumentError
    ///     No request is in flight.
    /// ClosedError
    ///     The caller was closed.
    #[pyo3(signature = (timeout=None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<(u64, Py<PyAny>)> {
        let limit = self::timeout(timeout)?;
        ours(self.forks)?;
        if let Some(kept) = lock(&self.kept).pop_front() {
            return Ok(kept);
        }
        let (number, value) = wait(py, &self.awaited, limit, |slice| {
            let mut held = lock(&self.end);
            let caller = held.as_mut().ok_or_else(|| closed(CALLER_CLOSED))?;
            let (number, answer) = caller.recv(Some(slice));
            answer.map(|value| (number, value))
        })?;
        Ok((number, self.show(py, value)?))
    }

    /// Awaits `recv`, which runs in a thread of its own. Cancelling ends the wait and loses no response.
    ///
    /// Parameters
    /// ----------
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    ///
    /// Returns
    /// -------
    /// tuple of (int, Lease, DeviceLease or Dataset)
    ///     The request's number, and its response.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// ServiceError
    ///     The server reported an error, or ended before it answered.
    /// ArgumentError
    ///     No request is in flight.
    /// ClosedError
    ///     The caller was closed.
    #[pyo3(signature = (timeout=None))]
    fn recv_async<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        in_thread(slf, "recv", (timeout,), None, Some("_keep"))
    }

    /// Puts a response back, for the next receiver.
    fn _keep(&self, response: (u64, Py<PyAny>)) {
        lock(&self.kept).push_back(response);
    }

    /// Number of requests in flight.
    #[getter]
    fn outstanding(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |caller| Ok(caller.outstanding()))
    }

    /// Gives the server up, with all requests in flight to it.
    ///
    /// The next request goes to another server, if there is one.
    ///
    /// Raises
    /// ------
    /// ClosedError
    ///     The caller was closed.
    fn give_up(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |caller| {
            caller.give_up();
            Ok(())
        })
    }

    /// The service's name.
    #[getter]
    fn service(&self) -> &str {
        &self.origin.name
    }

    /// Ends the caller's session with the service. A wait in another thread raises ClosedError.
    fn close(&self, py: Python<'_>) {
        if self.forks == fork::generation() {
            self.interrupt.all();
            let kept = std::mem::take(&mut *lock(&self.kept));
            drop(kept);
            py.detach(|| drop(lock(&self.end).take()));
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

    fn __repr__(&self) -> String {
        let name = shown::quoted(&self.origin.name);
        // Another thread may hold the lock for a whole call.
        let state = match (self.forks == fork::generation()).then(|| self.end.try_lock()) {
            Some(Ok(held)) => match &*held {
                Some(caller) => format!("{} in flight", caller.outstanding()),
                None => "closed".into(),
            },
            _ => "in use".into(),
        };
        format!("<Caller of {name}, {state}>")
    }
}
