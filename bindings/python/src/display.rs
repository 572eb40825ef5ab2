//! Texts and tables that show objects, for `repr` and `_repr_html_`.

use pyo3::prelude::*;

/// Returns a name as Python's repr shows it.
pub fn quoted(name: &str) -> String {
    if name.contains('\'') { format!("{name:?}") } else { format!("'{}'", name.escape_debug()) }
}

/// Returns sizes as Python's repr shows a tuple of them.
pub fn tuple(sizes: impl IntoIterator<Item = impl ToString>) -> String {
    let sizes: Vec<String> = sizes.into_iter().map(|size| size.to_string()).collect();
    match &*sizes {
        [one] => format!("({one},)"),
        _ => format!("({})", sizes.join(", ")),
    }
}

/// Returns the name of an object's type, for errors.
pub fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().qualname().map_or_else(|_| "another type".to_owned(), |name| name.to_string())
}

/// Returns an object as Python's repr shows it, without the end of a long text.
pub fn short(object: &Bound<'_, PyAny>) -> String {
    object.repr().map_or_else(|_| type_name(object), |text| text.to_string().chars().take(60).collect())
}

/// Returns a number with its noun, such as "1 byte" or "2 bytes".
pub fn count(number: impl Into<u64>, noun: &str) -> String {
    let number = number.into();
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Returns the HTML table for a notebook, which `tensorlend._html` makes.
pub fn html<'py>(object: &Bound<'py, PyAny>, kind: &str) -> PyResult<Bound<'py, PyAny>> {
    object.py().import("tensorlend._html")?.call_method1(kind, (object,))
}

/// Returns `class[item]`, for type annotations.
pub fn generic<'py>(class: &Bound<'py, PyAny>, item: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    class.py().import("types")?.call_method1("GenericAlias", (class, item))
}
