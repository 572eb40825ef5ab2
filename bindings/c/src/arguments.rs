//! Conversion of a C program's arguments to Rust values, and the macros that make a call of conversions and a body.
//!
//! # Safety
//! Every unsafe function here requires that its arguments are parameters of an exported function, whose caller keeps the contract
//! in `lib.rs`. The rules in the `SAFETY` comments are those of the contract. The results live until the call ends.
#![allow(clippy::unnecessary_wraps, reason = "all conversions have one form, for the macros")]

use super::dtype::{dtype, tensorlend_dtype};
use super::status::Fault;
use dlpark::ffi::{DLManagedTensorVersioned, DLPACK_MAJOR_VERSION, DLTensor};
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;
use tensorlend::{Error, OnStream, Result, TensorSpec};
use tensorlend_layout::tensor::NDIM_MAX;

/// Converts a parameter by the function of this module that follows the colon: `convert!(name: text)`, or
/// `convert!(to: buffer(bytes))` for a conversion that needs more parameters. Errors name the parameter.
macro_rules! convert {
    ($argument:ident: $kind:ident $(($($more:ident),+))?) => {
        // SAFETY: all names are those of parameters of the exported function, whose caller keeps the contract in `lib.rs`.
        // That contract is what the functions of this module require; the comments of `owned` and `all_consumed` state more.
        unsafe { $crate::arguments::$kind($argument, $($($more,)+)? stringify!($argument)) }
    };
}

/// Runs the body of a call that can fail, once its arguments are converted in the order of the list, each as by `convert`. The
/// first error ends the call: `call!(|lease: out, client: handle, name: text| ...)`.
macro_rules! call {
    (|$($argument:ident: $kind:ident $(($($more:ident),+))?),+| $body:expr) => {
        $crate::status::guard(|| {
            $(let $argument = $crate::arguments::convert!($argument: $kind $(($($more),+))?)?;)+
            $body;
            Ok(())
        })
    };
}

/// Runs the body of a call that has no status, as `call` does. The call returns `$otherwise` if a conversion fails or the body
/// returns nothing.
macro_rules! look {
    ($otherwise:expr, |$($argument:ident: $kind:ident),+| $body:expr) => {
        $crate::status::look($otherwise, || {
            $(let $argument = $crate::arguments::convert!($argument: $kind).ok()?;)+
            $body
        })
    };
}

/// Frees a handle. NULL does nothing.
macro_rules! free {
    ($handle:ident) => {
        $crate::arguments::look!((), |$handle: owned| {
            drop($handle);
            None
        })
    };
}

pub(crate) use {call, convert, free, look};

/// Returns the error for a pointer that must not be NULL.
pub fn null(what: &str) -> Error {
    Error::Argument(format!(
        "{what} is NULL: pass a valid pointer; a call that takes a handle over sets its variable to NULL, and so does a move"
    ))
}

/// Returns a shared reference to a handle.
pub unsafe fn handle<'a, T>(handle: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: by the rule on handles, the pointer is NULL or points to a T that lives at least until the call ends.
    unsafe { handle.as_ref() }.ok_or_else(|| null(what))
}

/// Returns a shared reference to a handle, or `None` for NULL.
pub unsafe fn optional_handle<'a, T>(handle: *const T, _what: &str) -> Result<Option<&'a T>> {
    // SAFETY: as in `handle`.
    Ok(unsafe { handle.as_ref() })
}

/// Returns an exclusive reference to a handle that one thread uses at a time.
pub unsafe fn handle_mut<'a, T>(handle: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: as in `handle`. No other thread uses the T.
    unsafe { handle.as_mut() }.ok_or_else(|| null(what))
}

/// Takes back the box of a handle that the call frees. The handle comes from `Out::fill`, so it is no lease.
pub unsafe fn owned<T>(handle: *mut T, what: &str) -> Result<Box<T>> {
    // SAFETY: by the rule on handles, `Out::fill` made this pointer. The caller has not freed it, and no other thread uses the
    // handle.
    if handle.is_null() { Err(null(what)) } else { Ok(unsafe { Box::from_raw(handle) }) }
}

/// Returns a variable with a handle that the call may take over.
pub unsafe fn consumed<T>(variable: *mut *mut T, what: &'static str) -> Result<Consumed<T>> {
    Ok(Consumed(variable, what))
}

/// Returns the variables of an array, whose handles the call may take over. The caller checks that they are different handles.
pub unsafe fn all_consumed<T>(first: *mut *mut T, count: u64, what: &str) -> Result<Vec<Consumed<T>>> {
    // SAFETY: by the rule on lengths, the pointer points to `count` variables.
    let variables = unsafe { values(first.cast_const(), count, what) }?;
    Ok((0..variables.len()).map(|at| Consumed(first.wrapping_add(at), "item")).collect())
}

/// A variable of the caller, whose handle the call may take over. The variable lives until the call ends.
pub struct Consumed<T>(*mut *mut T, &'static str);

impl<T> Consumed<T> {
    /// Returns the handle, which the caller still owns.
    pub fn get(&self) -> Result<&T> {
        let Self(variable, what) = *self;
        if variable.is_null() {
            return Err(Error::Argument(format!("{what} is NULL: give the address of the variable that holds it")));
        }
        // SAFETY: by the rules on handles and variables, the pointer points to a variable of the caller. The variable holds NULL
        // or a handle that lives at least until `take`.
        unsafe { handle(variable.read(), &format!("the {what}")) }
    }

    /// Takes the handle over, and sets the caller's variable to NULL. On error the variable is unchanged.
    pub fn take(self) -> Result<T> {
        self.get()?;
        // SAFETY: `get` has accepted the variable.
        let taken = unsafe { self.0.replace(std::ptr::null_mut()) };
        // SAFETY: by the rule on handles, `Out::fill` made this pointer, and the caller has not freed it. The caller's variable
        // no longer contains the pointer.
        Ok(*unsafe { Box::from_raw(taken) })
    }

    /// Takes the handle over, as `take` does, if the caller has one.
    pub fn take_any(self) -> Result<Option<T>> {
        // SAFETY: by the rule on variables, the pointer is NULL or points to a variable of the caller.
        let is_empty = unsafe { self.0.as_ref() }.is_none_or(|handle| handle.is_null());
        if is_empty { Ok(None) } else { self.take().map(Some) }
    }
}

/// Takes the caller's variable, and sets it to NULL until a `fill` method fills it.
pub unsafe fn out<T>(variable: *mut *mut T, what: &str) -> Result<Out<T>> {
    if variable.is_null() {
        return Err(null(what));
    }
    // SAFETY: by the rule on variables, the pointer points to a variable of the caller. The write overwrites the present value
    // without dropping it.
    unsafe { variable.write(std::ptr::null_mut()) };
    Ok(Out(variable))
}

/// A variable of the caller that gets a new handle.
pub struct Out<T>(*mut *mut T);

impl<T> Out<T> {
    pub fn fill(self, value: T) {
        self.fill_boxed(Box::new(value));
    }

    /// Fills the variable with a value that contains pointers into itself. Such a value must not
    /// move, so it is already in a box.
    pub fn fill_boxed(self, value: Box<T>) {
        self.fill_raw(Box::into_raw(value));
    }

    pub fn fill_raw(self, value: *mut T) {
        // SAFETY: by the rule on variables, `out` got a pointer to a variable of the caller. The variable lives until the call
        // ends.
        unsafe { self.0.write(value) };
    }
}

/// Takes a required variable of the caller. Each call does this before anything else.
pub unsafe fn variable<T: Copy>(variable: *mut T, what: &str) -> Result<Variable<T>> {
    if variable.is_null() { Err(null(what)) } else { Ok(Variable(variable)) }
}

/// Takes a variable of the caller that may be NULL.
pub unsafe fn optional_variable<T: Copy>(variable: *mut T, _what: &str) -> Result<Variable<T>> {
    Ok(Variable(variable))
}

/// A variable of the caller that gets a plain value. The value of an optional variable is dropped if the pointer is NULL.
pub struct Variable<T>(*mut T);

impl<T: Copy> Variable<T> {
    pub fn fill(self, value: impl Into<T>) {
        if !self.0.is_null() {
            // SAFETY: by the rule on variables, the pointer points to a variable of the caller, which lives until the call ends.
            unsafe { self.0.write(value.into()) };
        }
    }
}

/// Converts a string.
pub unsafe fn text<'a>(string: *const c_char, what: &str) -> Result<&'a str> {
    // SAFETY: the requirements are the same.
    let string = unsafe { c_string(string, what) }?;
    string.to_str().map_err(|_| Error::Argument(format!("{what} is not UTF-8: {:?}", string.to_string_lossy())))
}

/// Converts a string that may be NULL.
pub unsafe fn optional_text<'a>(string: *const c_char, what: &str) -> Result<Option<&'a str>> {
    // SAFETY: the requirements are the same.
    if string.is_null() { Ok(None) } else { unsafe { text(string, what) }.map(Some) }
}

/// Converts a path, which may consist of any bytes.
pub unsafe fn path<'a>(string: *const c_char, what: &str) -> Result<&'a Path> {
    // SAFETY: the requirements are the same.
    let string = unsafe { c_string(string, what) }?;
    Ok(std::ffi::OsStr::from_bytes(string.to_bytes()).as_ref())
}

unsafe fn c_string<'a>(string: *const c_char, what: &str) -> Result<&'a CStr> {
    // SAFETY: by the rule on strings, the string ends with a zero byte, and no thread changes it before the call ends.
    if string.is_null() { Err(null(what)) } else { Ok(unsafe { CStr::from_ptr(string) }) }
}

/// Converts an array of names.
pub unsafe fn texts<'a>(names: *const *const c_char, count: u64, what: &str) -> Result<Vec<&'a str>> {
    // SAFETY: by the rule on lengths, the pointer is NULL or points to `count` pointers.
    let names = unsafe { values(names, count, what) }?;
    // SAFETY: by the rule on strings, each of them is NULL or zero-terminated.
    names.iter().map(|&name| unsafe { text(name, "a name") }).collect()
}

/// Returns the values that a pointer and a count describe, to read them. Every bit pattern must be a valid T.
pub unsafe fn values<'a, T>(first: *const T, count: u64, what: &str) -> Result<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(what)),
        // SAFETY: by the rule on lengths, the pointer points to `count` aligned values. No thread
        // changes them before the call ends. `checked` rejects a length that exceeds the address
        // space.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(first, checked::<T>(count, what)?) }),
    }
}

/// Returns the bytes that a pointer and a length describe, to read them.
pub unsafe fn bytes<'a>(first: *const c_void, bytes: u64, what: &str) -> Result<&'a [u8]> {
    // SAFETY: the requirements are the same.
    unsafe { values(first.cast(), bytes, what) }
}

/// Returns the bytes that a pointer and a length describe, to write them.
pub unsafe fn buffer<'a>(first: *mut c_void, bytes: u64, what: &str) -> Result<&'a mut [u8]> {
    match (first.is_null(), bytes) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(null(what)),
        // SAFETY: by the rule on lengths, the pointer points to `bytes` bytes. No other thread
        // accesses them before the call ends. This library only writes them.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts_mut(first.cast(), checked::<u8>(bytes, what)?) }),
    }
}

fn checked<T>(count: u64, what: &str) -> Result<usize> {
    let bytes = count.checked_mul(size_of::<T>() as u64).and_then(|bytes| isize::try_from(bytes).ok());
    bytes.map(|_| count as usize).ok_or_else(|| {
        Error::Argument(format!("{what}: {count} are more than an address space holds: check the number"))
    })
}

/// Converts the description of a row-major tensor.
pub unsafe fn shape(
    sizes: *const u64,
    number: tensorlend_dtype,
    ndim: u32,
    what: &str,
) -> std::result::Result<TensorSpec, Fault> {
    // SAFETY: the requirements are the same.
    unsafe { strided(sizes, number, ndim, std::ptr::null(), 0, what) }
}

/// Converts the description of a tensor. Without strides, the tensor is row-major.
pub unsafe fn strided(
    sizes: *const u64,
    number: tensorlend_dtype,
    ndim: u32,
    strides: *const i64,
    byte_offset: u64,
    what: &str,
) -> std::result::Result<TensorSpec, Fault> {
    // Check `ndim` before reading the sizes.
    if ndim as usize > NDIM_MAX {
        return Err(Error::Argument(format!("{ndim} dimensions are too many: give 0 to {NDIM_MAX}")).into());
    }
    // SAFETY: by the rule on lengths, the pointer is NULL or points to `ndim` sizes.
    let sizes: &[u64] = unsafe { values(sizes, ndim.into(), what) }?;
    // SAFETY: by the rule on lengths, the pointer points to `ndim` strides, unless it is NULL.
    let strides = (!strides.is_null()).then(|| unsafe { values(strides, ndim.into(), "strides") }).transpose()?;
    Ok(TensorSpec {
        dtype: dtype(number)?,
        shape: sizes.iter().map(|&size| size as usize).collect(),
        strides: strides.map(<[i64]>::to_vec),
        byte_offset: byte_offset as usize,
    })
}

/// Converts the description of a row-major tensor and its elements.
pub unsafe fn elements<'a>(
    data: *const c_void,
    number: tensorlend_dtype,
    ndim: u32,
    sizes: *const u64,
    what: &str,
) -> std::result::Result<(TensorSpec, &'a [u8]), Fault> {
    // SAFETY: the requirements are the same.
    let spec = unsafe { shape(sizes, number, ndim, "shape") }?;
    // SAFETY: by the rule on lengths, `data` points to the bytes of all elements, whose number follows from the shape.
    let data = unsafe { bytes(data, spec.bytes()?, what) }?;
    Ok((spec, data))
}

/// Converts a CUDA stream of the program.
pub unsafe fn stream(stream: *mut c_void, _what: &str) -> Result<OnStream> {
    // SAFETY: by the rule on streams, the stream is NULL or valid.
    Ok(unsafe { OnStream::from_raw(stream.expose_provenance()) })
}

/// Returns another library's tensor, if this library supports its version of `DLPack`.
pub unsafe fn dlpack<'a>(tensor: *const DLManagedTensorVersioned, what: &str) -> Result<ForeignTensor<'a>> {
    if tensor.is_null() {
        return Err(null(what));
    }
    // SAFETY: by the rule on DLPack, the version is the first field of every version of the structure. Read only the version
    // before the check, without a reference to the whole structure.
    let major = unsafe { (&raw const (*tensor).version.major).read() };
    if major != DLPACK_MAJOR_VERSION {
        let why = format!("the tensor is of DLPack {major}: {DLPACK_MAJOR_VERSION} is understood");
        return Err(Error::Argument(why));
    }
    // SAFETY: by the rule on DLPack, the tensor meets the specification of the version, which was checked above.
    Ok(ForeignTensor(unsafe { &(*tensor).dl_tensor }))
}

/// Another library's tensor, which meets the specification of `DLPack` until the call ends.
pub struct ForeignTensor<'a>(&'a DLTensor);

impl ForeignTensor<'_> {
    /// Returns the tensor's description.
    pub fn get(&self) -> &DLTensor {
        self.0
    }
}

/// Converts the number of a constant, which is one of the enumeration `tensorlend_KIND`.
pub fn choice<T: Copy>(kind: &str, number: i32, all: &[(i32, T)]) -> Result<T> {
    let found = all.iter().find(|(of, _)| *of == number).map(|&(_, value)| value);
    found.ok_or_else(|| Error::Argument(format!("{kind} {number}: use one of tensorlend_{kind}")))
}

/// The header's `bool`. In a Rust `bool`, a byte other than 0 and 1 is undefined behavior. Other
/// languages and casts can pass such bytes, so this type accepts every byte. Every value except 0
/// means true.
pub type c_bool = u8;

/// Returns the pointer to bytes that the caller may read; NULL if there are no bytes.
pub fn bytes_or_null(bytes: &[u8]) -> *const c_void {
    if bytes.is_empty() { std::ptr::null() } else { bytes.as_ptr().cast() }
}

/// Converts a timeout in nanoseconds. A value below 0 means no limit.
pub fn timeout(timeout_ns: i64) -> Option<Duration> {
    u64::try_from(timeout_ns).ok().map(Duration::from_nanos)
}

/// Converts a timeout as [`timeout`] does, for calls that need a maximum.
pub fn long(timeout_ns: i64) -> Duration {
    timeout(timeout_ns).unwrap_or(Duration::MAX)
}

/// Converts text for C. The result ends at the first zero byte. Only the label of a faulty client
/// contains a zero byte.
pub fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}
