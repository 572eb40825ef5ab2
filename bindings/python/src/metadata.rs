//! Metadata: a dict, stored as JSON, or any bytes.

use crate::errors::{argument, raise};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::borrow::Cow;
use tensorlend::{Error, METADATA_MAX};

/// Converts metadata to bytes. Bytes stay as they are; any other object becomes JSON, with numpy's scalars as numbers.
pub fn to_bytes<'a>(given: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return Ok(Cow::Borrowed(bytes.as_bytes()));
    }
    Ok(Cow::Owned(to_json(given)?.into_bytes()))
}

/// Converts a value to JSON, with numpy's scalars and arrays as numbers and lists.
pub fn to_json(given: &Bound<'_, PyAny>) -> PyResult<String> {
    let py = given.py();
    let options = PyDict::new(py);
    options.set_item("separators", (",", ":"))?;
    options.set_item("ensure_ascii", false)?;
    options.set_item("default", py.import("tensorlend._metadata")?.getattr("plain")?)?;
    py.import("json")?.call_method("dumps", (given,), Some(&options))?.extract()
}

/// Converts metadata and checks its length. Must be called before the caller's draft is taken,
/// because the caller could not get the draft back.
pub fn checked<'a>(given: Option<&'a Bound<'_, PyAny>>) -> PyResult<Option<Cow<'a, [u8]>>> {
    let Some(given) = given else { return Ok(None) };
    let bytes = to_bytes(given)?;
    if bytes.len() > METADATA_MAX { Err(raise(Error::Metadata(bytes.len()))) } else { Ok(Some(bytes)) }
}

/// Converts stored metadata to a dict, which is empty if there is no metadata.
pub fn to_dict<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    if bytes.is_empty() {
        return Ok(PyDict::new(py).into_any());
    }
    py.import("json")?
        .call_method1("loads", (PyBytes::new(py, bytes),))
        .map_err(|_| argument("the metadata is not JSON: its publisher gave bytes: read metadata_bytes"))
}
