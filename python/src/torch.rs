//! Views as tensors of torch.

use crate::export;
use crate::view::View;
use dlpark::python::ExportRequest;
use pyo3::exceptions::{PyAttributeError, PyException};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::sync::Arc;

/// What makes a tensor of a capsule; None if this torch does not know the capsules that we make.
static CONVERT: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();

/// A tensor that looks at `view`. `owner` is what torch is shown if it does not know our capsules.
///
/// `torch.from_dlpack` first asks for device, stream and version, in Python. All of that is known here, and a trainer comes by
/// with each batch, when nothing of that code is left in the processor's caches: it would take longer than all the rest.
pub fn tensor<'py>(owner: &Bound<'py, PyAny>, view: Arc<View>) -> PyResult<Bound<'py, PyAny>> {
    let py = owner.py();
    match CONVERT.get_or_try_init(py, || converter(py))? {
        Some(convert) => convert.bind(py).call1((capsule(py, view)?,)),
        None => py.import("torch")?.call_method1("from_dlpack", (owner,)),
    }
}

fn capsule(py: Python<'_>, view: Arc<View>) -> PyResult<Py<PyAny>> {
    export::capsule(py, view, &ExportRequest::parse(None, Some((1, 0)), None, None)?)
}

/// Tries it with a tensor of torch's own: releases that do not know this version of DLPack refuse it.
fn converter(py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
    let torch = py.import("torch")?;
    // The function that the public one ends in; where torch has another, the public one takes capsules as well.
    let convert = match torch.getattr("_C").and_then(|inner| inner.getattr("_from_dlpack")) {
        Err(error) if error.is_instance_of::<PyAttributeError>(py) => {
            py.import("torch.utils.dlpack")?.getattr("from_dlpack")?
        }
        other => other?,
    };
    let (version, host) = (PyDict::new(py), PyDict::new(py));
    version.set_item("max_version", (1, 0))?;
    // Whatever the program's default device is.
    host.set_item("device", "cpu")?;
    let tried = torch
        .call_method("zeros", (1,), Some(&host))
        .and_then(|zero| zero.call_method("__dlpack__", (), Some(&version)))
        .and_then(|capsule| convert.call1((capsule,)));
    match tried {
        Ok(_) => Ok(Some(convert.unbind())),
        Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
        Err(error) => Err(error),
    }
}
