//! Arrays on a device that a caller passes, and their conversion to drafts.

use super::DeviceLease;
use super::view::DeviceView;
use crate::array::Array;
use crate::cuda_stream::CudaStream;
use crate::errors::{ResultExt, argument};
use crate::strided::{Order, order};
use crate::target::Target;
use crate::{dtype, errors};
use dlpark::ffi::{DLDevice, DLDeviceType};
use dlpark::python::{DlpackStream, ImportRequest, ImportedDlpack, StreamArg};
use pyo3::intern;
use pyo3::prelude::*;
use std::sync::Arc;
use tensorlend::{Client, DType, Device, DeviceDraft, On, TensorSpec};

/// An array on a device, and the object that keeps it alive.
pub struct DeviceArray {
    dtype: DType,
    shape: Vec<u64>,
    /// Strides in bytes.
    strides: Vec<i64>,
    start: u64,
    /// The device; `None` for an empty array whose interface does not state one.
    on: Option<On>,
    /// The stream on which work on the array is pending.
    stream: CudaStream,
    _owner: Owner,
}

enum Owner {
    Interface(#[expect(dead_code, reason = "it is there to be held")] Py<PyAny>),
    Dlpack(#[expect(dead_code, reason = "it is there to be held")] ImportedDlpack),
    View(#[expect(dead_code, reason = "it is there to be held")] Arc<DeviceView>),
}

/// The stream that this module passes to an array's producer through `__dlpack__`.
struct Told(usize);

// SAFETY: the stream is the caller's, or the legacy default stream. Callers of this package
// guarantee that their stream is a stream of a CUDA device. The caller keeps the stream alive
// during the call.
#[allow(unsafe_code)]
unsafe impl DlpackStream for Told {
    fn as_python_arg(&self, _py: Python<'_>, _device: DLDevice) -> PyResult<StreamArg> {
        Ok(dlpark::python::consumer::stream::cuda(std::ptr::without_provenance_mut(self.0)))
    }
}

impl DeviceArray {
    /// Makes an array from a lease, a DLPack tensor, or an object with the CUDA array interface.
    /// Returns `None` if the object is not on a CUDA device. If the caller passes `stream`, later
    /// work on this stream is ordered after pending work on the array.
    pub fn of(object: &Bound<'_, PyAny>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Self>> {
        let py = object.py();
        if let Ok(lease) = object.cast::<DeviceLease>() {
            return Self::of_view(py, lease.get().view()?, CudaStream::parse(stream)?).map(Some);
        }
        if let Some(device) = object.getattr_opt(intern!(py, "__dlpack_device__"))? {
            // Some objects that are on no device have this method, but the method raises.
            let Ok((kind, _)) = device.call0().and_then(|device| device.extract::<(u32, i32)>()) else {
                return Ok(None);
            };
            if kind != DLDeviceType::CUDA.0 {
                return Ok(None);
            }
            return Self::of_dlpack(object, CudaStream::parse(stream)?).map(Some);
        }
        match object.getattr_opt(intern!(py, "__cuda_array_interface__"))? {
            Some(interface) => Self::of_interface(object, &interface, stream).map(Some),
            None => Ok(None),
        }
    }

    fn of_view(py: Python<'_>, view: Arc<DeviceView>, stream: CudaStream) -> PyResult<Self> {
        let stream_again = CudaStream { owner: None, stream: stream.stream.clone(), recorded: stream.recorded.clone() };
        view.order(py, stream_again)?;
        Ok(Self {
            dtype: view.dtype,
            shape: view.sizes(),
            strides: view.byte_strides(),
            start: view.start()?,
            on: Some(view.uuid.into()),
            stream,
            _owner: Owner::View(view),
        })
    }

    fn of_dlpack(object: &Bound<'_, PyAny>, stream: CudaStream) -> PyResult<Self> {
        let wrong = |e: &dyn std::fmt::Display| argument(format!("the DLPack tensor cannot be read: {e}"));
        let resolved = crate::array::resolved(object)?;
        let told = Told(stream.stream.as_raw());
        let tensor = ImportRequest::new(resolved.as_borrowed())?.import(Some(&told), None)?;
        let (dtype, shape, strides, start, device) = {
            let seen = tensor.validate().map_err(|e| wrong(&e))?;
            let dtype = dtype::of_dlpack(seen.dtype())?;
            let strides = seen.strides_or_compact().map_err(|e| wrong(&e))?;
            let strides = strides.iter().map(|s| s * dtype.item_bytes() as i64).collect();
            let start = seen.data_ptr().addr() as u64 + seen.byte_offset();
            let shape = seen.shape().iter().map(|&d| d as u64).collect();
            (dtype, shape, strides, start, seen.device())
        };
        let number = u8::try_from(device.device_id).map_err(|_| {
            let found = device.device_id;
            argument(format!("the array's device has number {found}: copy the array to a device with number 0 to 255"))
        })?;
        let on = Some(Device::cuda(number).into());
        Ok(Self { dtype, shape, strides, start, on, stream, _owner: Owner::Dlpack(tensor) })
    }

    /// Makes an array from an object with the CUDA array interface, versions 0 to 3.
    fn of_interface(
        object: &Bound<'_, PyAny>,
        interface: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let optional = |key: &str| {
            let value = interface.call_method1("get", (key,))?;
            Ok::<_, PyErr>((!value.is_none()).then_some(value))
        };
        if optional("mask")?.is_some() {
            return Err(argument("arrays with a mask cannot be lent: lend data and mask as two tensors"));
        }
        let dtype = dtype::of_typestr(&interface.get_item("typestr")?.extract::<String>()?)?;
        let shape: Vec<u64> = interface.get_item("shape")?.extract()?;
        let strides = match optional("strides")? {
            Some(strides) => strides.extract()?,
            None => crate::array::packed(&shape, dtype.item_bytes()),
        };
        if strides.len() != shape.len() {
            return Err(argument("the array's interface has more or fewer strides than sizes"));
        }
        let (start, _): (u64, bool) = interface.get_item("data")?.extract()?;
        let on = if shape.contains(&0) { None } else { Some(On::of_pointer(start).or_raise()?) };
        // Use the producer's stream, unless the caller passes another stream.
        let stream = match (stream, optional("stream")?) {
            (Some(given), _) => CudaStream::parse(Some(given))?,
            (None, theirs) => CudaStream::parse(theirs.as_ref())?,
        };
        Ok(Self { dtype, shape, strides, start, on, stream, _owner: Owner::Interface(object.clone().unbind()) })
    }

    /// Returns a draft with the array's elements, on the array's device. The copy is complete when
    /// this function returns.
    #[allow(unsafe_code)]
    pub fn draft(&self, py: Python<'_>, client: &Client, target: Target) -> PyResult<DeviceDraft> {
        let on = match (self.on, target.device()) {
            (Some(theirs), Some(wanted)) => {
                let (theirs, wanted) = (theirs.find().or_raise()?, wanted.find().or_raise()?);
                if theirs != wanted {
                    return Err(argument(format!("the array is on device {theirs}: copy it to {wanted} first")));
                }
                wanted.into()
            }
            (Some(on), None) | (None, Some(on)) => on,
            (None, None) => return Err(argument("an array without elements has no device: pass device=")),
        };
        let strides = match order(&self.shape, &self.strides, self.dtype.item_bytes()) {
            Order::RowMajor => None,
            Order::Permuted(strides) => Some(strides),
            Order::Scattered => {
                return Err(argument(
                    "the array has gaps or runs backwards: put a contiguous copy (torch: .contiguous(), cupy: \
                     ascontiguousarray)",
                ));
            }
        };
        let spec = TensorSpec { strides, ..TensorSpec::new(self.dtype, &self.shape) };
        let (from, stream) = (self.start, self.stream.stream.clone());
        py.detach(|| {
            let mut draft = client.create_spec_on(on, spec)?;
            // SAFETY: the array's protocol states that its elements are contiguous at this address.
            // `self` keeps the elements alive until the copy is done.
            unsafe { draft.copy_from_ptr(from, &stream)? };
            draft.finish()?;
            Ok(draft)
        })
        .or_raise()
    }
}

/// Returns a draft on a device with the elements of an array in host memory. The copy is complete
/// when this function returns.
pub fn from_host(py: Python<'_>, client: &Client, array: &Array, on: On) -> PyResult<DeviceDraft> {
    array.with_bytes(py, false, |spec, bytes| {
        let mut draft = client.create_spec_on(on, spec)?;
        draft.copy_from_bytes(bytes)?;
        Ok(draft)
    })
}

/// Copies an array in host memory into a draft on a device.
pub fn fill(py: Python<'_>, view: &DeviceView, array: &Array) -> PyResult<()> {
    let shape = view.sizes();
    if array.dtype() != view.dtype {
        let (theirs, ours) = (array.dtype().numpy_name(), view.dtype.numpy_name());
        return Err(errors::dtype(format!(
            "the array's elements are {theirs}, the draft's {ours}: convert them first"
        )));
    }
    if array.shape() != shape {
        return Err(argument(format!("the array's shape is {:?}, the draft's {shape:?}", array.shape())));
    }
    array.with_bytes(py, view.is_row_major(), |spec, bytes| view.fill(spec.strides.as_deref(), bytes))
}
