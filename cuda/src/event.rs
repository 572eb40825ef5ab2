//! Events: points in a stream that a caller can wait for.
#![allow(unsafe_code)]

use crate::api;
use crate::context::Context;
use crate::driver::Driver;
use crate::error::{Result, check, is_done};
use crate::stream::StreamRef;
use cudarc::driver::sys::{self, CUevent_flags as Flags};

/// An event. The event fires when all work recorded before it in its stream is done. An event that
/// was never recorded counts as fired.
///
/// An event of this crate records no times, which makes it cheaper. Believed, and to be confirmed
/// on hardware: `record` and `query` need no current context.
///
/// Source: CUDA Driver API 13.0, section "Event Management". For events between processes, section
/// "Memory Management".
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    /// Keeps the context alive until the event is destroyed.
    _context: Context,
}

// SAFETY: an event is a handle that any thread may use.
unsafe impl Send for Event {}
// SAFETY: an event is a handle that several threads may use at a time.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event in a context. With `blocking_sync`, [`Event::synchronize`] sleeps until the
    /// device's interrupt. Otherwise it spins, which is faster and keeps a core busy.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(context: &Context, blocking_sync: bool) -> Result<Self> {
        let blocking = if blocking_sync { Flags::CU_EVENT_BLOCKING_SYNC as u32 } else { 0 };
        Self::make(context, blocking | Flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    /// Creates an event that other processes can open. Only for devices that
    /// [support](crate::Device::require_ipc) such events.
    ///
    /// # Errors
    /// [`is_unsupported`](crate::Error::is_unsupported); otherwise the driver's error.
    pub fn interprocess(context: &Context) -> Result<Self> {
        Driver::ipc()?;
        Self::make(context, Flags::CU_EVENT_INTERPROCESS as u32 | Flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    fn make(context: &Context, flags: u32) -> Result<Self> {
        let _current = context.enter()?;
        let (api, mut raw) = (Driver::api()?, std::ptr::null_mut());
        // SAFETY: the call writes one handle.
        check(unsafe { (api.cuEventCreate)(&raw mut raw, flags) }, "cuEventCreate", || "making an event".into())?;
        Ok(Self { raw, _context: context.clone() })
    }

    /// Records the event after the present work of the stream. The new record replaces the event's
    /// former record. The stream must belong to the event's own context.
    ///
    /// # Errors
    /// The driver's error: `CUDA_ERROR_INVALID_HANDLE` for a stream of another context.
    pub fn record<'s>(&self, stream: impl Into<StreamRef<'s>>) -> Result<()> {
        let api = Driver::api()?;
        // SAFETY: this value owns the event, and the stream is borrowed.
        let answer = unsafe { (api.cuEventRecord)(self.raw, stream.into().raw()) };
        check(answer, "cuEventRecord", || "recording an event".into())
    }

    /// Returns true if the event has fired.
    ///
    /// # Errors
    /// The driver's error: [`is_lost`](crate::Error::is_lost) if work before it failed.
    pub fn query(&self) -> Result<bool> {
        let api = Driver::api()?;
        // SAFETY: this value owns the event.
        is_done(unsafe { (api.cuEventQuery)(self.raw) }, "cuEventQuery", || "asking an event".into())
    }

    /// Waits until the event has fired.
    ///
    /// # Errors
    /// The errors of [`Event::query`].
    pub fn synchronize(&self) -> Result<()> {
        let api = Driver::api()?;
        // SAFETY: this value owns the event.
        check(unsafe { (api.cuEventSynchronize)(self.raw) }, "cuEventSynchronize", || "waiting for an event".into())
    }

    /// Returns the handle with which another process opens the event. The handle is a bearer token:
    /// any process that knows it can open the event, wait for it and record it. Dropping this event
    /// makes the opened events meaningless.
    ///
    /// # Errors
    /// The driver's error, if the event does not come from [`Event::interprocess`].
    pub fn ipc_handle(&self) -> Result<[u8; 64]> {
        let (ipc, mut handle) = (Driver::ipc()?, sys::CUipcEventHandle { reserved: [0; 64] });
        // SAFETY: the call writes 64 bytes. This value owns the event.
        let answer = unsafe { (ipc.cuIpcGetEventHandle)(&raw mut handle, self.raw) };
        check(answer, "cuIpcGetEventHandle", || "exporting an event".into())?;
        Ok(api::bytes(handle.reserved))
    }

    /// Opens an event of another process on the same device. Fails in the process that created the
    /// event.
    ///
    /// # Errors
    /// The driver's error, also for bytes that are not a handle.
    pub fn open(context: &Context, handle: &[u8; 64]) -> Result<Self> {
        let ipc = Driver::ipc()?;
        let _current = context.enter()?;
        let (mut raw, handle) = (std::ptr::null_mut(), sys::CUipcEventHandle { reserved: api::chars(handle) });
        // SAFETY: the call takes 64 bytes and checks them. It writes one handle.
        let answer = unsafe { (ipc.cuIpcOpenEventHandle)(&raw mut raw, handle) };
        check(answer, "cuIpcOpenEventHandle", || "opening another process's event".into())?;
        Ok(Self { raw, _context: context.clone() })
    }

    pub(crate) fn raw(&self) -> sys::CUevent {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(api) = Driver::api() {
            // SAFETY: `new`, `interprocess` or `open` made the handle, and this line destroys it
            // once. The field `_context` keeps the context alive.
            unsafe { (api.cuEventDestroy_v2)(self.raw) };
        }
    }
}
