//! The class `Client`: its session with the daemon, and the daemon's metrics. The methods for
//! values are in `names.rs`, `lists.rs`, `links.rs` and `models.rs`.

use crate::broker::Broker;
use crate::context::context_manager;
use crate::errors::ResultExt;
use crate::lease::Origin;
use crate::mailbox::{Mail, Mailboxes};
use crate::options::Options;
use crate::target::{self, Device};
use crate::wait::{Awaited, closed};
use crate::{display, event_loop, listing, metadata, wait};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tensorlend::Notifications;
use tensorlend_os::fork;
use tensorlend_os::mutex::lock;

/// A session with the daemon, in one namespace.
///
/// `connect` and `Embedded.connect` open a session. Each value has a name, and is visible to every
/// client of the namespace.
///
/// Notes
/// -----
/// Thread-safe: any thread may use the client. In a forked child, and after unpickling, the client
/// opens a new session. Published values outlive the client. Waits release the interpreter's lock,
/// and Ctrl-C ends them.
#[pyclass(frozen, weakref, module = "tensorlend._native")]
pub struct Client {
    options: Arc<Options>,
    session: Mutex<Session>,
    /// Whether `close` was called. Then all waits of the client and of its objects end.
    closed: Arc<AtomicBool>,
}

struct Session {
    /// The session; `None` after `close`.
    client: Option<tensorlend::Client>,
    forks: u64,
    /// The embedded daemon that created the client. It is dropped after the client.
    broker: Option<Broker>,
    /// The waits of event loops; `None` before the first of these waits.
    notifications: Option<Arc<Notifications>>,
    /// The mailboxes. Empty before the first message, and `None` if they could not be opened.
    mailboxes: OnceLock<Option<Arc<Mailboxes>>>,
}

impl Session {
    /// Creates the session of this process.
    fn new(client: Option<tensorlend::Client>, broker: Option<Broker>) -> Self {
        Self { client, forks: fork::generation(), broker, notifications: None, mailboxes: OnceLock::new() }
    }
}

/// Connects to the daemon. Starts the user's daemon if `address` is None and none responds, unless $TENSORLEND_AUTOSTART is 0.
///
/// If the daemon does not respond, this call raises DisconnectedError after `request_timeout`. So
/// does each later call that sends a request.
///
/// Parameters
/// ----------
/// address : str, path or sequence of these, default None
///     The daemon's socket, or several that are tried in order. None tries $TENSORLEND_SOCKET, the user's daemon, then
///     the system's.
/// namespace : str or None, default None
///     The namespace to join. None joins this user's private namespace.
/// label : str or None, default None
///     A name for this client, which `tensorlend ls` shows.
/// harden : bool, default False
///     Protects this process from other processes of the same user, which can then neither trace it
///     nor take its descriptors. The process writes no core dumps.
/// memory_limit : int or None, default None
///     Maximum bytes of shared memory that this client may take.
/// request_timeout : float or None, default None
///     Seconds after which a request fails if the daemon does not respond. None is 30 s. If the daemon has ended, a request waits
///     for the next daemon for this time, but for 5 s at most.
///
/// Returns
/// -------
/// Client
///     An open session. Close it, or use it as a context manager.
///
/// Raises
/// ------
/// DisconnectedError
///     No daemon listens at any of the addresses.
/// PermissionError
///     This user may not join the namespace.
/// IncompatibleError
///     The daemon is of another version, or the kernel is too old.
/// ArgumentError
///     `request_timeout` is negative.
#[pyfunction]
#[pyo3(signature = (address=None, *, namespace=None, label=None, harden=false, memory_limit=None, request_timeout=None))]
pub fn connect(
    py: Python<'_>,
    address: Option<&Bound<'_, PyAny>>,
    namespace: Option<String>,
    label: Option<String>,
    harden: bool,
    memory_limit: Option<u64>,
    request_timeout: Option<f64>,
) -> PyResult<Client> {
    let (sockets, request_timeout) = (Options::sockets(address)?, wait::timeout(request_timeout)?);
    Client::open(
        py,
        Options { sockets, are_default: address.is_none(), namespace, label, harden, memory_limit, request_timeout },
        None,
    )
}

impl Client {
    /// Connects with these options, and creates the object.
    pub fn open(py: Python<'_>, options: Options, broker: Option<Broker>) -> PyResult<Self> {
        let client = Some(options.connect(py)?);
        let session = Session::new(client, broker);
        Ok(Self { options: Arc::new(options), session: Mutex::new(session), closed: Arc::default() })
    }

    /// Returns this process's session.
    pub fn session(&self, py: Python<'_>) -> PyResult<tensorlend::Client> {
        let ours = |session: &Session| {
            let client = session.client.as_ref().ok_or_else(closed)?;
            Ok::<_, PyErr>((session.forks == fork::generation()).then(|| client.clone()))
        };
        if let Some(client) = ours(&lock(&self.session))? {
            return Ok(client);
        }
        // In a forked child, the session belongs to the parent, so open a new one. Hold no lock
        // while connecting: `connect` releases the interpreter's lock, and another thread with that
        // lock could wait for this one. If two threads connect at once, one of the sessions is
        // dropped.
        let client = self.options.connect(py)?;
        let mut session = lock(&self.session);
        if let Some(client) = ours(&session)? {
            return Ok(client);
        }
        let broker = session.broker.take();
        let anew = Session::new(Some(client.clone()), broker);
        let before = std::mem::replace(&mut *session, anew);
        drop(session);
        drop(before);
        Ok(client)
    }

    /// Returns the waits of this process's event loops for events of the session.
    pub fn notifications(&self, py: Python<'_>) -> PyResult<Arc<Notifications>> {
        let client = self.session(py)?;
        let mut session = lock(&self.session);
        let now = session.client.as_ref().ok_or_else(closed)?;
        if !now.is_same(&client) {
            // Another thread of a forked child has connected in the meantime.
            return Ok(Arc::new(Notifications::new(&client)));
        }
        Ok(session.notifications.get_or_insert_with(|| Arc::new(Notifications::new(&client))).clone())
    }

    /// Returns the mailboxes of the session, which the first call opens. Without them, each message takes requests to the daemon.
    fn mailboxes(&self, py: Python<'_>, prefix: &str) -> PyResult<Option<Arc<Mailboxes>>> {
        let client = self.session(py)?;
        let session = lock(&self.session);
        let now = session.client.as_ref().ok_or_else(closed)?;
        if !now.is_same(&client) {
            // Another thread of a forked child has connected in the meantime.
            return Ok(None);
        }
        Ok(session.mailboxes.get_or_init(|| Mailboxes::new(client, prefix).ok().map(Arc::new)).clone())
    }

    /// Returns the options with which other processes connect as this client did.
    pub fn options(&self) -> &Arc<Options> {
        &self.options
    }

    /// Returns the state of a wait. `close` ends such waits.
    pub fn awaited(&self, client: &tensorlend::Client) -> Awaited {
        Awaited::new(&self.closed, client)
    }

    /// Returns the origin of a value. `named` states whether the name refers to the value itself.
    pub fn origin(&self, name: &str, named: bool) -> Origin {
        Origin { options: self.options.clone(), name: name.into(), named, member: None }
    }
}

context_manager!(Client, |client, py| client.close(py));

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (*_arguments, **_options))]
    fn new(_arguments: &Bound<'_, PyTuple>, _options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Err(PyTypeError::new_err(
            "a Client is made by tensorlend.connect(), or by the connect method of tensorlend.embedded()",
        ))
    }

    /// The namespace's name.
    #[getter]
    fn namespace(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.session(py)?.namespace().to_owned())
    }

    /// The sockets that the client tries, in order.
    #[getter]
    fn address(&self) -> Vec<PathBuf> {
        self.options.sockets.clone()
    }

    /// The daemon's version: the release, the commit and its date, and the newest protocol and layout.
    ///
    /// `tensorlend.__build__` is the same for this package.
    #[getter]
    fn daemon_version(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.session(py)?.daemon_version().to_owned())
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.session).client.is_none()
    }

    /// Ends the session as soon as its leases, drafts, streams and subscriptions are gone.
    ///
    /// Waits in other threads, on the client or on its objects, raise DisconnectedError.
    fn close(&self, py: Python<'_>) {
        self.closed.store(true, Ordering::Release);
        let mut session = lock(&self.session);
        let ended =
            (session.mailboxes.take(), session.notifications.take(), session.client.take(), session.broker.take());
        drop(session);
        // Dropping the last reference stops the embedded daemon and waits for its threads. So
        // release the interpreter's lock.
        py.detach(|| drop(ended));
        event_loop::poll_all(py);
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend._aio")?.call_method1("entered", (slf,))
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(slf: &Bound<'py, Self>, _exception: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend._aio")?.call_method1("left", (slf,))
    }

    /// Returns the nodes that this machine's gateway knows.
    ///
    /// Returns
    /// -------
    /// list of dict
    ///     A description of each node.
    ///
    /// Raises
    /// ------
    /// RemoteError
    ///     This machine's gateway does not respond.
    fn nodes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let client = self.session(py)?;
        let nodes = py.detach(|| client.remote().nodes()).or_raise()?;
        nodes.iter().map(|node| metadata::to_dict(py, &node.encode())).collect()
    }

    /// Returns the daemon's metrics.
    ///
    /// Returns
    /// -------
    /// dict
    ///     Memory in bytes, numbers of segments, clients, names and so on.
    ///
    /// Raises
    /// ------
    /// DisconnectedError
    ///     The daemon has ended.
    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let client = self.session(py)?;
        let stat = py.detach(|| client.stat()).or_raise()?;
        listing::stat(py, &stat)
    }

    /// Measures the time until the daemon's response.
    ///
    /// Returns
    /// -------
    /// float
    ///     Seconds.
    ///
    /// Raises
    /// ------
    /// DisconnectedError
    ///     The daemon has ended.
    fn ping(&self, py: Python<'_>) -> PyResult<f64> {
        let client = self.session(py)?;
        Ok(py.detach(|| client.ping()).or_raise()?.as_secs_f64())
    }

    /// Returns this client's own memory. Reads local counters, and never waits.
    ///
    /// Returns
    /// -------
    /// tuple of (int, int)
    ///     Bytes of slots in use, and of segments.
    fn memory(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let memory = self.session(py)?.memory();
        Ok((memory.slot_bytes, memory.segment_bytes))
    }

    /// Returns the bytes of the namespace's values on which clients hold leases.
    ///
    /// Returns
    /// -------
    /// int
    ///     Bytes of distinct tensors, on the host and on devices. A lease on a dataset counts all its tensors.
    ///
    /// Raises
    /// ------
    /// DisconnectedError
    ///     The daemon has ended.
    fn leased(&self, py: Python<'_>) -> PyResult<u64> {
        let client = self.session(py)?;
        py.detach(|| client.instruments().leased()).or_raise()
    }

    /// Returns the devices whose memory the daemon lends, whether or not this process sees them.
    ///
    /// Returns
    /// -------
    /// list of Device
    ///     The devices.
    fn devices(&self, py: Python<'_>) -> PyResult<Vec<Device>> {
        Ok(self.session(py)?.devices().into_iter().map(Device::new).collect())
    }

    /// Returns this client's own memory on a device.
    ///
    /// Parameters
    /// ----------
    /// device : str, int or device
    ///     The device, as in `put`.
    ///
    /// Returns
    /// -------
    /// tuple of (int, int)
    ///     Bytes of slots in use, and of segments.
    ///
    /// Raises
    /// ------
    /// DeviceError
    ///     There is no such device.
    /// ArgumentError
    ///     `device` is host memory.
    fn device_memory(&self, py: Python<'_>, device: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
        target::memory(py, &self.session(py)?, device)
    }

    /// The connection's arguments, as keywords of `connect`.
    #[getter]
    fn _options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Options { sockets, namespace, label, harden, memory_limit, request_timeout, .. } = &*self.options;
        let options = PyDict::new(py);
        options.set_item("address", sockets)?;
        options.set_item("namespace", namespace)?;
        options.set_item("label", label)?;
        options.set_item("harden", harden)?;
        options.set_item("memory_limit", memory_limit)?;
        options.set_item("request_timeout", request_timeout.map(|timeout| timeout.as_secs_f64()))?;
        Ok(options)
    }

    /// Raises if the client was closed or the daemon has ended.
    fn _check(&self, py: Python<'_>) -> PyResult<()> {
        self.awaited(&self.session(py)?).check()
    }

    /// Publishes a tensor in a mailbox. Returns None if no mailbox is free. The names begin with `prefix`.
    fn _mail<'py>(
        &self,
        py: Python<'py>,
        value: &Bound<'py, PyAny>,
        prefix: &str,
        ttl: f64,
    ) -> PyResult<Option<Mail<'py>>> {
        self.mailboxes(py, prefix)?.map_or(Ok(None), |boxes| boxes.send(py, value, prefix, ttl))
    }

    /// Handles the receipts that have arrived.
    fn _settle_mail(&self) {
        let session = lock(&self.session);
        let boxes = session.mailboxes.get().cloned().flatten().filter(|_| session.forks == fork::generation());
        drop(session);
        if let Some(boxes) = boxes {
            boxes.settle();
        }
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend._refs")?.call_method1("reduce_client", (slf,))
    }

    /// Returns an HTML table, which notebooks show.
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        display::html(slf.as_any(), "client")
    }

    fn __repr__(&self) -> String {
        match &lock(&self.session).client {
            Some(client) => {
                let memory = display::count(client.memory().slot_bytes, "byte");
                format!("<Client of namespace {}, {memory} in use>", display::quoted(client.namespace()))
            }
            None => "<Client, closed>".into(),
        }
    }
}
