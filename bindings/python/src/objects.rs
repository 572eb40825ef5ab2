//! Rows of an object in shared memory. Each row is a value in msgpack. `tensorlend/_objects`
//! describes the layout.
//!
//! The bytes are untrusted, and their publisher may still write to them. So this module copies each
//! row before it parses the row. Decoding allocates in proportion to the bytes that it reads.
//! Nested values are in a vector and not on the stack.

use crate::lease::Lease;
use crate::view::View;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use std::sync::{Arc, Mutex, MutexGuard};
use tensorlend::{DType, Tensor};

/// Length of the header in bytes. The rows follow the header.
const HEADER_BYTES: usize = 64;
/// The first bytes of the header.
const MAGIC: &[u8] = b"TLOBJECT";
/// Maximum number of items of a list. The writer splits longer lists.
const LIST_MAX: usize = 512;
/// Maximum nesting of lists and dicts in one msgpack value.
const NESTED_MAX: usize = 1024;
/// Maximum nesting of extensions.
const DEPTH_MAX: usize = 16;
/// Maximum number of keys of a dict with the same hash.
const EQUAL_MAX: usize = 64;
/// Code of the extension for tuples.
const TUPLE: i8 = 1;

/// Number of dict keys that are cached.
const KEYS: usize = 256;
/// Maximum length of a cached key, in bytes.
const KEY_BYTES_MAX: usize = 48;

/// Returns whether a tensor contains an object.
pub fn is_object(tensor: &Tensor) -> bool {
    let is_plain = tensor.dtype() == DType::U8 && tensor.shape().len() == 1 && tensor.nbytes() >= HEADER_BYTES;
    is_plain && tensor.bytes().get(tensor.byte_offset()..).is_some_and(|bytes| bytes.starts_with(MAGIC))
}

/// The rows of an object in a lease's memory.
#[pyclass(frozen, name = "_Rows", module = "tensorlend._native")]
pub struct Rows {
    view: Arc<View>,
    /// Offset of the table that contains the offset of each row. The rows end at this offset.
    table: usize,
    count: usize,
    keys: Mutex<Keys>,
}

#[pymethods]
impl Rows {
    /// Creates the reader of `count` rows. `table` is the offset of their table in the lease's
    /// memory.
    #[new]
    fn new(lease: &Bound<'_, Lease>, table: usize, count: usize) -> PyResult<Self> {
        let rows = Self { view: lease.get().view()?, table, count, keys: Mutex::default() };
        let length = count.checked_add(1).and_then(|words| words.checked_mul(8));
        let end = length.and_then(|length| length.checked_add(table));
        let fits = end.is_some_and(|end| rows.memory().is_some_and(|memory| end <= memory.len()));
        if fits { Ok(rows) } else { Err(PyValueError::new_err("its table of rows does not fit into it")) }
    }

    /// Returns the value of a row. `extension` converts the values for which msgpack has no type.
    /// `extension` is called with the nesting depth, the extension's code and the extension's
    /// bytes.
    fn row<'py>(&self, number: usize, extension: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.view.check()?;
        let keys = self.keys();
        Decoder::new(extension, keys).row(self, number)
    }

    /// Returns the values of several rows. `indices` are positions in a range of row numbers (start, step, length).
    fn rows<'py>(
        &self,
        indices: &Bound<'py, PyList>,
        positions: (i64, i64, i64),
        extension: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (start, step, length) = positions;
        self.view.check()?;
        let mut decoder = Decoder::new(extension, self.keys());
        let mut found = Vec::with_capacity(indices.len());
        for index in indices {
            let index: i64 = index.extract()?;
            let index = if index < 0 { index.saturating_add(length) } else { index };
            if !(0..length).contains(&index) {
                return Err(PyIndexError::new_err("index out of range"));
            }
            let number = index.checked_mul(step).and_then(|at| at.checked_add(start));
            let number = number.and_then(|number| usize::try_from(number).ok());
            found.push(decoder.row(self, number.unwrap_or(usize::MAX))?);
        }
        PyList::new(indices.py(), found)
    }

    /// Decodes a msgpack value that is within `depth` extensions.
    fn decode<'py>(&self, text: &[u8], depth: usize, extension: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Decoder::new(extension, self.keys()).decode(text, depth, false)
    }
}

impl Rows {
    /// Returns the lease's elements, if they are bytes without gaps.
    fn memory(&self) -> Option<&[u8]> {
        let tensor = self.view.tensor()?;
        let is_plain = self.view.dtype == DType::U8 && self.view.is_row_major();
        let bytes = tensor.bytes().get(tensor.byte_offset()..)?.get(..self.view.nbytes())?;
        is_plain.then_some(bytes)
    }

    /// Copies a row, because the row's publisher may change it at any time.
    fn copied(&self, number: usize, to: &mut Vec<u8>) -> Option<()> {
        let memory = self.memory()?;
        let word = |at: usize| {
            let at = self.table + 8 * at;
            let bytes = memory.get(at..at + 8)?;
            usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()
        };
        if number >= self.count {
            return None;
        }
        let (start, end) = (word(number)?, word(number + 1)?);
        if start < HEADER_BYTES || end > self.table {
            return None;
        }
        to.clear();
        to.extend_from_slice(memory.get(start..end)?);
        Some(())
    }

    /// Returns the cached keys, unless another call is using them.
    fn keys(&self) -> Option<MutexGuard<'_, Keys>> {
        self.keys.try_lock().ok()
    }
}

/// A cache of dict keys by their bytes, because most rows have the same keys.
#[derive(Default)]
struct Keys(Vec<Option<Known>>);

/// A cached key: its bytes, and its Python object.
type Known = (Box<[u8]>, Py<PyString>);

impl Keys {
    fn get<'py>(&mut self, py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        if self.0.is_empty() {
            self.0.resize_with(KEYS, || None);
        }
        // The hash is FNV-1a. A key with the same position replaces the cached key, which is
        // harmless.
        let hash = text
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let place = &mut self.0[(hash >> 32) as usize % KEYS];
        if let Some((known, key)) = place
            && **known == *text
        {
            return Ok(key.bind(py).clone().into_any());
        }
        // Do not intern the key. It comes from the publisher, and some interpreters never free
        // interned strings.
        let key = PyString::new(py, unicode(text)?);
        *place = Some((text.into(), key.clone().unbind()));
        Ok(key.into_any())
    }
}

/// A list or dict whose items are being read.
struct Open {
    is_dict: bool,
    /// Number of values that the list or dict still lacks: items, or keys and items.
    left: usize,
    /// Index in `values` of the first value of the list or dict.
    base: usize,
}

/// The result of reading the head of a msgpack value.
enum Head<'t, 'py> {
    Value(Bound<'py, PyAny>),
    Text(&'t [u8]),
    List(usize),
    Dict(usize),
    Extension(i8, &'t [u8]),
}

struct Decoder<'k, 'py> {
    extension: &'k Bound<'py, PyAny>,
    keys: Option<MutexGuard<'k, Keys>>,
    /// The values of all open lists and dicts, in order.
    values: Vec<Bound<'py, PyAny>>,
    open: Vec<Open>,
    copy: Vec<u8>,
}

impl<'k, 'py> Decoder<'k, 'py> {
    fn new(extension: &'k Bound<'py, PyAny>, keys: Option<MutexGuard<'k, Keys>>) -> Self {
        Self { extension, keys, values: Vec::new(), open: Vec::new(), copy: Vec::new() }
    }

    fn row(&mut self, rows: &Rows, number: usize) -> PyResult<Bound<'py, PyAny>> {
        let mut copy = std::mem::take(&mut self.copy);
        rows.copied(number, &mut copy).ok_or_else(|| invalid("it lies outside of the object"))?;
        let value = self.decode(&copy, 0, false);
        self.copy = copy;
        value
    }

    /// Decodes one msgpack value. If `a_tuple` is true, the value must be a list, and the result is
    /// a tuple.
    fn decode(&mut self, text: &[u8], depth: usize, a_tuple: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = self.extension.py();
        let (first_open, mut text) = (self.open.len(), Text(text));
        let value = loop {
            let mut value = match text.head(py)? {
                Head::Value(value) => value,
                Head::Text(bytes) => self.text(bytes, first_open)?,
                Head::List(0) if a_tuple && self.open.len() == first_open => PyTuple::empty(py).into_any(),
                Head::List(0) => PyList::empty(py).into_any(),
                Head::List(length) if length > LIST_MAX => return Err(invalid("a list is too long")),
                Head::List(length) => {
                    self.begin(false, length, first_open)?;
                    continue;
                }
                Head::Dict(0) => PyDict::new(py).into_any(),
                Head::Dict(length) => {
                    self.begin(true, 2 * length, first_open)?;
                    continue;
                }
                Head::Extension(TUPLE, bytes) => {
                    if depth == DEPTH_MAX {
                        return Err(invalid("extensions are nested too deep"));
                    }
                    self.decode(bytes, depth + 1, true)?
                }
                Head::Extension(code, bytes) => self.extension.call1((depth, code, PyBytes::new(py, bytes)))?,
            };
            // The value may complete several nested lists and dicts.
            let whole = loop {
                if self.open.len() == first_open {
                    break Some(value);
                }
                self.values.push(value);
                let Some(last) = self.open.last_mut() else { return Err(invalid("a list does not end")) };
                last.left -= 1;
                if last.left > 0 {
                    break None;
                }
                let (is_dict, base) = (last.is_dict, last.base);
                self.open.pop();
                value = self.end(is_dict, base, a_tuple && self.open.len() == first_open)?;
            };
            if let Some(whole) = whole {
                break whole;
            }
        };
        if !text.0.is_empty() {
            return Err(invalid("bytes follow its value"));
        }
        if a_tuple && !value.is_instance_of::<PyTuple>() {
            return Err(invalid("it has a value where a list must be"));
        }
        Ok(value)
    }

    fn begin(&mut self, is_dict: bool, left: usize, first_open: usize) -> PyResult<()> {
        if self.open.len() - first_open >= NESTED_MAX {
            return Err(invalid("lists and dicts are nested too deep"));
        }
        self.open.push(Open { is_dict, left, base: self.values.len() });
        Ok(())
    }

    fn end(&mut self, is_dict: bool, base: usize, a_tuple: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = self.extension.py();
        if is_dict {
            check_spread(&self.values[base..])?;
        }
        let mut values = self.values.drain(base..);
        if !is_dict {
            return Ok(if a_tuple {
                PyTuple::new(py, values)?.into_any()
            } else {
                PyList::new(py, values)?.into_any()
            });
        }
        let dict = PyDict::new(py);
        while let (Some(key), Some(value)) = (values.next(), values.next()) {
            dict.set_item(key, value)?;
        }
        Ok(dict.into_any())
    }

    fn text(&mut self, bytes: &[u8], first_open: usize) -> PyResult<Bound<'py, PyAny>> {
        let py = self.extension.py();
        let is_key = self.open[first_open..].last().is_some_and(|last| last.is_dict && last.left % 2 == 0);
        match &mut self.keys {
            Some(keys) if is_key && bytes.len() <= KEY_BYTES_MAX => keys.get(py, bytes),
            _ => Ok(PyString::new(py, unicode(bytes)?).into_any()),
        }
    }
}

/// Rejects a dict with too many keys of the same hash. With such keys, a publisher could make the
/// dict's creation take quadratic time. `values` contains keys and values in turn.
fn check_spread(values: &[Bound<'_, PyAny>]) -> PyResult<()> {
    if values.len() / 2 <= EQUAL_MAX {
        return Ok(());
    }
    let mut hashes = values.iter().step_by(2).map(PyAnyMethods::hash).collect::<PyResult<Vec<_>>>()?;
    hashes.sort_unstable();
    if hashes.windows(EQUAL_MAX + 1).any(|equal| equal[0] == equal[EQUAL_MAX]) {
        return Err(invalid("too many keys of a dict have the same hash"));
    }
    Ok(())
}

/// The rest of a msgpack value's bytes.
struct Text<'t>(&'t [u8]);

impl<'t> Text<'t> {
    fn take(&mut self, length: usize) -> PyResult<&'t [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(|| invalid("it ends within a value"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> PyResult<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| invalid("it ends within a value"))
    }

    /// Reads a length that is stored in N bytes.
    fn length<const N: usize>(&mut self) -> PyResult<usize> {
        Ok(self.number::<N>()?.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)))
    }

    fn extension<'py>(&mut self, length: usize) -> PyResult<Head<'t, 'py>> {
        let [code] = self.number()?;
        Ok(Head::Extension(code.cast_signed(), self.take(length)?))
    }

    fn head<'py>(&mut self, py: Python<'py>) -> PyResult<Head<'t, 'py>> {
        let [first] = self.number()?;
        macro_rules! number {
            ($kind:ty) => {
                <$kind>::from_be_bytes(self.number()?).into_pyobject(py)?.into_any()
            };
        }
        let low = |bits: u8| usize::from(first & ((1 << bits) - 1));
        Ok(Head::Value(match first {
            0x00..=0x7f | 0xe0..=0xff => first.cast_signed().into_pyobject(py)?.into_any(),
            0x80..=0x8f => return Ok(Head::Dict(low(4))),
            0x90..=0x9f => return Ok(Head::List(low(4))),
            0xa0..=0xbf => return Ok(Head::Text(self.take(low(5))?)),
            0xc0 => py.None().into_bound(py),
            0xc1 => return Err(invalid("a byte is the start of no value")),
            0xc2 | 0xc3 => (first == 0xc3).into_pyobject(py)?.to_owned().into_any(),
            0xc4..=0xc6 => {
                let length = self.length_of(first - 0xc4)?;
                PyBytes::new(py, self.take(length)?).into_any()
            }
            0xc7..=0xc9 => {
                let length = self.length_of(first - 0xc7)?;
                return self.extension(length);
            }
            0xca => number!(f32),
            0xcb => number!(f64),
            0xcc => number!(u8),
            0xcd => number!(u16),
            0xce => number!(u32),
            0xcf => number!(u64),
            0xd0 => number!(i8),
            0xd1 => number!(i16),
            0xd2 => number!(i32),
            0xd3 => number!(i64),
            0xd4..=0xd8 => return self.extension(1 << (first - 0xd4)),
            0xd9..=0xdb => {
                let length = self.length_of(first - 0xd9)?;
                return Ok(Head::Text(self.take(length)?));
            }
            0xdc | 0xdd => return Ok(Head::List(self.length_of(first - 0xdc + 1)?)),
            0xde | 0xdf => return Ok(Head::Dict(self.length_of(first - 0xde + 1)?)),
        }))
    }

    /// Reads a length that is stored in 1, 2 or 4 bytes.
    fn length_of(&mut self, size: u8) -> PyResult<usize> {
        match size {
            0 => self.length::<1>(),
            1 => self.length::<2>(),
            _ => self.length::<4>(),
        }
    }
}

fn unicode(text: &[u8]) -> PyResult<&str> {
    str::from_utf8(text).map_err(|_| invalid("a text is not Unicode"))
}

#[cold]
fn invalid(why: &'static str) -> PyErr {
    PyValueError::new_err(why)
}
