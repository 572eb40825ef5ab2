//! The client.

use crate::array::{Out, beside, bytes_of};
use crate::batches::Batches;
use crate::dataset::Dataset;
use crate::device::draft::Wish;
use crate::device::stream::Given;
use crate::device::{Device, DeviceDraft, DeviceLease, Place};
use crate::draft::{Draft, lock};
use crate::embedded::Broker;
use crate::errors::{self, OrRaise, argument, raise};
use crate::given::{To, dataset_of, describe, describe_on, drafted, tensor_of};
use crate::lasting::Lasting;
use crate::lease::{Lease, Mode, Origin};
use crate::library::Shown;
use crate::listing::{self, Info};
use crate::model::Model;
use crate::options::Options;
use crate::service::{Caller, Server};
use crate::stream::Stream;
use crate::subscription::Subscription;
use crate::version::Version;
use crate::wait::{Awaited, closed, in_thread, options, timeout, wait};
use crate::{dtype, metadata, shown};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyDict, PyList, PyMapping, PyTuple};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensorlend::{DType, Error, Length, TensorSpec, Value, ValueKind};
use tensorlend_model::{ModelOptions, Models};
use tensorlend_os::fork;

/// A session with the daemon, in one namespace.
///
/// `connect` and `Embedded.connect` open it. All values are found by name, and are visible to every client of the
/// namespace.
///
/// Notes
/// -----
/// Thread-safe: any thread may use it. In a forked child, and after unpickling, it opens a new session. Published
/// values outlive it. Waits release the interpreter's lock, and Ctrl-C ends them.
#[pyclass(frozen, weakref, module = "tensorlend._native")]
pub struct Client {
    options: Arc<Options>,
    session: Mutex<Session>,
    /// Set by `close`: all waits of the client and of its objects end.
    closed: Arc<AtomicBool>,
}

struct Session {
    /// None after `close`.
    client: Option<tensorlend::Client>,
    forks: u64,
    /// The embedded daemon that created the client. It lives while the client is open, and is dropped after it.
    broker: Option<Broker>,
}

/// Looks a value up. Releases the interpreter's lock if the daemon lends device memory, since the driver may be slow,
/// and if the value is not here, since another machine's gateway may have to fetch it.
fn look_up(py: Python<'_>, client: &tensorlend::Client, name: &str) -> PyResult<Value> {
    if client.lends_devices() {
        return py.detach(|| client.get_value(name)).or_raise();
    }
    match client.get_here(name).or_raise()? {
        Some(value) => Ok(value),
        None => py.detach(|| client.get_value(name)).or_raise(),
    }
}

/// Returns the error for a value that is not a dataset.
#[cold]
fn is_no_dataset(name: &str, value: &Value) -> PyErr {
    let (found, remedy) = match value {
        Value::Tensor(_) => (ValueKind::Tensor, "get"),
        _ => (ValueKind::DeviceTensor, "get"),
    };
    raise(Error::Kind { name: name.to_owned(), found, wanted: ValueKind::Dataset, remedy })
}

/// Returns the error for a dataset where a tensor is expected.
#[cold]
fn is_dataset(name: &str) -> PyErr {
    raise(Error::Kind {
        name: name.to_owned(),
        found: ValueKind::Dataset,
        wanted: ValueKind::Tensor,
        remedy: "get_dataset",
    })
}

/// Checks that a value is a tensor with the elements that the caller expects.
fn expect(value: &Value, dtype: Option<DType>, name: &str) -> PyResult<()> {
    let Some(wanted) = dtype else { return Ok(()) };
    let found = match value {
        Value::Tensor(lease) => lease.dtype(),
        Value::Device(lease) => lease.dtype(),
        _ => return Err(is_dataset(name)),
    };
    if found == wanted {
        return Ok(());
    }
    let (found, wanted) = (found.numpy_name(), wanted.numpy_name());
    Err(errors::dtype(format!(
        "{name:?} has elements of {found}, but dtype={wanted} was asked for: leave dtype out, and convert the array with astype"
    )))
}

fn is_on_device(error: &Error) -> bool {
    matches!(error, Error::Kind { found: ValueKind::DeviceTensor, .. })
}

/// Connects to a running daemon.
///
/// If the daemon does not respond, this call and each later one that asks it raise DisconnectedError after 30 s.
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
///     Protects this process from other processes of the same user: none of them can trace it or take its descriptors.
///     There are no core dumps any more.
/// memory_limit : int or None, default None
///     Maximum bytes of shared memory that this client may take.
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
#[pyfunction]
#[pyo3(signature = (address=None, *, namespace=None, label=None, harden=false, memory_limit=None))]
pub fn connect(
    py: Python<'_>,
    address: Option<&Bound<'_, PyAny>>,
    namespace: Option<String>,
    label: Option<String>,
    harden: bool,
    memory_limit: Option<u64>,
) -> PyResult<Client> {
    Client::open(py, Options { sockets: Options::sockets(address)?, namespace, label, harden, memory_limit }, None)
}

impl Client {
    /// Connects.
    pub fn open(py: Python<'_>, options: Options, broker: Option<Broker>) -> PyResult<Self> {
        let client = Some(options.connect(py)?);
        let session = Session { client, forks: fork::generation(), broker };
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
        // A forked child: the session belongs to the parent. Connecting releases the interpreter, so no lock is held: a
        // thread that has the interpreter may want it. Of two threads that connect at once, one session is dropped.
        let client = self.options.connect(py)?;
        let mut session = lock(&self.session);
        if let Some(client) = ours(&session)? {
            return Ok(client);
        }
        let broker = session.broker.take();
        let anew = Session { client: Some(client.clone()), forks: fork::generation(), broker };
        let before = std::mem::replace(&mut *session, anew);
        drop(session);
        drop(before);
        Ok(client)
    }

    fn awaited(&self, client: &tensorlend::Client) -> Awaited {
        Awaited::new(&self.closed, client)
    }

    fn origin(&self, name: &str, named: bool) -> Origin {
        Origin { options: self.options.clone(), name: name.into(), named, member: None }
    }
}

/// The client library has more kinds of values than this package.
#[cold]
fn unknown_kind(name: &str) -> PyErr {
    argument(format!("{name:?} holds a kind of value that this package cannot show"))
}

/// Returns a value as a Python object.
pub fn show(
    py: Python<'_>,
    client: &tensorlend::Client,
    value: Value,
    mode: Mode,
    origin: Origin,
) -> PyResult<Py<PyAny>> {
    Ok(match value {
        Value::Tensor(lease) => Py::new(py, Lease::of(py, lease, mode, client, origin)?)?.into_any(),
        Value::Dataset(dataset) => Py::new(py, Dataset::of(py, dataset, mode, client, origin)?)?.into_any(),
        Value::Device(lease) => {
            mode.check_device(&origin.name)?;
            Py::new(py, DeviceLease::new(lease, origin))?.into_any()
        }
        _ => return Err(unknown_kind(&origin.name)),
    })
}

/// Returns the version of an object: a Version, or an object that has one.
fn seen(given: Option<&Bound<'_, PyAny>>) -> PyResult<tensorlend::Version> {
    let Some(given) = given else { return Ok(tensorlend::Version::NONE) };
    if let Ok(version) = given.cast::<Version>() {
        return Ok(version.get().0);
    }
    if let Ok(lease) = given.cast::<Lease>() {
        return lease.get().seen();
    }
    if let Ok(dataset) = given.cast::<Dataset>() {
        return dataset.get().seen();
    }
    if let Ok(lease) = given.cast::<DeviceLease>() {
        return lease.get().seen();
    }
    Err(pyo3::exceptions::PyTypeError::new_err("what was seen is a Version, a Lease, a DeviceLease or a Dataset"))
}

#[pymethods]
impl Client {
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

    /// The daemon's version.
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
        let ended = (session.client.take(), session.broker.take());
        drop(session);
        // The last reference stops the embedded daemon, which waits for its threads.
        py.detach(|| drop(ended));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> bool {
        self.close(py);
        false
    }

    /// Publishes a copy of an array under a name: one copy, no serialization.
    ///
    /// The order of axes in memory is kept, for example Fortran order. An array with gaps or negative strides is
    /// stored in C order.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The name. A previous value is replaced; leases on it stay valid.
    /// value : array_like, Draft or tensor
    ///     An array of any shape with elements of a numeric dtype, a tensor that speaks DLPack, or a draft of this
    ///     client, which is published without a copy.
    /// metadata : mapping or bytes or None, default None
    ///     A dict, stored as JSON, or bytes; 64 KiB at most.
    /// timestamp : int, default 0
    ///     Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
    /// ttl : float or None, default None
    ///     Time to live in seconds, after which the name ends; None for no limit.
    /// ephemeral : bool, default False
    ///     Whether the name ends with this client's session.
    /// device : str, int or device or None, default None
    ///     The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
    ///     or "cpu". None keeps the memory in which the array is.
    /// stream : int or stream or None, default None
    ///     The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
    ///     or cuda.core. None is the stream of the array's producer.
    ///
    /// Returns
    /// -------
    /// Version
    ///     The version of the published value.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The name, the metadata or another argument is invalid.
    /// DTypeError
    ///     The elements cannot be lent: objects, structures, text, dates, or another byte order.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    /// PermissionError
    ///     This user may not write to the namespace.
    ///
    /// Examples
    /// --------
    /// >>> version = client.put("weights", np.zeros((2, 3), np.float32), metadata={"epoch": 3})
    /// >>> client.get("weights").metadata["epoch"]
    /// 3
    #[pyo3(signature = (name, value, *, metadata=None, timestamp=0, ttl=None, ephemeral=false, device=None, stream=None))]
    #[allow(clippy::too_many_arguments)]
    fn put(
        &self,
        py: Python<'_>,
        name: &str,
        value: &Bound<'_, PyAny>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        ttl: Option<f64>,
        ephemeral: bool,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Version> {
        let lasting = Lasting::new(ttl, ephemeral)?;
        let to = To::parse(device, stream)?;
        let client = self.session(py)?;
        let draft = tensor_of(&client, value, &to, metadata, timestamp)?;
        lasting.publish(py, draft, name)
    }

    /// Creates a tensor in shared memory, to be written in place and published.
    ///
    /// Parameters
    /// ----------
    /// shape : int or sequence of int
    ///     Sizes, in elements.
    /// dtype : dtype or None, default None
    ///     What `numpy.dtype` takes, a dtype of torch, or a name of ml_dtypes. None is float64.
    /// name : str or None, default None
    ///     The name under which `publish`, or the end of `with`, publishes it.
    /// strides : sequence of int or None, default None
    ///     Strides in bytes, as numpy has them: multiples of the bytes of one element. None is C order.
    /// metadata : mapping or bytes or None, default None
    ///     A dict, stored as JSON, or bytes; 64 KiB at most.
    /// timestamp : int, default 0
    ///     Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
    /// ttl : float or None, default None
    ///     Time to live in seconds, after which the name ends; None for no limit.
    /// ephemeral : bool, default False
    ///     Whether the name ends with this client's session.
    /// device : str, int or device or None, default None
    ///     The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch.
    ///     None and "cpu" are host memory.
    /// stream : int or stream or None, default None
    ///     The CUDA stream that will write a tensor on a device.
    ///
    /// Returns
    /// -------
    /// Draft or DeviceDraft
    ///     The tensor; a DeviceDraft if `device` names a device. Its elements are undefined until they are written.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The shape, the strides or another argument is invalid.
    /// DTypeError
    ///     Elements of this dtype cannot be lent.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    /// DeviceError
    ///     The device cannot be used.
    ///
    /// Examples
    /// --------
    /// >>> with client.create((480, 640, 3), np.uint8, name="camera/front") as draft:
    /// ...     draft[:] = 128
    /// >>> client.get("camera/front").shape
    /// (480, 640, 3)
    #[pyo3(signature = (shape, dtype=None, *, name=None, strides=None, metadata=None, timestamp=0, ttl=None, ephemeral=false, device=None, stream=None))]
    #[allow(clippy::too_many_arguments)]
    fn create(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        name: Option<String>,
        strides: Option<Vec<i64>>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        ttl: Option<f64>,
        ephemeral: bool,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let lasting = Lasting::new(ttl, ephemeral)?;
        let dtype = dtype.map_or(Ok(tensorlend::DType::F64), dtype::parse)?;
        let shape = sizes(shape)?;
        let strides = strides.map(|bytes| elements(&bytes, dtype)).transpose()?;
        let client = self.session(py)?;
        let metadata = metadata::checked(metadata)?;
        let spec = TensorSpec { strides, ..TensorSpec::new(dtype, &shape) };
        let bytes = bytes_of(&spec)?;
        if let Some(on) = Place::parse(device)?.device() {
            let stream = stream.map(|stream| Given::parse(Some(stream))).transpose()?;
            let wish = Wish { spec, on, stream, name, lasting };
            let describe = |draft: &mut tensorlend::DeviceDraft| describe_on(draft, metadata.as_deref(), timestamp);
            return Ok(Py::new(py, DeviceDraft::create(py, &client, wish, describe)?)?.into_any());
        }
        let mut draft = beside(py, bytes, || client.create_spec(spec)).or_raise()?;
        describe(&mut draft, metadata.as_deref(), timestamp)?;
        Ok(Py::new(py, Draft::new(draft, &client, name, lasting))?.into_any())
    }

    /// Leases the tensor that the name holds now, without a copy. Later publications do not change it.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The tensor's name.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    /// dtype : dtype or None, default None
    ///     The expected type of the elements, as `numpy.dtype` takes it. The call checks it, and type checkers know it. None
    ///     accepts every type.
    /// stream : int or stream or None, default None
    ///     The CUDA stream that will read a tensor on a device: a handle, or a stream of torch, cupy, numba or
    ///     cuda.core. If the tensor was published early, the stream waits for the producer's work. With None, the
    ///     call itself waits.
    ///
    /// Returns
    /// -------
    /// Lease or DeviceLease
    ///     The lease; a DeviceLease if the tensor is on a device.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     The name has no value.
    /// ArgumentError
    ///     The name holds a dataset: use `get_dataset`.
    /// DTypeError
    ///     The tensor has elements of another type than `dtype`.
    /// LimitError
    ///     This client holds as many leases as it may.
    ///
    /// Examples
    /// --------
    /// >>> _ = client.put("x", np.arange(3))
    /// >>> client.get("x").numpy()
    /// array([0, 1, 2])
    #[pyo3(signature = (name, *, mode="read", dtype=None, stream=None))]
    fn get(
        &self,
        py: Python<'_>,
        name: &str,
        mode: &str,
        dtype: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (mode, dtype) = (Mode::parse(mode)?, dtype.map(dtype::parse).transpose()?);
        let client = self.session(py)?;
        let given = stream.map(|stream| Given::parse(Some(stream))).transpose()?;
        let early = || py.detach(|| client.get_device_early(name));
        let value = match given.as_ref().map(|_| early()) {
            None | Some(Err(Error::Kind { .. })) => look_up(py, &client, name)?,
            Some(other) => Value::Device(other.or_raise()?),
        };
        expect(&value, dtype, name)?;
        match value {
            Value::Tensor(lease) => {
                Ok(Py::new(py, Lease::of(py, lease, mode, &client, self.origin(name, true))?)?.into_any())
            }
            Value::Dataset(_) => Err(is_dataset(name)),
            Value::Device(lease) => {
                mode.check_device(name)?;
                let lease = DeviceLease::new(lease, self.origin(name, true));
                if let Some(given) = given {
                    lease.view()?.order(py, given)?;
                }
                Ok(Py::new(py, lease)?.into_any())
            }
            _ => Err(unknown_kind(name)),
        }
    }

    /// Leases the dataset that the name holds now: all of its tensors, with one lease.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The dataset's name.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// Dataset
    ///     A mapping of names to leases.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     The name has no value.
    /// ArgumentError
    ///     The name holds one tensor: use `get`.
    #[pyo3(signature = (name, *, mode="read"))]
    fn get_dataset(&self, py: Python<'_>, name: &str, mode: &str) -> PyResult<Dataset> {
        let mode = Mode::parse(mode)?;
        let client = self.session(py)?;
        match look_up(py, &client, name)? {
            Value::Dataset(dataset) => Dataset::of(py, dataset, mode, &client, self.origin(name, true)),
            other => Err(is_no_dataset(name, &other)),
        }
    }

    /// Leases the value that the name holds now: a tensor or a dataset.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The value's name.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// Lease, DeviceLease or Dataset
    ///     The value.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     The name has no value.
    #[pyo3(signature = (name, *, mode="read"))]
    fn get_value(&self, py: Python<'_>, name: &str, mode: &str) -> PyResult<Py<PyAny>> {
        let mode = Mode::parse(mode)?;
        let client = self.session(py)?;
        let value = look_up(py, &client, name)?;
        show(py, &client, value, mode, self.origin(name, true))
    }

    /// Returns an iterator over the values of names, in their order.
    ///
    /// It leases several values at once, which costs a fraction of leasing one at a time.
    ///
    /// Parameters
    /// ----------
    /// names : iterable of str or of tuple of str
    ///     The names. A tuple of names makes a tuple of values.
    /// library : {"numpy", "torch"} or None, default None
    ///     The library of the arrays: an array for each tensor, and a tuple of arrays for each dataset. None yields
    ///     leases and datasets.
    /// ahead : int, default 16
    ///     Number of values that are leased at once. Values that are published under a name after that are not seen.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// Batches
    ///     The iterator. Close it, or use it as a context manager.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     `library`, `ahead` or `mode` is invalid.
    /// TypeError
    ///     `names` is one name.
    #[pyo3(signature = (names, library=None, *, ahead=16, mode="read"))]
    fn batches(
        &self,
        py: Python<'_>,
        names: &Bound<'_, PyAny>,
        library: Option<&str>,
        ahead: usize,
        mode: &str,
    ) -> PyResult<Batches> {
        let shown = Shown::parse(library, mode)?;
        Batches::new(self.session(py)?, self.options.clone(), names, shown, ahead)
    }

    /// Copies the tensor's elements, in C order, into a buffer.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The tensor's name.
    /// out : buffer
    ///     A writable, contiguous buffer of exactly the tensor's length in bytes.
    ///
    /// Returns
    /// -------
    /// Version
    ///     The version of the copied value.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     The name has no value.
    /// ArgumentError
    ///     The buffer has another length.
    fn get_into(&self, py: Python<'_>, name: &str, out: &Bound<'_, PyAny>) -> PyResult<Version> {
        let client = self.session(py)?;
        let mut out = Out::of(out)?;
        let bytes = out.bytes();
        let copied = py.detach(|| match client.get_into(name, bytes) {
            Err(error) if is_on_device(&error) => {
                let lease = client.get_device(name)?;
                lease.copy_to_bytes(bytes).map(|()| lease.version())
            }
            other => other,
        });
        copied.or_raise().map(Version)
    }

    /// Waits until the name has a value, and leases it.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The value's name.
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    /// dtype : dtype or None, default None
    ///     The expected type of the elements, as `numpy.dtype` takes it. The call checks it, and type checkers know it. None
    ///     accepts every type.
    ///
    /// Returns
    /// -------
    /// Lease, DeviceLease or Dataset
    ///     The value; a lease if `dtype` is given.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// DTypeError
    ///     The tensor has elements of another type than `dtype`.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (name, timeout=None, *, mode="read", dtype=None))]
    fn wait_for(
        &self,
        py: Python<'_>,
        name: &str,
        timeout: Option<f64>,
        mode: &str,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.wait_newer(py, name, None, timeout, mode, dtype)
    }

    /// Awaits `wait_for`, which runs in a thread of its own. Cancelling ends the wait.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The value's name.
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    /// dtype : dtype or None, default None
    ///     The expected type of the elements, as `numpy.dtype` takes it. The call checks it, and type checkers know it. None
    ///     accepts every type.
    ///
    /// Returns
    /// -------
    /// Lease, DeviceLease or Dataset
    ///     The value; a lease if `dtype` is given.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// DTypeError
    ///     The tensor has elements of another type than `dtype`.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (name, timeout=None, *, mode="read", dtype=None))]
    fn wait_for_async<'py>(
        slf: &Bound<'py, Self>,
        name: &str,
        timeout: Option<f64>,
        mode: &str,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        in_thread(slf, "wait_for", (name, timeout), options!(slf.py(), mode, dtype), None)
    }

    /// Waits until the name has another value than the one seen, and leases it.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The value's name.
    /// seen : Version, Lease, DeviceLease, Dataset or None, default None
    ///     The value seen last, or its version. None accepts any value.
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    /// dtype : dtype or None, default None
    ///     The expected type of the elements, as `numpy.dtype` takes it. The call checks it, and type checkers know it. None
    ///     accepts every type.
    ///
    /// Returns
    /// -------
    /// Lease, DeviceLease or Dataset
    ///     The value; a lease if `dtype` is given.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// DTypeError
    ///     The tensor has elements of another type than `dtype`.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (name, seen=None, timeout=None, *, mode="read", dtype=None))]
    fn wait_newer(
        &self,
        py: Python<'_>,
        name: &str,
        seen: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        mode: &str,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (mode, seen, limit) = (Mode::parse(mode)?, self::seen(seen)?, self::timeout(timeout)?);
        let dtype = dtype.map(dtype::parse).transpose()?;
        let client = self.session(py)?;
        let value = wait(py, &self.awaited(&client), limit, |slice| client.wait_value(name, seen, Some(slice)))?;
        expect(&value, dtype, name)?;
        show(py, &client, value, mode, self.origin(name, true))
    }

    /// Awaits `wait_newer`, which runs in a thread of its own. Cancelling ends the wait.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The value's name.
    /// seen : Version, Lease, DeviceLease, Dataset or None, default None
    ///     The value seen last, or its version. None accepts any value.
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    /// dtype : dtype or None, default None
    ///     The expected type of the elements, as `numpy.dtype` takes it. The call checks it, and type checkers know it. None
    ///     accepts every type.
    ///
    /// Returns
    /// -------
    /// Lease, DeviceLease or Dataset
    ///     The value; a lease if `dtype` is given.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// DTypeError
    ///     The tensor has elements of another type than `dtype`.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (name, seen=None, timeout=None, *, mode="read", dtype=None))]
    fn wait_newer_async<'py>(
        slf: &Bound<'py, Self>,
        name: &str,
        seen: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
        mode: &str,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        in_thread(slf, "wait_newer", (name, seen, timeout), options!(slf.py(), mode, dtype), None)
    }

    /// Returns whether the name has a value; `name in client` does the same.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The name.
    ///
    /// Returns
    /// -------
    /// bool
    ///     True if it has a value.
    fn exists(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.session(py)?.exists(name).or_raise()
    }

    fn __contains__(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.exists(py, name)
    }

    /// Returns the version of the name's value, without a lease.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The name.
    ///
    /// Returns
    /// -------
    /// Version or None
    ///     The version; None if the name has no value.
    fn version(&self, py: Python<'_>, name: &str) -> PyResult<Option<Version>> {
        Ok(self.session(py)?.version(name).or_raise()?.map(Version))
    }

    /// Deletes a name. Leases on its value stay valid.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The name.
    ///
    /// Returns
    /// -------
    /// bool
    ///     False if the name did not exist.
    ///
    /// Raises
    /// ------
    /// PermissionError
    ///     This user may not write to the namespace.
    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let client = self.session(py)?;
        py.detach(|| client.delete(name)).or_raise()
    }

    /// Renames a value. The destination's previous value is replaced.
    ///
    /// Parameters
    /// ----------
    /// source : str
    ///     The present name.
    /// destination : str
    ///     The new name.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     The source has no value.
    fn rename(&self, py: Python<'_>, source: &str, destination: &str) -> PyResult<()> {
        let client = self.session(py)?;
        py.detach(|| client.rename(source, destination)).or_raise()
    }

    /// Copies a value to another name.
    ///
    /// Parameters
    /// ----------
    /// source : str
    ///     The name of the value.
    /// destination : str
    ///     The name of the copy. A previous value is replaced.
    ///
    /// Returns
    /// -------
    /// Version
    ///     The version of the copy.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     The source has no value.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    fn copy(&self, py: Python<'_>, source: &str, destination: &str) -> PyResult<Version> {
        let client = self.session(py)?;
        py.detach(|| client.copy(source, destination)).or_raise().map(Version)
    }

    /// Returns the names that match a pattern, without looking at their values.
    ///
    /// Parameters
    /// ----------
    /// glob : str, default "*"
    ///     A pattern, in which "*" stands for any text.
    ///
    /// Returns
    /// -------
    /// list of str
    ///     The names, sorted.
    #[pyo3(signature = (glob="*"))]
    fn names(&self, py: Python<'_>, glob: &str) -> PyResult<Vec<String>> {
        let client = self.session(py)?;
        py.detach(|| client.names(glob)).or_raise()
    }

    /// Returns descriptions of the names that match a pattern.
    ///
    /// Names whose values cannot be described are left out, with a RuntimeWarning: for example a faulty client's values,
    /// spilled values without memory to read them back, and values that need a lease while this client has none left. `names`
    /// has those names, too.
    ///
    /// Parameters
    /// ----------
    /// glob : str, default "*"
    ///     A pattern, in which "*" stands for any text.
    ///
    /// Returns
    /// -------
    /// list of Info
    ///     The descriptions, sorted by name.
    #[pyo3(signature = (glob="*"))]
    fn list(&self, py: Python<'_>, glob: &str) -> PyResult<Vec<Info>> {
        listing::list(py, &self.session(py)?, glob)
    }

    /// Describes the value of a name, without a lease.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The name.
    ///
    /// Returns
    /// -------
    /// Info
    ///     Dtype, shape, sizes and owner.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     The name has no value.
    fn info(&self, py: Python<'_>, name: &str) -> PyResult<Info> {
        self.session(py)?.info(name).or_raise().map(Info)
    }

    /// Returns the streams whose names match a pattern.
    ///
    /// Parameters
    /// ----------
    /// glob : str, default "*"
    ///     A pattern, in which "*" stands for any text.
    ///
    /// Returns
    /// -------
    /// list of (str, int)
    ///     Name and number of subscribers of each.
    #[pyo3(signature = (glob="*"))]
    fn streams(&self, py: Python<'_>, glob: &str) -> PyResult<Vec<(String, u64)>> {
        let client = self.session(py)?;
        let found = py.detach(|| client.streams(glob)).or_raise()?;
        Ok(found.into_iter().map(|one| (one.name, one.count)).collect())
    }

    /// Returns the lists whose names match a pattern.
    ///
    /// Parameters
    /// ----------
    /// glob : str, default "*"
    ///     A pattern, in which "*" stands for any text.
    ///
    /// Returns
    /// -------
    /// list of (str, int)
    ///     Name and length of each.
    #[pyo3(signature = (glob="*"))]
    fn lists(&self, py: Python<'_>, glob: &str) -> PyResult<Vec<(String, u64)>> {
        let client = self.session(py)?;
        let found = py.detach(|| client.lists(glob)).or_raise()?;
        Ok(found.into_iter().map(|one| (one.name, one.count)).collect())
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
    ///     This machine's gateway does not answer.
    fn nodes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let client = self.session(py)?;
        let nodes = py.detach(|| client.nodes()).or_raise()?;
        nodes.iter().map(|node| metadata::to_dict(py, &node.encode())).collect()
    }

    /// Returns where the value of another machine's name is, and the age of the local copy.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The name, "NODE/NAME".
    ///
    /// Returns
    /// -------
    /// dict or None
    ///     The keys node, alive, cached, stale and stamp; None for a name of this machine.
    ///
    /// Raises
    /// ------
    /// RemoteError
    ///     This machine's gateway does not answer.
    fn placement<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyDict>>> {
        let client = self.session(py)?;
        let Some(placement) = py.detach(|| client.placement(name)).or_raise()? else { return Ok(None) };
        let dict = PyDict::new(py);
        dict.set_item("node", placement.node)?;
        dict.set_item("alive", placement.alive)?;
        dict.set_item("cached", placement.cached)?;
        dict.set_item("stale", placement.stale)?;
        dict.set_item("stamp", placement.stamp)?;
        Ok(Some(dict))
    }

    /// Returns the names of other nodes that match a pattern.
    ///
    /// Parameters
    /// ----------
    /// glob : str, default "*"
    ///     A pattern, in which "*" stands for any text.
    ///
    /// Returns
    /// -------
    /// dict
    ///     names (a dict for each), silent (nodes that did not respond) and more (whether the list is incomplete).
    ///
    /// Raises
    /// ------
    /// RemoteError
    ///     This machine's gateway does not answer.
    #[pyo3(signature = (glob="*"))]
    fn remote_names<'py>(&self, py: Python<'py>, glob: &str) -> PyResult<Bound<'py, PyAny>> {
        let client = self.session(py)?;
        let found = py.detach(|| client.remote_names(glob)).or_raise()?;
        metadata::to_dict(py, &found.encode())
    }

    /// Publishes an array under a name of another machine. It has arrived when this returns.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The name, "NODE/NAME".
    /// value : array_like, Draft or tensor
    ///     The tensor, as in `put`.
    /// metadata : mapping or bytes or None, default None
    ///     A dict, stored as JSON, or bytes; 64 KiB at most.
    /// timestamp : int, default 0
    ///     Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
    ///
    /// Raises
    /// ------
    /// RemoteError
    ///     The node cannot be reached or refuses, or this machine's gateway does not answer.
    /// ArgumentError
    ///     The name has no node, or another argument is invalid.
    #[pyo3(signature = (name, value, *, metadata=None, timestamp=0))]
    fn put_remote(
        &self,
        py: Python<'_>,
        name: &str,
        value: &Bound<'_, PyAny>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
    ) -> PyResult<()> {
        let to = To::parse(None, None)?;
        let client = self.session(py)?;
        let draft = tensor_of(&client, value, &to, metadata, timestamp)?;
        py.detach(|| client.put_remote_draft(name, draft)).or_raise()
    }

    /// Fetches the missing items of another machine's list.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name, "NODE/LIST".
    ///
    /// Returns
    /// -------
    /// int
    ///     The number of items that are then on this machine, under that name.
    ///
    /// Raises
    /// ------
    /// RemoteError
    ///     The node cannot be reached or refuses, or this machine's gateway does not answer.
    fn fetch_list(&self, py: Python<'_>, name: &str) -> PyResult<u64> {
        let client = self.session(py)?;
        py.detach(|| client.fetch_list(name)).or_raise()
    }

    /// Publishes copies of several tensors under one name. Readers see all of them or none.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The name. A previous value is replaced; leases on it stay valid.
    /// tensors : mapping of str to array_like, Draft or tensor
    ///     The tensors by name, in host memory.
    /// metadata : mapping or bytes or None, default None
    ///     A dict, stored as JSON, or bytes; 64 KiB at most.
    /// timestamp : int, default 0
    ///     Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
    /// ttl : float or None, default None
    ///     Time to live in seconds, after which the name ends; None for no limit.
    /// ephemeral : bool, default False
    ///     Whether the name ends with this client's session.
    ///
    /// Returns
    /// -------
    /// Version
    ///     The version of the published value.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     A name, a tensor, the metadata or another argument is invalid.
    /// DTypeError
    ///     The elements of a tensor cannot be lent.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    ///
    /// Examples
    /// --------
    /// >>> _ = client.put_dataset("batch", {"x": np.zeros((8, 2)), "y": np.arange(8)})
    /// >>> x, y = client.get_dataset("batch").numpy()
    /// >>> x.shape
    /// (8, 2)
    #[pyo3(signature = (name, tensors, *, metadata=None, timestamp=0, ttl=None, ephemeral=false))]
    #[allow(clippy::too_many_arguments)]
    fn put_dataset(
        &self,
        py: Python<'_>,
        name: &str,
        tensors: &Bound<'_, PyMapping>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        ttl: Option<f64>,
        ephemeral: bool,
    ) -> PyResult<Version> {
        let lasting = Lasting::new(ttl, ephemeral)?;
        let client = self.session(py)?;
        let dataset = dataset_of(&client, tensors, metadata, timestamp)?;
        lasting.publish(py, dataset.into(), name)
    }

    /// Appends a tensor, or a mapping of several, to a list.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name. The first item creates the list.
    /// item : array_like, Draft, tensor or mapping of these
    ///     The item. A mapping becomes a dataset.
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
    ///     The index of the item.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The name or another argument is invalid.
    /// DTypeError
    ///     The elements cannot be lent.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    #[pyo3(signature = (name, item, *, metadata=None, timestamp=0, device=None, stream=None))]
    #[allow(clippy::too_many_arguments)]
    fn append(
        &self,
        py: Python<'_>,
        name: &str,
        item: &Bound<'_, PyAny>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let to = To::parse(device, stream)?;
        let client = self.session(py)?;
        let draft = drafted(&client, item, &to, metadata, timestamp)?;
        py.detach(|| client.append(name, draft)).or_raise()
    }

    /// Appends copies of the present values of names to a list, as adjacent items. Readers see all of them or none.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name.
    /// names : sequence of str
    ///     The names of the values, at most 1,024.
    ///
    /// Returns
    /// -------
    /// int
    ///     The index of the first of the items.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     One of the names has no value.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    fn append_names(&self, py: Python<'_>, name: &str, names: Vec<String>) -> PyResult<u64> {
        let client = self.session(py)?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        py.detach(|| client.append_names(name, &names)).or_raise()
    }

    /// Returns the length of a list.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name.
    ///
    /// Returns
    /// -------
    /// int
    ///     Number of items; 0 if the list does not exist.
    fn length(&self, py: Python<'_>, name: &str) -> PyResult<u64> {
        Ok(self.session(py)?.len(name))
    }

    /// Waits until a list has a certain length.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name.
    /// length : int
    ///     Number of items to wait for.
    /// op : {">=", "==", "<="}, default ">="
    ///     The comparison of the list's length with `length`.
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    ///
    /// Returns
    /// -------
    /// int
    ///     The list's length.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// ArgumentError
    ///     `op` is none of the three.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (name, length, op=">=", timeout=None))]
    fn wait_length(&self, py: Python<'_>, name: &str, length: u64, op: &str, timeout: Option<f64>) -> PyResult<u64> {
        let wanted = match op {
            ">=" => Length::AtLeast(length),
            "==" => Length::Exactly(length),
            "<=" => Length::AtMost(length),
            _ => return Err(argument(format!("op {op:?}: use \">=\", \"==\" or \"<=\""))),
        };
        let (client, limit) = (self.session(py)?, self::timeout(timeout)?);
        wait(py, &self.awaited(&client), limit, |slice| client.wait_len(name, wanted, Some(slice)))
    }

    /// Awaits `wait_length`, which runs in a thread of its own. Cancelling ends the wait.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name.
    /// length : int
    ///     Number of items to wait for.
    /// op : {">=", "==", "<="}, default ">="
    ///     The comparison of the list's length with `length`.
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    ///
    /// Returns
    /// -------
    /// int
    ///     The list's length.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// ArgumentError
    ///     `op` is none of the three.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (name, length, op=">=", timeout=None))]
    fn wait_length_async<'py>(
        slf: &Bound<'py, Self>,
        name: &str,
        length: u64,
        op: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        in_thread(slf, "wait_length", (name, length, op, timeout), None, None)
    }

    /// Leases all items of a list.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// list of Lease, DeviceLease or Dataset
    ///     The items in their order.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     There is no such list.
    #[pyo3(signature = (name, *, mode="read"))]
    fn get_all<'py>(&self, py: Python<'py>, name: &str, mode: &str) -> PyResult<Bound<'py, PyList>> {
        self.get_range(py, name, 0, u64::MAX, mode)
    }

    /// Leases adjacent items of a list.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name.
    /// start : int
    ///     The index of the first item.
    /// stop : int
    ///     The index after the last item.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// list of Lease, DeviceLease or Dataset
    ///     The items in their order. Indices beyond the list's end are left out.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     There is no such list.
    #[pyo3(signature = (name, start, stop, *, mode="read"))]
    fn get_range<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        start: u64,
        stop: u64,
        mode: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let mode = Mode::parse(mode)?;
        let client = self.session(py)?;
        let values = py.detach(|| match stop {
            u64::MAX => client.range(name, start..),
            _ => client.range(name, start..stop),
        });
        let origin = self.origin(name, false);
        let shown = values.or_raise()?.into_iter().map(|value| show(py, &client, value, mode, origin.clone()));
        PyList::new(py, shown.collect::<PyResult<Vec<_>>>()?)
    }

    /// Empties a list. Leases on its items stay valid.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name.
    ///
    /// Returns
    /// -------
    /// bool
    ///     False if the list did not exist.
    fn clear(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let client = self.session(py)?;
        py.detach(|| client.clear(name)).or_raise()
    }

    /// Renames a list.
    ///
    /// Parameters
    /// ----------
    /// source : str
    ///     The present name.
    /// destination : str
    ///     The new name. A previous list of this name is replaced.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     There is no such list.
    fn rename_list(&self, py: Python<'_>, source: &str, destination: &str) -> PyResult<()> {
        let client = self.session(py)?;
        py.detach(|| client.rename_list(source, destination)).or_raise()
    }

    /// Opens a stream, as its only producer.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The stream's name.
    /// capacity : int, default 8
    ///     Number of the last messages that are kept for subscribers that lag.
    /// policy : {"block", "drop-oldest", "error"}, default "block"
    ///     The effect of a subscriber that lags by more. "block": the producer waits for it. "drop-oldest": the
    ///     subscriber loses its oldest messages. "error": `send` raises StreamFullError.
    ///
    /// Returns
    /// -------
    /// Stream
    ///     The producer's end. Close it, or use it as a context manager.
    ///
    /// Raises
    /// ------
    /// ConflictError
    ///     Another client that is connected produces the stream.
    /// LimitError
    ///     A limit of the daemon's configuration is reached.
    #[pyo3(signature = (name, *, capacity=8, policy="block"))]
    fn stream(&self, py: Python<'_>, name: &str, capacity: u32, policy: &str) -> PyResult<Stream> {
        let client = self.session(py)?;
        let builder = client.stream(name).capacity(capacity).policy(Stream::policy(policy)?);
        let stream = py.detach(|| builder.open()).or_raise()?;
        let awaited = self.awaited(&client);
        Ok(Stream::new(stream, client, awaited))
    }

    /// Subscribes to a stream.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The stream's name.
    /// start : {"newest", "oldest", "next"}, default "newest"
    ///     The first message: the newest one, the oldest one that is still kept, or the next one that is sent.
    /// pollable : bool, default False
    ///     Whether the subscription has a descriptor, which `async for` and select need.
    /// wait : float or None, default None
    ///     Maximum wait in seconds until the stream is opened. None does not wait.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// Subscription
    ///     An iterator of messages. Close it, or use it as a context manager.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     There is no such stream, and `wait` is None.
    /// TimeoutError
    ///     The stream was not opened within `wait` seconds.
    /// LimitError
    ///     A limit of the daemon's configuration is reached.
    #[pyo3(signature = (name, *, start="newest", pollable=false, wait=None, mode="read"))]
    fn subscribe(
        &self,
        py: Python<'_>,
        name: &str,
        start: &str,
        pollable: bool,
        wait: Option<f64>,
        mode: &str,
    ) -> PyResult<Subscription> {
        let (start, mode) = (Subscription::start(start)?, Mode::parse(mode)?);
        let client = self.session(py)?;
        let awaited = self.awaited(&client);
        let open = |slice: Option<Duration>| {
            let mut builder = client.subscription(name).start_at(start);
            if pollable {
                builder = builder.pollable();
            }
            if let Some(slice) = slice {
                builder = builder.wait(slice);
            }
            builder.open()
        };
        let opened = match wait {
            None => py.detach(|| open(None)).or_raise()?,
            Some(_) => self::wait(py, &awaited, timeout(wait)?, |slice| open(Some(slice)))?,
        };
        Ok(Subscription::new(opened, client, awaited, self.origin(name, false), mode, pollable))
    }

    /// Awaits `subscribe`, which runs in a thread of its own. Cancelling ends the wait.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The stream's name.
    /// start : {"newest", "oldest", "next"}, default "newest"
    ///     The first message: the newest one, the oldest one that is still kept, or the next one that is sent.
    /// pollable : bool, default False
    ///     Whether the subscription has a descriptor, which `async for` and select need.
    /// wait : float or None, default None
    ///     Maximum wait in seconds until the stream is opened. None does not wait.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// Subscription
    ///     An iterator of messages. Close it, or use it as a context manager.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     There is no such stream, and `wait` is None.
    /// TimeoutError
    ///     The stream was not opened within `wait` seconds.
    /// LimitError
    ///     A limit of the daemon's configuration is reached.
    #[pyo3(signature = (name, *, start="newest", pollable=false, wait=None, mode="read"))]
    fn subscribe_async<'py>(
        slf: &Bound<'py, Self>,
        name: &str,
        start: &str,
        pollable: bool,
        wait: Option<f64>,
        mode: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        in_thread(slf, "subscribe", (name,), options!(slf.py(), start, pollable, wait, mode), None)
    }

    /// Deletes a stream.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The stream's name.
    ///
    /// Returns
    /// -------
    /// bool
    ///     False if the stream did not exist.
    ///
    /// Raises
    /// ------
    /// ConflictError
    ///     Another client that is connected produces the stream.
    fn delete_stream(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let client = self.session(py)?;
        py.detach(|| client.delete_stream(name)).or_raise()
    }

    /// Opens a server, which responds to requests. Several servers of a service share its callers.
    ///
    /// Parameters
    /// ----------
    /// service : str
    ///     The service's name.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// Server
    ///     An iterator of requests. Close it, or use it as a context manager.
    ///
    /// Raises
    /// ------
    /// LimitError
    ///     A limit of the daemon's configuration is reached.
    #[pyo3(signature = (service, *, mode="read"))]
    fn serve(&self, py: Python<'_>, service: &str, mode: &str) -> PyResult<Server> {
        let (mode, client) = (Mode::parse(mode)?, self.session(py)?);
        let server = py.detach(|| client.serve(service).open()).or_raise()?;
        let awaited = self.awaited(&client);
        Ok(Server::new(server, client, awaited, self.origin(service, false), mode))
    }

    /// Opens a caller, which sends requests to the servers of a service.
    ///
    /// It selects a server at the first request.
    ///
    /// Parameters
    /// ----------
    /// service : str
    ///     The service's name.
    /// capacity : int, default 8
    ///     Maximum number of requests in flight.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// Caller
    ///     The caller. Close it, or use it as a context manager.
    ///
    /// Raises
    /// ------
    /// LimitError
    ///     A limit of the daemon's configuration is reached.
    #[pyo3(signature = (service, *, capacity=8, mode="read"))]
    fn caller(&self, py: Python<'_>, service: &str, capacity: u32, mode: &str) -> PyResult<Caller> {
        let (mode, client) = (Mode::parse(mode)?, self.session(py)?);
        let caller = client.caller(service).capacity(capacity).open().or_raise()?;
        let awaited = self.awaited(&client);
        Ok(Caller::new(caller, client, awaited, self.origin(service, false), mode))
    }

    /// Adds or replaces a model. Runners (tensorlend-runner) load it by themselves.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The model's name.
    /// model : bytes or bytearray
    ///     The bytes of an ONNX file.
    /// batch_max : int, default 1
    ///     Maximum rows of a batch that a runner makes of several requests.
    /// batch_min : int or None, default None
    ///     Rows at which a batch starts without waiting for more; None is `batch_max`.
    /// batch_wait_ms : float, default 0.0
    ///     Maximum wait of the first request of a batch for others, in milliseconds.
    /// tag : str, default ""
    ///     A text for the user, such as the model's version.
    ///
    /// Returns
    /// -------
    /// Version
    ///     The version of the model.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The name or an option is invalid.
    #[pyo3(signature = (name, model, *, batch_max=1, batch_min=None, batch_wait_ms=0.0, tag=""))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords to who calls")]
    fn put_model(
        &self,
        py: Python<'_>,
        name: &str,
        model: PyBackedBytes,
        batch_max: u32,
        batch_min: Option<u32>,
        batch_wait_ms: f64,
        tag: &str,
    ) -> PyResult<Version> {
        let (models, tag) = (Models::new(&self.session(py)?), tag.to_owned());
        let options = ModelOptions { batch_max, batch_min, batch_wait_ms, tag, ..ModelOptions::default() };
        py.detach(|| models.put(name, &model, &options)).or_raise().map(Version)
    }

    /// Leases a model's bytes.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The model's name.
    ///
    /// Returns
    /// -------
    /// Lease
    ///     A tensor of uint8, in host memory.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     There is no such model.
    fn get_model(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        self.get(py, &tensorlend_model::model_bytes_name(name), "read", None, None)
    }

    /// Removes a model.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The model's name.
    ///
    /// Returns
    /// -------
    /// bool
    ///     False if the model did not exist.
    fn delete_model(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let models = Models::new(&self.session(py)?);
        py.detach(|| models.delete(name)).or_raise()
    }

    /// Returns the names of the models that match a pattern.
    ///
    /// Parameters
    /// ----------
    /// glob : str, default "*"
    ///     A pattern, in which "*" stands for any text.
    ///
    /// Returns
    /// -------
    /// list of str
    ///     The names.
    #[pyo3(signature = (glob="*"))]
    fn models(&self, py: Python<'_>, glob: &str) -> PyResult<Vec<String>> {
        let models = Models::new(&self.session(py)?);
        let found = py.detach(|| models.list(glob)).or_raise()?;
        Ok(found.into_iter().map(|model| model.name).collect())
    }

    /// Returns metrics of a model's runners.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The model's name.
    ///
    /// Returns
    /// -------
    /// list of dict
    ///     The metrics of each runner.
    fn model_statistics<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let models = Models::new(&self.session(py)?);
        let all = py.detach(|| models.statistics(name)).or_raise()?;
        all.iter().map(|one| metadata::to_dict(py, &one.encode())).collect()
    }

    /// Opens a model that is run many times.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The model's name.
    ///
    /// Returns
    /// -------
    /// Model
    ///     The model. Close it, or use it as a context manager.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The name is invalid.
    fn model(&self, py: Python<'_>, name: &str) -> PyResult<Model> {
        let client = self.session(py)?;
        let awaited = self.awaited(&client);
        Model::of(client, awaited, name, self.origin(&tensorlend_model::model_service(name), false))
    }

    /// Runs a model once, as `model(name).run(inputs, outputs, ...)` does.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The model's name.
    /// inputs : mapping of str to str or array_like
    ///     For each of the model's inputs an array in host memory, or the name of a tensor.
    /// outputs : sequence of str, mapping of str to str or None, or None, default None
    ///     None returns all outputs; a sequence selects some. A mapping has the names under which outputs are published
    ///     instead of returned; None returns the output.
    /// prepare : mapping of str to steps or None, default None
    ///     Steps before an input, such as {"x": ["chw", {"scale": 1 / 255}, "batch"]}.
    /// timeout : float or None, default 60.0
    ///     Maximum wait in seconds; None waits without limit.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// Dataset
    ///     The outputs by name.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// ServiceError
    ///     The runner reported an error, or ended before it answered.
    #[pyo3(
        signature = (name, inputs, outputs=None, *, prepare=None, timeout=Some(60.0), mode="read"),
        text_signature = "($self, name, inputs, outputs=None, *, prepare=None, timeout=60.0, mode='read')"
    )]
    #[allow(clippy::too_many_arguments, reason = "they are keywords to who calls")]
    fn run_model(
        &self,
        py: Python<'_>,
        name: &str,
        inputs: &Bound<'_, PyMapping>,
        outputs: Option<&Bound<'_, PyAny>>,
        prepare: Option<&Bound<'_, PyMapping>>,
        timeout: Option<f64>,
        mode: &str,
    ) -> PyResult<Dataset> {
        self.model(py, name)?.run(py, inputs, outputs, prepare, timeout, mode)
    }

    /// Awaits `run_model`, which runs in a thread of its own. Cancelling gives the runner up.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The model's name.
    /// inputs : mapping of str to str or array_like
    ///     For each of the model's inputs an array in host memory, or the name of a tensor.
    /// outputs : sequence of str, mapping of str to str or None, or None, default None
    ///     None returns all outputs; a sequence selects some. A mapping has the names under which outputs are published
    ///     instead of returned; None returns the output.
    /// prepare : mapping of str to steps or None, default None
    ///     Steps before an input, such as {"x": ["chw", {"scale": 1 / 255}, "batch"]}.
    /// timeout : float or None, default 60.0
    ///     Maximum wait in seconds; None waits without limit.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// Dataset
    ///     The outputs by name.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The timeout passed before the event.
    /// ServiceError
    ///     The runner reported an error, or ended before it answered.
    #[pyo3(
        signature = (name, inputs, outputs=None, *, prepare=None, timeout=Some(60.0), mode="read"),
        text_signature = "($self, name, inputs, outputs=None, *, prepare=None, timeout=60.0, mode='read')"
    )]
    #[allow(clippy::too_many_arguments, reason = "they are keywords to who calls")]
    fn run_model_async<'py>(
        slf: &Bound<'py, Self>,
        name: &str,
        inputs: &Bound<'py, PyMapping>,
        outputs: Option<&Bound<'py, PyAny>>,
        prepare: Option<&Bound<'py, PyMapping>>,
        timeout: Option<f64>,
        mode: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = options!(slf.py(), prepare, timeout, mode);
        in_thread(slf, "run_model", (name, inputs, outputs), options, None)
    }

    /// Publishes a copy of an array under a unique name, for another process.
    ///
    /// Parameters
    /// ----------
    /// value : array_like, Draft or tensor
    ///     The tensor, as in `put`.
    /// metadata : mapping or bytes or None, default None
    ///     A dict, stored as JSON, or bytes; 64 KiB at most.
    /// ttl : float or None, default None
    ///     Time to live in seconds, after which the name ends; None for no limit.
    ///
    /// Returns
    /// -------
    /// TensorRef
    ///     A small reference that can be pickled and sent.
    ///
    /// Raises
    /// ------
    /// DTypeError
    ///     The elements cannot be lent.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    #[pyo3(signature = (value, *, metadata=None, ttl=None))]
    fn share<'py>(
        slf: &Bound<'py, Self>,
        value: &Bound<'py, PyAny>,
        metadata: Option<&Bound<'py, PyAny>>,
        ttl: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend._refs")?.call_method1("share", (slf, value, metadata, ttl))
    }

    /// Publishes an object as one tensor.
    ///
    /// Plain values need no pickle. Needs the package msgpack: pip install 'tensorlend[objects]'.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     1 to 255 bytes of UTF-8.
    /// obj : object
    ///     Dicts, lists, text, numbers, arrays, Arrow data, frames, and anything that can be pickled.
    /// metadata : mapping or bytes or None, default None
    ///     A dict, stored as JSON, or bytes; 64 KiB at most.
    /// timestamp : int, default 0
    ///     A number of the producer's choice, usually nanoseconds.
    /// ttl : float or None, default None
    ///     Time to live in seconds, after which the name ends; None for no limit.
    /// ephemeral : bool, default False
    ///     The name ends with this client's session.
    ///
    /// Returns
    /// -------
    /// Version
    ///     The version of the published value.
    ///
    /// Raises
    /// ------
    /// NameError
    ///     The name is not valid.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    #[pyo3(signature = (name, obj, *, metadata=None, timestamp=0, ttl=None, ephemeral=false))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords to who calls")]
    fn put_object<'py>(
        slf: &Bound<'py, Self>,
        name: &str,
        obj: &Bound<'py, PyAny>,
        metadata: Option<&Bound<'py, PyAny>>,
        timestamp: u64,
        ttl: Option<f64>,
        ephemeral: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let objects = slf.py().import("tensorlend.objects")?;
        objects.call_method1("put_object", (slf, name, obj, metadata, timestamp, ttl, ephemeral))
    }

    /// Returns an object that `put_object` published.
    ///
    /// Arrays in it view shared memory and keep it alive.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     1 to 255 bytes of UTF-8.
    /// trust_pickle : bool, default False
    ///     Load pickles in the object, which lets their publisher run any code here.
    /// lazy : bool, default False
    ///     Return a FrozenList or a FrozenDict, which makes an item when it is asked for.
    /// mode : {"read", "cow"}, default "read"
    ///     "read" for read-only arrays; "cow" for writable private copies on write.
    ///
    /// Returns
    /// -------
    /// object
    ///     The object.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     Nothing is published under the name.
    /// UntrustedPickleError
    ///     The object contains a pickle, and `trust_pickle` is False.
    #[pyo3(signature = (name, *, trust_pickle=false, lazy=false, mode="read"))]
    fn get_object<'py>(
        slf: &Bound<'py, Self>,
        name: &str,
        trust_pickle: bool,
        lazy: bool,
        mode: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend.objects")?.call_method1("get_object", (slf, name, trust_pickle, lazy, mode))
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
        crate::listing::stat(py, &stat)
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

    /// Returns how many bytes of the namespace's tensors some client holds a lease on.
    ///
    /// Returns
    /// -------
    /// int
    ///     Bytes of distinct tensors.
    ///
    /// Raises
    /// ------
    /// DisconnectedError
    ///     The daemon has ended.
    fn leased(&self, py: Python<'_>) -> PyResult<u64> {
        let client = self.session(py)?;
        py.detach(|| client.leased()).or_raise()
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
        crate::device::memory(py, &self.session(py)?, device)
    }

    /// The connection's arguments, as keywords of `connect`.
    #[getter]
    fn _options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Options { sockets, namespace, label, harden, memory_limit } = &*self.options;
        let options = PyDict::new(py);
        options.set_item("address", sockets)?;
        options.set_item("namespace", namespace)?;
        options.set_item("label", label)?;
        options.set_item("harden", harden)?;
        options.set_item("memory_limit", memory_limit)?;
        Ok(options)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend._refs")?.call_method1("reduce_client", (slf,))
    }

    /// A table for notebooks.
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        shown::html(slf.as_any(), "client")
    }

    fn __repr__(&self) -> String {
        match &lock(&self.session).client {
            Some(client) => {
                let memory = shown::count(client.memory().slot_bytes, "byte");
                format!("<Client of namespace {}, {memory} in use>", shown::quoted(client.namespace()))
            }
            None => "<Client, closed>".into(),
        }
    }
}

/// Converts strides from bytes to elements.
fn elements(bytes: &[i64], dtype: DType) -> PyResult<Vec<i64>> {
    let item = dtype.item_bytes() as i64;
    if bytes.iter().any(|stride| stride % item != 0) {
        let (bytes, name) = (shown::tuple(bytes), dtype.numpy_name());
        return Err(argument(format!(
            "strides of {bytes} bytes: each must be a multiple of the {item} bytes of an element of {name}, as numpy's strides are"
        )));
    }
    Ok(bytes.iter().map(|stride| stride / item).collect())
}

/// Parses sizes: one, or several.
pub fn sizes(shape: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let sizes = shape.extract::<i64>().map(|one| vec![one]).or_else(|_| shape.extract::<Vec<i64>>())?;
    sizes
        .into_iter()
        .map(|size| {
            u64::try_from(size).map_err(|_| argument(format!("a size of {size} elements: sizes are 0 or more")))
        })
        .collect()
}
