//! A copy for programs that know CUDA's older handles only.

use crate::draft::lock;
use crate::errors::argument;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::sync::Mutex;

/// A copy of a tensor in a plain block of device memory, which another process opens with `cuIpcOpenMemHandle`. Context manager;
/// the block is freed when it is closed, or gone: whoever has opened it closes it before.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct LegacyExport(Mutex<Option<tensorlend::LegacyExport>>);

impl LegacyExport {
    /// Shows one.
    pub fn new(export: tensorlend::LegacyExport) -> Self {
        Self(Mutex::new(Some(export)))
    }

    fn open<R>(&self, look: impl FnOnce(&tensorlend::LegacyExport) -> R) -> PyResult<R> {
        lock(&self.0).as_ref().map(look).ok_or_else(|| argument("the copy was closed: make another one"))
    }
}

#[pymethods]
impl LegacyExport {
    /// The CUipcMemHandle, 64 bytes: whoever knows it can open the block, and write there.
    #[getter]
    fn handle<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.open(|export| PyBytes::new(py, export.handle()))
    }

    /// Where the block is in this process.
    #[getter]
    fn ptr(&self) -> PyResult<u64> {
        self.open(tensorlend::LegacyExport::ptr)
    }

    /// How long it is, in bytes.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.open(tensorlend::LegacyExport::nbytes)
    }

    /// Frees the block.
    fn close(&self, py: Python<'_>) {
        let export = lock(&self.0).take();
        py.detach(|| drop(export));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> bool {
        self.close(py);
        false
    }
}
