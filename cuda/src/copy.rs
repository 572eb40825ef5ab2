//! Copies to, from and on a device, and host memory that a device can access directly.
//!
//! Addresses on a device are plain numbers. Host memory is a raw pointer, because most copied
//! memory is shared with other processes. All functions need a current context
//! ([`Context::enter`]).
//!
//! Source: CUDA Driver API 13.0, section "Memory Management". For synchronous and asynchronous
//! behaviour, section "API synchronization behavior".
#![allow(unsafe_code)]

use crate::context::Context;
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Result, check};
use crate::stream::StreamRef;
use cudarc::driver::sys;
use std::ptr::NonNull;

/// Copies `bytes` from the host to the device. The copy runs after the present work of the legacy
/// default stream and of the streams that synchronize with it.
///
/// With pageable memory, the call may return before the bytes have arrived at the device, but not
/// before the driver has read them. Later work in the order of these streams sees the bytes.
///
/// # Errors
/// The driver's error.
///
/// # Safety
/// 1. `bytes` bytes at `src` on the host are readable, and `bytes` bytes at `dst` on the device are
///    writable.
/// 2. During the copy, nothing else writes the source or accesses the destination.
pub unsafe fn htod(dst: u64, src: *const u8, bytes: usize) -> Result<()> {
    let api = Driver::api()?;
    // SAFETY: the caller guarantees that both ranges are valid, and that nothing else writes the
    // source or accesses the destination during the copy.
    let answer = unsafe { (api.cuMemcpyHtoD_v2)(dst, src.cast(), bytes) };
    check(answer, "cuMemcpyHtoD_v2", || format!("copying {bytes} bytes to the device"))
}

/// Copies `bytes` from the device to the host, and returns when the bytes have arrived.
///
/// # Errors
/// The driver's error.
///
/// # Safety
/// 1. `bytes` bytes at `src` on the device are readable, and `bytes` bytes at `dst` on the host are
///    writable.
/// 2. During the copy, nothing else writes the source or accesses the destination.
pub unsafe fn dtoh(dst: *mut u8, src: u64, bytes: usize) -> Result<()> {
    let api = Driver::api()?;
    // SAFETY: the caller guarantees that both ranges are valid, and that nothing else writes the
    // source or accesses the destination during the copy.
    let answer = unsafe { (api.cuMemcpyDtoH_v2)(dst.cast(), src, bytes) };
    check(answer, "cuMemcpyDtoH_v2", || format!("copying {bytes} bytes from the device"))
}

/// Copies `bytes` on the device, in the order of the legacy default stream. The call may return
/// before the copy is done.
///
/// # Errors
/// The driver's error.
///
/// # Safety
/// 1. `bytes` bytes at `src` are readable and `bytes` bytes at `dst` are writable. Both ranges are
///    on devices and do not overlap.
/// 2. Until the copy is done, nothing else writes the source or accesses the destination.
pub unsafe fn dtod(dst: u64, src: u64, bytes: usize) -> Result<()> {
    let api = Driver::api()?;
    // SAFETY: the caller guarantees that both ranges are valid, and that nothing else writes the
    // source or accesses the destination during the copy.
    let answer = unsafe { (api.cuMemcpyDtoD_v2)(dst, src, bytes) };
    check(answer, "cuMemcpyDtoD_v2", || format!("copying {bytes} bytes on the device"))
}

/// Fills `bytes` on the device with one value, in the order of the legacy default stream. The call
/// may return before the bytes are written.
///
/// # Errors
/// The driver's error.
///
/// # Safety
/// 1. `bytes` bytes at `dst` on the device are writable.
/// 2. Nothing else accesses these bytes until they are written.
pub unsafe fn memset_d8(dst: u64, value: u8, bytes: usize) -> Result<()> {
    let api = Driver::api()?;
    // SAFETY: the caller guarantees that the range is writable, and that nothing else accesses it
    // until it is written.
    let answer = unsafe { (api.cuMemsetD8_v2)(dst, value, bytes) };
    check(answer, "cuMemsetD8_v2", || format!("filling {bytes} bytes on the device"))
}

/// Copies like [`htod`], in stream order. The driver may first copy the bytes out of pageable
/// memory before this function returns.
///
/// # Errors
/// The driver's error.
///
/// # Safety
/// 1. `bytes` bytes at `src` on the host are readable, and `bytes` bytes at `dst` on the device are
///    writable.
/// 2. Until the stream has executed this copy, both ranges exist, and nothing else writes the
///    source or accesses the destination.
pub unsafe fn htod_async<'s>(dst: u64, src: *const u8, bytes: usize, stream: impl Into<StreamRef<'s>>) -> Result<()> {
    let api = Driver::api()?;
    // SAFETY: the caller guarantees that both ranges stay valid until the stream has executed the
    // copy, without other access. The stream is borrowed, so it exists.
    let answer = unsafe { (api.cuMemcpyHtoDAsync_v2)(dst, src.cast(), bytes, stream.into().raw()) };
    check(answer, "cuMemcpyHtoDAsync_v2", || format!("copying {bytes} bytes to the device"))
}

/// Copies like [`dtoh`], in stream order.
///
/// # Errors
/// The driver's error.
///
/// # Safety
/// 1. `bytes` bytes at `src` on the device are readable, and `bytes` bytes at `dst` on the host are
///    writable.
/// 2. Until the stream has executed this copy, both ranges exist, and nothing else writes the
///    source or accesses the destination.
pub unsafe fn dtoh_async<'s>(dst: *mut u8, src: u64, bytes: usize, stream: impl Into<StreamRef<'s>>) -> Result<()> {
    let api = Driver::api()?;
    // SAFETY: the caller guarantees that both ranges stay valid until the stream has executed the
    // copy, without other access. The stream is borrowed, so it exists.
    let answer = unsafe { (api.cuMemcpyDtoHAsync_v2)(dst.cast(), src, bytes, stream.into().raw()) };
    check(answer, "cuMemcpyDtoHAsync_v2", || format!("copying {bytes} bytes from the device"))
}

/// Copies like [`dtod`], in stream order.
///
/// # Errors
/// The driver's error.
///
/// # Safety
/// 1. `bytes` bytes at `src` are readable and `bytes` bytes at `dst` are writable. Both ranges are
///    on devices and do not overlap.
/// 2. Until the stream has executed this copy, both ranges exist, and nothing else writes the
///    source or accesses the destination.
pub unsafe fn dtod_async<'s>(dst: u64, src: u64, bytes: usize, stream: impl Into<StreamRef<'s>>) -> Result<()> {
    let api = Driver::api()?;
    // SAFETY: the caller guarantees that both ranges stay valid until the stream has executed the
    // copy, without other access. The stream is borrowed, so it exists.
    let answer = unsafe { (api.cuMemcpyDtoDAsync_v2)(dst, src, bytes, stream.into().raw()) };
    check(answer, "cuMemcpyDtoDAsync_v2", || format!("copying {bytes} bytes on the device"))
}

/// Fills memory like [`memset_d8`], in stream order.
///
/// # Errors
/// The driver's error.
///
/// # Safety
/// 1. `bytes` bytes at `dst` on the device are writable.
/// 2. Until the stream has executed this operation, the range exists, and nothing else accesses it.
pub unsafe fn memset_d8_async<'s>(dst: u64, value: u8, bytes: usize, stream: impl Into<StreamRef<'s>>) -> Result<()> {
    let api = Driver::api()?;
    // SAFETY: the caller guarantees that the range stays valid until the stream has executed the
    // operation, without other access. The stream is borrowed, so it exists.
    let answer = unsafe { (api.cuMemsetD8Async)(dst, value, bytes, stream.into().raw()) };
    check(answer, "cuMemsetD8Async", || format!("filling {bytes} bytes on the device"))
}

/// Host memory with pinned pages, for all contexts of the process. Devices copy from and to it
/// directly, and kernels may use it.
#[derive(Debug)]
pub struct HostRegistration {
    start: NonNull<u8>,
    is_read_only: bool,
    context: Context,
}

// SAFETY: the address only names the registration. The value never reads or writes through it.
unsafe impl Send for HostRegistration {}
// SAFETY: the address only names the registration. The value never reads or writes through it.
unsafe impl Sync for HostRegistration {}

impl HostRegistration {
    /// Registers `bytes` from `start` on, mapped in this process. With `read_only`, devices may not
    /// write the range, if `device` [supports](crate::device::Supports::read_only_registration)
    /// such a registration. If it does not, the driver refuses to register a read-only mapping.
    ///
    /// # Errors
    /// The driver's error: `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`, or another error for
    /// unsuitable memory.
    ///
    /// # Safety
    /// 1. The range stays mapped to the same pages until the result is dropped. No work on a device
    ///    still uses the range at that time.
    pub unsafe fn register(
        context: &Context,
        device: &Device,
        start: NonNull<u8>,
        bytes: usize,
        read_only: bool,
    ) -> Result<Self> {
        let _current = context.enter()?;
        let is_read_only = read_only && device.supports().read_only_registration;
        let read_only = if is_read_only { sys::CU_MEMHOSTREGISTER_READ_ONLY } else { 0 };
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP | read_only;
        let api = Driver::api()?;
        // SAFETY: the caller guarantees that the range stays mapped until the registration is
        // dropped.
        let answer = unsafe { (api.cuMemHostRegister_v2)(start.as_ptr().cast(), bytes, flags) };
        check(answer, "cuMemHostRegister_v2", || {
            format!("registering {bytes} bytes of the host's memory with {device}")
        })?;
        Ok(Self { start, is_read_only, context: context.clone() })
    }

    /// Returns true if devices may only read the memory.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns the start of the range for kernels. On most devices, the address is the same as on
    /// the host.
    ///
    /// # Errors
    /// The driver's error, if the device cannot map the host's memory.
    pub fn device_pointer(&self) -> Result<u64> {
        let _current = self.context.enter()?;
        let (api, mut ptr) = (Driver::api()?, 0);
        // SAFETY: the call writes one address; the range is registered.
        let answer = unsafe { (api.cuMemHostGetDevicePointer_v2)(&raw mut ptr, self.start.as_ptr().cast(), 0) };
        check(answer, "cuMemHostGetDevicePointer_v2", || "asking where registered memory is for the device".into())?;
        Ok(ptr)
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        let (Ok(api), Ok(_current)) = (Driver::api(), self.context.enter()) else { return };
        // SAFETY: `register` registered the range, and this line unregisters it once. The caller of
        // `register` guarantees that the range is still mapped.
        unsafe { (api.cuMemHostUnregister)(self.start.as_ptr().cast()) };
    }
}
