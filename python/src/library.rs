//! The form in which readers get values: leases, or arrays of a library that view them.

use crate::errors::argument;
use crate::lease::{Mode, Origin};
use crate::received::show;
use crate::torch;
use pyo3::prelude::*;
use std::sync::Arc;
use tensorlend::{Client, Value};

/// The library of the arrays.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Library {
    Numpy,
    Torch,
}

impl Library {
    /// Returns the method of leases and datasets that makes them.
    fn method(self) -> &'static str {
        match self {
            Self::Numpy => "numpy",
            Self::Torch => "torch",
        }
    }
}

/// The form of values.
#[derive(Clone, Copy)]
pub struct Shown {
    /// `None`: leases and datasets.
    library: Option<Library>,
    mode: Mode,
}

impl Shown {
    /// Parses both arguments.
    pub fn parse(library: Option<&str>, mode: &str) -> PyResult<Self> {
        let library = match library {
            None => None,
            Some("numpy") => Some(Library::Numpy),
            Some("torch") => Some(Library::Torch),
            Some(word) => {
                return Err(argument(format!("library {word:?}: use \"numpy\", \"torch\" or None for leases")));
            }
        };
        Ok(Self { library, mode: Mode::parse(mode)? })
    }

    /// Returns the value: a lease or a dataset, or its array or tuple of arrays, which keep the memory in place.
    pub fn show(
        self,
        py: Python<'_>,
        client: &Client,
        value: Value,
        name: &str,
        origin: impl FnOnce() -> Origin,
    ) -> PyResult<Py<PyAny>> {
        let Some(library) = self.library else { return show(py, client, value, self.mode, origin()) };
        // Creates no lease objects if the caller gets only the arrays.
        let is_plain = self.mode == Mode::Read && matches!(value, Value::Tensor(_) | Value::Dataset(_));
        if library == Library::Torch && is_plain && torch::is_direct(py)? {
            return torch::shown(py, &Arc::new(value), name).map(Bound::unbind);
        }
        show(py, client, value, self.mode, origin())?.call_method0(py, library.method())
    }
}
