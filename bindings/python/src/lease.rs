//! The class `Lease`: a lease on a tensor in host memory.
#![allow(unsafe_code)]

use crate::context::context_manager;
use crate::cuda_stream::CudaStream;
use crate::errors::{ResultExt, argument};
use crate::getters::{lease_methods, tensor_getters};
use crate::options::Options;
use crate::target::Target;
use crate::view::{View, released};
use crate::{export, torch};
use dlpark::Managed;
use dlpark::ffi::{DLDevice, DLManagedTensorVersioned};
use dlpark::python::DlpackExchangeProducer;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator};
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tensorlend::{Client, Value};
use tensorlend_os::mutex::lock;

/// The origin of a value: the data with which another process finds the value again. Pickling sends
/// this data.
#[derive(Clone)]
pub struct Origin {
    /// Options of the client that took the lease.
    pub options: Arc<Options>,
    /// The name of the tensor, or the name of its stream or list.
    pub name: Arc<str>,
    /// Whether the name refers to the value itself. False for an item of a list or a message of a
    /// stream.
    pub named: bool,
    /// The tensor's name in its dataset; `None` for a tensor of its own.
    pub member: Option<Arc<str>>,
}

/// The right to read one tensor in place.
///
/// While the lease lives, its memory is not reused, even if the name or the producer ends.
/// `numpy.asarray(lease)`, `numpy.from_dlpack(lease)` and `torch.from_dlpack(lease)` view the
/// tensor in place and keep the lease alive. `lease[...]`, `len(lease)` and iteration work as for a
/// numpy array. `lease.numpy()` returns an array with all of numpy's methods. `Lease[np.float32]`
/// is the type for annotations.
///
/// Notes
/// -----
/// Thread-safe: any thread may read the tensor, and so may children that the process forks. The
/// lease ends with the last reference to it or to its arrays. `release` and `with` end the lease
/// earlier. Children that were forked before continue to read until they end. Pickling sends the
/// tensor's name and version.
#[pyclass(frozen, weakref, module = "tensorlend._native")]
pub struct Lease {
    view: Mutex<Option<Arc<View>>>,
    /// Whether a caller has read the tensor's address, which is valid only as long as this object.
    exposed: AtomicBool,
    origin: Origin,
}

/// The mode of a lease: the kind of pages that its view has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The producer's own pages, read-only.
    Read,
    /// The producer's own pages. The first write to a page makes a private copy of that page.
    CopyOnWrite,
}

impl Mode {
    /// Parses the mode's word in the Python API: "read" or "cow".
    pub fn parse(word: &str) -> PyResult<Self> {
        match word {
            "read" => Ok(Self::Read),
            "cow" => Ok(Self::CopyOnWrite),
            _ => Err(argument(format!("mode {word:?}: use \"read\" or \"cow\""))),
        }
    }
}

impl Mode {
    /// Returns the word for this mode in the Python API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::CopyOnWrite => "cow",
        }
    }

    /// Checks that a tensor on a device can be leased in this mode.
    pub fn check_device(self, name: &str) -> PyResult<()> {
        if self == Self::Read {
            return Ok(());
        }
        Err(argument(format!("{name:?} is on a device, and CUDA has no copy on write: copy the tensor (.clone())")))
    }
}

impl Lease {
    /// Creates the object for one tensor of a leased value.
    pub fn new(view: Arc<View>, origin: Origin) -> Self {
        Self { view: Mutex::new(Some(view)), exposed: AtomicBool::new(false), origin }
    }

    /// Returns the lease's view, or the exception for a released lease.
    pub fn view(&self) -> PyResult<Arc<View>> {
        let view = lock(&self.view).clone().ok_or_else(released).or_raise()?;
        view.check()?;
        Ok(view)
    }

    /// Creates the object for a leased tensor.
    pub fn of(py: Python<'_>, lease: tensorlend::Lease, mode: Mode, client: &Client, origin: Origin) -> PyResult<Self> {
        let value = Value::Tensor(lease);
        let view = match mode {
            Mode::Read => View::leased(Arc::new(value), 0, &origin.name),
            Mode::CopyOnWrite => View::private(py, value, client, &origin.name)?.pop().expect("it is one tensor"),
        };
        Ok(Self::new(Arc::new(view), origin))
    }
}

tensor_getters!(Lease, export);

lease_methods!(Lease, |lease| lease.mode()?);

context_manager!(Lease, |lease, _py| lease.release());

#[pymethods]
impl Lease {
    /// The tensor's device: always "cpu".
    #[getter]
    #[allow(clippy::unused_self)]
    fn device(&self) -> &'static str {
        "cpu"
    }

    /// The name by which the tensor was found.
    ///
    /// This is its own name, the name of its stream or list, or its name in a dataset.
    #[getter]
    fn name(&self) -> &str {
        self.origin.member.as_deref().unwrap_or(&self.origin.name)
    }

    /// The mode of the lease: "read" or "cow".
    #[getter]
    fn mode(&self) -> PyResult<&'static str> {
        Ok(if self.view()?.writable { "cow" } else { "read" })
    }

    /// Whether the tensor is read-only.
    #[getter]
    fn readonly(&self) -> PyResult<bool> {
        Ok(!self.view()?.writable)
    }

    /// Returns a numpy array that views the tensor in place, and keeps the lease alive.
    ///
    /// Types that numpy lacks (bfloat16, float8) become types of ml_dtypes. Without that package
    /// they become unsigned integers.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray
    ///     The array; read-only unless the mode is "cow".
    ///
    /// Raises
    /// ------
    /// ClosedError
    ///     The lease was released.
    /// ForkedError
    ///     The parent process got the lease.
    pub fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        export::numpy(slf.as_any(), slf.get().view()?.dtype)
    }

    /// Returns a torch tensor that views the tensor in place, and keeps the lease alive. torch must
    /// be installed.
    ///
    /// torch does not check for read-only memory. With mode "read", a write to the tensor ends the
    /// process with SIGSEGV.
    ///
    /// Returns
    /// -------
    /// torch.Tensor
    ///     The tensor.
    ///
    /// Raises
    /// ------
    /// ClosedError
    ///     The lease was released.
    /// ForkedError
    ///     The parent process got the lease.
    pub fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        torch::tensor(slf.as_any(), slf.get().view()?)
    }

    /// Locks the tensor's pages in memory. Then a device copies from them at full speed while the
    /// program continues.
    ///
    /// The first call for a segment locks the whole segment, which takes some milliseconds. The
    /// call is not needed if the daemon's configuration sets `pool.page_lock`.
    ///
    /// Parameters
    /// ----------
    /// device : str, int or object
    ///     The device, as in `client.put`.
    /// stream : int or stream or None, default None
    ///     A stream in which another library copies from the tensor. The lease then ends only after
    ///     the work that is queued on this stream when the lease and its last array are gone.
    ///
    /// Raises
    /// ------
    /// DeviceError
    ///     There is no such device, or the driver refused.
    #[pyo3(signature = (device, *, stream=None))]
    fn page_lock(&self, py: Python<'_>, device: &Bound<'_, PyAny>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let (view, on) = (self.view()?, Target::parse_device(device)?);
        let (value, _) = view.leased_value()?;
        py.detach(|| value.page_lock(on)).or_raise()?;
        if stream.is_some() {
            view.record(on, CudaStream::parse(stream)?)?;
        }
        Ok(())
    }

    /// Ends the lease now, or when the last array that views the tensor is gone.
    fn release(&self) {
        if !self.exposed.load(Ordering::Acquire) {
            lock(&self.view).take();
        }
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, buffer: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let view = slf.get().view()?;
        // SAFETY: the interpreter passes a buffer that is null or writable.
        unsafe { export::buffer(slf.as_any(), view, buffer, flags) }
    }

    #[allow(clippy::unused_self)]
    unsafe fn __releasebuffer__(&self, buffer: *mut ffi::Py_buffer) {
        // SAFETY: the interpreter passes a buffer that `__getbuffer__` has filled in, and releases
        // each buffer once.
        unsafe { export::release(buffer) };
    }

    /// Returns a capsule for a consumer that never writes.
    fn _immutable(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        export::immutable(py, self.view()?)
    }

    /// `pyarrow.array(lease)` calls this method. A lease of one dimension is viewed in place.
    #[pyo3(signature = (r#type=None))]
    fn __arrow_array__<'py>(slf: &Bound<'py, Self>, r#type: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("pyarrow")?.call_method1("array", (Self::numpy(slf)?, r#type))
    }

    /// Returns a jax array that views the tensor in place and keeps the lease alive.
    /// `jnp.asarray(lease)` calls this method.
    fn __jax_array__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().view()?;
        slf.py().import("tensorlend._jax")?.call_method1("array", (slf,))
    }

    #[allow(clippy::unused_self)]
    fn __dlpack_device__(&self) -> (u32, i32) {
        (export::CPU.device_type.0, export::CPU.device_id)
    }

    /// numpy's array interface, version 3. Users of the address must keep this object alive.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.exposed.store(true, Ordering::Release);
        export::array_interface(py, &*self.view()?)
    }

    /// Returns a numpy array, of another dtype or as a copy on request. numpy calls this method.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut array = Self::numpy(slf)?;
        let wanted = match dtype {
            Some(dtype) if !array.getattr("dtype")?.eq(dtype)? => Some(dtype),
            _ => None,
        };
        if let Some(dtype) = wanted {
            if copy == Some(false) {
                return Err(pyo3::exceptions::PyValueError::new_err(
                    "another dtype needs a copy: pass copy=None or copy=True",
                ));
            }
            array = array.call_method1("astype", (dtype,))?;
        } else if copy == Some(true) {
            array = array.call_method0("copy")?;
        }
        Ok(array)
    }

    /// Returns an element, or a numpy array that views a part of the tensor in place.
    fn __getitem__<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Self::numpy(slf)?.get_item(key)
    }

    /// Writes elements. The lease must have mode "cow".
    fn __setitem__(slf: &Bound<'_, Self>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        Self::numpy(slf)?.set_item(key, value)
    }

    fn __float__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::numpy(slf)?.call_method0("__float__")
    }

    fn __int__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::numpy(slf)?.call_method0("__int__")
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyIterator>> {
        Self::numpy(slf)?.try_iter()
    }
}

// SAFETY: the managed tensor holds the view that it describes. HAS_DLTENSOR_VIEW is false, so no
// consumer gets a borrowed `DLTensor`.
unsafe impl DlpackExchangeProducer for Lease {
    fn managed_tensor_no_sync(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensorVersioned>> {
        export::versioned(self.view()?)
    }

    fn current_work_stream(_py: Python<'_>, device: DLDevice) -> PyResult<*mut c_void> {
        if device == export::CPU { Ok(std::ptr::null_mut()) } else { Err(argument("a lease is in host memory")) }
    }
}
