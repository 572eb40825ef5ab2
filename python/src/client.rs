//! The client.

use crate::array::{Array, Out, beside};
use crate::batches::Batches;
use crate::dataset::Dataset;
use crate::device::array::{DeviceArray, from_host};
use crate::device::draft::Wish;
use crate::device::stream::Given;
use crate::device::{Device, DeviceDraft, DeviceLease, Place};
use crate::draft::{Draft, lock};
use crate::embedded::Broker;
use crate::errors::{OrRaise, argument, raise};
use crate::lease::{Lease, Mode, Origin};
use crate::library::Shown;
use crate::listing::Info;
use crate::model::Model;
use crate::options::Options;
use crate::service::{Caller, Server};
use crate::stream::Stream;
use crate::subscription::Subscription;
use crate::version::Version;
use crate::wait::{Awaited, closed, timeout, wait};
use crate::{dtype, metadata};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyDict, PyList, PyMapping, PyTuple};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensorlend::{DatasetDraft, Error, Length, Lifetime, TensorSpec, Value, ValueDraft, ValueKind};
use tensorlend_model::{ModelOptions, Models};
use tensorlend_os::fork;

/// Maximum length of a new name that is published without waiting for the daemon.
const NAME_QUICK: usize = 64;

/// The lifetime of a published value.
#[derive(Clone, Copy, Default)]
pub struct Lasting {
    lifetime: Option<Lifetime>,
}

impl Lasting {
    /// Returns true if it ends by itself.
    pub fn is_limited(self) -> bool {
        self.lifetime.is_some()
    }

    /// Parses the arguments; `ttl` is in seconds.
    pub fn new(ttl: Option<f64>, ephemeral: bool) -> PyResult<Self> {
        let ttl = match ttl {
            Some(seconds) => Some(Duration::try_from_secs_f64(seconds).map_err(|_| {
                argument(format!("a time to live of {seconds} seconds: give more than 0, or None for no limit"))
            })?),
            None => None,
        };
        let lifetime = (ttl.is_some() || ephemeral).then_some(Lifetime { ttl, ephemeral });
        Ok(Self { lifetime })
    }

    /// Publishes a draft with this lifetime. Releases the interpreter's lock if the daemon must respond.
    pub fn publish(self, py: Python<'_>, draft: ValueDraft, name: &str) -> PyResult<Version> {
        let version = match self.lifetime {
            None if name.len() <= NAME_QUICK => draft.publish(name),
            None => py.detach(|| draft.publish(name)),
            Some(lifetime) => py.detach(|| draft.publish_for(name, lifetime)),
        };
        version.or_raise().map(Version)
    }
}

/// The target memory of a caller's value, and the CUDA stream of pending work on it.
#[derive(Default)]
pub struct To<'a, 'py> {
    place: Place,
    stream: Option<&'a Bound<'py, PyAny>>,
}

impl<'a, 'py> To<'a, 'py> {
    /// Parses the arguments `device=` and `stream=`.
    pub fn parse(device: Option<&Bound<'py, PyAny>>, stream: Option<&'a Bound<'py, PyAny>>) -> PyResult<Self> {
        Ok(Self { place: Place::parse(device)?, stream })
    }
}

/// Returns a draft with a copy of the caller's array; `None` for a draft of the caller, which it keeps until all other
/// arguments are validated.
fn copied(client: &tensorlend::Client, value: &Bound<'_, PyAny>, to: &To<'_, '_>) -> PyResult<Option<ValueDraft>> {
    let py = value.py();
    if let Ok(draft) = value.cast::<Draft>() {
        if to.place.device().is_some() {
            return Err(argument("the draft is in host memory: create one with device=, or put its array"));
        }
        return draft.get().check(client).map(|()| None);
    }
    if let Ok(draft) = value.cast::<DeviceDraft>() {
        return draft.get().check(client, to.place).map(|()| None);
    }
    if Array::may_be_on_device(value)
        && let Some(array) = DeviceArray::of(value, to.stream)?
    {
        if matches!(to.place, Place::Host) {
            return Err(argument("the array is on a device: copy it to the host first (to_host, .cpu(), .get())"));
        }
        return array.draft(py, client, to.place).map(|draft| Some(draft.into()));
    }
    let array = Array::of(value)?;
    match to.place.device() {
        Some(on) => from_host(py, client, &array, on).map(|draft| Some(draft.into())),
        None => array.draft(py, client).map(|draft| Some(draft.into())),
    }
}

/// Takes the caller's own draft, after all work on it is done.
fn taken(value: &Bound<'_, PyAny>, to: &To<'_, '_>) -> PyResult<ValueDraft> {
    if let Ok(draft) = value.cast::<DeviceDraft>() {
        let draft = draft.get();
        if let Some(stream) = to.stream {
            draft.record_stream(stream)?;
        }
        return draft.take(value.py(), true).map(Into::into);
    }
    value.cast::<Draft>()?.get().take(value.py()).map(Into::into)
}

/// Returns the draft of a dataset's tensor.
fn member(name: &str, draft: ValueDraft) -> PyResult<tensorlend::Draft> {
    match draft {
        ValueDraft::Tensor(draft) => Ok(draft),
        _ => Err(argument(format!("{name:?} is on a device: {HOST_DATASETS}"))),
    }
}

/// Adds the name of a dataset's tensor to an error.
#[cold]
fn of_member(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    let own = py.import("tensorlend._errors").and_then(|module| module.getattr("Error"));
    if own.is_ok_and(|own| error.is_instance(py, &own)) {
        let value = error.value(py);
        let words = format!("tensor {name:?} of the dataset: {value}");
        if let Ok(made) = value.get_type().call1((words,)) {
            return PyErr::from_value(made);
        }
    }
    // An exception of numpy or of the array's library.
    let _ = error.value(py).call_method1("add_note", (format!("while the dataset's tensor {name:?} was copied"),));
    error
}

const HOST_DATASETS: &str = "a dataset's tensors are in host memory; put one on a device under a name of its own";

/// Returns a draft of a dataset.
fn dataset_of(
    client: &tensorlend::Client,
    tensors: &Bound<'_, PyMapping>,
    metadata: Option<&Bound<'_, PyAny>>,
    timestamp: u64,
) -> PyResult<DatasetDraft> {
    let metadata = metadata::checked(metadata)?;
    let mut members = Vec::new();
    for pair in tensors.items()? {
        let (name, value): (String, Bound<'_, PyAny>) = pair.extract()?;
        if value.is_instance_of::<DeviceDraft>() {
            return Err(argument(format!("{name:?} is on a device: {HOST_DATASETS}")));
        }
        let copy = copied(client, &value, &To::default()).map_err(|error| of_member(value.py(), &name, error))?;
        let copy = copy.map(|copy| member(&name, copy)).transpose()?;
        members.push((name, value, copy));
    }
    let mut dataset = client.dataset().timestamp(timestamp);
    if let Some(bytes) = metadata {
        dataset = dataset.metadata(&bytes).or_raise()?;
    }
    for (name, value, copy) in members {
        let draft = match copy {
            Some(draft) => draft,
            None => member(&name, taken(&value, &To::default())?)?,
        };
        dataset = dataset.add(&name, draft).or_raise()?;
    }
    Ok(dataset)
}

/// Returns a draft of an array, of a draft, or of a mapping of several.
pub fn drafted(
    client: &tensorlend::Client,
    value: &Bound<'_, PyAny>,
    to: &To<'_, '_>,
    metadata: Option<&Bound<'_, PyAny>>,
    timestamp: u64,
) -> PyResult<ValueDraft> {
    match value.cast::<PyMapping>() {
        Ok(_) if to.place.device().is_some() => Err(argument(HOST_DATASETS)),
        Ok(tensors) => dataset_of(client, tensors, metadata, timestamp).map(Into::into),
        Err(_) => tensor_of(client, value, to, metadata, timestamp),
    }
}

/// Returns a draft of one tensor.
fn tensor_of(
    client: &tensorlend::Client,
    value: &Bound<'_, PyAny>,
    to: &To<'_, '_>,
    metadata: Option<&Bound<'_, PyAny>>,
    timestamp: u64,
) -> PyResult<ValueDraft> {
    let metadata = metadata::checked(metadata)?;
    let mut draft = copied(client, value, to)?.map_or_else(|| taken(value, to), Ok)?;
    match &mut draft {
        ValueDraft::Tensor(draft) => describe(draft, metadata.as_deref(), timestamp)?,
        ValueDraft::Device(draft) => describe_on(draft, metadata.as_deref(), timestamp).or_raise()?,
        _ => unreachable!("it is one tensor"),
    }
    Ok(draft)
}

/// As [`describe`], for a draft on a device.
fn describe_on(draft: &mut tensorlend::DeviceDraft, metadata: Option<&[u8]>, timestamp: u64) -> Result<(), Error> {
    if let Some(bytes) = metadata {
        draft.set_metadata(bytes)?;
    }
    if timestamp != 0 {
        draft.set_timestamp(timestamp);
    }
    Ok(())
}

/// Sets the given metadata and timestamp, and keeps those that a draft has already.
fn describe(draft: &mut tensorlend::Draft, metadata: Option<&[u8]>, timestamp: u64) -> PyResult<()> {
    if let Some(bytes) = metadata {
        draft.set_metadata(bytes).or_raise()?;
    }
    if timestamp != 0 {
        draft.set_timestamp(timestamp);
    }
    Ok(())
}

/// A session with the daemon, in one namespace. It can be used from any thread. In a forked child, and after
/// unpickling, it opens a new session. Published values outlive it.
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

fn is_on_device(error: &Error) -> bool {
    matches!(error, Error::Kind { found: ValueKind::DeviceTensor, .. })
}

/// Connects to the daemon at `address` (a socket's path, or several that are tried in order; by default
/// $TENSORLEND_SOCKET, the user's daemon, or the system's), in `namespace` (by default this user's private one).
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

    /// The daemon's version, as a string.
    #[getter]
    fn daemon_version(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.session(py)?.daemon_version().to_owned())
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.session).client.is_none()
    }

    /// Ends the session as soon as its leases, drafts, streams and subscriptions are gone. Waits in other threads, on
    /// the client or on its objects, raise DisconnectedError.
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

    /// Copies an array into shared memory and publishes it under a name: one copy, no serialization. The order of axes
    /// in memory is kept, for example Fortran order; an array with gaps or negative strides is stored in C order. With
    /// `device`, copies into memory of that device; an array that is on a device is copied there, on `stream`, or on
    /// its producer's stream.
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

    /// Creates a tensor to be written in place. With a name, `with client.create(...) as draft:` publishes it on
    /// leaving. With `device` ("cuda:0", a UUID), returns a DeviceDraft there; `stream` is the stream that writes it.
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
        let client = self.session(py)?;
        let metadata = metadata::checked(metadata)?;
        let spec = TensorSpec { strides, ..TensorSpec::new(dtype, &shape) };
        if let Some(on) = Place::parse(device)?.device() {
            let stream = stream.map(|stream| Given::parse(Some(stream))).transpose()?;
            let wish = Wish { spec, on, stream, name, lasting };
            let describe = |draft: &mut tensorlend::DeviceDraft| describe_on(draft, metadata.as_deref(), timestamp);
            return Ok(Py::new(py, DeviceDraft::create(py, &client, wish, describe)?)?.into_any());
        }
        let bytes = spec.bytes().or_raise()?;
        let mut draft = beside(py, bytes, || client.create_spec(spec)).or_raise()?;
        describe(&mut draft, metadata.as_deref(), timestamp)?;
        Ok(Py::new(py, Draft::new(draft, &client, name, lasting))?.into_any())
    }

    /// Leases the tensor that the name holds now, without a copy; later publications do not change it. With mode "cow"
    /// this process can write to a private view: pages are copied at the first write. Returns a DeviceLease if the
    /// tensor is on a device. If it was published early, `stream` waits for the producer's work; without `stream` the
    /// caller waits.
    #[pyo3(signature = (name, *, mode="read", stream=None))]
    fn get(&self, py: Python<'_>, name: &str, mode: &str, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let mode = Mode::parse(mode)?;
        let client = self.session(py)?;
        let given = stream.map(|stream| Given::parse(Some(stream))).transpose()?;
        let early = || py.detach(|| client.get_device_early(name));
        let value = match given.as_ref().map(|_| early()) {
            None | Some(Err(Error::Kind { .. })) => look_up(py, &client, name)?,
            Some(other) => Value::Device(other.or_raise()?),
        };
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
    #[pyo3(signature = (name, *, mode="read"))]
    fn get_value(&self, py: Python<'_>, name: &str, mode: &str) -> PyResult<Py<PyAny>> {
        let mode = Mode::parse(mode)?;
        let client = self.session(py)?;
        let value = look_up(py, &client, name)?;
        show(py, &client, value, mode, self.origin(name, true))
    }

    /// Returns an iterator over the values of names, in their order. It yields a lease or a dataset for each name. With
    /// `library` "numpy" or "torch" it yields an array, or for a dataset a tuple of its arrays, which keep the lease
    /// alive. A tuple of names instead of a name yields a tuple. It leases `ahead` values at once, at a fraction of the
    /// cost of single leases; later publications under these names are not seen.
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

    /// Copies the tensor's elements, in C order, into a writable contiguous buffer of exactly their length.
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
    #[pyo3(signature = (name, timeout=None, *, mode="read"))]
    fn wait_for(&self, py: Python<'_>, name: &str, timeout: Option<f64>, mode: &str) -> PyResult<Py<PyAny>> {
        self.wait_newer(py, name, None, timeout, mode)
    }

    /// Waits until the name has another value than `seen`, and leases it.
    #[pyo3(signature = (name, seen=None, timeout=None, *, mode="read"))]
    fn wait_newer(
        &self,
        py: Python<'_>,
        name: &str,
        seen: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        mode: &str,
    ) -> PyResult<Py<PyAny>> {
        let (mode, seen, limit) = (Mode::parse(mode)?, self::seen(seen)?, self::timeout(timeout)?);
        let client = self.session(py)?;
        let value = wait(py, &self.awaited(&client), limit, |slice| client.wait_value(name, seen, Some(slice)))?;
        show(py, &client, value, mode, self.origin(name, true))
    }

    /// Whether the name has a value.
    fn exists(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.session(py)?.exists(name).or_raise()
    }

    fn __contains__(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.exists(py, name)
    }

    /// The version of the name's value; None if the name has none.
    fn version(&self, py: Python<'_>, name: &str) -> PyResult<Option<Version>> {
        Ok(self.session(py)?.version(name).or_raise()?.map(Version))
    }

    /// Deletes the name; False if it does not exist. Leases on its value stay valid.
    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let client = self.session(py)?;
        py.detach(|| client.delete(name)).or_raise()
    }

    /// Renames a value; the destination's previous value is replaced.
    fn rename(&self, py: Python<'_>, source: &str, destination: &str) -> PyResult<()> {
        let client = self.session(py)?;
        py.detach(|| client.rename(source, destination)).or_raise()
    }

    /// Copies a value to another name.
    fn copy(&self, py: Python<'_>, source: &str, destination: &str) -> PyResult<Version> {
        let client = self.session(py)?;
        py.detach(|| client.copy(source, destination)).or_raise().map(Version)
    }

    /// All names that match a glob, with descriptions, sorted by name.
    #[pyo3(signature = (glob="*"))]
    fn list(&self, py: Python<'_>, glob: &str) -> PyResult<Vec<Info>> {
        let client = self.session(py)?;
        let found = py.detach(|| client.list(glob)).or_raise()?;
        Ok(found.into_iter().map(Info).collect())
    }

    /// Describes the value of a name, without a lease.
    fn info(&self, py: Python<'_>, name: &str) -> PyResult<Info> {
        self.session(py)?.info(name).or_raise().map(Info)
    }

    /// Streams that match a glob: name and number of subscribers.
    #[pyo3(signature = (glob="*"))]
    fn streams(&self, py: Python<'_>, glob: &str) -> PyResult<Vec<(String, u64)>> {
        let client = self.session(py)?;
        let found = py.detach(|| client.streams(glob)).or_raise()?;
        Ok(found.into_iter().map(|one| (one.name, one.count)).collect())
    }

    /// Lists that match a glob: name and length.
    #[pyo3(signature = (glob="*"))]
    fn lists(&self, py: Python<'_>, glob: &str) -> PyResult<Vec<(String, u64)>> {
        let client = self.session(py)?;
        let found = py.detach(|| client.lists(glob)).or_raise()?;
        Ok(found.into_iter().map(|one| (one.name, one.count)).collect())
    }

    /// The nodes that this machine's gateway has seen: a dict for each, with node, epoch, alive and here.
    fn nodes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let client = self.session(py)?;
        let nodes = py.detach(|| client.nodes()).or_raise()?;
        nodes.iter().map(|node| metadata::to_dict(py, &node.encode())).collect()
    }

    /// Where the value of another machine's name is, and the age of the local copy: a dict with node, alive, cached,
    /// stale and stamp; None for a name of this machine.
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

    /// The names of other nodes that match a glob: a dict with names (a dict for each), silent (nodes that did not
    /// respond) and more (whether the list is incomplete).
    #[pyo3(signature = (glob="*"))]
    fn remote_names<'py>(&self, py: Python<'py>, glob: &str) -> PyResult<Bound<'py, PyAny>> {
        let client = self.session(py)?;
        let found = py.detach(|| client.remote_names(glob)).or_raise()?;
        metadata::to_dict(py, &found.encode())
    }

    /// Publishes an array under a name of another machine, "NODE/NAME". It has arrived when this returns.
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

    /// Fetches the missing items of another machine's list, "NODE/LIST"; returns the number of items that are then
    /// here, under that name.
    fn fetch_list(&self, py: Python<'_>, list: &str) -> PyResult<u64> {
        let client = self.session(py)?;
        py.detach(|| client.fetch_list(list)).or_raise()
    }

    /// Publishes several tensors under one name: readers see all of them or none.
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

    /// Appends a tensor, or a mapping of several, to a list; returns its index.
    #[pyo3(signature = (list, item, *, metadata=None, timestamp=0, device=None, stream=None))]
    #[allow(clippy::too_many_arguments)]
    fn append(
        &self,
        py: Python<'_>,
        list: &str,
        item: &Bound<'_, PyAny>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let to = To::parse(device, stream)?;
        let client = self.session(py)?;
        let draft = drafted(&client, item, &to, metadata, timestamp)?;
        py.detach(|| client.append(list, draft)).or_raise()
    }

    /// Appends copies of the names' current values as adjacent items; returns the index of the first.
    fn append_names(&self, py: Python<'_>, list: &str, names: Vec<String>) -> PyResult<u64> {
        let client = self.session(py)?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        py.detach(|| client.append_names(list, &names)).or_raise()
    }

    /// The number of items of a list; 0 if it does not exist.
    fn length(&self, py: Python<'_>, list: &str) -> PyResult<u64> {
        Ok(self.session(py)?.len(list))
    }

    /// Waits until the list has this length (op ">=", "==" or "<="), and returns its length.
    #[pyo3(signature = (list, length, op=">=", timeout=None))]
    fn wait_length(&self, py: Python<'_>, list: &str, length: u64, op: &str, timeout: Option<f64>) -> PyResult<u64> {
        let wanted = match op {
            ">=" => Length::AtLeast(length),
            "==" => Length::Exactly(length),
            "<=" => Length::AtMost(length),
            _ => return Err(argument(format!("op {op:?}: use \">=\", \"==\" or \"<=\""))),
        };
        let (client, limit) = (self.session(py)?, self::timeout(timeout)?);
        wait(py, &self.awaited(&client), limit, |slice| client.wait_len(list, wanted, Some(slice)))
    }

    /// All items of a list, in their order.
    #[pyo3(signature = (list, *, mode="read"))]
    fn get_all<'py>(&self, py: Python<'py>, list: &str, mode: &str) -> PyResult<Bound<'py, PyList>> {
        self.get_range(py, list, 0, u64::MAX, mode)
    }

    /// Items `start` to `stop` of a list; `stop` is excluded.
    #[pyo3(signature = (list, start, stop, *, mode="read"))]
    fn get_range<'py>(
        &self,
        py: Python<'py>,
        list: &str,
        start: u64,
        stop: u64,
        mode: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let mode = Mode::parse(mode)?;
        let client = self.session(py)?;
        let values = py.detach(|| match stop {
            u64::MAX => client.range(list, start..),
            _ => client.range(list, start..stop),
        });
        let origin = self.origin(list, false);
        let shown = values.or_raise()?.into_iter().map(|value| show(py, &client, value, mode, origin.clone()));
        PyList::new(py, shown.collect::<PyResult<Vec<_>>>()?)
    }

    /// Empties a list; False if it does not exist.
    fn clear(&self, py: Python<'_>, list: &str) -> PyResult<bool> {
        let client = self.session(py)?;
        py.detach(|| client.clear(list)).or_raise()
    }

    /// Renames a list.
    fn rename_list(&self, py: Python<'_>, source: &str, destination: &str) -> PyResult<()> {
        let client = self.session(py)?;
        py.detach(|| client.rename_list(source, destination)).or_raise()
    }

    /// Opens a stream, as its only producer. It keeps the last `capacity` messages for subscribers that lag. If a
    /// subscriber lags by more, `policy` "block" waits for it, "drop-oldest" drops its oldest messages, "error" raises
    /// StreamFullError.
    #[pyo3(signature = (name, *, capacity=8, policy="block"))]
    fn stream(&self, py: Python<'_>, name: &str, capacity: u32, policy: &str) -> PyResult<Stream> {
        let client = self.session(py)?;
        let builder = client.stream(name).capacity(capacity).policy(Stream::policy(policy)?);
        let stream = py.detach(|| builder.open()).or_raise()?;
        let awaited = self.awaited(&client);
        Ok(Stream::new(stream, client, awaited))
    }

    /// Subscribes to a stream from its "newest" or "oldest" message on, or from the "next" one. With `wait`, waits up
    /// to this many seconds until it is opened. `pollable` gives it a descriptor, which `async for` and select need.
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
            let mut builder = client.subscription(name).from(start);
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

    /// Deletes a stream; False if it does not exist.
    fn delete_stream(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let client = self.session(py)?;
        py.detach(|| client.delete_stream(name)).or_raise()
    }

    /// Opens a server, which responds to requests. Several servers of a service share its callers.
    #[pyo3(signature = (service, *, mode="read"))]
    fn serve(&self, py: Python<'_>, service: &str, mode: &str) -> PyResult<Server> {
        let (mode, client) = (Mode::parse(mode)?, self.session(py)?);
        let server = py.detach(|| client.serve(service).open()).or_raise()?;
        let awaited = self.awaited(&client);
        Ok(Server::new(server, client, awaited, self.origin(service, false), mode))
    }

    /// Opens a caller, which sends requests to the servers of a service; it selects one at the first request. Up to
    /// `capacity` requests can be in flight at once.
    #[pyo3(signature = (service, *, capacity=8, mode="read"))]
    fn caller(&self, py: Python<'_>, service: &str, capacity: u32, mode: &str) -> PyResult<Caller> {
        let (mode, client) = (Mode::parse(mode)?, self.session(py)?);
        let caller = client.caller(service).capacity(capacity).open().or_raise()?;
        let awaited = self.awaited(&client);
        Ok(Caller::new(caller, client, awaited, self.origin(service, false), mode))
    }

    /// Adds a model, or replaces it: the bytes of an ONNX file. Runners (tensorlend-runner) load it by themselves. They
    /// batch requests up to batch_max rows; the first request waits at most batch_wait_ms for others.
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
    fn get_model(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        self.get(py, &tensorlend_model::model_bytes_name(name), "read", None)
    }

    /// Removes a model; False if it does not exist.
    fn delete_model(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let models = Models::new(&self.session(py)?);
        py.detach(|| models.delete(name)).or_raise()
    }

    /// Names of the models that match a glob.
    #[pyo3(signature = (glob="*"))]
    fn models(&self, py: Python<'_>, glob: &str) -> PyResult<Vec<String>> {
        let models = Models::new(&self.session(py)?);
        let found = py.detach(|| models.list(glob)).or_raise()?;
        Ok(found.into_iter().map(|model| model.name).collect())
    }

    /// Metrics of a model's runners: a dict for each.
    fn model_statistics<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let models = Models::new(&self.session(py)?);
        let all = py.detach(|| models.statistics(name)).or_raise()?;
        all.iter().map(|one| metadata::to_dict(py, &one.encode())).collect()
    }

    /// Opens a model that is run many times: see Model.run.
    fn model(&self, py: Python<'_>, name: &str) -> PyResult<Model> {
        let client = self.session(py)?;
        let awaited = self.awaited(&client);
        Model::of(client, awaited, name, self.origin(&tensorlend_model::model_service(name), false))
    }

    /// Runs a model once: as model(name).run(inputs, outputs, ...).
    #[pyo3(signature = (name, inputs, outputs=None, *, prepare=None, timeout=Some(60.0), mode="read"))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords to who calls")]
    fn run_model(
        &self,
        py: Python<'_>,
        name: &str,
        inputs: &Bound<'_, PyDict>,
        outputs: Option<&Bound<'_, PyAny>>,
        prepare: Option<&Bound<'_, PyDict>>,
        timeout: Option<f64>,
        mode: &str,
    ) -> PyResult<Dataset> {
        self.model(py, name)?.run(py, inputs, outputs, prepare, timeout, mode)
    }

    /// Publishes a value under a unique name, and returns a reference that can be pickled and sent: see TensorRef. With
    /// `ttl`, the name ends after this many seconds unless it was deleted before.
    #[pyo3(signature = (value, *, metadata=None, ttl=None))]
    fn share<'py>(
        slf: &Bound<'py, Self>,
        value: &Bound<'py, PyAny>,
        metadata: Option<&Bound<'py, PyAny>>,
        ttl: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend._refs")?.call_method1("share", (slf, value, metadata, ttl))
    }

    /// The daemon's metrics: memory in bytes, numbers of segments, clients, names and so on.
    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let client = self.session(py)?;
        let stat = py.detach(|| client.stat()).or_raise()?;
        crate::listing::stat(py, &stat)
    }

    /// Seconds until the daemon's response.
    fn ping(&self, py: Python<'_>) -> PyResult<f64> {
        let client = self.session(py)?;
        Ok(py.detach(|| client.ping()).or_raise()?.as_secs_f64())
    }

    /// Bytes of this client's slots in use, and of its segments.
    fn memory(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let memory = self.session(py)?.memory();
        Ok((memory.slot_bytes, memory.segment_bytes))
    }

    /// The devices whose memory the daemon lends, whether or not this process sees them.
    fn devices(&self, py: Python<'_>) -> PyResult<Vec<Device>> {
        Ok(self.session(py)?.devices().into_iter().map(Device::new).collect())
    }

    /// Bytes of this client's slots in use on a device, and of its segments there.
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

    fn __repr__(&self) -> String {
        match &lock(&self.session).client {
            Some(client) => format!("<Client of namespace {:?}>", client.namespace()),
            None => "<Client, closed>".into(),
        }
    }
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
