//! The older way of sharing memory: plain blocks, which another process opens with a handle of 64
//! bytes.
//!
//! This module exists for programs that support nothing else, and for measurements. The handle is a
//! bearer token. The handle gives access to the whole block that contains the memory, and a block
//! may contain several small allocations. Both processes must see each other's process ids.
//!
//! Source: CUDA Driver API 13.0, section "Memory Management".
#![allow(unsafe_code)]

use crate::api;
use crate::context::Context;
use crate::driver::Driver;
use crate::error::{Result, check};
use cudarc::driver::sys;
use tensorlend_layout::size;

/// Memory that `cuMemAlloc` allocated. A drop frees the memory.
#[derive(Debug)]
pub struct PlainBlock {
    ptr: u64,
    bytes: u64,
    context: Context,
}

impl PlainBlock {
    /// Allocates `bytes` on the context's device.
    ///
    /// # Errors
    /// [`is_out_of_memory`](crate::Error::is_out_of_memory); otherwise the driver's error, such as
    /// `CUDA_ERROR_INVALID_VALUE` for 0 bytes.
    pub fn allocate(context: &Context, bytes: u64) -> Result<Self> {
        let _current = context.enter()?;
        let (api, mut ptr) = (Driver::api()?, 0);
        // SAFETY: the call writes one address.
        let answer = unsafe { (api.cuMemAlloc_v2)(&raw mut ptr, size::index(bytes)) };
        check(answer, "cuMemAlloc_v2", || format!("allocating a plain block of {bytes} bytes"))?;
        Ok(Self { ptr, bytes, context: context.clone() })
    }

    /// Returns the block's address in this process.
    #[inline]
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Returns the block's length in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the handle with which another process opens the block. The handle is valid while the
    /// block lives.
    ///
    /// # Errors
    /// [`is_unsupported`](crate::Error::is_unsupported) if the device or the system does not
    /// support such handles; otherwise the driver's error.
    pub fn ipc_handle(&self) -> Result<[u8; 64]> {
        handle_of(self.ptr)
    }
}

/// Returns the handle of the plain block that contains an address, for memory that a framework has
/// allocated.
///
/// # Errors
/// The driver's error: `CUDA_ERROR_INVALID_VALUE` for memory of another kind (mapped, or a pool's).
pub fn handle_of(ptr: u64) -> Result<[u8; 64]> {
    let (ipc, mut handle) = (Driver::ipc()?, sys::CUipcMemHandle { reserved: [0; 64] });
    // SAFETY: the call writes 64 bytes. The driver only looks the address up.
    let answer = unsafe { (ipc.cuIpcGetMemHandle)(&raw mut handle, ptr) };
    check(answer, "cuIpcGetMemHandle", || "exporting a plain block".into())?;
    Ok(api::bytes(handle.reserved))
}

impl Drop for PlainBlock {
    fn drop(&mut self) {
        let (Ok(api), Ok(_current)) = (Driver::api(), self.context.enter()) else { return };
        // SAFETY: `allocate` allocated the block, and this line frees it once. The driver waits for
        // the device's work.
        unsafe { (api.cuMemFree_v2)(self.ptr) };
    }
}

/// A block of another process. A drop closes the block.
#[derive(Debug)]
pub struct Opened {
    ptr: u64,
    is_closed: bool,
    context: Context,
}

impl Opened {
    /// Opens the block of a handle. Fails in the process that created the block. The result starts
    /// at the beginning of the whole block. If the exported address was inside the block, the
    /// exporter must send the offset separately.
    ///
    /// # Errors
    /// The driver's error, also for bytes that are not a handle, or the handle of a freed block.
    pub fn open(context: &Context, handle: &[u8; 64]) -> Result<Self> {
        let ipc = Driver::ipc()?;
        let _current = context.enter()?;
        let (mut ptr, handle) = (0, sys::CUipcMemHandle { reserved: api::chars(handle) });
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        // SAFETY: the call takes 64 bytes and checks them. It writes one address.
        let answer = unsafe { (ipc.cuIpcOpenMemHandle_v2)(&raw mut ptr, handle, flags) };
        check(answer, "cuIpcOpenMemHandle_v2", || "opening another process's block".into())?;
        Ok(Self { ptr, is_closed: false, context: context.clone() })
    }

    /// Returns the block's address in this process.
    #[inline]
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Closes the block and returns the result. A drop ignores the result.
    ///
    /// # Errors
    /// The driver's error.
    pub fn close(mut self) -> Result<()> {
        self.close_once()
    }

    fn close_once(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        let ipc = Driver::ipc()?;
        let _current = self.context.enter()?;
        // SAFETY: `open` opened the block, and this line closes it once.
        check(unsafe { (ipc.cuIpcCloseMemHandle)(self.ptr) }, "cuIpcCloseMemHandle", || "closing a block".into())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // A drop cannot report the error.
        let _ = self.close_once();
    }
}
