//! Parsing of arguments for which the errors of pyo3 name neither the requirement nor the remedy.

use crate::display::{self, type_name};
use crate::errors::argument;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyInt, PyMapping, PyString};
use tensorlend::DType;

/// Parses a name or a pattern of names.
pub fn name<'a>(given: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    match given.cast::<PyString>() {
        Ok(text) => text.to_str(),
        Err(_) => Err(PyTypeError::new_err(format!("a name must be a str, not {}", type_name(given)))),
    }
}

/// Parses several names.
pub fn names(given: &Bound<'_, PyAny>) -> PyResult<Vec<PyBackedStr>> {
    if given.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(
            "several names must be a list or a tuple, not one str: put the name into a list",
        ));
    }
    let items = given.try_iter().map_err(|_| {
        PyTypeError::new_err(format!("several names must be a list or a tuple of str, not {}", type_name(given)))
    })?;
    items.map(|item| item.and_then(|item| name(&item).and_then(|_| item.extract()))).collect()
}

/// Parses a number that is at most the maximum of its type.
pub fn number<T: TryFrom<u64>>(given: &Bound<'_, PyAny>) -> PyResult<T> {
    match given.extract::<u64>() {
        Ok(number) => T::try_from(number).map_err(|_| argument(format!("the number {number} is too large"))),
        Err(_) if given.is_instance_of::<PyInt>() => {
            Err(argument(format!("the number {given} is out of range: give 0 or more, and less than 2**64")))
        }
        Err(_) => Err(PyTypeError::new_err(format!("a number must be an int, not {}", type_name(given)))),
    }
}

/// Parses a mapping of names to arrays.
pub fn mapping<'a, 'py>(given: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyMapping>> {
    given.cast::<PyMapping>().map_err(|_| {
        let found = type_name(given);
        PyTypeError::new_err(format!(
            "several tensors must be a mapping of names to arrays, such as {{\"x\": array}}, not {found}"
        ))
    })
}

/// Converts strides from bytes to elements.
pub fn elements(bytes: &[i64], dtype: DType) -> PyResult<Vec<i64>> {
    let item = dtype.item_bytes() as i64;
    if bytes.iter().any(|stride| stride % item != 0) {
        let (bytes, name) = (display::tuple(bytes), dtype.numpy_name());
        return Err(argument(format!(
            "strides of {bytes} bytes: each must be a multiple of the {item} bytes of an element of {name}, as numpy's strides are"
        )));
    }
    Ok(bytes.iter().map(|stride| stride / item).collect())
}

/// Parses a shape: one size, or a sequence of sizes.
pub fn sizes(shape: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let several = || shape.extract::<Vec<i64>>();
    let sizes = shape.extract::<i64>().map(|one| vec![one]).or_else(|_| several()).map_err(|_| {
        PyTypeError::new_err(format!(
            "a shape must be an int or a sequence of ints below 2**63, not {}",
            display::short(shape)
        ))
    })?;
    sizes
        .into_iter()
        .map(|size| {
            u64::try_from(size).map_err(|_| argument(format!("a size of {size} elements: sizes are 0 or more")))
        })
        .collect()
}
