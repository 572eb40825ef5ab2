//! The check that the package is loaded in one interpreter only, because its classes and caches exist once per process.
#![allow(unsafe_code)]

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Rejects sub-interpreters. From Python 3.12 on, the interpreter rejects them itself. Older versions would share
/// classes between interpreters, and with them objects whose interpreter may have ended.
pub fn check(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: the interpreter is attached, so there is a current one.
    let number = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    if number == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "tensorlend cannot be imported by a sub-interpreter: import it in the main one, or in a process of its own",
    ))
}
