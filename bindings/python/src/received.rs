//! Conversion of values to Python objects, and the values of messages and requests.

use crate::dataset::Dataset;
use crate::device::DeviceLease;
use crate::errors::argument;
use crate::lease::{Lease, Mode, Origin};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use tensorlend::Value;

/// The value of a message or a request, as a Python object. `what` is `"message"` or `"request"`,
/// for error messages.
pub struct Received {
    what: &'static str,
    value: Py<PyAny>,
    is_tensor: bool,
}

impl Received {
    pub fn new(
        py: Python<'_>,
        what: &'static str,
        client: &tensorlend::Client,
        value: Value,
        mode: Mode,
        origin: Origin,
    ) -> PyResult<Self> {
        let is_tensor = value.as_dataset().is_none();
        Ok(Self { what, value: show(py, client, value, mode, origin)?, is_tensor })
    }

    pub fn value(&self, py: Python<'_>) -> Py<PyAny> {
        self.value.clone_ref(py)
    }

    pub fn tensor(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.is_tensor {
            Ok(self.value(py))
        } else {
            Err(PyTypeError::new_err(format!("the {} is a dataset", self.what)))
        }
    }

    pub fn dataset(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.is_tensor {
            Err(PyTypeError::new_err(format!("the {} is one tensor", self.what)))
        } else {
            Ok(self.value(py))
        }
    }

    pub fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.tensor(py)?.bind(py).call_method0("numpy")
    }

    pub fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.value.call_method0(py, "release").map(drop)
    }

    pub fn repr(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.value.bind(py).repr()?.to_string())
    }
}

/// Returns the error for a kind of value that the client library supports and this package does
/// not.
#[cold]
pub fn unknown_kind(name: &str) -> PyErr {
    argument(format!("{name:?} holds a kind of value that this package cannot show"))
}

/// Returns a value as a Python object.
pub fn show(
    py: Python<'_>,
    client: &tensorlend::Client,
    value: Value,
    mode: Mode,
    origin: Origin,
) -> PyResult<Py<PyAny>> {
    Ok(match value {
        Value::Tensor(lease) => Py::new(py, Lease::of(py, lease, mode, client, origin)?)?.into_any(),
        Value::Dataset(dataset) => Py::new(py, Dataset::of(py, dataset, mode, client, origin)?)?.into_any(),
        Value::Device(lease) => {
            mode.check_device(&origin.name)?;
            Py::new(py, DeviceLease::new(lease, origin))?.into_any()
        }
        _ => return Err(unknown_kind(&origin.name)),
    })
}
