//! The class `Draft`: a tensor that is being written in host memory.
#![allow(unsafe_code)]

use crate::errors::{ResultExt, argument};
use crate::getters::{draft_methods, tensor_getters};
use crate::lasting::Lasting;
use crate::version::Version;
use crate::view::{Drafted, View, gone};
use crate::{export, torch};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyTuple, PyWeakrefMethods, PyWeakrefReference};
use std::ffi::c_int;
use std::sync::{Arc, Mutex};
use tensorlend::ValueDraft;
use tensorlend_os::mutex::lock;

/// A tensor that is being written, in the memory where its readers will see it. The tensor is
/// invisible until it is published.
///
/// As a context manager, a draft with a name is published at the end of the block. An exception in
/// the block drops the draft. A block must publish, send or drop a draft without a name.
/// `draft[...]` reads and writes elements as its numpy array does.
/// `Draft[np.float32]` is its type in annotations.
///
/// Notes
/// -----
/// Publishing makes the arrays that `array` returned read-only. After publication, do not write to
/// other views of the draft. Only the process that created the draft may use it. Threads may write
/// to different parts of the draft, and one of them publishes it.
#[pyclass(frozen, weakref, module = "tensorlend._native")]
pub struct Draft {
    state: Mutex<Option<State>>,
    name: Option<String>,
    lasting: Lasting,
}

struct State {
    view: Arc<View>,
    drafted: Arc<Drafted>,
    /// A weak reference to the numpy array of `array`, so that publishing can make it read-only.
    array: Option<Py<PyWeakrefReference>>,
}

impl Draft {
    /// Creates the object for a draft.
    pub fn new(draft: tensorlend::Draft, name: Option<String>, lasting: Lasting) -> Self {
        let (view, drafted) = View::drafted(draft, name.as_deref());
        let state = State { view: Arc::new(view), drafted, array: None };
        Self { state: Mutex::new(Some(state)), name, lasting }
    }

    /// Takes the client library's draft for publication, and closes this object. The memory stays
    /// in place as long as an array may view the memory.
    pub fn take(&self, py: Python<'_>) -> PyResult<ValueDraft> {
        self.view()?;
        let State { view, drafted, array } = lock(&self.state).take().ok_or_else(gone).or_raise()?;
        if let Some(array) = array.and_then(|array| array.bind(py).upgrade()) {
            freeze(&array)?;
        }
        let alone = Arc::try_unwrap(view).is_ok();
        drafted.take(|draft| (!alone).then(|| draft.pin()).transpose()).map(Into::into)
    }

    /// Calls `change` with the client library's draft.
    pub fn with<R>(&self, change: impl FnOnce(&mut tensorlend::Draft) -> Result<R, tensorlend::Error>) -> PyResult<R> {
        let state = lock(&self.state);
        state.as_ref().ok_or_else(gone).and_then(|state| state.drafted.with(change)).or_raise()
    }
}

/// Makes this array read-only.
fn freeze(array: &Bound<'_, PyAny>) -> PyResult<()> {
    array.getattr("flags")?.setattr("writeable", false)
}

tensor_getters!(Draft, export);

draft_methods!(Draft, View);

#[pymethods]
impl Draft {
    /// A numpy array that views the draft. It is writable until the draft is published.
    #[getter]
    pub fn array<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let known =
            lock(&slf.get().state).as_ref().and_then(|state| state.array.as_ref().map(|array| array.clone_ref(py)));
        if let Some(array) = known.and_then(|array| array.bind(py).upgrade()) {
            return Ok(array);
        }
        let array = export::numpy(slf.as_any(), slf.get().view()?.dtype)?;
        let weak = PyWeakrefReference::new(&array)?.unbind();
        // Another thread may have created the array, or published the draft, in the meantime.
        let mut state = lock(&slf.get().state);
        let Some(state) = state.as_mut() else {
            drop(state);
            freeze(&array)?;
            return Ok(array);
        };
        if let Some(other) = state.array.as_ref().and_then(|other| other.bind(py).upgrade()) {
            return Ok(other);
        }
        state.array = Some(weak);
        Ok(array)
    }

    /// Returns the property `array`. Leases have a method of this name, too.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray
    ///     The array, writable until the draft is published.
    ///
    /// Raises
    /// ------
    /// ClosedError
    ///     The draft was published or dropped.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::array(slf)
    }

    /// Returns a writable torch tensor that views the draft. torch must be installed.
    ///
    /// Returns
    /// -------
    /// torch.Tensor
    ///     The tensor. Do not write to the tensor after the draft is published.
    ///
    /// Raises
    /// ------
    /// ClosedError
    ///     The draft was published or dropped.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        torch::tensor(slf.as_any(), slf.get().view()?)
    }

    /// Publishes the draft. Then every client of the namespace can read the tensor.
    ///
    /// Parameters
    /// ----------
    /// name : str or None, default None
    ///     The name. None is the name with which the draft was created.
    ///
    /// Returns
    /// -------
    /// Version
    ///     The version of the published value.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     There is no name, or the name is invalid.
    /// ClosedError
    ///     The draft was published or dropped.
    /// PermissionError
    ///     This user may not write to the namespace.
    #[pyo3(signature = (name=None))]
    fn publish(&self, py: Python<'_>, name: Option<&str>) -> PyResult<Version> {
        let name = self.name_for(name)?;
        self.lasting.publish(py, self.take(py)?, name)
    }

    /// Drops the draft. Its memory is freed once no array views the memory.
    #[pyo3(name = "drop")]
    fn end(&self, _py: Python<'_>) {
        lock(&self.state).take();
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

    #[allow(clippy::unused_self)]
    fn __dlpack_device__(&self) -> (u32, i32) {
        (export::CPU.device_type.0, export::CPU.device_id)
    }

    /// Returns an element, or a numpy array that views a part of the draft in place.
    fn __getitem__<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Self::array(slf)?.get_item(key)
    }

    /// Writes elements, as an assignment to the draft's numpy array does.
    fn __setitem__(slf: &Bound<'_, Self>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        Self::array(slf)?.set_item(key, value)
    }

    /// Calls a function of numpy with the arrays of drafts among its arguments, so that `out=draft` writes in place.
    #[pyo3(signature = (ufunc, method, *inputs, **options))]
    fn __array_ufunc__<'py>(
        slf: &Bound<'py, Self>,
        ufunc: &Bound<'py, PyAny>,
        method: &str,
        inputs: &Bound<'py, PyTuple>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let arrays = |given: &Bound<'py, PyTuple>| {
            let each = given.iter().map(|one| match one.cast::<Self>().ok().map(Self::array) {
                Some(array) => array,
                None => Ok(one),
            });
            PyTuple::new(py, each.collect::<PyResult<Vec<_>>>()?)
        };
        let options = options.map(PyDictMethods::copy).transpose()?;
        if let Some(options) = &options
            && let Some(out) = options.get_item("out")?
        {
            options.set_item("out", arrays(out.cast::<PyTuple>()?)?)?;
        }
        ufunc.getattr(method)?.call(arrays(inputs)?, options.as_ref())
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyIterator>> {
        Self::array(slf)?.try_iter()
    }
}
