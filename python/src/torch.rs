//! Views and lent values as torch tensors.
#![allow(unsafe_code)]

use crate::export;
use crate::view::{View, members};
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

/// The ways in which this torch can import tensors, from the fastest to the one that all versions support.
enum Way {
    /// torch's table of C functions: no capsule, and no Python code.
    Table(Table),
    /// A function that takes capsules.
    Capsules(Py<PyAny>),
    /// torch does not support this package's capsules: it calls the methods of an object.
    Asked,
}

struct Table(ExchangeApi);

// SAFETY: the table is constant for the life of the process, as DLPack prescribes; it is only read, and its functions
// are called while attached to the interpreter, on any thread.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

static WAY: PyOnceLock<Way> = PyOnceLock::new();

fn way(py: Python<'_>) -> PyResult<&'static Way> {
    WAY.get_or_try_init(py, || Way::find(py))
}

/// Returns a tensor of `view`. `owner` is the object for a torch that does not support our capsules.
///
/// `torch.from_dlpack` first queries device, stream and version, in Python. All of that is known here. A trainer calls
/// this once per batch, when that code has left the processor's caches, so the queries would take longer than
/// everything else.
pub fn tensor<'py>(owner: &Bound<'py, PyAny>, view: Arc<View>) -> PyResult<Bound<'py, PyAny>> {
    let py = owner.py();
    match way(py)? {
        // Drafts take this way too: torch ignores the read-only flag, so both kinds become writable tensors.
        way @ (Way::Table(_) | Way::Capsules(_)) => way.make(py, export::versioned(view)?),
        Way::Asked => py.import("torch")?.call_method1("from_dlpack", (owner,)),
    }
}

/// Returns true if torch can import values without an intermediate object.
pub fn is_direct(py: Python<'_>) -> PyResult<bool> {
    Ok(!matches!(way(py)?, Way::Asked))
}

/// Returns tensors of a lent value in host memory, in their order, each of which keeps the lease alive. Requires that
/// torch [is direct](is_direct).
pub fn tensors<'py>(
    py: Python<'py>,
    value: &Arc<Value>,
    name: &str,
) -> PyResult<impl ExactSizeIterator<Item = PyResult<Bound<'py, PyAny>>>> {
    let way = way(py)?;
    Ok((0..members(value).len()).map(move |at| way.make(py, export::lent(value, at, name)?)))
}

/// Returns one tensor, or a tuple of a dataset's: see [`tensors`].
pub fn shown<'py>(py: Python<'py>, value: &Arc<Value>, name: &str) -> PyResult<Bound<'py, PyAny>> {
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

    /// Tries the ways with a read-only tensor, as all lent ones are: versions that do not support the flag reject it.
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
        // Independent of the program's default device.
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
        // The internal function that the public one calls; where torch lacks it, the public one takes capsules as well.
        let convert = match torch.getattr("_C").and_then(|inner| inner.getattr("_from_dlpack")) {
            Err(error) if error.is_instance_of::<PyAttributeError>(py) => {
                py.import("torch.utils.dlpack")?.getattr("from_dlpack")?
            }
            other => other?,
        };
        Ok(Some(Self::Capsules(convert.unbind())))
    }
}
