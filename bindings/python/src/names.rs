//! The methods of `Client` for named values: publish, get, wait, list, remove.

use crate::arguments::{self, elements, sizes};
use crate::array::Out;
use crate::batches::Batches;
use crate::client::Client;
use crate::cuda_stream::CudaStream;
use crate::dataset::Dataset;
use crate::device::DeviceLease;
use crate::errors::{self, ResultExt, not_leased, raise};
use crate::event_loop::{Ticket, Wakeups};
use crate::lasting::Lasting;
use crate::lease::{Lease, Mode};
use crate::library::Form;
use crate::listing::{self, Info, set_fields};
use crate::received::{show, unknown_kind};
use crate::values::{DraftParameters, To, create, dataset_of, lifetime_of, tensor_of};
use crate::version::Version;
use crate::wait::{timeout, wait};
use crate::{dtype, metadata, objects};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBool, PyDict, PyIterator, PyList, PyMapping};
use tensorlend::{DType, Error, TensorSpec, Value, ValueKind};

/// Leases the value of a name. Releases the interpreter's lock if the daemon lends device memory,
/// because the driver may be slow. Also releases the lock if this machine has no such value,
/// because the gateway may have to fetch the value.
fn look_up(py: Python<'_>, client: &tensorlend::Client, name: &str, mode: Mode) -> Result<Value, Error> {
    if matches!(mode, Mode::CopyOnWrite) {
        // The private mapping has pages of its own, so the mapping of the leased memory needs none.
        return tensorlend::lazily(|| look_up(py, client, name, Mode::Read));
    }
    if client.lends_devices() {
        return py.detach(|| client.get_value(name));
    }
    match client.get_here(name)? {
        Some(value) => Ok(value),
        None => py.detach(|| client.get_value(name)),
    }
}

/// Refuses the bytes of an object, which only `get_object` reads.
fn check_not_object(name: &str, value: &Value) -> PyResult<()> {
    match value {
        Value::Tensor(lease) if objects::is_object(lease) => Err(errors::dtype(format!(
            "{name:?} holds an object, not a tensor: use get_object, or get_value for its bytes"
        ))),
        _ => Ok(()),
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

/// Checks that a value is a tensor whose elements have the dtype that the caller expects.
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
        "{name:?} has elements of {found}, not dtype={wanted}: leave dtype out, and convert the array with astype"
    )))
}

/// Parses an argument for which None is a value, and Ellipsis is the default.
#[allow(clippy::unnecessary_wraps, reason = "pyo3 calls it")]
fn optional_argument(object: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
    Ok((!object.is(object.py().Ellipsis())).then(|| object.clone().unbind()))
}

/// Returns the version of a Version, a lease or a dataset; `Version::NONE` if none is given.
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
    Err(PyTypeError::new_err("`seen` must be a Version, a Lease, a DeviceLease or a Dataset"))
}

impl Client {
    /// Returns the names that hold a value now. A deleted name may still be in the directory.
    fn filled_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let client = self.session(py)?;
        py.detach(|| {
            let names =
                client.names("*")?.into_iter().map(|name| client.exists(&name).map(|exists| exists.then_some(name)));
            names.filter_map(Result::transpose).collect::<Result<_, Error>>()
        })
        .or_raise()
    }
}

#[pymethods]
impl Client {
    /// Publishes a copy of an array under a name. The array is copied once, and never serialized.
    ///
    /// The order of axes in memory is kept, for example Fortran order. An array with gaps or negative strides is
    /// stored in C order.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The name. A previous value is replaced; leases on it stay valid.
    /// value : array_like, Draft or tensor
    ///     An array of any shape with elements of a numeric dtype, a tensor that supports DLPack,
    ///     or a draft of this client, which is published without a copy.
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
    fn put(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        value: &Bound<'_, PyAny>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        ttl: Option<f64>,
        ephemeral: bool,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Version> {
        let mut lasting = Lasting::new(ttl, ephemeral)?;
        if !lasting.is_limited() {
            lasting = lifetime_of(value);
        }
        let to = To::parse(device, stream)?;
        let client = self.session(py)?;
        let draft = tensor_of(&client, value, &to, metadata, timestamp)?;
        lasting.publish(py, draft, name)
    }

    /// Creates a tensor in shared memory. The program writes the tensor in place and publishes it.
    ///
    /// Parameters
    /// ----------
    /// shape : int or sequence of int
    ///     Sizes, in elements.
    /// dtype : dtype or None, default None
    ///     A dtype as for `numpy.dtype`, a dtype of torch, or a name of ml_dtypes. None is float64.
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
    ///     The CUDA stream that will write a tensor on a device; None for host memory.
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
        create(py, &client, DraftParameters { spec, name, lasting, metadata, timestamp }, &To::parse(device, stream)?)
    }

    /// Leases the tensor that the name holds now, without a copy. Later publications do not change
    /// this tensor.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The tensor's name.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    /// dtype : dtype or None, default None
    ///     The expected type of the elements, as `numpy.dtype` takes it. The call checks the type,
    ///     and type checkers know it. None accepts every type.
    /// stream : int or stream or None, default None
    ///     The CUDA stream that will read a tensor on a device: a handle, or a stream of torch, cupy, numba or
    ///     cuda.core. If the tensor was published early, the stream waits for the producer's work. With None, the
    ///     call itself waits.
    /// default : object, optional
    ///     The result if the name has no value. Without it, the call raises NotFoundError.
    ///
    /// Returns
    /// -------
    /// Lease, DeviceLease or object
    ///     The lease, a DeviceLease if the tensor is on a device; or `default`.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     The name has no value.
    /// ArgumentError
    ///     The name holds a dataset: use `get_dataset`.
    /// DTypeError
    ///     The tensor has elements of another type than `dtype`, or the name holds an object: use `get_object`.
    /// LimitError
    ///     This client holds its maximum number of leases.
    ///
    /// Examples
    /// --------
    /// >>> _ = client.put("x", np.arange(3))
    /// >>> client.get("x").numpy()
    /// array([0, 1, 2])
    #[pyo3(
        signature = (name, *, mode="read", dtype=None, stream=None, default=None),
        text_signature = "($self, name, *, mode='read', dtype=None, stream=None, default=...)"
    )]
    pub fn get(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        mode: &str,
        dtype: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = optional_argument)] default: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (mode, dtype) = (Mode::parse(mode)?, dtype.map(dtype::parse).transpose()?);
        let client = self.session(py)?;
        let given = stream.map(|stream| CudaStream::parse(Some(stream))).transpose()?;
        let early = || py.detach(|| client.get_device_early(name));
        let found = match given.as_ref().map(|_| early()) {
            None | Some(Err(Error::Kind { .. })) => look_up(py, &client, name, mode),
            Some(other) => other.map(Value::Device),
        };
        let value = match (found, default) {
            (Ok(value), _) => value,
            (Err(error), Some(default)) if error.is_not_found() => return Ok(default),
            (Err(error), _) => return Err(not_leased(&client, name, error)),
        };
        expect(&value, dtype, name)?;
        check_not_object(name, &value)?;
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

    /// Leases the dataset that the name holds now. One lease holds all of its tensors.
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
    fn get_dataset(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        mode: &str,
    ) -> PyResult<Dataset> {
        let mode = Mode::parse(mode)?;
        let client = self.session(py)?;
        match look_up(py, &client, name, mode).map_err(|error| not_leased(&client, name, error))? {
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
    fn get_value(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        mode: &str,
    ) -> PyResult<Py<PyAny>> {
        let mode = Mode::parse(mode)?;
        let client = self.session(py)?;
        let value = look_up(py, &client, name, mode).map_err(|error| not_leased(&client, name, error))?;
        show(py, &client, value, mode, self.origin(name, true))
    }

    /// Leases the values that names hold now, in the order of the names.
    ///
    /// Equivalent to `get_value` for each name, and faster, because the cache misses of the names overlap.
    ///
    /// Parameters
    /// ----------
    /// names : sequence of str
    ///     The names, at most 4,096: a client holds at most this many leases.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// list of Lease, DeviceLease or Dataset
    ///     A value for each name. The values are no snapshot: each is its name's value at some moment during the call.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     A name has no value. As with every error, it names the first such name, and the call holds no lease.
    /// LimitError
    ///     This client holds its maximum number of leases.
    /// TypeError
    ///     `names` is one name, or has an item that is no str.
    ///
    /// Examples
    /// --------
    /// >>> _ = client.put("a", np.arange(2)), client.put("b", np.arange(3))
    /// >>> [value.shape for value in client.get_many(["a", "b"])]
    /// [(2,), (3,)]
    #[pyo3(signature = (names, *, mode="read"))]
    fn get_many(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::names)] names: Vec<PyBackedStr>,
        mode: &str,
    ) -> PyResult<Vec<Py<PyAny>>> {
        let mode = Mode::parse(mode)?;
        let client = self.session(py)?;
        // Release the interpreter's lock: the values may be many, on a slow device, or on another machine.
        let values = py.detach(|| {
            let found = client.get_many(&names).into_iter().zip(&names);
            found.map(|(value, name)| value.map_err(|error| (name, error))).collect::<Result<Vec<Value>, _>>()
        });
        let shown = |(value, name): (Value, &PyBackedStr)| show(py, &client, value, mode, self.origin(name, true));
        let values = values.map_err(|(name, error)| not_leased(&client, name, error))?;
        values.into_iter().zip(&names).map(shown).collect()
    }

    /// Returns an iterator over the values of names, in their order.
    ///
    /// The iterator leases several values at once, which takes a fraction of the time of leasing each separately.
    ///
    /// Parameters
    /// ----------
    /// names : iterable of str or of tuple of str
    ///     The names. A tuple of names makes a tuple of values.
    /// library : {"numpy", "torch"} or None, default None
    ///     The library of the arrays: an array for each tensor, and a tuple of arrays for each dataset. None yields
    ///     leases and datasets.
    /// ahead : int, default 16
    ///     Number of values that are leased at once. The iterator does not see values that are
    ///     published after their name was leased.
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
        #[pyo3(from_py_with = arguments::number)] ahead: usize,
        mode: &str,
    ) -> PyResult<Batches> {
        let form = Form::parse(library, mode)?;
        Batches::new(self.session(py)?, self.options().clone(), names, form, ahead)
    }

    /// Copies the tensor's elements, in C order, into an array or a buffer.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The tensor's name.
    /// out : buffer
    ///     A writable, contiguous array of the tensor's dtype and shape, or a buffer of bytes of exactly its length.
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
    ///     The array has another shape, or the buffer another length.
    /// DTypeError
    ///     The array has elements of another type.
    fn get_into(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<Version> {
        let client = self.session(py)?;
        let mut out = Out::of(out)?;
        let value = look_up(py, &client, name, Mode::Read).map_err(|error| not_leased(&client, name, error))?;
        check_not_object(name, &value)?;
        match &value {
            Value::Tensor(lease) => out.check(name, lease.dtype(), lease.shape())?,
            Value::Device(lease) => out.check(name, lease.dtype(), lease.shape())?,
            _ => return Err(is_dataset(name)),
        }
        let bytes = out.bytes();
        let copied = py.detach(|| match &value {
            Value::Device(lease) => lease.copy_to_bytes(bytes),
            other => other.as_tensor().map_or(Ok(()), |tensor| tensor.copy_to(bytes)),
        });
        copied.or_raise().map(|()| Version(value.version()))
    }

    /// Waits until the name has a value, and leases this value.
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
    ///     The name got no value within `timeout`.
    /// DTypeError
    ///     The tensor has elements of another type than `dtype`.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (name, timeout=None, *, mode="read", dtype=None))]
    fn wait_for(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        timeout: Option<f64>,
        mode: &str,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.wait_newer(py, name, None, timeout, mode, dtype)
    }

    /// Waits until the name has a value other than `seen`, and leases this value.
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
    ///     The name got no value other than `seen` within `timeout`.
    /// DTypeError
    ///     The tensor has elements of another type than `dtype`.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (name, seen=None, timeout=None, *, mode="read", dtype=None))]
    fn wait_newer(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
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

    /// Leases the value as `wait_newer` does, but without waiting. Returns None if there is no
    /// newer value.
    fn _try_newer(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        seen: Option<&Bound<'_, PyAny>>,
        mode: &str,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let (mode, seen) = (Mode::parse(mode)?, self::seen(seen)?);
        let dtype = dtype.map(dtype::parse).transpose()?;
        let client = self.session(py)?;
        if client.version(name).or_raise()?.is_none_or(|now| now == seen) {
            return Ok(None);
        }
        let value = match py.detach(|| client.get_value(name)) {
            // Another client has deleted the name in the meantime.
            Err(Error::NotFound(_)) => return Ok(None),
            other => other.or_raise()?,
        };
        expect(&value, dtype, name)?;
        show(py, &client, value, mode, self.origin(name, true)).map(Some)
    }

    /// Reports `number` to `wakeups` once `_try_newer` may find a value. Returns None for a name of
    /// another machine.
    fn _tell_newer(
        &self,
        py: Python<'_>,
        wakeups: &Wakeups,
        number: u64,
        name: &str,
        seen: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Ticket>> {
        let seen = self::seen(seen)?;
        let notifications = self.notifications(py)?;
        Ok(notifications.newer(name, seen, wakeups.tell(number)).or_raise()?.map(Ticket::from))
    }

    /// Returns whether the name has a value, as `name in client` does.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The name.
    ///
    /// Returns
    /// -------
    /// bool
    ///     True if the name has a value.
    fn exists(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] name: &str) -> PyResult<bool> {
        self.session(py)?.exists(name).or_raise()
    }

    fn __contains__(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] name: &str) -> PyResult<bool> {
        self.exists(py, name)
    }

    /// Leases the value that the name holds now: a tensor or a dataset.
    fn __getitem__(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] name: &str) -> PyResult<Py<PyAny>> {
        let client = self.session(py)?;
        let value = look_up(py, &client, name, Mode::Read).map_err(|error| not_leased(&client, name, error))?;
        check_not_object(name, &value)?;
        show(py, &client, value, Mode::Read, self.origin(name, true))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.filled_names(py)?)?.try_iter()
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.filled_names(py)?.len())
    }

    // Without this method, a client of a namespace without names would be false.
    #[allow(clippy::unused_self, reason = "Python calls it as a method")]
    fn __bool__(&self) -> bool {
        true
    }

    /// Returns the names, which IPython completes in `client[`.
    fn _ipython_key_completions_(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.filled_names(py)
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
    fn version(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] name: &str) -> PyResult<Option<Version>> {
        Ok(self.session(py)?.version(name).or_raise()?.map(Version))
    }

    /// Deletes a name, or all names that match a pattern. Leases on the values stay valid.
    ///
    /// Parameters
    /// ----------
    /// name : str, optional
    ///     The name. It is no pattern.
    /// glob : str, optional
    ///     In place of `name`, a pattern as in `names`. Values that are published during the call may stay.
    ///
    /// Returns
    /// -------
    /// bool or int
    ///     For a name, False if it did not exist. For a pattern, the number of deleted names.
    ///
    /// Raises
    /// ------
    /// PermissionError
    ///     This user may not write to the namespace.
    ///
    /// Examples
    /// --------
    /// >>> _ = client.put("run1/a", 1), client.put("run1/b", 2)
    /// >>> client.delete(glob="run1/*")
    /// 2
    #[pyo3(signature = (name=None, *, glob=None))]
    fn delete<'py>(
        &self,
        py: Python<'py>,
        name: Option<&Bound<'py, PyAny>>,
        glob: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let client = self.session(py)?;
        match (name, glob) {
            (Some(name), None) => {
                let name = arguments::name(name)?;
                let existed = py.detach(|| client.delete(name)).or_raise()?;
                Ok(PyBool::new(py, existed).to_owned().into_any())
            }
            (None, Some(glob)) => {
                let glob = arguments::name(glob)?;
                let delete_all =
                    || client.names(glob)?.iter().try_fold(0, |sum, name| Ok(sum + usize::from(client.delete(name)?)));
                let deleted: usize = py.detach(delete_all).or_raise()?;
                Ok(deleted.into_pyobject(py)?.into_any())
            }
            _ => Err(PyTypeError::new_err("delete takes a name, or glob= with a pattern of names")),
        }
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
    fn rename(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] source: &str,
        #[pyo3(from_py_with = arguments::name)] destination: &str,
    ) -> PyResult<()> {
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
    fn copy(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] source: &str,
        #[pyo3(from_py_with = arguments::name)] destination: &str,
    ) -> PyResult<Version> {
        let client = self.session(py)?;
        py.detach(|| client.copy(source, destination)).or_raise().map(Version)
    }

    /// Returns the names that match a pattern, without reading their values.
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
    fn names(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] glob: &str) -> PyResult<Vec<String>> {
        let client = self.session(py)?;
        py.detach(|| client.names(glob)).or_raise()
    }

    /// Returns descriptions of the names that match a pattern.
    ///
    /// Leaves out names whose values cannot be described, with a RuntimeWarning. Examples are a
    /// faulty client's values, spilled values without memory to read them back, and values that
    /// need a lease while this client has none left. `names` returns those names, too.
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
    fn list(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] glob: &str) -> PyResult<Vec<Info>> {
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
    fn info(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] name: &str) -> PyResult<Info> {
        self.session(py)?.info(name).or_raise().map(Info)
    }

    /// Returns the place of the value of another machine's name, and the age of the local copy.
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
    ///     This machine's gateway does not respond.
    fn placement<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let client = self.session(py)?;
        let Some(placement) = py.detach(|| client.remote().placement(name)).or_raise()? else { return Ok(None) };
        let dict = PyDict::new(py);
        set_fields!(dict, placement, node, alive, cached, stale, stamp);
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
    ///     The keys are names (a dict for each name), silent (nodes that did not respond) and more
    ///     (whether the list is incomplete).
    ///
    /// Raises
    /// ------
    /// RemoteError
    ///     This machine's gateway does not respond.
    #[pyo3(signature = (glob="*"))]
    fn remote_names<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = arguments::name)] glob: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let client = self.session(py)?;
        let found = py.detach(|| client.remote().names(glob)).or_raise()?;
        metadata::to_dict(py, &found.encode())
    }

    /// Publishes an array under a name of another machine. When the call returns, that machine has the value.
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
    ///     The node cannot be reached or refuses, or this machine's gateway does not respond.
    /// ArgumentError
    ///     The name has no node, or another argument is invalid.
    #[pyo3(signature = (name, value, *, metadata=None, timestamp=0))]
    fn put_remote(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        value: &Bound<'_, PyAny>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
    ) -> PyResult<()> {
        let to = To::parse(None, None)?;
        let client = self.session(py)?;
        let draft = tensor_of(&client, value, &to, metadata, timestamp)?;
        py.detach(|| client.remote().put_draft(name, draft)).or_raise()
    }

    /// Publishes copies of several tensors under one name. Readers see all of these tensors or
    /// none.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The name. A previous value is replaced; leases on it stay valid.
    /// tensors : mapping of str to array_like, Draft, DeviceDraft or tensor
    ///     The tensors by name. Some may be in host memory, and others on devices.
    /// metadata : mapping or bytes or None, default None
    ///     A dict, stored as JSON, or bytes; 64 KiB at most.
    /// timestamp : int, default 0
    ///     Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
    /// ttl : float or None, default None
    ///     Time to live in seconds, after which the name ends; None for no limit.
    /// ephemeral : bool, default False
    ///     Whether the name ends with this client's session.
    /// device : str, int or device or None, default None
    ///     The memory of all tensors, as in `put`. None keeps the memory in which each array is.
    /// stream : int or stream or None, default None
    ///     The CUDA stream whose pending work writes the arrays on devices, as in `put`.
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
    /// DeviceError
    ///     The daemon does not lend the device's memory, or the work on a tensor failed.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    ///
    /// Examples
    /// --------
    /// >>> _ = client.put_dataset("batch", {"x": np.zeros((8, 2)), "y": np.arange(8)})
    /// >>> x, y = client.get_dataset("batch").numpy()
    /// >>> x.shape
    /// (8, 2)
    #[pyo3(signature = (name, tensors, *, metadata=None, timestamp=0, ttl=None, ephemeral=false, device=None, stream=None))]
    fn put_dataset(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        #[pyo3(from_py_with = arguments::mapping)] tensors: &Bound<'_, PyMapping>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        ttl: Option<f64>,
        ephemeral: bool,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Version> {
        let lasting = Lasting::new(ttl, ephemeral)?;
        let client = self.session(py)?;
        let to = To::parse(device, stream)?;
        let dataset = dataset_of(&client, tensors, &to, metadata, timestamp)?;
        lasting.publish(py, dataset.into(), name)
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
    /// Plain values need no pickle. The call needs the package msgpack: pip install
    /// 'tensorlend[objects]'.
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
    ///     Whether the name ends with this client's session.
    ///
    /// Returns
    /// -------
    /// Version
    ///     The version of the published value.
    ///
    /// Raises
    /// ------
    /// NameError
    ///     The name is invalid.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    #[pyo3(signature = (name, obj, *, metadata=None, timestamp=0, ttl=None, ephemeral=false))]
    fn put_object<'py>(
        slf: &Bound<'py, Self>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        obj: &Bound<'py, PyAny>,
        metadata: Option<&Bound<'py, PyAny>>,
        timestamp: u64,
        ttl: Option<f64>,
        ephemeral: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let objects = slf.py().import("tensorlend.objects")?;
        objects.call_method1("_put", (slf, name, obj, metadata, timestamp, ttl, ephemeral))
    }

    /// Returns an object that `put_object` published.
    ///
    /// Arrays in the object view shared memory and keep it alive.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     1 to 255 bytes of UTF-8.
    /// trust_pickle : bool, default False
    ///     Whether to load pickles in the object, which lets their publisher run any code here.
    /// lazy : bool, default False
    ///     Whether to return a FrozenList or a FrozenDict, which decodes an item at each access.
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
    ///     The name has no value.
    /// UntrustedPickleError
    ///     The object contains a pickle, and `trust_pickle` is False.
    #[pyo3(signature = (name, *, trust_pickle=false, lazy=false, mode="read"))]
    fn get_object<'py>(
        slf: &Bound<'py, Self>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        trust_pickle: bool,
        lazy: bool,
        mode: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend.objects")?.call_method1("_get", (slf, name, trust_pickle, lazy, mode))
    }
}
