//! Conversion of a C program's arguments to Rust values. The rules in the `SAFETY` comments are
//! those of the contract in `lib.rs`.

use super::status::look;
use std::ffi::{CStr, CString, c_char, c_void};
use std::time::Duration;
use tensorlend::{Error, Result};

/// Returns the error for a pointer that must not be NULL.
pub fn null(what: &str) -> Error {
    Error::Argument(format!("{what} is NULL: pass a valid pointer"))
}

/// Returns a shared reference to a handle.
///
/// # Safety
/// The handle is NULL or alive, by the contract in `lib.rs`.
pub unsafe fn handle<'a, T>(handle: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: by the rule on handles, the pointer is NULL or points to a T that lives at least
    // until the call ends.
    unsafe { handle.as_ref() }.ok_or_else(|| null(what))
}

/// Returns an exclusive reference to a handle that one thread uses at a time.
///
/// # Safety
/// The handle is NULL or alive, by the contract in `lib.rs`.
pub unsafe fn handle_mut<'a, T>(handle: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: by the rule on handles, the pointer is NULL or points to a T that lives at least
    // until the call ends. No other thread uses the T.
    unsafe { handle.as_mut() }.ok_or_else(|| null(what))
}

/// Returns the handle in the caller's variable. The call will take this handle over.
///
/// # Safety
/// Handles are NULL or alive, and variables are NULL or writable, by the contract in `lib.rs`.
pub unsafe fn given<'a, T>(variable: *mut *mut T, what: &str) -> Result<&'a T> {
    if variable.is_null() {
        return Err(Error::Argument(format!("{what} is NULL: give the address of the variable that holds it")));
    }
    // SAFETY: by the rules on handles and variables, the pointer points to a variable of the
    // caller. The variable holds a handle or NULL.
    unsafe { handle(variable.read(), &format!("the {what}")) }
}

/// Takes a handle over, and sets the caller's variable to NULL.
///
/// # Safety
/// Handles are NULL or alive, and variables are NULL or writable, by the contract in `lib.rs`.
/// `given` has accepted the variable.
pub unsafe fn take_over<T>(variable: *mut *mut T) -> T {
    // SAFETY: by the rule on variables, the pointer points to a variable of the caller.
    let taken = unsafe { variable.replace(std::ptr::null_mut()) };
    // SAFETY: by the rule on handles, `Out::fill` made this pointer, and the caller has not freed
    // it. The caller's variable no longer contains the pointer.
    *unsafe { Box::from_raw(taken) }
}

/// Frees a handle. NULL does nothing.
///
/// # Safety
/// The handle is NULL or alive, by the contract in `lib.rs`.
pub unsafe fn free<T>(handle: *mut T) {
    if handle.is_null() {
        return;
    }
    look((), || {
        // SAFETY: by the rule on handles, `Out::fill` made this pointer. The caller has not freed
        // it, and no other thread uses the handle.
        drop(unsafe { Box::from_raw(handle) });
        None
    });
}

/// A variable of the caller that gets a new handle.
pub struct Out<T>(*mut *mut T);

impl<T> Out<T> {
    /// Takes the caller's variable, and sets it to NULL until a `fill` method fills it.
    ///
    /// # Safety
    /// The variable is NULL or writable, by the contract in `lib.rs`.
    pub unsafe fn new(variable: *mut *mut T, what: &str) -> Result<Self> {
        if variable.is_null() {
            return Err(null(what));
        }
        // SAFETY: by the rule on variables, the pointer points to a variable of the caller. The
        // write overwrites the present value without dropping it.
        unsafe { variable.write(std::ptr::null_mut()) };
        Ok(Self(variable))
    }

    pub fn fill(self, value: T) {
        self.fill_boxed(Box::new(value));
    }

    /// Fills the variable with a value that contains pointers into itself. Such a value must not
    /// move, so it is already in a box.
    pub fn fill_boxed(self, value: Box<T>) {
        self.fill_raw(Box::into_raw(value));
    }

    pub fn fill_raw(self, value: *mut T) {
        // SAFETY: by the rule on variables, `new` got a pointer to a variable of the caller. The
        // variable lives until the call ends.
        unsafe { self.0.write(value) };
    }
}

/// A required variable of the caller that gets a plain value.
pub struct OutVar<T>(*mut T);

impl<T: Copy> OutVar<T> {
    /// Takes the caller's variable, or returns an error if the pointer is NULL. Each call does this
    /// before anything else.
    ///
    /// # Safety
    /// The variable is NULL or writable, by the contract in `lib.rs`.
    pub unsafe fn new(variable: *mut T, what: &str) -> Result<Self> {
        if variable.is_null() { Err(null(what)) } else { Ok(Self(variable)) }
    }

    pub fn fill(self, value: T) {
        // SAFETY: by the rule on variables, `new` got a pointer to a variable of the caller. The
        // variable lives until the call ends.
        unsafe { self.0.write(value) };
    }
}

/// Writes a plain value to an optional variable.
///
/// # Safety
/// The variable is NULL or writable, by the contract in `lib.rs`.
pub unsafe fn tell<T: Copy>(variable: *mut T, value: T) {
    if !variable.is_null() {
        // SAFETY: by the rule on variables, the pointer points to a variable of the caller.
        unsafe { variable.write(value) };
    }
}

/// Converts a string.
///
/// # Safety
/// The string is NULL or zero-terminated, by the contract in `lib.rs`.
pub unsafe fn text<'a>(string: *const c_char, what: &str) -> Result<&'a str> {
    if string.is_null() {
        return Err(null(what));
    }
    // SAFETY: by the rule on strings, the string ends with a zero byte, and no thread changes it
    // before the call ends.
    let string = unsafe { CStr::from_ptr(string) };
    string.to_str().map_err(|_| Error::Argument(format!("{what} is not UTF-8: {:?}", string.to_string_lossy())))
}

/// Converts a path, which may consist of any bytes.
///
/// # Safety
/// The string is NULL or zero-terminated, by the contract in `lib.rs`.
pub unsafe fn path<'a>(string: *const c_char, what: &str) -> Result<&'a std::path::Path> {
    use std::os::unix::ffi::OsStrExt;
    if string.is_null() {
        return Err(null(what));
    }
    // SAFETY: by the rule on strings, the string ends with a zero byte, and no thread changes it
    // before the call ends.
    let string = unsafe { CStr::from_ptr(string) };
    Ok(std::ffi::OsStr::from_bytes(string.to_bytes()).as_ref())
}

/// Returns the values that a pointer and a count describe, to read them.
///
/// # Safety
/// The pointer is NULL or points to `count` values, by the contract in `lib.rs`. Every bit pattern is
/// a valid T.
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

/// Returns the bytes that a pointer and a length describe, to write them.
///
/// # Safety
/// The pointer is NULL or points to memory of this length, by the contract in `lib.rs`.
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
