//! Export of views to other libraries, by the buffer protocol, DLPack and numpy's array interface.
#![allow(unsafe_code)]

use crate::dtype;
use crate::strided::{Layout, is_packed};
use crate::view::{View, host_tensor, noted_lent};
use dlpark::ffi::{DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::metadata::Dynamic;
use dlpark::python::{ExportAbi, ExportRequest};
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{IntoPyObjectExt, ffi};
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::Arc;
use tensorlend::Value;

/// The data that an exported buffer refers to, except its bytes.
struct Exported {
    shape: Vec<isize>,
    strides: Vec<isize>,
    _view: Arc<View>,
}

/// Fills in a buffer.
///
/// # Safety
/// `buffer` is null or writable, as `bf_getbuffer` guarantees.
pub unsafe fn buffer(
    owner: &Bound<'_, PyAny>,
    view: Arc<View>,
    buffer: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let asks = |flag: c_int| flags & flag == flag;
    let refuse = |why: &str| Err(PyBufferError::new_err(why.to_owned()));
    if buffer.is_null() {
        return refuse("there is no buffer to fill in");
    }
    // SAFETY: `buffer` is not null, and the caller guarantees that it is writable. If an error
    // follows, the buffer has no owner and so counts as empty.
    unsafe { (*buffer).obj = null_mut() };
    if asks(ffi::PyBUF_WRITABLE) && !view.writable {
        return refuse("a lease is read-only: get it with mode=\"cow\" to write to a private copy, or create a draft");
    }
    if !asks(ffi::PyBUF_STRIDES) && !view.is_row_major() {
        return refuse("the tensor is strided: ask for strides, or copy it");
    }
    let columns = |view: &View| is_packed(view.shape.iter().copied().zip(view.strides.iter().copied()), 1);
    let wrong = asks(ffi::PyBUF_C_CONTIGUOUS) && !view.is_row_major()
        || asks(ffi::PyBUF_F_CONTIGUOUS) && !columns(&view)
        || asks(ffi::PyBUF_ANY_CONTIGUOUS) && !view.is_row_major() && !columns(&view);
    if wrong {
        return refuse("the tensor's elements are in another memory order than the requested one: copy it");
    }
    let mut exported = Box::new(Exported {
        shape: view.shape.iter().map(|&d| d as isize).collect(),
        strides: view.byte_strides().into_iter().map(|s| s as isize).collect(),
        _view: view.clone(),
    });
    // SAFETY: `buffer` is not null, and the caller guarantees that it is writable. Its pointers
    // refer to `exported`, which has the form that the protocol prescribes and lives until `release`.
    // As long as `exported` holds the view, the bytes are readable, and writable if the view is
    // writable. Python does not write to shape, strides or format, although their types allow it.
    unsafe {
        (*buffer).buf = view.start().cast();
        (*buffer).len = view.nbytes() as isize;
        (*buffer).readonly = c_int::from(!view.writable);
        (*buffer).itemsize = view.item() as isize;
        (*buffer).ndim = exported.shape.len() as c_int;
        (*buffer).format =
            if asks(ffi::PyBUF_FORMAT) { dtype::format(view.dtype).as_ptr().cast_mut() } else { null_mut() };
        (*buffer).shape = if asks(ffi::PyBUF_ND) { exported.shape.as_mut_ptr() } else { null_mut() };
        (*buffer).strides = if asks(ffi::PyBUF_STRIDES) { exported.strides.as_mut_ptr() } else { null_mut() };
        (*buffer).suboffsets = null_mut();
        (*buffer).internal = Box::into_raw(exported).cast();
        (*buffer).obj = owner.clone().into_ptr();
    }
    Ok(())
}

/// Releases the data that [`buffer`] attached.
///
/// # Safety
/// The function [`buffer`] has filled in this buffer, and the caller releases it once, as
/// `bf_releasebuffer` guarantees.
pub unsafe fn release(buffer: *mut ffi::Py_buffer) {
    // SAFETY: by the caller's guarantee, `internal` is the box that the function `buffer` put
    // there, and it is taken only once.
    unsafe { drop(Box::from_raw((*buffer).internal.cast::<Exported>())) };
}

/// DLPack's device for host memory.
pub const CPU: DLDevice = DLDevice { device_type: DLDeviceType::CPU, device_id: 0 };

/// Returns a managed tensor that starts at this address. Its deleter drops the view.
pub fn managed_at<M: ManagedTensorBase, V: Deref<Target = Layout> + Send + Sync + 'static>(
    view: Arc<V>,
    start: *mut c_void,
    device: DLDevice,
    flags: DlpackFlags,
) -> PyResult<Managed<M>> {
    let failed = |e: &dyn std::fmt::Display| PyBufferError::new_err(e.to_string());
    let metadata = Dynamic::new(&*view.shape, &*view.strides);
    let mut made = metadata.initialize_as::<M>(view.clone()).map_err(|e| failed(&e))?;
    made.set_data(start).set_device(device).set_dtype(dtype::to_dlpack(view.dtype));
    // SAFETY: the descriptor describes a view. Its context holds the view until the deleter runs,
    // on any thread. The read-only flag is set unless consumers may write. Only `capsule` sets the
    // flag IS_COPIED, and only for a copy without other users.
    unsafe {
        made.set_flags_unchecked(flags);
        Ok(made.finish())
    }
}

/// Returns the view as a managed tensor, whose deleter drops the view.
fn managed<M: ManagedTensorBase>(view: Arc<View>, flags: DlpackFlags) -> PyResult<Managed<M>> {
    // The standard recommends null for empty tensors. But for null, numpy would allocate its own
    // memory and omit the read-only flag. So read-only tensors keep their address.
    let start = if view.elements() == 0 && view.writable { null_mut() } else { view.start() };
    managed_at(view, start.cast(), CPU, flags)
}

/// Returns the result of `__dlpack__`.
pub fn capsule(
    py: Python<'_>,
    view: &Arc<View>,
    stream: Option<&Bound<'_, PyAny>>,
    max_version: Option<(u32, u32)>,
    dl_device: Option<(u32, i32)>,
    copy: Option<bool>,
) -> PyResult<Py<PyAny>> {
    let request = ExportRequest::parse(stream, max_version, dl_device, copy)?;
    if request.stream().is_some_and(|stream| !stream.is_none()) {
        return Err(PyBufferError::new_err("host memory has no streams: leave `stream` out"));
    }
    if request.copy() == Some(true) {
        if request.device().is_some_and(|device| device != CPU) {
            return Err(PyBufferError::new_err("it can be copied to host memory only (device type 1, number 0)"));
        }
        let copy = Arc::new(view.copied());
        return match request.abi() {
            ExportAbi::Versioned => managed::<DLManagedTensorVersioned>(copy, DlpackFlags::IS_COPIED)?.into_py_any(py),
            ExportAbi::Legacy => managed::<DLManagedTensor>(copy, DlpackFlags::empty())?.into_py_any(py),
        };
    }
    let flags = flags(view);
    if !view.writable && matches!(request.abi(), ExportAbi::Legacy) {
        return Err(PyBufferError::new_err(
            "the receiving library supports no read-only tensors (DLPack before 1.0): in jax, jnp.asarray(lease) reads it in place; elsewhere get it with mode=\"cow\", or pass a copy on",
        ));
    }
    request.export_zero_copy(
        py,
        CPU,
        flags,
        || managed::<DLManagedTensor>(view.clone(), flags),
        || managed::<DLManagedTensorVersioned>(view.clone(), flags),
    )
}

/// Returns a capsule without the read-only flag. jax needs it: jax does not support the flag, but
/// never writes, because its arrays are immutable.
pub fn immutable(py: Python<'_>, view: Arc<View>) -> PyResult<Py<PyAny>> {
    managed::<DLManagedTensor>(view, DlpackFlags::empty())?.into_py_any(py)
}

/// Returns the tensor for torch's and other libraries' C exchange table.
pub fn versioned(view: Arc<View>) -> PyResult<Managed<DLManagedTensorVersioned>> {
    let flags = flags(&view);
    managed(view, flags)
}

/// Returns a tensor of a lent value in host memory. Unlike [`versioned`], this function creates no
/// view, and the deleter drops a reference to the value. `name` is the name by which the value was
/// found.
pub fn lent(value: &Arc<Value>, at: usize, name: &str) -> PyResult<Managed<DLManagedTensorVersioned>> {
    let tensor = host_tensor(value, at);
    let shape: Vec<i64> = tensor.shape().iter().map(|&size| size as i64).collect();
    let start = match tensor.elements() {
        0 => null_mut(),
        _ => tensor.bytes().as_ptr().cast_mut().wrapping_add(tensor.byte_offset()),
    };
    let kept = Box::new((value.clone(), noted_lent(value, at, name)));
    let made = Dynamic::new(&*shape, tensor.strides()).initialize_as::<DLManagedTensorVersioned>(kept);
    let mut made = made.map_err(|e| PyBufferError::new_err(e.to_string()))?;
    made.set_data(start.cast::<c_void>()).set_device(CPU).set_dtype(dtype::to_dlpack(tensor.dtype()));
    // SAFETY: the descriptor describes a tensor of `value`, whose bytes are readable as long as the
    // value lives. The context holds the value until the deleter runs, on any thread. The read-only
    // flag is set, so consumers must not write.
    unsafe {
        made.set_flags_unchecked(DlpackFlags::READ_ONLY);
        Ok(made.finish())
    }
}

/// Returns the flags of a view that is exported in place.
pub fn flags(layout: &Layout) -> DlpackFlags {
    if layout.writable { DlpackFlags::empty() } else { DlpackFlags::READ_ONLY }
}

/// Returns an array interface, version 3, without the address.
pub fn interface<'py>(py: Python<'py>, layout: &Layout) -> PyResult<Bound<'py, PyDict>> {
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("typestr", dtype::typestr(layout.dtype))?;
    interface.set_item("shape", PyTuple::new(py, &layout.shape)?)?;
    interface.set_item("strides", PyTuple::new(py, layout.byte_strides())?)?;
    Ok(interface)
}

/// Returns the value of `__array_interface__`.
pub fn array_interface<'py>(py: Python<'py>, view: &View) -> PyResult<Bound<'py, PyDict>> {
    let interface = interface(py, view)?;
    interface.set_item("data", (view.start().addr(), !view.writable))?;
    Ok(interface)
}

/// Returns a numpy array of the buffer that `owner` exports. An element type that numpy lacks
/// becomes the type of `ml_dtypes` or, without that package, an unsigned integer.
pub fn numpy<'py>(owner: &Bound<'py, PyAny>, dtype: tensorlend::DType) -> PyResult<Bound<'py, PyAny>> {
    by_name(asarray(owner)?, dtype)
}

/// Calls `numpy.asarray`.
pub fn asarray<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    let asarray = ASARRAY.get_or_try_init(py, || Ok::<_, PyErr>(py.import("numpy")?.getattr("asarray")?.unbind()))?;
    asarray.bind(py).call1((object,))
}

/// Converts an array of unsigned integers to the element type that they represent.
pub fn by_name(array: Bound<'_, PyAny>, dtype: tensorlend::DType) -> PyResult<Bound<'_, PyAny>> {
    let py = array.py();
    if dtype::is_native(dtype) {
        return Ok(array);
    }
    match py.import("ml_dtypes").and_then(|module| module.getattr(dtype.numpy_name())) {
        Ok(class) => array.call_method1("view", (class,)),
        Err(_) => Ok(array),
    }
}
