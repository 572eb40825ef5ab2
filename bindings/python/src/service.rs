//! Requests and responses: callers and servers.

use crate::context::context_manager;
use crate::display;
use crate::end::{End, ours};
use crate::errors::{ResultExt, argument, raise};
use crate::event_loop::{Descriptor, Ticket, Wakeups};
use crate::lease::{Mode, Origin};
use crate::received::{Received, show};
use crate::values::{To, drafted};
use crate::wait::{Awaited, Interrupt, timeout, wait};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensorlend::{Error, Notifications, Reply};
use tensorlend_os::fork;
use tensorlend_os::mutex::lock;

/// One server of a service, as a synchronous and asynchronous iterator of requests. `Client.serve`
/// opens it.
///
/// Notes
/// -----
/// Thread-safe: each request goes to one of the threads that wait. Only the process that opened the
/// server may use it. Close the server, or use it as a context manager.
///
/// Examples
/// --------
/// >>> with client.serve("double") as server:
/// ...     server.try_recv() is None
/// True
#[pyclass(frozen, weakref, module = "tensorlend._native")]
pub struct Server {
    end: End<tensorlend::Server>,
    client: tensorlend::Client,
    notifications: Arc<Notifications>,
    awaited: Awaited,
    origin: Origin,
    mode: Mode,
}

impl Server {
    /// Creates the object for an open server.
    pub fn new(
        server: tensorlend::Server,
        client: tensorlend::Client,
        notifications: Arc<Notifications>,
        awaited: Awaited,
        origin: Origin,
        mode: Mode,
    ) -> Self {
        Self {
            end: End::new(server, "the server was closed: serve again"),
            client,
            notifications,
            awaited,
            origin,
            mode,
        }
    }

    /// Waits at most `slice` for a request. If another thread is already waiting, sleeps briefly
    /// instead and returns a timeout error.
    fn wait_once(&self, slice: Duration) -> Result<tensorlend::Call, Error> {
        let what = || format!("a request to {:?}: no client has called it", self.origin.name);
        self.end.turn(slice, what, |server| {
            if slice.is_zero() {
                return server.try_recv()?.ok_or_else(|| Error::Timeout { what: what(), waited: slice });
            }
            server.recv_timeout(slice)
        })
    }

    fn call(&self, py: Python<'_>, call: tensorlend::Call) -> PyResult<Py<Call>> {
        let (value, reply) = call.split();
        let received = Received::new(py, "request", &self.client, value, self.mode, self.origin.clone())?;
        let (client, forks) = (self.client.clone(), fork::generation());
        Py::new(py, Call { received, reply: Mutex::new(Some(reply)), client, forks })
    }
}

context_manager!(Server, |server, py| server.close(py));

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
    ///     No request arrived within `timeout`.
    /// ClosedError
    ///     The server was closed.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (timeout=None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<Call>> {
        self.end.ours()?;
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
        self.end.ours()?;
        match py.detach(|| self.wait_once(Duration::ZERO)) {
            Ok(call) => self.call(py, call).map(Some),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(raise(error)),
        }
    }

    /// Returns the next request as `try_recv` does. If there is no request, the next request ends
    /// the wait of `_descriptor` or `_tell`.
    fn _try_recv(&self, py: Python<'_>) -> PyResult<Option<Py<Call>>> {
        self.end.ours()?;
        let received = py.detach(|| self.end.try_with(tensorlend::Server::try_recv_armed)).or_raise()?;
        received.flatten().map(|call| self.call(py, call)).transpose()
    }

    /// Returns whether `_try_recv` would return a request or raise an exception.
    fn _news(&self) -> PyResult<bool> {
        self.end.news(&self.awaited, |server| server.has_news())
    }

    /// Returns a duplicate of the descriptor that a connected caller's request makes readable.
    fn _descriptor(&self) -> PyResult<Option<Descriptor>> {
        self.end.look(|server| Ok(server.descriptor().map(Descriptor::of)))?.flatten().transpose()
    }

    /// Reports `number` to `wakeups` when a caller requests a connection.
    fn _tell(&self, wakeups: &Wakeups, number: u64) -> PyResult<Option<Ticket>> {
        let ticket = self.end.look(|server| {
            let (list, read) = server.connects();
            self.notifications.unread(list, read, wakeups.tell(number))
        })?;
        Ok(ticket.map(Ticket::from))
    }

    /// Number of callers that the server serves now.
    #[getter]
    fn callers(&self, py: Python<'_>) -> PyResult<usize> {
        self.end.with(py, |server| Ok(server.callers()))
    }

    /// The service's name.
    #[getter]
    fn service(&self) -> &str {
        &self.origin.name
    }

    /// Closes this server. A wait for its requests in another thread raises ClosedError.
    ///
    /// The callers of this server move to another server, if there is one.
    fn close(&self, py: Python<'_>) {
        self.end.close(py);
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
        let name = display::quoted(&self.origin.name);
        match self.callers(py) {
            Ok(callers) => format!("<Server of {name}, {}>", display::count(callers as u64, "caller")),
            Err(_) => format!("<Server of {name}, closed>"),
        }
    }
}

/// A request that waits for its response. `respond` and `fail` send the response.
///
/// As a context manager, the object sends an exception of the block to the caller. The exception
/// then propagates.
///
/// Notes
/// -----
/// Thread-safe. Dropping a request without a response makes the request fail for its caller.
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
        lock(&self.reply)
            .take()
            .ok_or_else(|| argument("the request has its response already: receive the next request"))
    }
}

#[pymethods]
impl Call {
    /// The request: a Lease, a DeviceLease or a Dataset.
    #[getter]
    fn value(&self, py: Python<'_>) -> Py<PyAny> {
        self.received.value(py)
    }

    /// The Lease or DeviceLease of a request that is one tensor. Raises TypeError for a dataset.
    #[getter]
    fn tensor(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.received.tensor(py)
    }

    /// The Dataset of a request that is several tensors. Raises TypeError for one tensor.
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

    /// Responds with a tensor, or a mapping of several tensors. A disconnected caller is not an
    /// error.
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
    ///     The request has its response already, or an argument is invalid. In the latter case the
    ///     request stays open.
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
            return Err(argument("the request has its response already: receive the next request"));
        }
        // Create the draft first. If the value cannot be sent, the request then stays open.
        let draft = drafted(&self.client, value, &to, metadata, timestamp)?;
        let reply = self.take()?;
        py.detach(|| reply.respond(draft)).or_raise()
    }

    /// Responds as `respond` does. This is the former name of `respond`.
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

    /// Whether the request still needs its response.
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
        let responded = if self.is_open() { "" } else { ", responded" };
        Ok(format!("<Call: {}{responded}>", self.received.repr(py)?))
    }
}

/// Sends requests to the servers of a service. `Client.caller` opens it.
///
/// Notes
/// -----
/// Thread-safe, but a call in one thread waits for the call in another. So each thread should have
/// a caller of its own. Only the process that opened the caller may use it. Close the caller, or
/// use it as a context manager.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Caller {
    end: End<tensorlend::Caller>,
    /// Whether a coroutine has reserved the caller for a call.
    in_call: AtomicBool,
    /// Ends this object's waits in other threads.
    interrupt: Interrupt,
    client: tensorlend::Client,
    awaited: Awaited,
    origin: Origin,
    mode: Mode,
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
        let end = End::new(caller, "the caller was closed: make another");
        let (interrupt, in_call) = (Interrupt::default(), AtomicBool::new(false));
        Self { end, in_call, interrupt, client, awaited, origin, mode }
    }

    fn show(&self, py: Python<'_>, value: tensorlend::Value) -> PyResult<Py<PyAny>> {
        show(py, &self.client, value, self.mode, self.origin.clone())
    }
}

context_manager!(Caller, |caller, py| caller.close(py));

#[pymethods]
impl Caller {
    /// Sends a request, and waits for its response.
    ///
    /// After a timeout, or Ctrl-C, the caller abandons the server. The next request goes to another server, if there is
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
    ///     No response arrived within `timeout`.
    /// ServiceError
    ///     The server reported an error, or ended before it responded.
    /// ClosedError
    ///     The caller was closed.
    /// DTypeError
    ///     The elements cannot be lent.
    #[pyo3(signature = (value, timeout=None, *, metadata=None, timestamp=0, device=None, stream=None))]
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
        let answer = self.end.with(py, |caller| caller.call_while(draft, limit, || watch.continues()));
        self.show(py, watch.unless_interrupted(answer, &self.origin.name)?)
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
    ///     No server appeared within `timeout`.
    /// ArgumentError
    ///     The caller's maximum number of requests is in flight.
    /// ClosedError
    ///     The caller was closed.
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
        let (to, limit) = (To::parse(device, stream)?, self::timeout(timeout)?);
        let draft = drafted(&self.client, value, &to, metadata, timestamp)?;
        let watch = self.interrupt.watch(&self.awaited);
        let sent = self.end.with(py, |caller| caller.send_while(draft, limit, || watch.continues()));
        watch.unless_interrupted(sent, &self.origin.name)
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
    ///     No response arrived within `timeout`.
    /// ServiceError
    ///     The server reported an error, or ended before it responded.
    /// ArgumentError
    ///     No request is in flight.
    /// ClosedError
    ///     The caller was closed.
    #[pyo3(signature = (timeout=None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<(u64, Py<PyAny>)> {
        let limit = self::timeout(timeout)?;
        self.end.ours()?;
        let (number, value) = wait(py, &self.awaited, limit, |slice| {
            self.end.wait(|caller| {
                let (number, answer) = caller.recv(Some(slice));
                answer.map(|value| (number, value))
            })
        })?;
        Ok((number, self.show(py, value)?))
    }

    /// Reserves the caller for one call of a coroutine. Returns false if the caller is already
    /// reserved.
    fn _reserve(&self) -> bool {
        !self.in_call.swap(true, Ordering::Acquire)
    }

    /// Ends the reservation of `_reserve`.
    fn _unreserve(&self) {
        self.in_call.store(false, Ordering::Release);
    }

    /// Returns whether a server is connected, so that the next request needs no wait. Returns None
    /// if another thread has the caller. If `alone` is true, raises an error if requests are in
    /// flight.
    fn _connected(&self, py: Python<'_>, alone: bool) -> PyResult<Option<bool>> {
        self.end.ours()?;
        self.awaited.check()?;
        let is_connected = |caller: &mut tensorlend::Caller| {
            if alone {
                caller.nothing_outstanding()?;
            }
            caller.is_connected()
        };
        py.detach(|| self.end.try_with(is_connected)).or_raise()
    }

    /// Returns the next response as `recv` does, but without waiting. Returns None if there is no
    /// response; the next response then makes the descriptor readable.
    fn _try_recv(&self, py: Python<'_>) -> PyResult<Option<(u64, Py<PyAny>)>> {
        self.end.ours()?;
        let try_recv = |caller: &mut tensorlend::Caller| {
            let (number, answer) = caller.try_recv();
            Ok(answer?.map(|value| (number, value)))
        };
        let received = py.detach(|| self.end.try_with(try_recv)).or_raise()?.flatten();
        received.map(|(number, value)| Ok((number, self.show(py, value)?))).transpose()
    }

    /// Returns whether `_try_recv` would return a response or raise an exception.
    fn _news(&self) -> PyResult<bool> {
        self.end.news(&self.awaited, |caller| caller.has_news())
    }

    /// Returns a duplicate of the descriptor that a response makes readable.
    fn _descriptor(&self) -> PyResult<Option<Descriptor>> {
        self.end.look(|caller| Ok(caller.descriptor().map(Descriptor::of)))?.flatten().transpose()
    }

    /// Number of requests in flight.
    #[getter]
    fn outstanding(&self, py: Python<'_>) -> PyResult<u64> {
        self.end.with(py, |caller| Ok(caller.outstanding()))
    }

    /// Abandons the server, and all requests in flight to it.
    ///
    /// The next request goes to another server, if there is one.
    ///
    /// Raises
    /// ------
    /// ClosedError
    ///     The caller was closed.
    fn give_up(&self, py: Python<'_>) -> PyResult<()> {
        self.end.with(py, |caller| {
            caller.give_up();
            Ok(())
        })
    }

    /// The service's name.
    #[getter]
    fn service(&self) -> &str {
        &self.origin.name
    }

    /// Ends the caller's connection to the service. A wait of this caller in another thread raises
    /// ClosedError.
    fn close(&self, py: Python<'_>) {
        self.interrupt.all();
        self.end.close(py);
    }

    fn __repr__(&self) -> String {
        let name = display::quoted(&self.origin.name);
        // Do not wait for the lock, because another thread may hold the lock during a whole call.
        let state = match self.end.ours().map(|()| self.end.try_with(|caller| Ok(caller.outstanding()))) {
            Ok(Ok(Some(outstanding))) => format!("{outstanding} in flight"),
            Ok(Err(_)) => "closed".into(),
            Ok(Ok(None)) | Err(_) => "in use".into(),
        };
        format!("<Caller of {name}, {state}>")
    }
}
