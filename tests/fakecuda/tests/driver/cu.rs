//! The driver's functions through cudarc, with results.

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUstream,
};

/// Calls a function of the driver: `Err` has the number of the `CUresult`.
macro_rules! cu {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the arguments are pointers and values of the types that cudarc declares, and outlive the call.
        match unsafe { cudarc::driver::sys::$name($($arg),*) } as u32 {
            0 => Ok(()),
            code => Err(code),
        }
    }};
}

pub const POSIX: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
pub const WRITE: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
pub const READ: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
pub const SLAB: usize = 2 << 20;
pub const DEFAULT: CUstream = std::ptr::null_mut();

/// Initialises, and makes the first device's primary context current.
pub fn start() {
    cu!(cuInit(0)).unwrap();
    let mut context = std::ptr::null_mut();
    cu!(cuDevicePrimaryCtxRetain(&raw mut context, 0)).unwrap();
    cu!(cuCtxSetCurrent(context)).unwrap();
}

pub fn device() -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 }
}

pub fn properties() -> CUmemAllocationProp {
    // SAFETY: a C structure of integers, a pointer and enumerations that have a zero.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = POSIX;
    properties.location = device();
    properties
}

pub fn create(bytes: usize) -> Result<CUmemGenericAllocationHandle, u32> {
    let mut handle = 0;
    cu!(cuMemCreate(&raw mut handle, bytes, &properties(), 0))?;
    Ok(handle)
}

/// Maps a handle's memory at new addresses.
pub fn map(handle: CUmemGenericAllocationHandle, bytes: usize, flags: CUmemAccess_flags) -> CUdeviceptr {
    let mut at = 0;
    cu!(cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0)).unwrap();
    cu!(cuMemMap(at, bytes, 0, handle, 0)).unwrap();
    set_access(at, bytes, flags).unwrap();
    at
}

pub fn set_access(at: CUdeviceptr, bytes: usize, flags: CUmemAccess_flags) -> Result<(), u32> {
    cu!(cuMemSetAccess(at, bytes, &CUmemAccessDesc { location: device(), flags }, 1))
}

pub fn allocate(bytes: usize) -> Result<CUdeviceptr, u32> {
    let mut at = 0;
    cu!(cuMemAlloc_v2(&raw mut at, bytes))?;
    Ok(at)
}

pub fn read(at: CUdeviceptr) -> Result<u32, u32> {
    let mut value = 0u32;
    cu!(cuMemcpyDtoH_v2((&raw mut value).cast(), at, 4))?;
    Ok(value)
}

pub fn write(at: CUdeviceptr, value: u32) -> Result<(), u32> {
    cu!(cuMemsetD32_v2(at, value, 1))
}

/// A stream that does not wait for the default stream.
pub fn stream() -> CUstream {
    let mut stream = std::ptr::null_mut();
    cu!(cuStreamCreate(&raw mut stream, 1)).unwrap();
    stream
}

pub fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total)).unwrap();
    free
}

/// Returns the number of violations of the sharing rules that the fake driver has counted.
pub fn violations() -> u64 {
    // SAFETY: cudarc loads the fake driver under this name. The handle stays open.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    // SAFETY: the handle is from dlopen, and the string ends with a zero byte.
    let symbol = unsafe { libc::dlsym(library, c"fakecuda_violations".as_ptr()) };
    assert!(!symbol.is_null());
    #[allow(clippy::disallowed_methods)]
    // SAFETY: the symbol is a function of this type.
    let function: extern "C" fn() -> u64 = unsafe { std::mem::transmute(symbol) };
    function()
}

pub fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub fn from_hex(text: &str) -> [u8; 64] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex"))
}
