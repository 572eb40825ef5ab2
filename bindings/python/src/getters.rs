//! The properties and methods that leases and drafts share, in host memory and on a device.

use crate::errors::argument;
use pyo3::PyErr;

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

/// Adds the methods of drafts to a class with the fields `state`, `name` and `lasting`, and the methods `with`, `take` and `end`.
/// The state has a view of type `$view`.
macro_rules! draft_methods {
    ($class:ident, $view:ty) => {
        impl $class {
            /// Returns the lifetime that the draft's name will have.
            pub fn lasting(&self) -> Lasting {
                self.lasting
            }

            /// Returns the draft's view, or the exception for a closed draft.
            pub fn view(&self) -> PyResult<Arc<$view>> {
                let view = lock(&self.state).as_ref().map(|state| state.view.clone());
                let view = view.ok_or_else($crate::view::gone).or_raise()?;
                view.check()?;
                Ok(view)
            }

            /// Checks that the draft is open and belongs to this client.
            pub fn check_client(&self, client: &tensorlend::Client) -> PyResult<()> {
                self.view()?;
                if self.with(|draft| Ok(client.has_created(draft)))? {
                    return Ok(());
                }
                Err(argument("the draft was made by another client: create it with this one, or publish it there"))
            }

            fn name_for<'n>(&'n self, name: Option<&'n str>) -> PyResult<&'n str> {
                let name = name.or(self.name.as_deref());
                name.ok_or_else(|| argument("a draft that was created without a name needs one to be published"))
            }
        }

        #[pymethods]
        impl $class {
            /// The name under which the draft will be published; None if it was created without one.
            #[getter]
            fn name(&self) -> Option<&str> {
                self.name.as_deref()
            }

            /// Whether the draft is neither published nor dropped.
            #[getter]
            fn is_open(&self) -> bool {
                lock(&self.state).is_some()
            }

            /// Sets the tensor's metadata.
            ///
            /// Parameters
            /// ----------
            /// metadata : mapping or bytes
            ///     A dict, stored as JSON, or bytes; 64 KiB at most.
            ///
            /// Raises
            /// ------
            /// ArgumentError
            ///     The metadata is too long.
            /// ClosedError
            ///     The draft was published or dropped.
            fn set_metadata(&self, metadata: &Bound<'_, PyAny>) -> PyResult<()> {
                let bytes = $crate::metadata::to_bytes(metadata)?;
                self.with(|draft| draft.set_metadata(&bytes).map(drop))
            }

            /// Sets the tensor's timestamp.
            ///
            /// Parameters
            /// ----------
            /// nanoseconds : int
            ///     Nanoseconds since 1970, or of any clock that its users agree on.
            ///
            /// Raises
            /// ------
            /// ClosedError
            ///     The draft was published or dropped.
            fn set_timestamp(&self, nanoseconds: u64) -> PyResult<()> {
                self.with(|draft| {
                    draft.set_timestamp(nanoseconds);
                    Ok(())
                })
            }

            fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
                slf
            }

            #[pyo3(signature = (kind, _value, _traceback))]
            fn __exit__(
                &self,
                py: Python<'_>,
                kind: &Bound<'_, PyAny>,
                _value: &Bound<'_, PyAny>,
                _traceback: &Bound<'_, PyAny>,
            ) -> PyResult<bool> {
                match &self.name {
                    _ if !kind.is_none() => self.end(py),
                    _ if !self.is_open() => {}
                    Some(name) => drop(self.lasting.publish(py, self.take(py)?, name)?),
                    None => return Err($crate::getters::unnamed()),
                }
                Ok(false)
            }

            fn __repr__(&self) -> String {
                let (class, name) = (stringify!($class), self.name.as_deref().map($crate::shown::quoted));
                let name = name.map(|name| format!(" {name}")).unwrap_or_default();
                match self.view() {
                    Ok(view) => format!("<{class}{name} {}, open>", view.text()),
                    Err(_) => format!("<{class}{name}, published or dropped>"),
                }
            }
        }
    };
}
pub(crate) use draft_methods;

/// Returns the error for a `with` block that ends with an open draft without a name. The draft stays open.
#[cold]
pub fn unnamed() -> PyErr {
    argument(
        "the block ends, and the draft has no name and was not published: create it with name=, or call publish, send or drop \
         in the block. The draft is still open",
    )
}

/// Adds the methods of leases to a class with the field `origin`, and the methods `name` and `view`. `$mode` is the
/// lease's mode in Python.
macro_rules! lease_methods {
    ($class:ident, |$lease:ident| $mode:expr) => {
        impl $class {
            /// Returns the version of the leased value.
            pub fn seen(&self) -> PyResult<tensorlend::Version> {
                Ok(self.view()?.held().map_or(tensorlend::Version::NONE, |(version, _)| version))
            }
        }

        #[pymethods]
        impl $class {
            /// The tensor's metadata as a dict; empty if it has none.
            #[getter]
            fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                $crate::metadata::to_dict(py, self.view()?.tensor().map_or(&[], |tensor| tensor.metadata()))
            }

            /// The tensor's metadata as bytes.
            #[getter]
            fn metadata_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyBytes>> {
                let view = self.view()?;
                Ok(pyo3::types::PyBytes::new(py, view.tensor().map_or(&[], |tensor| tensor.metadata())))
            }

            /// The tensor's timestamp in nanoseconds; 0 if none was set.
            #[getter]
            fn timestamp(&self) -> PyResult<u64> {
                Ok(self.view()?.tensor().map_or(0, tensorlend::Tensor::timestamp))
            }

            /// The version of the name's value.
            #[getter]
            fn version(&self) -> PyResult<$crate::version::Version> {
                self.seen().map($crate::version::Version)
            }

            /// Whether the session of the lease still exists, so that the memory stays in place; False after release.
            #[getter]
            fn valid(&self) -> bool {
                self.view().is_ok_and(|view| view.held().is_none_or(|(_, is_valid)| is_valid))
            }

            fn __repr__(&self) -> String {
                let (class, name) = (stringify!($class), $crate::shown::quoted(self.name()));
                match self.view() {
                    Ok(view) => {
                        let mode = if view.writable { "copy-on-write" } else { "read-only" };
                        format!("<{class} {name} {}, {mode}>", view.text())
                    }
                    Err(_) => format!("<{class} {name}, released>"),
                }
            }

            /// The arguments with which another process finds the tensor again: sockets, namespace, name,
            /// member, version, mode, and whether the name refers to the value itself.
            #[getter]
            #[allow(clippy::type_complexity)]
            fn _origin(
                &self,
            ) -> PyResult<(Vec<PathBuf>, Option<String>, String, Option<String>, (u64, u64), &'static str, bool)> {
                let [owner_word, cell] = self.seen()?.words();
                let Origin { options, name, named, member } = &self.origin;
                let Options { sockets, namespace, .. } = &**options;
                let (member, $lease) = (member.as_deref().map(Into::into), self);
                Ok((sockets.clone(), namespace.clone(), (**name).into(), member, (owner_word, cell), $mode, *named))
            }

            fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
                slf.py().import("tensorlend._refs")?.call_method1("reduce_lease", (slf,))
            }
        }
    };
}
pub(crate) use lease_methods;
