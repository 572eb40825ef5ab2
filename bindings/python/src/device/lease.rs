//! The class `DeviceLease`: a lease on a tensor on a device.
#![allow(unsafe_code)]

use super::view::DeviceView;
use super::{LegacyExport, export};
use crate::context::context_manager;
use crate::cuda_stream::CudaStream;
use crate::draft::Draft;
use crate::errors::ResultExt;
use crate::getters::{lease_methods, tensor_getters};
use crate::lease::Origin;
use crate::options::Options;
use crate::view::released;
use crate::{errors, shown};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tensorlend_os::mutex::lock;

/// The right to read one tensor on a device in place.
///
/// While the lease lives, its memory is not reused, even if the name or the producer ends.
/// `torch.from_dlpack(lease)`, `cupy.asarray(lease)` and `numba.cuda.as_cuda_array(lease)` view the
/// tensor in place and keep the lease alive.
///
/// Notes
/// -----
/// The lease ends when the last of these arrays is gone and the recorded streams have done the work
/// queued by then. The recorded streams are those passed to `__dlpack__`, the legacy default
/// stream, and those of `record_stream`. Only the process that took the lease may use it.
#[pyclass(frozen, weakref, module = "tensorlend._native")]
pub struct DeviceLease {
    view: Mutex<Option<Arc<DeviceView>>>,
    /// Whether a caller has read the tensor's address, which is valid only as long as this object.
    exposed: AtomicBool,
    origin: Origin,
}

impl DeviceLease {
    /// Creates the object for a lease.
    pub fn new(lease: tensorlend::DeviceLease, origin: Origin) -> Self {
        Self::of(DeviceView::leased(lease), origin)
    }

    /// Creates the object for a view of a leased tensor.
    pub fn of(view: DeviceView, origin: Origin) -> Self {
        Self { view: Mutex::new(Some(Arc::new(view))), exposed: AtomicBool::new(false), origin }
    }

    /// Returns the lease's view, or the exception for a released lease.
    pub fn view(&self) -> PyResult<Arc<DeviceView>> {
        let view = lock(&self.view).clone().ok_or_else(released).or_raise()?;
        view.check()?;
        Ok(view)
    }

    /// Returns the exception for a request to read the tensor in host memory, with the name of the dataset's member.
    #[cold]
    pub fn is_no_buffer(&self) -> PyErr {
        let member = self.origin.member.as_deref().map(shown::quoted).unwrap_or_default();
        PyBufferError::new_err(format!("{member}: {ON_DEVICE}"))
    }
}

/// Returns the tensor of a lease's view.
fn tensor(view: &DeviceView) -> &tensorlend::DeviceTensor {
    view.tensor().expect("it is a lease's view")
}

const ON_DEVICE: &str = "the tensor is on a device, and the host cannot read it: copy it with to_host(), or read it on the device with torch.from_dlpack, cupy.asarray or numba.cuda.as_cuda_array";

#[cold]
fn on_device() -> PyErr {
    PyBufferError::new_err(ON_DEVICE)
}

tensor_getters!(DeviceLease, export);

lease_methods!(DeviceLease, |_lease| "read");

context_manager!(DeviceLease, |lease, _py| lease.release());

#[pymethods]
impl DeviceLease {
    /// The device, by its number in this process: "cuda:0", for example.
    #[getter]
    fn device(&self) -> PyResult<String> {
        Ok(self.view()?.device.to_string())
    }

    /// The device, by its UUID, which is the same in every process: "GPU-...".
    #[getter]
    fn device_uuid(&self) -> PyResult<String> {
        Ok(self.view()?.uuid.to_string())
    }

    /// The address of the tensor's first element on the device.
    ///
    /// A kernel that writes to this address fails and breaks its context. The lease lasts as long
    /// as this object. Then it waits for the reads queued on the legacy default stream and on
    /// recorded streams.
    #[getter]
    fn ptr(&self) -> PyResult<u64> {
        let view = self.view()?;
        self.exposed.store(true, Ordering::Release);
        view.show_unnamed()?;
        view.start()
    }

    /// The name by which the tensor was found: its own, or that of its stream or list.
    #[getter]
    fn name(&self) -> &str {
        &self.origin.name
    }

    /// The mode of the lease: always "read", since device memory has no copy-on-write.
    #[getter]
    #[allow(clippy::unused_self)]
    fn mode(&self) -> &'static str {
        "read"
    }

    /// Whether the tensor is read-only: always true.
    #[getter]
    #[allow(clippy::unused_self)]
    fn readonly(&self) -> bool {
        true
    }

    /// Whether the tensor was published early, so that its producer's work on it may still be pending.
    #[getter]
    fn early(&self) -> PyResult<bool> {
        Ok(tensor(&*self.view()?).is_early())
    }

    /// Records a stream whose work reads the tensor.
    ///
    /// The lease ends only after the work that is queued on the stream at the lease's release.
    ///
    /// Parameters
    /// ----------
    /// stream : int or stream
    ///     A handle, which must stay valid until then. Or a stream of torch, cupy, numba or
    ///     cuda.core, which the lease keeps alive.
    ///
    /// Raises
    /// ------
    /// ClosedError
    ///     The lease was released.
    fn record_stream(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        self.view()?.record(CudaStream::parse(Some(stream))?)
    }

    /// Orders later work on a stream after the producer's work, if the tensor was published early.
    ///
    /// Parameters
    /// ----------
    /// stream : int or stream or None, default None
    ///     The stream to order and to record. With a stream, the call does not wait. With None, the
    ///     call itself waits.
    ///
    /// Raises
    /// ------
    /// DeviceError
    ///     The producer ended before its work was done.
    #[pyo3(signature = (stream=None))]
    fn wait(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let view = self.view()?;
        if stream.is_some() {
            return view.order(py, CudaStream::parse(stream)?);
        }
        let lease = tensor(&view);
        py.detach(|| lease.finish()).or_raise()
    }

    /// Returns a copy of the elements in host memory.
    ///
    /// Parameters
    /// ----------
    /// out : Draft or None, default None
    ///     A draft in host memory of the same dtype and size, without strides. The device writes into its slot.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray
    ///     A new array in C order, or the draft's array.
    ///
    /// Raises
    /// ------
    /// DeviceError
    ///     The copy failed.
    /// DTypeError
    ///     The draft has another dtype.
    #[pyo3(signature = (out=None))]
    fn to_host<'py>(&self, py: Python<'py>, out: Option<&Bound<'py, Draft>>) -> PyResult<Bound<'py, PyAny>> {
        let view = self.view()?;
        let lease = tensor(&view);
        let Some(out) = out else { return export::to_host(py, &view, lease) };
        let draft = out.get();
        let theirs = draft.view()?.dtype;
        if theirs != view.dtype {
            let (theirs, ours) = (theirs.numpy_name(), view.dtype.numpy_name());
            return Err(errors::dtype(format!("the draft's elements are {theirs}, the tensor's {ours}")));
        }
        py.detach(|| draft.with(|draft| lease.finish().and_then(|()| lease.copy_to_draft(draft))))?;
        Draft::array(out)
    }

    /// Raises BufferError, because only `to_host` copies device memory to the host.
    ///
    /// Raises
    /// ------
    /// BufferError
    ///     Always.
    #[allow(clippy::unused_self)]
    fn numpy(&self) -> PyResult<()> {
        Err(on_device())
    }

    /// Returns a torch tensor that views the tensor in place. Records torch's current stream, on
    /// which the result may be used.
    ///
    /// torch does not check for read-only memory. A kernel that writes to this memory fails and
    /// breaks the process's CUDA context.
    ///
    /// Returns
    /// -------
    /// torch.Tensor
    ///     The tensor, on the device. torch must be installed.
    ///
    /// Raises
    /// ------
    /// ClosedError
    ///     The lease was released.
    pub fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("torch")?.call_method1("from_dlpack", (slf,))
    }

    /// Copies the tensor into a plain block of device memory, for a program that supports only cuIpcOpenMemHandle.
    ///
    /// The block is not protected, and not counted against limits.
    ///
    /// Returns
    /// -------
    /// LegacyExport
    ///     The copy. Close it, or use it as a context manager.
    ///
    /// Raises
    /// ------
    /// DeviceError
    ///     The device has no memory left, or the copy failed.
    fn legacy_ipc_handle(&self, py: Python<'_>) -> PyResult<LegacyExport> {
        let view = self.view()?;
        let lease = tensor(&view);
        py.detach(|| lease.finish().and_then(|()| lease.legacy_export())).or_raise().map(LegacyExport::new)
    }

    /// Ends the lease now, or when the last array that views the tensor is gone.
    ///
    /// In either case the lease ends only after the work on the recorded streams. This call does
    /// not wait for that work.
    fn release(&self) {
        if !self.exposed.load(Ordering::Acquire) {
            lock(&self.view).take();
        }
    }

    /// CUDA's array interface, version 3, with a read-only address. Users of the address must keep
    /// this object alive.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let view = self.view()?;
        self.exposed.store(true, Ordering::Release);
        export::array_interface(py, &view)
    }

    fn __dlpack_device__(&self) -> PyResult<(u32, i32)> {
        let device = export::device(&*self.view()?);
        Ok((device.device_type.0, device.device_id))
    }

    #[allow(clippy::unused_self, clippy::needless_pass_by_value)]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, buffer: *mut ffi::Py_buffer, _flags: c_int) -> PyResult<()> {
        if !buffer.is_null() {
            // SAFETY: `buffer` is not null, and the interpreter passes a writable structure. Its
            // owner stays null, so the buffer counts as empty.
            unsafe { (*buffer).obj = std::ptr::null_mut() };
        }
        let _ = slf;
        Err(on_device())
    }

    /// Raises BufferError. numpy calls this method to convert the tensor to an array, which would
    /// copy implicitly.
    #[pyo3(signature = (dtype=None, copy=None))]
    #[allow(clippy::unused_self)]
    fn __array__(&self, dtype: Option<&Bound<'_, PyAny>>, copy: Option<bool>) -> PyResult<()> {
        let _ = (dtype, copy);
        Err(on_device())
    }

    /// Raises BufferError, as `numpy` does.
    #[allow(clippy::unused_self)]
    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let _ = key;
        Err(on_device())
    }

    #[allow(clippy::unused_self)]
    fn __iter__(&self) -> PyResult<()> {
        Err(on_device())
    }
}
