//! Names of errors, and symbols by name.

use crate::args::Out;
use crate::code::INVALID_VALUE;
use std::ffi::CStr;

/// Name and meaning of a `CUresult`.
fn describe(code: u32) -> Option<(&'static CStr, &'static CStr)> {
    Some(match code {
        0 => (c"CUDA_SUCCESS", c"no error"),
        1 => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        2 => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        3 => (c"CUDA_ERROR_NOT_INITIALIZED", c"not initialized"),
        4 => (c"CUDA_ERROR_DEINITIALIZED", c"shutting down"),
        100 => (c"CUDA_ERROR_NO_DEVICE", c"no device"),
        101 => (c"CUDA_ERROR_INVALID_DEVICE", c"no such device"),
        200 => (c"CUDA_ERROR_INVALID_IMAGE", c"not a module"),
        201 => (c"CUDA_ERROR_INVALID_CONTEXT", c"no context, or not a valid one"),
        205 => (c"CUDA_ERROR_MAP_FAILED", c"cannot map"),
        206 => (c"CUDA_ERROR_UNMAP_FAILED", c"cannot unmap"),
        218 => (c"CUDA_ERROR_INVALID_PTX", c"invalid PTX"),
        301 => (c"CUDA_ERROR_FILE_NOT_FOUND", c"no such file"),
        304 => (c"CUDA_ERROR_OPERATING_SYSTEM", c"a system call failed"),
        400 => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid handle"),
        401 => (c"CUDA_ERROR_ILLEGAL_STATE", c"not in this state"),
        500 => (c"CUDA_ERROR_NOT_FOUND", c"no symbol of that name"),
        600 => (c"CUDA_ERROR_NOT_READY", c"not ready"),
        700 => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"a kernel touched an illegal address"),
        701 => (c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too few resources for the launch"),
        702 => (c"CUDA_ERROR_LAUNCH_TIMEOUT", c"a kernel took too long"),
        704 => (c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled"),
        705 => (c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", c"peer access is not enabled"),
        708 => (c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", c"the primary context is active"),
        709 => (c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"the context is destroyed"),
        712 => (c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"the memory is registered already"),
        713 => (c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"the memory is not registered"),
        719 => (c"CUDA_ERROR_LAUNCH_FAILED", c"a kernel failed"),
        800 => (c"CUDA_ERROR_NOT_PERMITTED", c"not permitted"),
        801 => (c"CUDA_ERROR_NOT_SUPPORTED", c"not supported"),
        900 => (c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"not while a stream captures"),
        999 => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
        _ => return None,
    })
}

fn put(place: &Out<u64>, text: Option<&'static CStr>) -> crate::code::Done {
    place.put(text.map_or(0, |text| text.as_ptr() as u64))?;
    text.map(drop).ok_or(INVALID_VALUE)
}

driver! {
    fn cuGetErrorName(code: u32, name: Out<u64>) {
        put(&name, describe(code).map(|texts| texts.0))
    }

    fn cuGetErrorString(code: u32, text: Out<u64>) {
        put(&text, describe(code).map(|texts| texts.1))
    }
}
