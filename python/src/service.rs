//! Requests and responses: callers and servers.

use crate::client::{To, drafted, show};
use crate::draft::lock;
use crate::errors::{OrRaise, argument, closed, raise};
use crate::lease::{Mode, Origin};
use crate::received::Received;
use crate::wait::{Awaited, Interrupt, timeout, wait};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::collections::VecDeque;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;
use tensorlend::{Error, Reply};
use tensorlend_os::fork;

/// Interval at which a thread checks whether another has finished with a server.
const TURN: Duration = Duration::from_millis(1);

const SERVER_CLOSED: &str = "the server was closed: serve again";
const CALLER_CLOSED: &str = "the caller was closed: make another";

/// Rejects use in another process: a lock that was held at the fork stays locked for ever.
fn ours(forks: u64) -> PyResult<()> {
    if forks == fork::generation() { Ok(()) } else { Err(raise(Error::Forked)) }
}

/// One server of a service: an iterator of requests, synchronous and asynchronous. Created by Client.serve.
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
    /// Waits for the next request, for `timeout` seconds at most.
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

    /// The next request, if there is one.
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

    /// Awaits the next request: see recv.
    #[pyo3(signature = (timeout=None))]
    fn recv_async<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend._aio")?.call_method1("request", (slf, timeout))
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

    /// Ends the service: another thread that waits for a request raises ArgumentError. The callers move to another
    /// server.
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

    fn __repr__(&self) -> String {
        format!("<Server of {:?}>", self.origin.name)
    }
}

/// A request that waits for its response: call answer or fail. If it is dropped, it has failed. As a context manager it
/// sends an exception that leaves it to the caller, and lets it propagate.
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
        lock(&self.reply).take().ok_or_else(|| argument("the request has its answer already"))
    }
}

#[pymethods]
impl Call {
    /// The request: a Lease, a DeviceLease or a Dataset.
    #[getter]
    fn value(&self, py: Python<'_>) -> Py<PyAny> {
        self.received.value(py)
    }

    /// The Lease or DeviceLease, if it is one tensor.
    #[getter]
    fn tensor(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.received.tensor(py)
    }

    /// The Dataset, if it is several tensors.
    #[getter]
    fn dataset(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.received.dataset(py)
    }

    /// A numpy array that views the tensor in place and keeps it alive.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.received.numpy(py)
    }

    /// Responds with a tensor or a mapping of several. A disconnected caller is not an error.
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
        ours(self.forks)?;
        let to = To::parse(device, stream)?;
        if !self.is_open() {
            return Err(argument("the request has its answer already"));
        }
        // A value that cannot be sent leaves the request open.
        let draft = drafted(&self.client, value, &to, metadata, timestamp)?;
        let reply = self.take()?;
        py.detach(|| reply.answer(draft)).or_raise()
    }

    /// Responds with an error: the caller raises Error with this message.
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

/// Sends requests to servers of a service. Each thread should have its own. Created by Client.caller.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Caller {
    end: Mutex<Option<tensorlend::Caller>>,
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
        Self { end: Mutex::new(Some(caller)), interrupt, client, awaited, origin, mode, forks }
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
    /// Sends a request, a tensor or a mapping of several, and waits for its response: a Lease, a DeviceLease or a
    /// Dataset. After a timeout, or Ctrl-C, the caller gives the server up, and the next request goes to another if
    /// there is one.
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

    /// As call, awaitable: it waits in a separate thread. Cancelling it gives the server up.
    #[pyo3(signature = (value, timeout=None, **options))]
    fn call_async<'py>(
        slf: &Bound<'py, Self>,
        value: &Bound<'py, PyAny>,
        timeout: Option<f64>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments = (slf.getattr("call")?, (value, timeout), options, slf.getattr("_interrupt")?);
        slf.py().import("tensorlend._aio")?.call_method1("in_thread", arguments)
    }

    /// Sends a request without waiting for its response, and returns the request's number. Waits for a server if there
    /// is none.
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

    /// The number of the oldest request in flight, and its response. After a timeout the request stays in flight.
    #[pyo3(signature = (timeout=None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<(u64, Py<PyAny>)> {
        let limit = self::timeout(timeout)?;
        ours(self.forks)?;
        let (number, value) = wait(py, &self.awaited, limit, |slice| {
            let mut held = lock(&self.end);
            let caller = held.as_mut().ok_or_else(|| closed(CALLER_CLOSED))?;
            let (number, answer) = caller.recv(Some(slice));
            answer.map(|value| (number, value))
        })?;
        Ok((number, self.show(py, value)?))
    }

    /// Number of requests in flight.
    #[getter]
    fn outstanding(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |caller| Ok(caller.outstanding()))
    }

    /// Gives the server up, with all requests in flight to it: the next request goes to another, if there is one.
    fn give_up(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |caller| {
            caller.give_up();
            Ok(())
        })
    }

    /// Ends waits in other threads: they give their server up.
    fn _interrupt(&self) {
        self.interrupt.all();
    }

    /// The service's name.
    #[getter]
    fn service(&self) -> &str {
        &self.origin.name
    }

    /// Ends the caller's session with the service: another thread that waits for a response raises ClosedError.
    fn close(&self, py: Python<'_>) {
        if self.forks == fork::generation() {
            self.interrupt.all();
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
        format!("<Caller of {:?}>", self.origin.name)
    }
}
