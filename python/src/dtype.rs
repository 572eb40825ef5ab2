//! Element types: tensorlend's, numpy's names, the buffer protocol's format characters, DLPack's codes.

use crate::errors;
use dlpark::ffi::{DLDataType, DLDataTypeCode};
use pyo3::prelude::*;
use tensorlend::DType;

/// What can be said in an error.
const KNOWN: &str =
    "bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, complex64, complex128, float8_*";

/// By a name, of numpy, of `ml_dtypes`, or tensorlend's own; or by anything with such a name: a dtype of numpy or torch, a class of numpy.
pub fn parse(given: &Bound<'_, PyAny>) -> PyResult<DType> {
    if let Ok(text) = given.extract::<std::borrow::Cow<'_, str>>() {
        return by_name(&text);
    }
    if let Ok(name) = given.getattr("name").and_then(|name| name.extract::<String>()) {
        return by_name(&name);
    }
    // Of numpy and of Python ("float", "numpy.float32"), and of torch ("torch.bfloat16").
    let py = given.py();
    if let Ok(name) = given.getattr("__name__").and_then(|name| name.extract::<String>())
        && let Ok(found) = by_name(&name)
    {
        return Ok(found);
    }
    let text = given.str()?.to_string();
    if let Some(name) = text.strip_prefix("torch.") {
        return by_name(name);
    }
    let dtype = py.import("numpy")?.call_method1("dtype", (given,))?;
    by_name(&dtype.getattr("name")?.extract::<String>()?)
}

/// By a name.
pub fn by_name(name: &str) -> PyResult<DType> {
    let found = match name {
        "float" | "double" => Some(DType::F64),
        "int" => Some(DType::I64),
        "complex" => Some(DType::C128),
        _ => DType::ALL.iter().copied().find(|dtype| dtype.numpy_name() == name || dtype.name() == name),
    };
    found.ok_or_else(|| errors::dtype(format!("dtype {name:?} cannot be lent: use one of {KNOWN}")))
}

/// Whether numpy has such a type of its own: otherwise it is shown as unsigned integers.
pub fn is_native(dtype: DType) -> bool {
    !matches!(dtype.code(), 4 | 7..)
}

/// The buffer protocol's format, as `struct` and PEP 3118 define it.
pub fn format(dtype: DType) -> &'static std::ffi::CStr {
    match (dtype.code(), dtype.bits()) {
        (0, 8) => c"b",
        (0, 16) => c"h",
        (0, 32) => c"i",
        // Of the two with eight bytes, the one that numpy calls int64.
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

/// The `typestr` of numpy's array interface.
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

/// The inverse, as the array interface of CUDA has it too.
pub fn of_typestr(typestr: &str) -> PyResult<DType> {
    let refuse = |why: &str| errors::dtype(format!("elements of type {typestr:?} {why}: use one of {KNOWN}"));
    let code = match typestr.as_bytes() {
        [b'>', _, bytes @ ..] if bytes != b"1" => return Err(refuse("are not in this machine's byte order")),
        [_, b'i', ..] => 0,
        [_, b'u', ..] => 1,
        [_, b'f', ..] => 2,
        [_, b'c', ..] => 5,
        [_, b'b', ..] => 6,
        _ => return Err(refuse("cannot be told by the array interface (give what speaks DLPack), or not be lent")),
    };
    let bytes: u8 = typestr.get(2..).and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    DType::from_codes(code, bytes.saturating_mul(8), 1).ok_or_else(|| refuse("cannot be lent"))
}

/// By the format of a buffer and its item size.
pub fn of_format(format: &str, item_bytes: usize) -> PyResult<DType> {
    let refuse = |why: &str| errors::dtype(format!("elements of format {format:?} {why}: use one of {KNOWN}"));
    let kind = match format.as_bytes().first() {
        Some(b'>' | b'!') if item_bytes > 1 => return Err(refuse("are not in this machine's byte order")),
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
        _ if kind.starts_with('O') => return Err(refuse("are Python objects, which other processes cannot read")),
        _ if kind.starts_with('T') || kind.contains('{') => {
            return Err(refuse("are structures: give each field a tensor of its own, as a dataset"));
        }
        _ if kind.ends_with(['s', 'w', 'u', 'p']) => {
            return Err(refuse("are text: encode it, and lend its bytes as uint8"));
        }
        _ => return Err(refuse("cannot be lent")),
    };
    DType::from_codes(code, bits, 1).ok_or_else(|| refuse("cannot be lent"))
}

/// `DLPack`'s.
pub fn to_dlpack(dtype: DType) -> DLDataType {
    DLDataType { code: DLDataTypeCode(dtype.code()), bits: dtype.bits(), lanes: dtype.lanes() }
}

/// Of `DLPack`'s.
pub fn of_dlpack(dtype: DLDataType) -> PyResult<DType> {
    DType::from_codes(dtype.code.0, dtype.bits, dtype.lanes).ok_or_else(|| {
        let (code, bits, lanes) = (dtype.code.0, dtype.bits, dtype.lanes);
        errors::dtype(format!(
            "DLPack's dtype with code {code}, {bits} bits and {lanes} lanes cannot be lent: use one of {KNOWN}"
        ))
    })
}
