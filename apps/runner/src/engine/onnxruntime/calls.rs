//! Calls of ONNX Runtime that read and write borrowed memory. The crate `ort` would copy borrowed
//! inputs of a binding, and accepts no borrowed outputs.
//!
//! Every unsafe block here relies on these rules, which the `SAFETY` comments name:
//!
//! 1. *Borrows.* `Run::value` makes a runtime value over borrowed memory. Only `Run::go` uses this
//!    value, and the [`Run`] releases it. The `Run` has the lifetime `'m` of the borrows. So the
//!    runtime reads inputs and writes outputs only while their memory is borrowed.
//! 2. *Inputs.* The runtime takes a `*mut` for inputs and outputs, but writes only to outputs.
//! 3. *Lengths.* A value's length in bytes is that of its slice. When the value is made, the
//!    runtime checks the length against shape and element type. Before it writes to a buffer output,
//!    it checks the output's shape.
//! 4. *Pointers.* Pointers that the runtime returns are checked for null, owned by one [`Made`] or
//!    [`Run`], and released once.
#![allow(unsafe_code)]

use super::Feed;
use ort::AsPointer;
use ort::memory::MemoryInfo;
use ort::session::Session;
use ort::sys::{ONNXTensorElementDataType as Element, OrtStatusPtr, OrtTensorTypeAndShapeInfo, OrtValue};
use std::ffi::{CStr, CString, c_char, c_void};
use std::marker::PhantomData;
use std::ptr::{NonNull, null, null_mut};

const NDIM_MAX: usize = 16;

/// Memory that the caller provides for an output.
pub struct OutputBuffer<'g> {
    pub shape: &'g [u64],
    pub bytes: &'g mut [u8],
    pub code: u32,
}

/// One run of a session, with its inputs and outputs.
pub struct Run<'m, 's> {
    session: &'s mut Session,
    memory: MemoryInfo<'static>,
    input_names: Vec<*const c_char>,
    inputs: Vec<NonNull<OrtValue>>,
    output_names: Vec<*const c_char>,
    outputs: Vec<Option<NonNull<OrtValue>>>,
    borrowed: PhantomData<&'m mut [u8]>,
}

impl<'m, 's> Run<'m, 's> {
    pub fn new(session: &'s mut Session) -> Self {
        Self {
            session,
            memory: MemoryInfo::default(),
            input_names: Vec::new(),
            inputs: Vec::new(),
            output_names: Vec::new(),
            outputs: Vec::new(),
            borrowed: PhantomData,
        }
    }

    /// Adds an input, which the runtime reads in place.
    pub fn input(&mut self, name: &'m CString, feed: &Feed<'m>, code: u32) -> Result<(), String> {
        let value = self.value(feed.bytes.as_ptr().cast_mut(), feed.bytes.len(), feed.shape, code)?;
        self.input_names.push(name.as_ptr());
        self.inputs.push(value);
        Ok(())
    }

    /// Adds an output. The runtime writes the output into the buffer memory. If `buffer` is `None`,
    /// the runtime allocates memory.
    pub fn output(&mut self, name: &'m CString, buffer: Option<OutputBuffer<'m>>) -> Result<(), String> {
        let value = match buffer {
            Some(buffer) => {
                Some(self.value(buffer.bytes.as_mut_ptr(), buffer.bytes.len(), buffer.shape, buffer.code)?)
            }
            None => None,
        };
        self.output_names.push(name.as_ptr());
        self.outputs.push(value);
        Ok(())
    }

    /// Makes a runtime value over `len` bytes at `data`. The caller guarantees that these bytes are
    /// borrowed for `'m`.
    fn value(&self, data: *mut u8, len: usize, shape: &[u64], code: u32) -> Result<NonNull<OrtValue>, String> {
        let dims: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        let mut value = null_mut();
        let data = data.cast::<c_void>();
        // SAFETY: `data` and `len` are a slice that is borrowed for 'm, and the `Run` releases the
        // value before the borrow ends. The runtime checks the length against shape and type. The
        // call copies the `dims.len()` numbers of `dims`.
        let status = unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                self.memory.ptr(),
                data,
                len,
                dims.as_ptr(),
                dims.len(),
                element(code),
                &raw mut value,
            )
        };
        well(status)?;
        NonNull::new(value).ok_or_else(|| "ONNX Runtime made no value".into())
    }

    /// Runs the session. Returns one entry for each output, in order. The entry is the output if
    /// the runtime allocated it, and `None` if the output is in buffer memory.
    pub fn go(self) -> Result<Vec<Option<Made>>, String> {
        let inputs: Vec<*const OrtValue> = self.inputs.iter().map(|value| value.as_ptr().cast_const()).collect();
        let mut outputs: Vec<*mut OrtValue> =
            self.outputs.iter().map(|value| value.map_or(null_mut(), NonNull::as_ptr)).collect();
        // SAFETY: the memory of all values is borrowed for 'm, and the runtime writes only to
        // outputs. The counts are those of names and values. The names are `CString`s that live for
        // 'm. The session is borrowed mutably, so nothing else uses it.
        let status = unsafe {
            (ort::api().Run)(
                self.session.ptr_mut(),
                null(),
                self.input_names.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                self.output_names.as_ptr(),
                outputs.len(),
                outputs.as_mut_ptr(),
            )
        };
        // All outputs get an owner before the first return with an error, so that each of them is
        // released.
        let made: Vec<Option<Made>> = outputs
            .iter()
            .zip(&self.outputs)
            .map(|(&now, buffer)| if buffer.is_some() { None } else { NonNull::new(now).map(Made) })
            .collect();
        well(status)?;
        Ok(made)
    }
}

impl Drop for Run<'_, '_> {
    fn drop(&mut self) {
        for value in self.inputs.iter().copied().chain(self.outputs.iter().flatten().copied()) {
            // SAFETY: `Run::value` made the value, and it has no other owner.
            unsafe { (ort::api().ReleaseValue)(value.as_ptr()) };
        }
    }
}

/// An output in memory that the runtime allocated.
pub struct Made(NonNull<OrtValue>);

impl Made {
    /// Returns the sizes of the output's dimensions.
    pub fn shape(&self) -> Result<Vec<u64>, String> {
        Ok(self.kind()?.1)
    }

    /// Copies the output into `to`. Fails if the output has another element type than `code`, or
    /// another length than `to`.
    pub fn copy_to(&self, to: &mut [u8], code: Option<u32>) -> Result<(), String> {
        let (found, shape) = self.kind()?;
        if code != Some(found as u32) {
            return Err(format!("the model declares another element type than it computed ({found:?})"));
        }
        let mut data = null_mut();
        // SAFETY: the runtime made the value, and it still exists. The value is a tensor, because
        // `kind` succeeded.
        well(unsafe { (ort::api().GetTensorMutableData)(self.0.as_ptr(), &raw mut data) })?;
        if to.is_empty() {
            return Ok(());
        }
        let data = NonNull::new(data.cast::<u8>()).ok_or_else(|| format!("an output of {shape:?} has no memory"))?;
        // SAFETY: the tensor has the element type and shape of `to`, so it has as many bytes. The
        // tensor lives as long as self. Its memory belongs to the runtime and does not overlap
        // `to`.
        to.copy_from_slice(unsafe { std::slice::from_raw_parts(data.as_ptr(), to.len()) });
        Ok(())
    }

    fn kind(&self) -> Result<(Element, Vec<u64>), String> {
        let info = Info::of(self)?;
        let (mut count, mut found) = (0, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED);
        // SAFETY: the runtime made `info`, which still exists.
        well(unsafe { (ort::api().GetDimensionsCount)(info.0.as_ptr(), &raw mut count) })?;
        // SAFETY: the runtime made `info`, which still exists.
        well(unsafe { (ort::api().GetTensorElementType)(info.0.as_ptr(), &raw mut found) })?;
        if count > NDIM_MAX {
            return Err(format!("an output has {count} dimensions, and {NDIM_MAX} are the most"));
        }
        let mut dims = vec![0i64; count];
        // SAFETY: the runtime made `info`, which still exists. `dims` has room for `dims.len()`
        // numbers.
        well(unsafe { (ort::api().GetDimensions)(info.0.as_ptr(), dims.as_mut_ptr(), count) })?;
        Ok((found, dims.into_iter().map(|size| size.max(0) as u64).collect()))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: the runtime made this object for this caller, and the object has no other owner.
        unsafe { (ort::api().ReleaseValue)(self.0.as_ptr()) };
    }
}

/// The runtime's object with the element type and shape of a tensor.
struct Info(NonNull<OrtTensorTypeAndShapeInfo>);

impl Info {
    fn of(made: &Made) -> Result<Self, String> {
        let (mut is_tensor, mut info) = (0, null_mut());
        // SAFETY: the runtime made the value `made`, which still exists.
        well(unsafe { (ort::api().IsTensor)(made.0.as_ptr(), &raw mut is_tensor) })?;
        if is_tensor == 0 {
            return Err("an output is no tensor".into());
        }
        // SAFETY: the runtime made the value `made`, which still exists.
        well(unsafe { (ort::api().GetTensorTypeAndShape)(made.0.as_ptr(), &raw mut info) })?;
        NonNull::new(info).map(Self).ok_or_else(|| "ONNX Runtime does not say what an output is".into())
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: the runtime made this object for this caller, and the object has no other owner.
        unsafe { (ort::api().ReleaseTensorTypeAndShapeInfo)(self.0.as_ptr()) };
    }
}

/// Returns the version of the ONNX Runtime library.
pub fn version() -> String {
    // SAFETY: the library is loaded. The function returns a string that ends with 0 and lives as
    // long as the library.
    unsafe { CStr::from_ptr((ort::api().GetBuildInfoString)()) }
        .to_string_lossy()
        .split(['=', ',', ' '])
        .find(|word| word.starts_with("rel-"))
        .map_or_else(|| format!("(API {})", ort::sys::ORT_API_VERSION), |word| word["rel-".len()..].to_owned())
}

fn element(code: u32) -> Element {
    use Element as E;
    match code {
        1 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        2 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
        3 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
        4 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
        5 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
        6 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        7 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        9 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
        10 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        11 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
        12 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
        13 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
        16 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
        _ => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED,
    }
}

fn well(status: OrtStatusPtr) -> Result<(), String> {
    // SAFETY: a call of the runtime returned this status once, and the status has no other owner.
    unsafe { ort::Error::result_from_status(status) }.map_err(|error| error.to_string())
}
