//! Arguments of C programs, converted to Rust values. The numbers are those of the contract in `lib.rs`.

use super::status::look;
use std::ffi::{CStr, CString, c_char, c_void};
use std::time::Duration;
use tensorlend::{Error, Result};

fn null(what: &str) -> Error {
    Error::Argument(format!("{what} is NULL"))
}

/// A handle that is read.
///
/// # Safety
/// The rule on handles.
pub unsafe fn handle<'a, T>(handle: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the rule on handles: NULL, or it leads to a T that lives at least until the call is over.
    unsafe { handle.as_ref() }.ok_or_else(|| null(what))
}

/// A handle that one thread uses at a time.
///
/// # Safety
/// The rule on handles.
pub unsafe fn handle_mut<'a, T>(handle: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: the rule on handles: NULL, or it leads to a T that lives at least until the call is over, and no other
    // thread uses it.
    unsafe { handle.as_mut() }.ok_or_else(|| null(what))
}

/// The handle in a variable of the caller that a call takes over.
///
/// # Safety
/// The rules on handles and variables.
pub unsafe fn given<'a, T>(variable: *mut *mut T, what: &str) -> Result<&'a T> {
    if variable.is_null() {
        return Err(Error::Argument(format!("{what} is NULL: give the address of the variable that holds it")));
    }
    // SAFETY: the rules on handles and variables: it leads to a variable of the caller, which holds a handle or NULL.
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
        // SAFETY: the rule on handles: this library made it, by `Out::fill`, and nobody has freed it or uses it.
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
        // SAFETY: the rule on variables: it leads to a variable of the caller; that may hold anything, which is
        // overwritten and not dropped.
        unsafe { variable.write(std::ptr::null_mut()) };
        Ok(Self(variable))
    }

    pub fn fill(self, value: T) {
        self.fill_boxed(Box::new(value));
    }

    /// Fills the variable with a value that points into itself, and so must be in its final place before.
    pub fn fill_boxed(self, value: Box<T>) {
        self.fill_raw(Box::into_raw(value));
    }

    pub fn fill_raw(self, value: *mut T) {
        // SAFETY: the rule on variables: `new` was given a variable of the caller, and the call is not over.
        unsafe { self.0.write(value) };
    }
}

/// A required variable that gets a plain value.
pub struct Place<T>(*mut T);

impl<T: Copy> Place<T> {
    /// Takes the caller's variable; checked before the call does anything.
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
        // SAFETY: the rule on variables: it leads to a variable of the caller.
        unsafe { variable.write(value) };
    }
}

/// A string.
///
/// # Safety
/// The rule on strings.
pub unsafe fn text<'a>(string: *const c_char, what: &str) -> Result<&'a str> {
    if string.is_null() {
        return Err(null(what));
    }
    // SAFETY: the rule on strings: it ends with a zero byte and stays until the call is over.
    let string = unsafe { CStr::from_ptr(string) };
    string.to_str().map_err(|_| Error::Argument(format!("{what} is not UTF-8: {:?}", string.to_string_lossy())))
}

/// A path: any bytes.
///
/// # Safety
/// The rule on strings.
pub unsafe fn path<'a>(string: *const c_char, what: &str) -> Result<&'a std::path::Path> {
    use std::os::unix::ffi::OsStrExt;
    if string.is_null() {
        return Err(null(what));
    }
    // SAFETY: the rule on strings: it ends with a zero byte and stays until the call is over.
    let string = unsafe { CStr::from_ptr(string) };
    Ok(std::ffi::OsStr::from_bytes(string.to_bytes()).as_ref())
}

/// Values that are read.
///
/// # Safety
/// The rule on lengths, and every bit pattern is a T.
pub unsafe fn values<'a, T>(first: *const T, count: u64, what: &str) -> Result<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(what)),
        // SAFETY: the rule on lengths: it leads to `count` values, aligned, and nobody changes them before the call is
        // over. More bytes than an address space has cannot be anywhere: that is checked.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(first, checked::<T>(count, what)?) }),
    }
}

/// Bytes that are written.
///
/// # Safety
/// The rule on lengths.
pub unsafe fn buffer<'a>(first: *mut c_void, bytes: u64, what: &str) -> Result<&'a mut [u8]> {
    match (first.is_null(), bytes) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(null(what)),
        // SAFETY: the rule on lengths: it leads to `bytes` bytes, and nobody else touches them before the call is over.
        // They are only written.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts_mut(first.cast(), checked::<u8>(bytes, what)?) }),
    }
}

fn checked<T>(count: u64, what: &str) -> Result<usize> {
    let bytes = count.checked_mul(size_of::<T>() as u64).and_then(|bytes| isize::try_from(bytes).ok());
    bytes.map(|_| count as usize).ok_or_else(|| Error::Argument(format!("{what}: {count} are more than there can be")))
}

/// The header's `bool`. To Rust's a byte other than 0 and 1 would be undefined behaviour, and no compiler of C
/// vouches for what another language, or a cast, puts here: so every value but 0 is true.
pub type c_bool = u8;

/// Bytes that are handed out: NULL for none.
pub fn bytes_or_null(bytes: &[u8]) -> *const c_void {
    if bytes.is_empty() { std::ptr::null() } else { bytes.as_ptr().cast() }
}

/// Converts a timeout: below 0 means for ever.
pub fn patience(timeout_ns: i64) -> Option<Duration> {
    u64::try_from(timeout_ns).ok().map(Duration::from_nanos)
}

/// As [`patience`], for calls without "for ever".
pub fn long(timeout_ns: i64) -> Duration {
    patience(timeout_ns).unwrap_or(Duration::MAX)
}

/// Converts text for C. It ends at the first zero byte, which only the label of a broken client contains.
pub fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}
