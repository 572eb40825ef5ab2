//! Conversion of element types between tensorlend, numpy's names, the buffer protocol's format characters, and DLPack's
//! codes.

use crate::errors;
use dlpark::ffi::{DLDataType, DLDataTypeCode};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;
use std::borrow::Cow;
use tensorlend::DType;

/// The supported dtypes, for error messages.
const KNOWN: &str =
    "bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, complex64, complex128, float8_*";

/// Parses everything that `np.dtype` accepts, with the same meaning. Also parses torch's dtypes, as
/// objects or by name ("torch.float32"), and the names of `ml_dtypes` where that package is not
/// installed.
pub fn parse(given: &Bound<'_, PyAny>) -> PyResult<DType> {
    if let Ok(text) = given.extract::<Cow<'_, str>>() {
        return of_text(given.py(), &text);
    }
    // torch's dtypes have no attribute with their name, so use their text.
    let class = given.get_type();
    if class.module().is_ok_and(|module| module == "torch") {
        return of_text(given.py(), &given.str()?.to_cow()?);
    }
    match of_numpy(given) {
        Ok(dtype) => known(&dtype),
        Err(error) => match given.getattr("name").and_then(|name| name.extract::<String>()) {
            Ok(name) => of_text(given.py(), &name),
            Err(_) => Err(unknown(&given.repr()?.to_cow()?, &error)),
        },
    }
}

/// Parses a dtype that is given as text.
fn of_text(py: Python<'_>, text: &str) -> PyResult<DType> {
    // Each full name has the same meaning in numpy, or numpy rejects the name. So do not call
    // numpy.
    if let Some(found) = of_full_name(text) {
        return Ok(found);
    }
    if let Some(name) = text.strip_prefix("torch.") {
        return of_torch(name)
            .ok_or_else(|| errors::dtype(format!("dtype {text:?} cannot be lent: use one of {KNOWN}")));
    }
    match of_numpy(&PyString::new(py, text)) {
        Ok(dtype) => known(&dtype),
        Err(error) => Err(unknown(&format!("{text:?}"), &error)),
    }
}

/// Parses a full name of numpy or `ml_dtypes`.
fn of_full_name(name: &str) -> Option<DType> {
    DType::ALL.iter().copied().find(|dtype| dtype.numpy_name() == name)
}

/// Parses the name of a torch dtype without the prefix `torch.`.
fn of_torch(name: &str) -> Option<DType> {
    Some(match name {
        "half" => DType::F16,
        "float" => DType::F32,
        "double" => DType::F64,
        "short" => DType::I16,
        "int" => DType::I32,
        "long" => DType::I64,
        "cfloat" => DType::C64,
        "cdouble" => DType::C128,
        _ => return of_full_name(name),
    })
}

/// Returns `np.dtype(given)`.
fn of_numpy<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static DTYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = given.py();
    let dtype = DTYPE.get_or_try_init(py, || Ok::<_, PyErr>(py.import("numpy")?.getattr("dtype")?.unbind()))?;
    dtype.bind(py).call1((given,))
}

/// Returns the error for a dtype that numpy rejects.
#[cold]
fn unknown(given: &str, error: &PyErr) -> PyErr {
    if Python::attach(|py| !error.is_instance_of::<PyException>(py)) {
        return Python::attach(|py| error.clone_ref(py));
    }
    // The text may be a short name of the command-line tool, such as `f32`. numpy rejects these names, or gives them
    // another meaning.
    let short = DType::ALL.iter().find(|dtype| format!("{:?}", dtype.name()) == given);
    let hint = short.map(|dtype| format!("numpy calls it {:?}; ", dtype.numpy_name())).unwrap_or_default();
    errors::dtype(format!("dtype {given} is unknown: {hint}use one of {KNOWN}, or what numpy.dtype takes"))
}

/// Returns the element type of a numpy dtype.
fn known(dtype: &Bound<'_, PyAny>) -> PyResult<DType> {
    let name: String = dtype.getattr("name")?.extract()?;
    let why = match dtype.getattr("kind")?.extract::<char>()? {
        'O' => "is one of Python objects, which other processes cannot read",
        'V' if !dtype.getattr("fields")?.is_none() || !dtype.getattr("subdtype")?.is_none() => {
            "is a structure: give each field a tensor of its own, as a dataset"
        }
        'S' | 'U' => "is text: encode it, and lend its bytes as uint8",
        _ if !dtype.getattr("isnative")?.extract::<bool>()? => "is not in this machine's byte order",
        _ => match of_full_name(&name) {
            Some(found) => return Ok(found),
            None => "cannot be lent",
        },
    };
    Err(errors::dtype(format!("dtype {name:?} {why}: use one of {KNOWN}")))
}

/// Returns the numpy dtype of an element type. For types that numpy lacks, returns the dtype of
/// `ml_dtypes`. Without that package, returns an object with the same name, kind and size, which
/// compares like a dtype.
pub fn to_numpy(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    if is_native(dtype) {
        return of_numpy(&PyString::new(py, dtype.numpy_name()));
    }
    match py.import("ml_dtypes").and_then(|module| module.getattr(dtype.numpy_name())) {
        Ok(class) => of_numpy(&class),
        Err(_) => {
            py.import("tensorlend._dtypes")?.call_method1("ForeignDType", (dtype.numpy_name(), dtype.item_bytes()))
        }
    }
}

/// Returns true if numpy itself has the type. Arrays of other types appear as unsigned integers.
pub fn is_native(dtype: DType) -> bool {
    !matches!(dtype.code(), 4 | 7..)
}

/// Returns the buffer protocol's format, as `struct` and PEP 3118 define it.
pub fn format(dtype: DType) -> &'static std::ffi::CStr {
    match (dtype.code(), dtype.bits()) {
        (0, 8) => c"b",
        (0, 16) => c"h",
        (0, 32) => c"i",
        // Two formats, "l" and "q", have eight bytes. numpy uses "l" for int64.
        (0, _) => c"l",
        (2, 16) => c"e",
        (2, 32) => c"f",
        (2, _) => c"d",
        (5, 64) => c"Zf",
        (5, _) => c"Zd",
        (6, _) => c"?",
        (_, 8) => c"B",
        (_, 16) => c"H",
        (_, 32) => c"I",
        (..) => c"L",
    }
}

/// Returns the `typestr` of numpy's array interface.
pub fn typestr(dtype: DType) -> String {
    let bytes = dtype.item_bytes();
    let order = if bytes == 1 { '|' } else { '<' };
    let kind = match dtype.code() {
        0 => 'i',
        2 => 'f',
        5 => 'c',
        6 => 'b',
        _ => 'u',
    };
    format!("{order}{kind}{bytes}")
}

/// Parses a `typestr`, which the CUDA array interface uses too.
pub fn of_typestr(typestr: &str) -> PyResult<DType> {
    let refuse = |why: &str| errors::dtype(format!("elements of type {typestr:?} {why}: use one of {KNOWN}"));
    let code = match typestr.as_bytes() {
        [b'>', _, bytes @ ..] if bytes != b"1" => return Err(refuse("are not in this machine's byte order")),
        [_, b'i', ..] => 0,
        [_, b'u', ..] => 1,
        [_, b'f', ..] => 2,
        [_, b'c', ..] => 5,
        [_, b'b', ..] => 6,
        _ => {
            return Err(refuse(
                "have no description in the array interface, or cannot be lent: pass an object that supports DLPack",
            ));
        }
    };
    let bytes: u8 = typestr.get(2..).and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    DType::from_codes(code, bytes.saturating_mul(8), 1).ok_or_else(|| refuse("cannot be lent"))
}

/// Parses a buffer's format with its item size.
pub fn of_format(format: &str, item_bytes: usize) -> PyResult<DType> {
    let refuse = |why: &str| errors::dtype(format!("elements of format {format:?} {why} use one of {KNOWN}"));
    let kind = match format.as_bytes().first() {
        Some(b'>' | b'!') if item_bytes > 1 => return Err(refuse("are not in this machine's byte order:")),
        Some(b'@' | b'=' | b'<' | b'>' | b'!' | b'|') => &format[1..],
        _ => format,
    };
    let bits = u8::try_from(item_bytes.saturating_mul(8)).unwrap_or(0);
    let code = match kind {
        "?" => 6,
        "c" | "B" | "H" | "I" | "L" | "Q" | "N" => 1,
        "b" | "h" | "i" | "l" | "q" | "n" => 0,
        "e" | "f" | "d" => 2,
        "Zf" | "Zd" => 5,
        _ if kind.starts_with('O') => {
            return Err(refuse(
                "are Python objects, which other processes cannot read: publish the value with put_object, or",
            ));
        }
        _ if kind.starts_with('T') || kind.contains('{') => {
            return Err(refuse("are structures: give each field a tensor of its own, as a dataset, and"));
        }
        _ if kind.ends_with(['s', 'w', 'u', 'p']) => {
            return Err(refuse("are text: publish the value with put_object, or lend its encoded bytes as uint8, or"));
        }
        _ => return Err(refuse("cannot be lent:")),
    };
    DType::from_codes(code, bits, 1).ok_or_else(|| refuse("cannot be lent:"))
}

/// Converts an element type to DLPack's type.
pub fn to_dlpack(dtype: DType) -> DLDataType {
    DLDataType { code: DLDataTypeCode(dtype.code()), bits: dtype.bits(), lanes: dtype.lanes() }
}

/// Converts DLPack's type to an element type.
pub fn of_dlpack(dtype: DLDataType) -> PyResult<DType> {
    DType::from_codes(dtype.code.0, dtype.bits, dtype.lanes).ok_or_else(|| {
        let (code, bits, lanes) = (dtype.code.0, dtype.bits, dtype.lanes);
        errors::dtype(format!(
            "DLPack's dtype with code {code}, {bits} bits and {lanes} lanes cannot be lent: use one of {KNOWN}"
        ))
    })
}
