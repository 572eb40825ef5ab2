//! Arrays that a caller passes. This module reads them in place, and copies them into drafts.
#![allow(unsafe_code)]

use crate::draft::Draft;
use crate::errors::{self, ResultExt, argument, raise};
use crate::lease::Lease;
use crate::strided::{Order, gather, order, row_major};
use crate::view::View;
use crate::{display, dtype, export};
use dlpark::python::{ImportedDlpack, from_dlpack};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use pyo3::{ffi, intern};
use std::ffi::CStr;
use std::fmt::Display;
use std::sync::Arc;
use tensorlend::{Client, DType, Error, TensorSpec};

/// Minimum bytes of an array that is copied without the interpreter's lock. For smaller arrays, releasing the lock
/// takes longer than the copy.
const ALONE_BYTES_MIN: u64 = 256 << 10;

/// Calls `work`, which reads or writes this many bytes. Releases the interpreter's lock for at
/// least [`ALONE_BYTES_MIN`] bytes.
pub fn detach_if_large<T: Send>(py: Python<'_>, bytes: u64, work: impl FnOnce() -> T + Send) -> T {
    if bytes < ALONE_BYTES_MIN { work() } else { py.detach(work) }
}

/// Returns the bytes that a tensor takes. If the shape or the strides are invalid, the exception
/// describes the tensor as numpy does.
pub fn bytes_of(spec: &TensorSpec) -> PyResult<u64> {
    spec.bytes().map_err(|error| as_numpy(error, spec.dtype, &spec.shape, spec.strides.as_deref())).or_raise()
}

/// Rewrites an error to describe the tensor as numpy does. The new text has the dtype's full name,
/// the shape as a tuple, and strides in bytes.
#[cold]
fn as_numpy(error: Error, dtype: DType, shape: &[impl Display], strides: Option<&[i64]>) -> Error {
    let Error::Tensor { cause, .. } = error else { return error };
    let item = dtype.item_bytes() as i64;
    let strides = strides.map_or_else(String::new, |strides| {
        format!(" with strides of {} bytes", display::tuple(strides.iter().map(|stride| stride.saturating_mul(item))))
    });
    Error::Tensor { what: format!("tensor of {} {}{strides}", dtype.numpy_name(), display::tuple(shape)), cause }
}

/// A caller's array, and the object that keeps it alive.
pub struct Array {
    dtype: DType,
    shape: Vec<u64>,
    /// Strides in bytes.
    strides: Vec<i64>,
    start: *const u8,
    _owner: Owner,
}

enum Owner {
    Buffer(#[expect(dead_code, reason = "it is there to be held")] Buffer),
    Dlpack(#[expect(dead_code, reason = "it is there to be held")] ImportedDlpack),
    View(#[expect(dead_code, reason = "it is there to be held")] Arc<View>),
}

/// A buffer of Python's buffer protocol. Dropping this object releases the buffer.
struct Buffer(Box<ffi::Py_buffer>);

impl Buffer {
    fn get(object: &Bound<'_, PyAny>, flags: std::ffi::c_int) -> PyResult<Self> {
        let mut buffer = Box::new(ffi::Py_buffer::new());
        // SAFETY: the interpreter is attached. The structure `buffer` is writable, and `Drop`
        // releases the buffer.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *buffer, flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self(buffer))
    }

    fn format(&self) -> PyResult<&str> {
        if self.0.format.is_null() {
            return Ok("B");
        }
        // SAFETY: `format` is not null. The buffer protocol then guarantees a C string that lives
        // until the buffer is released.
        let format = unsafe { CStr::from_ptr(self.0.format) };
        format.to_str().map_err(|_| {
            errors::dtype("the format of the buffer's elements is not UTF-8: convert the elements to a dtype of numpy")
        })
    }

    /// Returns the numbers of a table with `ndim` entries. The result is empty if the table is
    /// null.
    fn numbers(&self, table: *const isize) -> &[isize] {
        if table.is_null() {
            return &[];
        }
        // SAFETY: `table` is not null. The buffer protocol then guarantees `ndim` numbers that live
        // until the buffer is released.
        unsafe { std::slice::from_raw_parts(table, self.0.ndim as usize) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `get` acquired the buffer, and only this drop releases the buffer. The
        // interpreter is attached, because buffers are local variables of calls from Python.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// Returns whether a type is exactly `numpy.ndarray`.
pub fn is_ndarray(kind: &Bound<'_, PyType>) -> PyResult<bool> {
    static NDARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = kind.py();
    let ndarray = NDARRAY.get_or_try_init(py, || Ok::<_, PyErr>(py.import("numpy")?.getattr("ndarray")?.unbind()))?;
    Ok(kind.is(ndarray))
}

/// Returns the array of an object with a dtype of `ml_dtypes` as unsigned integers, and that dtype. The buffer protocol does
/// not support such a dtype. `failed` is its exception.
fn unsigned<'py>(object: &Bound<'py, PyAny>, failed: PyErr) -> PyResult<(Bound<'py, PyAny>, DType)> {
    let py = object.py();
    // A TypeError means that the object cannot become an array.
    if failed.is_instance_of::<PyTypeError>(py) {
        return Err(failed);
    }
    let Ok(given) = object.getattr("dtype") else { return Err(failed) };
    // Prefer an unknown dtype's error to `failed`, because the error names the dtype.
    let dtype = dtype::parse(&given)?;
    if dtype::is_native(dtype) {
        return Err(failed);
    }
    let unsigned = if dtype.item_bytes() == 1 { "uint8" } else { "uint16" };
    Ok((object.call_method1("view", (py.import("numpy")?.getattr(unsigned)?,))?, dtype))
}

impl Array {
    /// Returns false if the object is certainly in host memory. Otherwise returns true.
    pub fn may_be_on_device(object: &Bound<'_, PyAny>) -> PyResult<bool> {
        // SAFETY: the interpreter is attached.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
            return Ok(true);
        }
        // Arrays of CuPy 14 state that they have a buffer, which they give only for managed memory.
        let kind = object.get_type();
        Ok(!is_ndarray(&kind)? && kind.hasattr(intern!(object.py(), "__cuda_array_interface__"))?)
    }

    /// Makes an array from any numeric array: a lease, a draft, a buffer, a DLPack tensor, or an object that numpy
    /// converts.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(lease) = object.cast::<Lease>() {
            return Ok(Self::of_view(lease.get().view()?));
        }
        if let Ok(draft) = object.cast::<Draft>() {
            return Ok(Self::of_view(draft.get().view()?));
        }
        // SAFETY: the interpreter is attached.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0 {
            return Self::of_buffer(object).or_else(|failed| Self::of_unsigned(object, failed));
        }
        if object.hasattr("__dlpack__")? {
            return Self::of_dlpack(object);
        }
        let array = export::asarray(object)?;
        Self::of_buffer(&array).or_else(|failed| Self::of_unsigned(&array, failed))
    }

    fn of_view(view: Arc<View>) -> Self {
        Self {
            dtype: view.dtype,
            shape: view.sizes(),
            strides: view.byte_strides(),
            start: view.start(),
            _owner: Owner::View(view),
        }
    }

    fn of_buffer(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = Buffer::get(object, ffi::PyBUF_RECORDS_RO)?;
        let dtype = dtype::of_format(buffer.format()?, buffer.0.itemsize as usize)?;
        let shape: Vec<u64> = buffer.numbers(buffer.0.shape).iter().map(|&d| d as u64).collect();
        // ctypes omits the strides of a C-contiguous array, even if they are requested.
        let strides = match buffer.numbers(buffer.0.strides) {
            [] => packed(&shape, dtype.item_bytes()),
            strides => strides.iter().map(|&s| s as i64).collect(),
        };
        if shape.len() != buffer.0.ndim as usize || strides.len() != shape.len() {
            return Err(argument("the buffer has a number of dimensions, but no sizes: pass a numpy array of it"));
        }
        Ok(Self { dtype, shape, strides, start: buffer.0.buf.cast(), _owner: Owner::Buffer(buffer) })
    }

    /// Makes an array from an object with a dtype of `ml_dtypes`. `failed` is the buffer protocol's exception.
    fn of_unsigned(object: &Bound<'_, PyAny>, failed: PyErr) -> PyResult<Self> {
        let (array, dtype) = unsigned(object, failed)?;
        Ok(Self { dtype, ..Self::of_buffer(&array)? })
    }

    fn of_dlpack(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let tensor = import(&resolved(object)?)?;
        let wrong = |e: &dyn std::fmt::Display| argument(format!("the DLPack tensor cannot be read: {e}"));
        let (dtype, shape, strides, start) = {
            let seen = tensor.validate().map_err(|e| wrong(&e))?;
            if seen.device() != export::CPU {
                let (kind, number) = (seen.device().device_type.0, seen.device().device_id);
                return Err(argument(format!(
                    "the tensor is on the device of DLPack's type {kind}, number {number}: copy it to host memory first"
                )));
            }
            let dtype = dtype::of_dlpack(seen.dtype())?;
            let strides = seen.strides_or_compact().map_err(|e| wrong(&e))?;
            let strides = strides.iter().map(|s| s * dtype.item_bytes() as i64).collect();
            let start = seen.data_ptr().cast::<u8>().wrapping_add(seen.byte_offset() as usize);
            (dtype, seen.shape().iter().map(|&d| d as u64).collect(), strides, start)
        };
        Ok(Self { dtype, shape, strides, start, _owner: Owner::Dlpack(tensor) })
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the size of each axis, in elements.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Calls `work` with the array's elements as one contiguous slice, and with the spec of a
    /// tensor of these elements. If `row_major` is true, the elements are in C order. Otherwise
    /// they keep the array's own order of axes if the array is contiguous. Calls `work` without the
    /// interpreter's lock.
    pub fn with_bytes<T: Send>(
        &self,
        py: Python<'_>,
        row_major: bool,
        work: impl FnOnce(TensorSpec, &[u8]) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let (strides, in_place) = match order(&self.shape, &self.strides, self.dtype.item_bytes()) {
            Order::RowMajor => (None, true),
            Order::Permuted(strides) if !row_major => (Some(strides), true),
            Order::Permuted(_) | Order::Scattered => (None, false),
        };
        let spec = TensorSpec { strides, ..TensorSpec::new(self.dtype, &self.shape) };
        let bytes = bytes_of(&spec)? as usize;
        let source = Source { array: self, bytes };
        let look = move || {
            let source = &source;
            if in_place {
                // SAFETY: `self` holds the array's owner, which keeps the elements readable.
                // `in_place` means that they are contiguous.
                return work(spec, unsafe { source.all() });
            }
            let mut all = vec![0; bytes];
            // SAFETY: `self` holds the array's owner, which keeps the elements readable.
            unsafe { source.gather(&mut all) };
            work(spec, &all)
        };
        py.detach(look).or_raise()
    }

    /// Returns a draft with the array's elements. The draft keeps the array's order of axes in
    /// memory, for example Fortran order. Arrays with gaps or negative strides are copied in C
    /// order.
    pub fn draft(&self, py: Python<'_>, client: &Client) -> PyResult<tensorlend::Draft> {
        let item = self.dtype.item_bytes();
        let order = order(&self.shape, &self.strides, item);
        let bytes = self.shape.iter().fold(item as u64, |bytes, &size| bytes.saturating_mul(size));
        let (dtype, shape) = (self.dtype, &*self.shape);
        let create = || match &order {
            Order::Permuted(strides) => {
                client.create_spec(TensorSpec { strides: Some(strides.clone()), ..TensorSpec::new(dtype, shape) })
            }
            Order::RowMajor | Order::Scattered => client.create(dtype, shape),
        };
        let mut draft =
            detach_if_large(py, bytes, create).map_err(|error| as_numpy(error, dtype, shape, None)).or_raise()?;
        let bytes = draft.bytes_mut().len();
        let source = Source { array: self, bytes };
        let copy = move || {
            let source = &source;
            // SAFETY: buffers and capsules guarantee that all elements of the array are readable
            // while `self` holds the array's owner. Other threads may write at the same time, under
            // Python's rules. The copy then mixes old and new elements, as a copy by numpy would.
            unsafe {
                match &order {
                    Order::Scattered => source.gather(draft.bytes_mut()),
                    Order::RowMajor | Order::Permuted(_) => draft.copy_from(source.all()).or_raise()?,
                }
            }
            Ok(draft)
        };
        detach_if_large(py, bytes as u64, copy)
    }
}

/// Returns a tensor whose memory contains its actual elements. A torch tensor may represent the
/// conjugate or the negative of its memory. DLPack cannot express this, so such a tensor is copied.
pub fn resolved<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if object.getattr_opt(intern!(py, "resolve_neg"))?.is_none() {
        return Ok(object.clone());
    }
    object.call_method0(intern!(py, "resolve_conj"))?.call_method0(intern!(py, "resolve_neg"))
}

/// Imports a DLPack tensor. Supports producers from before DLPack 1.0, which accept only the argument `stream`.
fn import(object: &Bound<'_, PyAny>) -> PyResult<ImportedDlpack> {
    let failed = match from_dlpack(object.as_borrowed(), None, None) {
        Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => error,
        done => return done,
    };
    // Import from an object that has only the method `__dlpack__`. `from_dlpack` calls the method
    // of such an object without arguments.
    let py = object.py();
    let method = PyDict::new(py);
    method.set_item(intern!(py, "__dlpack__"), object.getattr(intern!(py, "__dlpack__"))?)?;
    let plain = py.import("types")?.call_method("SimpleNamespace", (), Some(&method))?;
    from_dlpack(plain.as_borrowed(), None, None).map_err(|_| failed)
}

/// Returns C-contiguous strides in bytes.
pub fn packed(shape: &[u64], item: usize) -> Vec<i64> {
    let shape: Vec<i64> = shape.iter().map(|&d| d as i64).collect();
    row_major(&shape).iter().map(|s| s * item as i64).collect()
}

/// An array that a thread reads while it has released the interpreter.
struct Source<'a> {
    array: &'a Array,
    bytes: usize,
}

// SAFETY: code that has a `Source` neither uses nor drops the array's owner, and only reads the
// elements.
unsafe impl Send for Source<'_> {}

impl Source<'_> {
    /// Returns the elements as one slice.
    ///
    /// # Safety
    /// The elements are contiguous, and readable while the result is used.
    unsafe fn all(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the caller guarantees that the elements are contiguous and readable.
        unsafe { std::slice::from_raw_parts(self.array.start, self.bytes) }
    }

    /// Copies the elements in C order into `out`.
    ///
    /// # Safety
    /// The elements are readable.
    unsafe fn gather(&self, out: &mut [u8]) {
        let array = self.array;
        // SAFETY: the caller guarantees that the elements are readable.
        unsafe { gather(array.start, &array.shape, &array.strides, array.dtype.item_bytes(), out) };
    }
}

/// A writable contiguous buffer of a caller.
pub struct Out {
    buffer: Buffer,
    /// The dtype of an array's elements; `None` for bytes of one dimension.
    dtype: Option<DType>,
}

impl Out {
    /// Acquires the buffer of an array or another object. The buffer must be C-contiguous and writable.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let flags = ffi::PyBUF_CONTIG | ffi::PyBUF_FORMAT;
        let (buffer, foreign) = match Buffer::get(object, flags) {
            Ok(buffer) => (buffer, None),
            Err(failed) => {
                let (array, dtype) = unsigned(object, failed)?;
                (Buffer::get(&array, flags)?, Some(dtype))
            }
        };
        let dtype = match foreign {
            None => dtype::of_format(buffer.format()?, buffer.0.itemsize as usize)?,
            Some(foreign) => foreign,
        };
        let is_bytes = dtype == DType::U8 && buffer.0.ndim <= 1;
        Ok(Self { buffer, dtype: (!is_bytes).then_some(dtype) })
    }

    /// Checks that the elements of a tensor fit into the buffer.
    pub fn check(&self, name: &str, dtype: DType, shape: &[usize]) -> PyResult<()> {
        let (found, out) = (dtype.numpy_name(), self.dtype.map(DType::numpy_name));
        let is_stand_in =
            |own: DType| !dtype::is_native(dtype) && own.code() == 1 && own.item_bytes() == dtype.item_bytes();
        if let Some(out) = out
            && self.dtype.is_some_and(|own| own != dtype && !is_stand_in(own))
        {
            return Err(errors::dtype(format!(
                "{name:?} has elements of {found}, and `out` has elements of {out}: pass an array of {found}, or convert with \
                 astype what get returns"
            )));
        }
        let bytes = shape.iter().fold(dtype.item_bytes(), |bytes, &size| bytes.saturating_mul(size)) as u64;
        let given = self.buffer.0.len as u64;
        if bytes != given {
            return Err(raise(Error::Length { name: name.to_owned(), found: bytes, given }));
        }
        let own: Vec<usize> = self.buffer.numbers(self.buffer.0.shape).iter().map(|&size| size as usize).collect();
        if self.dtype.is_some() && own != shape {
            let (found, own) = (display::tuple(shape), display::tuple(&own));
            return Err(argument(format!(
                "{name:?} has the shape {found}, and `out` has {own}: pass out.reshape({found})"
            )));
        }
        Ok(())
    }

    /// Returns the bytes of the array.
    pub fn bytes(&mut self) -> &mut [u8] {
        let (start, length) = (self.buffer.0.buf, self.buffer.0.len as usize);
        if length == 0 || start.is_null() {
            return &mut [];
        }
        // SAFETY: the buffer is contiguous and writable until it is released. Other threads of the interpreter may read
        // or write at the same time, under Python's rules.
        unsafe { std::slice::from_raw_parts_mut(start.cast(), length) }
    }
}
