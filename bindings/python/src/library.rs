//! The form in which a call returns values: leases, or another library's arrays that view the
//! values.

use crate::errors::argument;
use crate::lease::{Mode, Origin};
use crate::received::show;
use crate::torch;
use crate::view::is_in_host_memory;
use pyo3::prelude::*;
use std::sync::Arc;
use tensorlend::{Client, Value};

/// The library whose arrays a call returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Library {
    Numpy,
    Torch,
}

impl Library {
    /// Returns the name of the method of leases and datasets that makes these arrays.
    fn method(self) -> &'static str {
        match self {
            Self::Numpy => "numpy",
            Self::Torch => "torch",
        }
    }
}

/// The form in which a call returns values.
#[derive(Clone, Copy)]
pub struct Form {
    /// The library of the arrays; `None` for leases and datasets.
    library: Option<Library>,
    mode: Mode,
}

impl Form {
    /// Parses the arguments `library` and `mode`.
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

    /// Returns a value in this form. The result is a lease or a dataset, or an array or a tuple of
    /// arrays. All of these keep the memory in place.
    pub fn show(
        self,
        py: Python<'_>,
        client: &Client,
        value: Value,
        name: &str,
        origin: impl FnOnce() -> Origin,
    ) -> PyResult<Py<PyAny>> {
        let Some(library) = self.library else { return show(py, client, value, self.mode, origin()) };
        // If the caller gets arrays only, create no lease objects.
        let is_plain = self.mode == Mode::Read && is_in_host_memory(&value);
        if library == Library::Torch && is_plain && torch::is_direct(py)? {
            return torch::tensor_or_tuple(py, &Arc::new(value), name).map(Bound::unbind);
        }
        show(py, client, value, self.mode, origin())?.call_method0(py, library.method())
    }
}
