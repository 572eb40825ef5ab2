//! Versions of the library, and of a name's values.

use std::ffi::{CString, c_char};
use std::sync::LazyLock;
use tensorlend::Version;

/// Number of this binary interface, and of the shared library `libtensorlend.so.0`. A release that
/// removes or changes a function, a constant or a field raises this number.
pub const TENSORLEND_ABI: u32 = 0;

/// Returns the library's `TENSORLEND_ABI`. The number differs from the header's if the program was
/// built with the header of another version.
#[unsafe(no_mangle)]
pub extern "C" fn tensorlend_abi() -> u32 {
    TENSORLEND_ABI
}

/// Returns the library's version, such as "0.1.0 (70404839e1c2 2026-11-29, protocol 8, layout 7)": the release, the
/// commit and its date, and the newest protocol and layout. The text is valid until the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn tensorlend_library_version() -> *const c_char {
    static BUILD: LazyLock<CString> = LazyLock::new(|| CString::new(tensorlend::build()).unwrap_or_default());
    BUILD.as_ptr()
}

/// The version of a name's value. Zeros mean none. Compare with `tensorlend_version_equal`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tensorlend_version {
    /// Opaque to programs.
    pub opaque: [u64; 2],
}

impl tensorlend_version {
    pub(super) const NONE: Self = Self { opaque: [0; 2] };
}

impl From<Version> for tensorlend_version {
    fn from(version: Version) -> Self {
        Self { opaque: version.words() }
    }
}

impl From<tensorlend_version> for Version {
    fn from(version: tensorlend_version) -> Self {
        Self::from_words(version.opaque)
    }
}

/// Returns true if both versions belong to the same value of the same name.
#[unsafe(no_mangle)]
pub extern "C" fn tensorlend_version_equal(one: tensorlend_version, other: tensorlend_version) -> bool {
    Version::from(one) == Version::from(other)
}
