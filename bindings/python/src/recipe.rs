//! Conversion of loader workers' messages to batches.

use crate::errors::argument;
use crate::torch;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::sync::Arc;
use tensorlend::Value;

/// Describes how messages with certain metadata become batches of torch tensors.
/// Converting such a message creates no Python objects for the message, the dataset or the leases.
/// These objects would cost the trainer time in each batch.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Recipe {
    metadata: Vec<u8>,
    nest: Nest,
}

/// The nesting of leaves in a batch.
#[derive(Clone, Copy)]
enum Nest {
    One,
    List,
    Tuple,
}

#[pymethods]
impl Recipe {
    /// Creates a recipe. `nest` is "one", "list" or "tuple".
    #[new]
    fn new(metadata: Vec<u8>, nest: &str) -> PyResult<Self> {
        let nest = match nest {
            "one" => Nest::One,
            "list" => Nest::List,
            "tuple" => Nest::Tuple,
            _ => return Err(argument(format!("nest {nest:?}: use \"one\", \"list\" or \"tuple\""))),
        };
        Ok(Self { metadata, nest })
    }
}

impl Recipe {
    /// Returns true if the recipe applies to this value, and the installed torch can import the
    /// value.
    pub fn is_for(&self, py: Python<'_>, value: &Value) -> PyResult<bool> {
        let metadata = match value {
            Value::Tensor(lease) => lease.metadata(),
            Value::Dataset(dataset) => dataset.metadata(),
            _ => return Ok(false),
        };
        Ok(metadata == self.metadata && torch::is_direct(py)?)
    }

    /// Returns the batch of a value to which [the recipe applies](Self::is_for).
    pub fn batch(&self, py: Python<'_>, value: Value) -> PyResult<Py<PyAny>> {
        let value = Arc::new(value);
        let mut leaves = torch::tensors(py, &value, "loader/")?;
        let batch = match self.nest {
            Nest::One => leaves
                .next()
                .ok_or_else(|| argument("the batch has no tensor: return at least one from collate_fn"))??,
            Nest::List => PyList::new(py, leaves.collect::<PyResult<Vec<_>>>()?)?.into_any(),
            Nest::Tuple => PyTuple::new(py, leaves.collect::<PyResult<Vec<_>>>()?)?.into_any(),
        };
        Ok(batch.unbind())
    }
}
