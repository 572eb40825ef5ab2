//! Arguments that C passes, checked for null once, in this file.
//!
//! The contract of CUDA's caller, on which each unsafe block relies: an argument of these types is null, or points to
//! the object that the function's declaration in cuda.h names, for the duration of the call. Only C makes these values,
//! as arguments of exported functions; no code in this crate constructs one.

use crate::code::{Code, Done, INVALID_VALUE};
use std::ffi::{CStr, c_char};

/// A place for a result.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub fn put(&self, value: T) -> Done {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so it points to memory for a T by the contract above, possibly unaligned.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes a result that the caller may omit by passing null.
    pub fn offer(&self, value: T) {
        let _ = self.put(value);
    }

    pub fn fill(&self, values: &[T]) -> Done
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        for (at, value) in values.iter().enumerate() {
            // SAFETY: not null, and the caller gave the length, so it points to an array of that length by the contract
            // above.
            unsafe { self.0.add(at).write_unaligned(*value) };
        }
        Ok(())
    }
}

/// A pointer to a result whose type another argument determines.
#[repr(transparent)]
pub struct Any(*mut u8);

impl Any {
    pub fn put<T>(&self, value: T) -> Done {
        Out(self.0.cast::<T>()).put(value)
    }

    pub fn get<T: Copy>(&self) -> Result<T, Code> {
        In(self.0.cast_const().cast::<T>()).get()
    }

    pub fn at(address: u64) -> Self {
        Self(address as *mut u8)
    }
}

/// A pointer to a value to read, or to an array of them.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub fn at(address: u64) -> Self {
        Self(address as *const T)
    }

    pub fn get(&self) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so it points to a T by the contract above, possibly unaligned.
        Ok(unsafe { self.0.read_unaligned() })
    }

    pub fn array(&self, length: usize) -> Result<Vec<T>, Code> {
        if self.0.is_null() {
            return if length == 0 { Ok(Vec::new()) } else { Err(INVALID_VALUE) };
        }
        // SAFETY: not null, and the caller gave the array's length.
        Ok((0..length).map(|at| unsafe { self.0.add(at).read_unaligned() }).collect())
    }
}

/// A string of C.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    pub fn at(address: u64) -> Self {
        Self(address as *const c_char)
    }

    pub fn get(&self) -> Result<String, Code> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so it points to a string that ends with a zero byte, by the contract above.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}
