//! The methods of context managers.

/// Makes a class a context manager, which ends its object at the end of the block. An exception in the block propagates.
macro_rules! context_manager {
    ($class:ident, |$object:ident, $py:ident| $end:expr) => {
        #[pyo3::pymethods]
        impl $class {
            fn __enter__(slf: pyo3::Bound<'_, Self>) -> pyo3::Bound<'_, Self> {
                slf
            }

            #[pyo3(signature = (*_exception))]
            fn __exit__(
                &self,
                $py: pyo3::Python<'_>,
                _exception: &pyo3::Bound<'_, pyo3::types::PyTuple>,
            ) -> pyo3::PyResult<bool> {
                let $object = self;
                $end;
                Ok(false)
            }
        }
    };
}
pub(crate) use context_manager;
