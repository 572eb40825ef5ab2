//! The class `Version`: the version of a name's value.

use pyo3::prelude::*;
use pyo3::types::PyType;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The version of a name's value. If a name has the same version twice, no client wrote to it in
/// between.
///
/// Versions have no order. They can be hashed and pickled.
#[pyclass(frozen, eq, hash, module = "tensorlend._native")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Version(pub tensorlend::Version);

impl Hash for Version {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[pymethods]
impl Version {
    /// Returns the version with these words.
    ///
    /// Parameters
    /// ----------
    /// words : tuple of (int, int)
    ///     The words of a version, from this or another process.
    ///
    /// Returns
    /// -------
    /// Version
    ///     The version.
    #[classmethod]
    fn from_words(_class: &Bound<'_, PyType>, words: (u64, u64)) -> Self {
        Self(tensorlend::Version::from_words([words.0, words.1]))
    }

    /// Two numbers that identify the version in every process.
    #[getter]
    fn words(&self) -> (u64, u64) {
        let [owner_word, cell] = self.0.words();
        (owner_word, cell)
    }

    fn __repr__(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        format!("<Version {:08x}>", hasher.finish() as u32)
    }

    #[allow(clippy::type_complexity)]
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, ((u64, u64),))> {
        Ok((slf.get_type().getattr("from_words")?, (slf.get().words(),)))
    }
}
