//! The properties that leases and drafts share, in host memory and on a device.

/// Adds the properties of all tensors, `len` and the export by DLPack to a class that has a method `view`. The module `$export`
/// exports this view.
macro_rules! tensor_getters {
    ($class:ident, $export:ident) => {
        #[pyo3::pymethods]
        impl $class {
            /// Sizes, in elements.
            #[getter]
            fn shape<'py>(&self, py: pyo3::Python<'py>) -> pyo3::PyResult<pyo3::Bound<'py, pyo3::types::PyTuple>> {
                pyo3::types::PyTuple::new(py, &*self.view()?.shape)
            }

            /// Strides in bytes, as numpy has them.
            #[getter]
            fn strides<'py>(&self, py: pyo3::Python<'py>) -> pyo3::PyResult<pyo3::Bound<'py, pyo3::types::PyTuple>> {
                pyo3::types::PyTuple::new(py, self.view()?.byte_strides())
            }

            /// Element type, as numpy's dtype; bfloat16 and float8 as those of ml_dtypes.
            #[getter]
            fn dtype<'py>(&self, py: pyo3::Python<'py>) -> pyo3::PyResult<pyo3::Bound<'py, pyo3::PyAny>> {
                $crate::dtype::to_numpy(py, self.view()?.dtype)
            }

            /// Number of dimensions.
            #[getter]
            fn ndim(&self) -> pyo3::PyResult<usize> {
                Ok(self.view()?.shape.len())
            }

            /// Number of elements.
            #[getter]
            fn size(&self) -> pyo3::PyResult<usize> {
                Ok(self.view()?.elements())
            }

            /// Bytes of one element.
            #[getter]
            fn itemsize(&self) -> pyo3::PyResult<usize> {
                Ok(self.view()?.item())
            }

            /// Bytes of all elements.
            #[getter]
            fn nbytes(&self) -> pyo3::PyResult<usize> {
                Ok(self.view()?.nbytes())
            }

            fn __len__(&self) -> pyo3::PyResult<usize> {
                match self.view()?.shape.first() {
                    Some(&first) => Ok(first as usize),
                    None => Err(pyo3::exceptions::PyTypeError::new_err("a tensor without dimensions has no length")),
                }
            }

            #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
            fn __dlpack__(
                &self,
                py: pyo3::Python<'_>,
                stream: Option<&pyo3::Bound<'_, pyo3::PyAny>>,
                max_version: Option<(u32, u32)>,
                dl_device: Option<(u32, i32)>,
                copy: Option<bool>,
            ) -> pyo3::PyResult<pyo3::Py<pyo3::PyAny>> {
                $export::capsule(py, &self.view()?, stream, max_version, dl_device, copy)
            }

            #[classmethod]
            fn __class_getitem__<'py>(
                class: &pyo3::Bound<'py, pyo3::types::PyType>,
                item: &pyo3::Bound<'py, pyo3::PyAny>,
            ) -> pyo3::PyResult<pyo3::Bound<'py, pyo3::PyAny>> {
                $crate::shown::generic(class, item)
            }

            /// Returns an HTML table, which notebooks show.
            fn _repr_html_<'py>(slf: &pyo3::Bound<'py, Self>) -> pyo3::PyResult<pyo3::Bound<'py, pyo3::PyAny>> {
                $crate::shown::html(slf.as_any(), "tensor")
            }
        }
    };
}
pub(crate) use tensor_getters;
