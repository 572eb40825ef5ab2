//! What a reader holds of a tensor on a device.
#![allow(unsafe_code)]

use super::stream::Given;
use super::view::DeviceView;
use super::{LegacyExport, export};
use crate::draft::lock;
use crate::errors::{OrRaise, argument};
use crate::lease::Origin;
use crate::options::Options;
use crate::version::Version;
use crate::{dtype, metadata};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The right to read one tensor on a device, where it lies. While it lives, its memory is not reused, whatever happens to its name or
/// to its producer. torch.from_dlpack(lease), cupy.asarray(lease), numba.cuda.as_cuda_array(lease) look at it in place and keep it.
///
/// It ends when the last of them is gone, and what was by then in the streams that were recorded has ended: those that were passed
/// to `__dlpack__`, the legacy default one, and those of `record_stream`.
#[pyclass(frozen, weakref, module = "tensorlend._native")]
pub struct DeviceLease {
    view: Mutex<Option<Arc<DeviceView>>>,
    /// Its address was given out without anything that would keep it but this object.
    exposed: AtomicBool,
    origin: Origin,
}

impl DeviceLease {
    /// Shows one.
    pub fn new(lease: tensorlend::DeviceLease, origin: Origin) -> Self {
        let view = Mutex::new(Some(Arc::new(DeviceView::leased(lease))));
        Self { view, exposed: AtomicBool::new(false), origin }
    }

    /// What it shows.
    pub fn view(&self) -> PyResult<Arc<DeviceView>> {
        let released = || argument("the lease was released: get the tensor again");
        let view = lock(&self.view).clone().ok_or_else(released)?;
        view.check()?;
        Ok(view)
    }

    fn with<R>(&self, look: impl FnOnce(&tensorlend::DeviceLease) -> R) -> PyResult<R> {
        Ok(look(self.view()?.lease().expect("it is a lease's view")))
    }

    /// The version that was leased.
    pub fn seen(&self) -> PyResult<tensorlend::Version> {
        self.with(tensorlend::DeviceLease::version)
    }
}

#[cold]
fn on_device() -> PyErr {
    PyBufferError::new_err(
        "the tensor is on a device, which the host cannot look at: copy it with to_host(), or look at it there with \
         torch.from_dlpack, cupy.asarray or numba.cuda.as_cuda_array",
    )
}

#[pymethods]
impl DeviceLease {
    /// Sizes, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &*self.view()?.shape)
    }

    /// Strides, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &*self.view()?.strides)
    }

    /// Element type, as numpy's dtype; bfloat16 and float8 as those of ml_dtypes.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype::to_numpy(py, self.view()?.dtype)
    }

    /// Number of dimensions.
    #[getter]
    fn ndim(&self) -> PyResult<usize> {
        Ok(self.view()?.shape.len())
    }

    /// Number of elements.
    #[getter]
    fn size(&self) -> PyResult<usize> {
        Ok(self.view()?.elements())
    }

    /// Bytes of one element.
    #[getter]
    fn itemsize(&self) -> PyResult<usize> {
        Ok(self.view()?.item())
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        Ok(self.view()?.nbytes())
    }

    /// The device by the number that it has in this process, as "cuda:0".
    #[getter]
    fn device(&self) -> PyResult<String> {
        Ok(self.view()?.device.to_string())
    }

    /// The device by its name in every process, "GPU-...".
    #[getter]
    fn device_uuid(&self) -> PyResult<String> {
        Ok(self.view()?.uuid.to_string())
    }

    /// Where its first element is on the device. A kernel that writes there fails, and takes its context with it. The lease lasts as
    /// long as this object does, and until what reads there in the legacy default stream, or in one that was recorded, has ended.
    #[getter]
    fn ptr(&self) -> PyResult<u64> {
        let view = self.view()?;
        self.exposed.store(true, Ordering::Release);
        view.show_unnamed()?;
        view.start()
    }

    /// Its metadata as a dict; empty if it has none.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.with(|lease| metadata::to_dict(py, lease.metadata()))?
    }

    /// Its metadata as bytes.
    #[getter]
    fn metadata_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.with(|lease| PyBytes::new(py, lease.metadata()))
    }

    /// Its timestamp, in nanoseconds; 0 if none was set.
    #[getter]
    fn timestamp(&self) -> PyResult<u64> {
        self.with(tensorlend::DeviceLease::timestamp)
    }

    /// Which value of its name it is.
    #[getter]
    fn version(&self) -> PyResult<Version> {
        self.seen().map(Version)
    }

    /// The name by which it was found: of the tensor, or of its stream or list.
    #[getter]
    fn name(&self) -> &str {
        &self.origin.name
    }

    /// Always "read": memory of a device cannot be copied when it is first written.
    #[getter]
    #[allow(clippy::unused_self)]
    fn mode(&self) -> &'static str {
        "read"
    }

    /// Whether it cannot be written: always.
    #[getter]
    #[allow(clippy::unused_self)]
    fn readonly(&self) -> bool {
        true
    }

    /// Whether the session that took it still stands, so that its memory is kept for it; False once it was released.
    #[getter]
    fn valid(&self) -> bool {
        self.with(tensorlend::DeviceLease::validate).unwrap_or(false)
    }

    /// Whether it was published early, and its producer's work on it may still be under way.
    #[getter]
    fn early(&self) -> PyResult<bool> {
        self.with(tensorlend::DeviceLease::is_early)
    }

    /// Says that work in this stream reads it: the lease ends only after what is in the stream when it is released. A number, or a
    /// stream of torch, cupy, numba or cuda.core, which is kept; one given by its number must last as long.
    fn record_stream(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        self.view()?.record(Given::parse(Some(stream))?)
    }

    /// Has what is put into this stream from now on begin after the producer's work, if the tensor was published early; nobody waits
    /// here. The stream is recorded. Without one, waits here.
    #[pyo3(signature = (stream=None))]
    fn wait(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let view = self.view()?;
        if stream.is_some() {
            return view.order(py, Given::parse(stream)?);
        }
        let lease = view.lease().expect("it is a lease's view");
        py.detach(|| lease.finish()).or_raise()
    }

    /// A numpy array with a copy of the elements in host memory, in C order.
    fn to_host<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let view = self.view()?;
        export::to_host(py, &view, view.lease().expect("it is a lease's view"))
    }

    /// Raises BufferError: what is on a device is copied to the host by to_host, and never silently.
    #[allow(clippy::unused_self)]
    fn numpy(&self) -> PyResult<()> {
        Err(on_device())
    }

    /// A torch tensor that looks at it in place and keeps it, for work in torch's current stream, which is recorded: torch must be
    /// installed. torch does not know read-only memory: a kernel that writes there fails, and takes the process's context with it.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("torch")?.call_method1("from_dlpack", (slf,))
    }

    /// A copy in a plain block of the device's memory, for a program that knows only cuIpcOpenMemHandle. Nothing protects or counts it.
    fn legacy_ipc_handle(&self, py: Python<'_>) -> PyResult<LegacyExport> {
        let view = self.view()?;
        let lease = view.lease().expect("it is a lease's view");
        py.detach(|| lease.finish().and_then(|()| lease.legacy_export())).or_raise().map(LegacyExport::new)
    }

    /// Ends it now, or when the last array that looks at it is gone; in either case after the work in the streams that were recorded,
    /// for which nobody waits here.
    fn release(&self) {
        if !self.exposed.load(Ordering::Acquire) {
            lock(&self.view).take();
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> bool {
        self.release();
        false
    }

    /// CUDA's array interface, version 3: read-only. Whoever uses the address keeps this object.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let view = self.view()?;
        self.exposed.store(true, Ordering::Release);
        export::array_interface(py, &view)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        export::capsule(py, &self.view()?, stream, max_version, dl_device, copy)
    }

    fn __dlpack_device__(&self) -> PyResult<(u32, i32)> {
        let device = export::device(&*self.view()?);
        Ok((device.device_type.0, device.device_id))
    }

    #[allow(clippy::unused_self, clippy::needless_pass_by_value)]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, buffer: *mut ffi::Py_buffer, _flags: c_int) -> PyResult<()> {
        if !buffer.is_null() {
            // SAFETY: called by the interpreter, with a buffer to fill in, which stays empty.
            unsafe { (*buffer).obj = std::ptr::null_mut() };
        }
        let _ = slf;
        Err(on_device())
    }

    /// As numpy asks for an array: refused.
    #[pyo3(signature = (dtype=None, copy=None))]
    #[allow(clippy::unused_self)]
    fn __array__(&self, dtype: Option<&Bound<'_, PyAny>>, copy: Option<bool>) -> PyResult<()> {
        let _ = (dtype, copy);
        Err(on_device())
    }

    fn __len__(&self) -> PyResult<usize> {
        match self.view()?.shape.first() {
            Some(&first) => Ok(first as usize),
            None => Err(pyo3::exceptions::PyTypeError::new_err("a tensor without dimensions has no length")),
        }
    }

    fn __repr__(&self) -> String {
        match self.view() {
            Ok(view) => {
                let (name, dtype, shape) = (self.name(), view.dtype.numpy_name(), &view.shape);
                format!("<DeviceLease {name:?} {dtype} {shape:?} on {}>", view.device)
            }
            Err(_) => format!("<DeviceLease {:?}, released>", self.name()),
        }
    }

    /// What it is found by again: as Lease has it.
    #[getter]
    #[allow(clippy::type_complexity)]
    fn _origin(
        &self,
    ) -> PyResult<(Vec<PathBuf>, Option<String>, String, Option<String>, (u64, u64), &'static str, bool)> {
        let [home, cell] = self.seen()?.words();
        let Origin { options, name, named, .. } = &self.origin;
        let Options { sockets, namespace, .. } = &**options;
        Ok((sockets.clone(), namespace.clone(), (**name).into(), None, (home, cell), "read", *named))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend._refs")?.call_method1("reduce_lease", (slf,))
    }
}
