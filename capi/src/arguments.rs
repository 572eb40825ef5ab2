//! Arguments of C programs, converted to Rust values. The numbers are those of the contract in `lib.rs`.

use super::status::look;
use std::ffi::{CStr, CString, c_char, c_void};
use std::time::Duration;
use tensorlend::{Error, Result};

fn null(what: &str) -> Error {
    Error::Argument(format!("{what} is NULL"))
}

/// Returns a shared reference to a handle.
///
/// # Safety
/// The rule on handles.
pub unsafe fn handle<'a, T>(handle: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the rule on handles: NULL, or the pointer points to a T that lives at least until the call ends.
    unsafe { handle.as_ref() }.ok_or_else(|| null(what))
}

/// Returns an exclusive reference to a handle that one thread uses at a time.
///
/// # Safety
/// The rule on handles.
pub unsafe fn handle_mut<'a, T>(handle: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: the rule on handles: NULL, or the pointer points to a T that lives at least until the call ends, and no
    // other thread uses it.
    unsafe { handle.as_mut() }.ok_or_else(|| null(what))
}

/// Returns the handle in the caller's variable, which the call will take over.
///
/// # Safety
/// The rules on handles and variables.
pub unsafe fn given<'a, T>(variable: *mut *mut T, what: &str) -> Result<&'a T> {
    if variable.is_null() {
        return Err(Error::Argument(format!("{what} is NULL: give the address of the variable that holds it")));
    }
    // SAFETY: the rules on handles and variables: the pointer points to a variable of the caller, which holds a handle
    // or NULL.
    unsafe { handle(variable.read(), &format!("the {what}")) }
}

/// Takes a handle over: sets the caller's variable to NULL.
///
/// # Safety
/// The rules on handles and variables, and `given` has accepted the variable.
pub unsafe fn take_over<T>(variable: *mut *mut T) -> T {
    // SAFETY: the rule on variables: a variable of the caller.
    let taken = unsafe { variable.replace(std::ptr::null_mut()) };
    // SAFETY: the rule on handles: this library made it, by `Out::fill`; the caller has no pointer to it any more.
    *unsafe { Box::from_raw(taken) }
}

/// Frees a handle; NULL does nothing.
///
/// # Safety
/// The rule on handles.
pub unsafe fn free<T>(handle: *mut T) {
    if handle.is_null() {
        return;
    }
    look((), || {
        // SAFETY: the rule on handles: this library made it, by `Out::fill`, the caller has not freed it, and no thread
        // uses it.
        drop(unsafe { Box::from_raw(handle) });
        None
    });
}

/// The variable that gets a new handle.
pub struct Out<T>(*mut *mut T);

impl<T> Out<T> {
    /// Takes the caller's variable and sets it to NULL until it is filled.
    ///
    /// # Safety
    /// The rule on variables.
    pub unsafe fn new(variable: *mut *mut T, what: &str) -> Result<Self> {
        if variable.is_null() {
            return Err(null(what));
        }
        // SAFETY: the rule on variables: the pointer points to a variable of the caller. Its present value is
        // overwritten and not dropped.
        unsafe { variable.write(std::ptr::null_mut()) };
        Ok(Self(variable))
    }

    pub fn fill(self, value: T) {
        self.fill_boxed(Box::new(value));
    }

    /// Fills the variable with a value that contains pointers into itself. It is boxed already, because it must not
    /// move.
    pub fn fill_boxed(self, value: Box<T>) {
        self.fill_raw(Box::into_raw(value));
    }

    pub fn fill_raw(self, value: *mut T) {
        // SAFETY: the rule on variables: `new` was given a variable of the caller, and the call is not over.
        unsafe { self.0.write(value) };
    }
}

/// A required variable that gets a plain value.
pub struct OutVar<T>(*mut T);

impl<T: Copy> OutVar<T> {
    /// Takes the caller's variable, or returns an error if the pointer is NULL. A call does this before anything else.
    ///
    /// # Safety
    /// The rule on variables.
    pub unsafe fn new(variable: *mut T, what: &str) -> Result<Self> {
        if variable.is_null() { Err(null(what)) } else { Ok(Self(variable)) }
    }

    pub fn fill(self, value: T) {
        // SAFETY: the rule on variables: `new` was given a variable of the caller, and the call is not over.
        unsafe { self.0.write(value) };
    }
}

/// Writes a plain value to an optional variable.
///
/// # Safety
/// The rule on variables.
pub unsafe fn tell<T: Copy>(variable: *mut T, value: T) {
    if !variable.is_null() {
        // SAFETY: the rule on variables: the pointer points to a variable of the caller.
        unsafe { variable.write(value) };
    }
}

/// Converts a string.
///
/// # Safety
/// The rule on strings.
pub unsafe fn text<'a>(string: *const c_char, what: &str) -> Result<&'a str> {
    if string.is_null() {
        return Err(null(what));
    }
    // SAFETY: the rule on strings: the string ends with a zero byte and stays until the call ends.
    let string = unsafe { CStr::from_ptr(string) };
    string.to_str().map_err(|_| Error::Argument(format!("{what} is not UTF-8: {:?}", string.to_string_lossy())))
}

/// Converts a path, which may consist of any bytes.
///
/// # Safety
/// The rule on strings.
pub unsafe fn path<'a>(string: *const c_char, what: &str) -> Result<&'a std::path::Path> {
    use std::os::unix::ffi::OsStrExt;
    if string.is_null() {
        return Err(null(what));
    }
    // SAFETY: the rule on strings: the string ends with a zero byte and stays until the call ends.
    let string = unsafe { CStr::from_ptr(string) };
    Ok(std::ffi::OsStr::from_bytes(string.to_bytes()).as_ref())
}

/// Returns the values that a pointer and a count describe, for reading.
///
/// # Safety
/// The rule on lengths, and every bit pattern is a T.
pub unsafe fn values<'a, T>(first: *const T, count: u64, what: &str) -> Result<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(what)),
        // SAFETY: the rule on lengths: the pointer points to `count` aligned values, which no thread changes before the
        // call ends. `checked` rejects a length that exceeds an address space.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(first, checked::<T>(count, what)?) }),
    }
}

/// Returns the bytes that a pointer and a length describe, for writing.
///
/// # Safety
/// The rule on lengths.
pub unsafe fn buffer<'a>(first: *mut c_void, bytes: u64, what: &str) -> Result<&'a mut [u8]> {
    match (first.is_null(), bytes) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(null(what)),
        // SAFETY: the rule on lengths: the pointer points to `bytes` bytes, which no other thread accesses before the
        // call ends. This library only writes them.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts_mut(first.cast(), checked::<u8>(bytes, what)?) }),
    }
}

fn checked<T>(count: u64, what: &str) -> Result<usize> {
    let bytes = count.checked_mul(size_of::<T>() as u64).and_then(|bytes| isize::try_from(bytes).ok());
    bytes.map(|_| count as usize).ok_or_else(|| Error::Argument(format!("{what}: {count} are more than there can be")))
}

/// The header's `bool`. In a Rust `bool`, a byte other than 0 and 1 is undefined behaviour, and other languages or
/// casts can pass such bytes. So every value except 0 counts as true.
pub type c_bool = u8;

/// Returns the pointer for bytes that are handed out: NULL if there are none.
pub fn bytes_or_null(bytes: &[u8]) -> *const c_void {
    if bytes.is_empty() { std::ptr::null() } else { bytes.as_ptr().cast() }
}

/// Converts a timeout: below 0 means without limit.
pub fn timeout(timeout_ns: i64) -> Option<Duration> {
    u64::try_from(timeout_ns).ok().map(Duration::from_nanos)
}

/// As [`timeout`], for calls that need a maximum.
pub fn long(timeout_ns: i64) -> Duration {
    timeout(timeout_ns).unwrap_or(Duration::MAX)
}

/// Converts text for C. It ends at the first zero byte, which only the label of a broken client contains.
pub fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}
