//! The addresses of the driver's functions, resolved once.
//!
//! cudarc's own functions look up one symbol each at their first call, and panic if it is missing.
//! They also return `CUresult` as an enum, for which a newer driver's new number would be undefined
//! behaviour. So this module resolves all addresses at once. Each function returns a plain number.
//! The compiler checks that the arguments match those that cudarc generated from NVIDIA's header.
#![allow(unsafe_code)]
#![allow(non_snake_case)]

use cudarc::driver::sys;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

macro_rules! functions {
    ($(#[$doc:meta])* $group:ident { $($name:ident($($argument:ty),*);)* }) => {
        $(#[$doc])*
        pub struct $group {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> c_uint,)*
        }

        impl $group {
            /// The names of the functions in the library.
            #[cfg(test)]
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// Looks up every function, or returns the name of the first missing one.
            ///
            /// # Safety
            /// The driver's library is present. Without the library, cudarc panics.
            pub unsafe fn load() -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the caller guarantees that the library is present. The library is
                        // never unloaded, so the address stays valid. By NVIDIA's header and the
                        // check below, a function of this name has these arguments. It returns an
                        // enum of C, which is an unsigned int.
                        let found = unsafe {
                            sys::culib().get::<unsafe extern "C" fn($($argument),*) -> c_uint>(
                                concat!(stringify!($name), "\0").as_bytes(),
                            )
                        };
                        *found.map_err(|_| stringify!($name))?
                    },)*
                })
            }
        }

        const _: () = {
            $(let _: unsafe fn($($argument),*) -> sys::CUresult = sys::$name;)*
        };
    };
}

functions! {
    /// The functions of every driver that tensorlend supports.
    Api {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut sys::CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, sys::CUdevice);
        cuDeviceGetUuid_v2(*mut sys::CUuuid, sys::CUdevice);
        cuDeviceTotalMem_v2(*mut usize, sys::CUdevice);
        cuDeviceGetAttribute(*mut c_int, sys::CUdevice_attribute, sys::CUdevice);
        cuDeviceCanAccessPeer(*mut c_int, sys::CUdevice, sys::CUdevice);
        cuDevicePrimaryCtxRetain(*mut sys::CUcontext, sys::CUdevice);
        cuDevicePrimaryCtxRelease_v2(sys::CUdevice);
        cuDevicePrimaryCtxGetState(sys::CUdevice, *mut c_uint, *mut c_int);
        cuCtxPushCurrent_v2(sys::CUcontext);
        cuCtxPopCurrent_v2(*mut sys::CUcontext);
        cuCtxGetCurrent(*mut sys::CUcontext);
        cuCtxGetDevice(*mut sys::CUdevice);
        cuCtxSynchronize();
        cuMemCreate(*mut sys::CUmemGenericAllocationHandle, usize, *const sys::CUmemAllocationProp, c_ulonglong);
        cuMemRelease(sys::CUmemGenericAllocationHandle);
        cuMemAddressReserve(*mut sys::CUdeviceptr, usize, usize, sys::CUdeviceptr, c_ulonglong);
        cuMemAddressFree(sys::CUdeviceptr, usize);
        cuMemMap(sys::CUdeviceptr, usize, usize, sys::CUmemGenericAllocationHandle, c_ulonglong);
        cuMemUnmap(sys::CUdeviceptr, usize);
        cuMemSetAccess(sys::CUdeviceptr, usize, *const sys::CUmemAccessDesc, usize);
        cuMemGetAllocationGranularity(*mut usize, *const sys::CUmemAllocationProp, sys::CUmemAllocationGranularity_flags);
        cuMemExportToShareableHandle(*mut c_void, sys::CUmemGenericAllocationHandle, sys::CUmemAllocationHandleType, c_ulonglong);
        cuMemImportFromShareableHandle(*mut sys::CUmemGenericAllocationHandle, *mut c_void, sys::CUmemAllocationHandleType);
        cuMemGetAllocationPropertiesFromHandle(*mut sys::CUmemAllocationProp, sys::CUmemGenericAllocationHandle);
        cuStreamCreate(*mut sys::CUstream, c_uint);
        cuStreamDestroy_v2(sys::CUstream);
        cuStreamSynchronize(sys::CUstream);
        cuStreamQuery(sys::CUstream);
        cuStreamGetCtx(sys::CUstream, *mut sys::CUcontext);
        cuStreamWaitEvent(sys::CUstream, sys::CUevent, c_uint);
        cuStreamWaitValue32_v2(sys::CUstream, sys::CUdeviceptr, sys::cuuint32_t, c_uint);
        cuLaunchHostFunc(sys::CUstream, sys::CUhostFn, *mut c_void);
        cuEventCreate(*mut sys::CUevent, c_uint);
        cuEventDestroy_v2(sys::CUevent);
        cuEventRecord(sys::CUevent, sys::CUstream);
        cuEventQuery(sys::CUevent);
        cuEventSynchronize(sys::CUevent);
        cuMemcpyHtoD_v2(sys::CUdeviceptr, *const c_void, usize);
        cuMemcpyDtoH_v2(*mut c_void, sys::CUdeviceptr, usize);
        cuMemcpyDtoD_v2(sys::CUdeviceptr, sys::CUdeviceptr, usize);
        cuMemcpyHtoDAsync_v2(sys::CUdeviceptr, *const c_void, usize, sys::CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, sys::CUdeviceptr, usize, sys::CUstream);
        cuMemcpyDtoDAsync_v2(sys::CUdeviceptr, sys::CUdeviceptr, usize, sys::CUstream);
        cuMemsetD8_v2(sys::CUdeviceptr, c_uchar, usize);
        cuMemsetD8Async(sys::CUdeviceptr, c_uchar, usize, sys::CUstream);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuMemHostGetDevicePointer_v2(*mut sys::CUdeviceptr, *mut c_void, c_uint);
        cuMemAlloc_v2(*mut sys::CUdeviceptr, usize);
        cuMemFree_v2(sys::CUdeviceptr);
        cuPointerGetAttributes(c_uint, *mut sys::CUpointer_attribute, *mut *mut c_void, sys::CUdeviceptr);
    }
}

functions! {
    /// Stream-ordered pools that another process can import.
    Pools {
        cuMemPoolCreate(*mut sys::CUmemoryPool, *const sys::CUmemPoolProps);
        cuMemPoolDestroy(sys::CUmemoryPool);
        cuMemPoolSetAttribute(sys::CUmemoryPool, sys::CUmemPool_attribute, *mut c_void);
        cuMemPoolGetAttribute(sys::CUmemoryPool, sys::CUmemPool_attribute, *mut c_void);
        cuMemPoolSetAccess(sys::CUmemoryPool, *const sys::CUmemAccessDesc, usize);
        cuMemPoolTrimTo(sys::CUmemoryPool, usize);
        cuMemPoolExportToShareableHandle(*mut c_void, sys::CUmemoryPool, sys::CUmemAllocationHandleType, c_ulonglong);
        cuMemPoolImportFromShareableHandle(*mut sys::CUmemoryPool, *mut c_void, sys::CUmemAllocationHandleType, c_ulonglong);
        cuMemPoolExportPointer(*mut sys::CUmemPoolPtrExportData, sys::CUdeviceptr);
        cuMemPoolImportPointer(*mut sys::CUdeviceptr, sys::CUmemoryPool, *mut sys::CUmemPoolPtrExportData);
        cuMemAllocFromPoolAsync(*mut sys::CUdeviceptr, usize, sys::CUmemoryPool, sys::CUstream);
        cuMemFreeAsync(sys::CUdeviceptr, sys::CUstream);
    }
}

functions! {
    /// The older handles of 64 bytes, for whole blocks and for events.
    Ipc {
        cuIpcGetEventHandle(*mut sys::CUipcEventHandle, sys::CUevent);
        cuIpcOpenEventHandle(*mut sys::CUevent, sys::CUipcEventHandle);
        cuIpcGetMemHandle(*mut sys::CUipcMemHandle, sys::CUdeviceptr);
        cuIpcOpenMemHandle_v2(*mut sys::CUdeviceptr, sys::CUipcMemHandle, c_uint);
        cuIpcCloseMemHandle(sys::CUdeviceptr);
    }
}

/// The first form of `cuDeviceGetUuid`. For a MIG instance, it returns the UUID of the whole
/// device. The second form returns the UUID of the instance.
///
/// The header of CUDA 13 lacks the first form, but the library may have it. The table above does
/// not contain it, because this crate works without it.
pub type WholeUuid = unsafe extern "C" fn(*mut sys::CUuuid, sys::CUdevice) -> c_uint;

/// Looks up the first form of `cuDeviceGetUuid`. Returns `None` if the library lacks it.
///
/// # Safety
/// The driver's library is present.
pub unsafe fn whole_uuid() -> Option<WholeUuid> {
    // SAFETY: the caller guarantees that the library is present. The signature is that of the
    // headers before 13.0, and also that of the second form.
    unsafe { sys::culib().get::<WholeUuid>(b"cuDeviceGetUuid\0") }.ok().map(|found| *found)
}

/// The signature of `cuThreadExchangeStreamCaptureMode`. The table above does not contain this
/// function, because older libraries lack it and this crate works without it.
pub type ExchangeCaptureMode = unsafe extern "C" fn(*mut c_uint) -> c_uint;

/// Looks up `cuThreadExchangeStreamCaptureMode`. Returns `None` if the library lacks it.
///
/// # Safety
/// The driver's library is present.
pub unsafe fn exchange_capture_mode() -> Option<ExchangeCaptureMode> {
    // SAFETY: the caller guarantees that the library is present. The function exchanges an enum of
    // C, which is an unsigned int.
    unsafe { sys::culib().get::<ExchangeCaptureMode>(b"cuThreadExchangeStreamCaptureMode\0") }.ok().map(|found| *found)
}

/// The functions that return the texts of the driver's numbers. The table above does not contain
/// them. In cudarc's signature their first argument is a Rust enum, which must not contain an
/// unknown number. Here the argument is an unsigned int, as in C.
pub struct Texts {
    pub name: Text,
    pub sentence: Text,
}

/// The signature of `cuGetErrorName` and `cuGetErrorString`.
pub type Text = unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint;

impl Texts {
    /// Looks up both functions, or returns the name of the first missing one.
    ///
    /// # Safety
    /// The driver's library is present.
    pub unsafe fn load() -> Result<Self, &'static str> {
        // SAFETY: the caller guarantees that the library is present. The library is never unloaded.
        // The signature is that of C, in which the enum is an unsigned int.
        let find = |name: &[u8]| unsafe { sys::culib().get::<Text>(name).map(|found| *found).ok() };
        Ok(Self {
            name: find(b"cuGetErrorName\0").ok_or("cuGetErrorName")?,
            sentence: find(b"cuGetErrorString\0").ok_or("cuGetErrorString")?,
        })
    }
}

/// Returns the properties of device memory that a descriptor can represent.
pub fn exportable(device: sys::CUdevice) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: POSIX,
        location: on(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Returns the location of one device.
pub fn on(device: sys::CUdevice) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// The handle type for file descriptors.
pub const POSIX: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Returns the bytes of a handle or a UUID. The driver declares them as C's `char`, which is signed on some machines.
pub fn bytes<const N: usize>(chars: [c_char; N]) -> [u8; N] {
    chars.map(|char| u8::from_ne_bytes(char.to_ne_bytes()))
}

/// Returns bytes as the driver declares them: the inverse of [`bytes`].
pub fn chars<const N: usize>(bytes: &[u8; N]) -> [c_char; N] {
    bytes.map(|byte| c_char::from_ne_bytes([byte]))
}
