//! Views and lent values as torch tensors.
#![allow(unsafe_code)]

use crate::export;
use crate::view::{View, count};
use dlpark::Managed;
use dlpark::ffi::DLManagedTensorVersioned;
use dlpark::python::consumer::exchange::ExchangeApi;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyAttributeError, PyException};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;
use tensorlend::Value;

/// The ways in which torch imports tensors, from the fastest to the one that all versions of torch support.
enum Way {
    /// torch's table of C functions, which needs neither capsules nor Python code.
    Table(Table),
    /// A function of torch that accepts capsules.
    Capsules(Py<PyAny>),
    /// `torch.from_dlpack`, which calls the methods of an object. Used for versions of torch that
    /// do not support this package's capsules.
    Asked,
}

struct Table(ExchangeApi);

// SAFETY: DLPack prescribes that the table is constant for the life of the process. This module
// only reads the table, and calls its functions while attached to the interpreter. DLPack allows
// such calls on any thread.
unsafe impl Send for Table {}
// SAFETY: the table is constant, so several threads may read it at once.
unsafe impl Sync for Table {}

static WAY: PyOnceLock<Way> = PyOnceLock::new();

fn way(py: Python<'_>) -> PyResult<&'static Way> {
    WAY.get_or_try_init(py, || Way::find(py))
}

/// Returns a torch tensor of `view`. `owner` is the Python object of the view, for [`Way::Asked`].
///
/// This function does not call `torch.from_dlpack`, which first queries device, stream and version
/// in Python code. A trainer makes tensors once per batch, when that code has left the processor's
/// caches. The queries would then take most of the time, and all three results are known here.
pub fn tensor<'py>(owner: &Bound<'py, PyAny>, view: Arc<View>) -> PyResult<Bound<'py, PyAny>> {
    let py = owner.py();
    match way(py)? {
        // Export leases and drafts alike. torch ignores the read-only flag, so both become writable
        // tensors.
        way @ (Way::Table(_) | Way::Capsules(_)) => way.make(py, export::versioned(view)?),
        Way::Asked => py.import("torch")?.call_method1("from_dlpack", (owner,)),
    }
}

/// Returns true if torch can import values without an intermediate object.
pub fn is_direct(py: Python<'_>) -> PyResult<bool> {
    Ok(!matches!(way(py)?, Way::Asked))
}

/// Returns the torch tensors of a lent value in host memory, in the value's order. Each tensor
/// keeps the lease alive. Must be called only if [`is_direct`] returns true.
pub fn tensors<'py>(
    py: Python<'py>,
    value: &Arc<Value>,
    name: &str,
) -> PyResult<impl ExactSizeIterator<Item = PyResult<Bound<'py, PyAny>>>> {
    let way = way(py)?;
    Ok((0..count(value)).map(move |at| way.make(py, export::lent(value, at, name)?)))
}

/// Returns the torch tensor of a value, or a tuple of a dataset's tensors, as [`tensors`] makes
/// them.
pub fn tensor_or_tuple<'py>(py: Python<'py>, value: &Arc<Value>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let mut all = tensors(py, value, name)?;
    if value.as_dataset().is_none() {
        return all.next().expect("a tensor is one");
    }
    Ok(PyTuple::new(py, all.collect::<PyResult<Vec<_>>>()?)?.into_any())
}

impl Way {
    fn make<'py>(&self, py: Python<'py>, lent: Managed<DLManagedTensorVersioned>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Table(Table(functions)) => functions.managed_tensor_to_py_object_no_sync(lent, py),
            Self::Capsules(convert) => convert.bind(py).call1((lent.into_py_any(py)?,)),
            Self::Asked => unreachable!("it takes objects"),
        }
    }

    /// Returns the first way that accepts a read-only tensor. All leased tensors are read-only, and
    /// some versions of torch reject the read-only flag.
    fn find(py: Python<'_>) -> PyResult<Self> {
        for way in [Self::table(py)?, Self::capsules(py)?].into_iter().flatten() {
            match way.make(py, export::versioned(Arc::new(View::sample()))?) {
                Ok(_) => return Ok(way),
                Err(error) if error.is_instance_of::<PyException>(py) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self::Asked)
    }

    fn table(py: Python<'_>) -> PyResult<Option<Self>> {
        let host = PyDict::new(py);
        // Name the device, because the program may have set another default device.
        host.set_item("device", "cpu")?;
        let zero = py.import("torch")?.call_method("zeros", (1,), Some(&host))?;
        match ExchangeApi::from_object(zero.as_borrowed()) {
            Ok(functions) => Ok(functions.map(|functions| Self::Table(Table(functions)))),
            Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn capsules(py: Python<'_>) -> PyResult<Option<Self>> {
        let torch = py.import("torch")?;
        // Prefer the internal function that `torch.from_dlpack` calls. Versions without this function accept capsules
        // in `torch.from_dlpack`.
        let convert = match torch.getattr("_C").and_then(|inner| inner.getattr("_from_dlpack")) {
            Err(error) if error.is_instance_of::<PyAttributeError>(py) => {
                py.import("torch.utils.dlpack")?.getattr("from_dlpack")?
            }
            other => other?,
        };
        Ok(Some(Self::Capsules(convert.unbind())))
    }
}
