//! The `CUresult` codes that this driver returns, with their names in cuda.h.

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

/// The result of a driver function.
pub type Done = Result<(), Code>;

pub const INVALID_VALUE: Code = Code(1);
pub const OUT_OF_MEMORY: Code = Code(2);
pub const NOT_INITIALIZED: Code = Code(3);
pub const NO_DEVICE: Code = Code(100);
pub const INVALID_DEVICE: Code = Code(101);
pub const INVALID_IMAGE: Code = Code(200);
pub const INVALID_CONTEXT: Code = Code(201);
pub const MAP_FAILED: Code = Code(205);
pub const FILE_NOT_FOUND: Code = Code(301);
pub const OPERATING_SYSTEM: Code = Code(304);
pub const INVALID_HANDLE: Code = Code(400);
pub const NOT_FOUND: Code = Code(500);
pub const NOT_READY: Code = Code(600);
pub const ILLEGAL_ADDRESS: Code = Code(700);
pub const PRIMARY_CONTEXT_ACTIVE: Code = Code(708);
pub const HOST_MEMORY_ALREADY_REGISTERED: Code = Code(712);
pub const HOST_MEMORY_NOT_REGISTERED: Code = Code(713);
pub const NOT_SUPPORTED: Code = Code(801);

impl From<std::io::Error> for Code {
    fn from(error: std::io::Error) -> Self {
        if error.raw_os_error() == Some(libc::ENOMEM) { OUT_OF_MEMORY } else { OPERATING_SYSTEM }
    }
}
