//! Export of views on a device to other libraries, by DLPack and the CUDA array interface.

use super::view::DeviceView;
use crate::cuda_stream::{Consumer, CudaStream};
use crate::dtype;
use crate::errors::ResultExt;
use crate::export::{CPU, flags, interface, managed_at};
use dlpark::ffi::{DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::python::{ExportAbi, ExportRequest};
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ptr::null_mut;
use std::sync::Arc;

/// Returns the view's device in DLPack's form.
pub fn device(view: &DeviceView) -> DLDevice {
    DLDevice { device_type: DLDeviceType(u32::from(view.device.kind())), device_id: i32::from(view.device.id()) }
}

fn managed<M: ManagedTensorBase>(view: Arc<DeviceView>, flags: DlpackFlags) -> PyResult<Managed<M>> {
    let (start, device) = (view.start()?, device(&view));
    // The standard requires null for empty tensors. A device address cannot be dereferenced here, so the pointer needs
    // no provenance.
    let start = if view.elements() == 0 { null_mut() } else { std::ptr::without_provenance_mut(start as usize) };
    managed_at(view, start, device, flags)
}

/// Returns the result of `__dlpack__`.
pub fn capsule(
    py: Python<'_>,
    view: &Arc<DeviceView>,
    stream: Option<&Bound<'_, PyAny>>,
    max_version: Option<(u32, u32)>,
    dl_device: Option<(u32, i32)>,
    copy: Option<bool>,
) -> PyResult<Py<PyAny>> {
    let refuse = |why: &str| Err(PyBufferError::new_err(why.to_owned()));
    let request = ExportRequest::parse(stream, max_version, dl_device, copy)?;
    if request.device() == Some(CPU) {
        let Some(lease) = view.tensor() else {
            return refuse("a draft on a device has no elements in host memory: leave device out");
        };
        if copy == Some(false) {
            return refuse("host memory needs a copy: pass `copy=None` or `copy=True`");
        }
        let asked = PyDict::new(py);
        asked.set_item("max_version", max_version)?;
        let array = to_host(py, view, lease)?;
        return Ok(array.call_method("__dlpack__", (), Some(&asked))?.unbind());
    }
    if copy == Some(true) {
        return refuse("the consumer must make a copy on the device, in its own memory (torch: .clone())");
    }
    let flags = flags(view);
    if !view.writable && matches!(request.abi(), ExportAbi::Legacy) {
        return refuse(
            "the receiving library supports no read-only tensors (DLPack before 1.0): in jax, use jnp.asarray(lease) and keep the \
             lease; elsewhere use __cuda_array_interface__, or copy to the host (to_host)",
        );
    }
    request.validate_zero_copy(device(view), flags)?;
    match Consumer::parse(stream)? {
        Consumer::Stream(given) => view.order(py, given)?,
        Consumer::Unsaid => view.show_unnamed()?,
    }
    request.export_zero_copy(
        py,
        device(view),
        flags,
        || managed::<DLManagedTensor>(view.clone(), flags),
        || managed::<DLManagedTensorVersioned>(view.clone(), flags),
    )
}

/// Returns the result of `__cuda_array_interface__`. Consumers order their work after the stream in
/// the interface's field `stream`. This field is absent if no work is pending. For a draft with
/// pending work, and for a tensor that was published early, the field is the legacy default stream.
/// This function orders that stream after the pending work.
pub fn array_interface<'py>(py: Python<'py>, view: &DeviceView) -> PyResult<Bound<'py, PyDict>> {
    let pending = view.is_pending();
    view.order(py, CudaStream::new(1))?;
    view.show_unnamed()?;
    let interface = interface(py, view)?;
    let start = if view.elements() == 0 { 0 } else { view.start()? };
    interface.set_item("data", (start, !view.writable))?;
    interface.set_item("stream", pending.then_some(1))?;
    Ok(interface)
}

/// Returns a numpy array with a copy of the elements.
pub fn to_host<'py>(
    py: Python<'py>,
    view: &DeviceView,
    lease: &tensorlend::DeviceTensor,
) -> PyResult<Bound<'py, PyAny>> {
    let shape = PyTuple::new(py, &view.shape)?;
    let array = py.import("numpy")?.call_method1("empty", (shape, dtype::typestr(view.dtype)))?;
    let mut out = crate::array::Out::of(&array)?;
    let bytes = out.bytes();
    py.detach(|| lease.finish().and_then(|()| lease.copy_to_bytes(bytes))).or_raise()?;
    drop(out);
    crate::export::by_name(array, view.dtype)
}
