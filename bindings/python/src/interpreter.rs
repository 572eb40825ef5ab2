//! A check that only one interpreter loads the package, because its classes and caches exist once
//! per process.
#![allow(unsafe_code)]

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Rejects sub-interpreters. From Python 3.12 on, the interpreter itself rejects them. Older
/// versions would share classes between interpreters, and also objects whose interpreter may have
/// ended.
pub fn check(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: the interpreter is attached, so a current interpreter exists.
    let number = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    if number == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "tensorlend cannot be imported by a sub-interpreter: import it in the main interpreter, or in another process",
    ))
}
