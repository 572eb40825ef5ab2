//! Copies for programs that support only CUDA's older IPC handles.

use crate::context::context_manager;
use crate::display;
use crate::errors::{closed, raise};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Mutex;
use tensorlend_os::mutex::lock;

/// A copy of a tensor in a plain block of device memory. Another process opens the block with
/// cuIpcOpenMemHandle.
///
/// Notes
/// -----
/// Close this object, or use it as a context manager. Closing or dropping the object frees the
/// block. Every process that has opened the block must close the block first.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct LegacyExport(Mutex<Option<tensorlend::LegacyExport>>);

impl LegacyExport {
    /// Creates the object for an exported copy.
    pub fn new(export: tensorlend::LegacyExport) -> Self {
        Self(Mutex::new(Some(export)))
    }

    fn open<R>(&self, look: impl FnOnce(&tensorlend::LegacyExport) -> R) -> PyResult<R> {
        lock(&self.0).as_ref().map(look).ok_or_else(|| raise(closed("the copy was closed: make another one")))
    }
}

context_manager!(LegacyExport, |export, py| export.close(py));

#[pymethods]
impl LegacyExport {
    /// The CUipcMemHandle, 64 bytes. Any process that knows this handle can open the block and
    /// write to it.
    #[getter]
    fn handle<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.open(|export| PyBytes::new(py, export.handle()))
    }

    /// The block's address in this process.
    #[getter]
    fn ptr(&self) -> PyResult<u64> {
        self.open(tensorlend::LegacyExport::ptr)
    }

    /// The block's length in bytes.
    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        self.open(tensorlend::LegacyExport::nbytes)
    }

    /// Frees the block.
    fn close(&self, py: Python<'_>) {
        let export = lock(&self.0).take();
        py.detach(|| drop(export));
    }

    fn __repr__(&self) -> String {
        match self.open(tensorlend::LegacyExport::nbytes) {
            Ok(bytes) => format!("<LegacyExport, {}, open>", display::count(bytes as u64, "byte")),
            Err(_) => "<LegacyExport, closed>".into(),
        }
    }
}
