//! What work on a device happens in.
#![allow(unsafe_code)]

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Result, check};
use cudarc::driver::sys;
use std::marker::PhantomData;
use std::sync::Arc;

/// A context of a device. Cloning it is cheap; the last clone, and the last stream, event or block made in it, releases it.
///
/// Source: CUDA Driver API 13.0, sections "Primary Context Management" and "Context Management".
#[derive(Clone, Debug)]
pub struct Context {
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    raw: sys::CUcontext,
    device: sys::CUdevice,
    is_retained: bool,
}

// SAFETY: a context is a handle that any thread may use, and may be current in several at a time.
unsafe impl Send for Held {}
// SAFETY: as above; nothing of it changes.
unsafe impl Sync for Held {}

/// The context that is current in the calling thread, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Current {
    /// The `CUcontext`.
    pub raw: usize,
    /// The device's ordinal.
    pub device: u32,
}

/// As long as it lives, the context is current in this thread. Guards end in the reverse order of their beginnings.
#[derive(Debug)]
#[must_use = "the context is current only as long as this lives"]
pub struct Guard<'c> {
    context: &'c Context,
    /// What is current belongs to the thread.
    of_this_thread: PhantomData<*const ()>,
}

impl Context {
    /// The device's primary context, which frameworks share within a process. Made if this is the first use: that takes some
    /// tenths of a second and some hundred MiB of the device's memory, as long as anybody in the process retains it.
    ///
    /// # Errors
    /// [`is_out_of_memory`](crate::Error::is_out_of_memory); else what the driver answers.
    pub fn primary(device: &Device) -> Result<Self> {
        let (api, mut raw) = (Driver::api()?, std::ptr::null_mut());
        // SAFETY: it writes one handle.
        let answer = unsafe { (api.cuDevicePrimaryCtxRetain)(&raw mut raw, device.raw()) };
        check(answer, "cuDevicePrimaryCtxRetain", || format!("retaining the primary context of {device}"))?;
        Ok(Self { held: Arc::new(Held { raw, device: device.raw(), is_retained: true }) })
    }

    /// A context of somebody else's, such as [`Context::current`] names, which is not released.
    ///
    /// # Safety
    /// 1. `raw` is a `CUcontext` of `device` in this process.
    /// 2. It is not destroyed as long as this, or anything made in it, lives.
    pub unsafe fn from_raw(raw: usize, device: &Device) -> Self {
        let raw = std::ptr::with_exposed_provenance_mut(raw);
        Self { held: Arc::new(Held { raw, device: device.raw(), is_retained: false }) }
    }

    /// What is current in this thread, if anything is.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn current() -> Result<Option<Current>> {
        let (api, mut raw, mut device) = (Driver::api()?, std::ptr::null_mut(), 0);
        let doing = || "asking for the current context".into();
        // SAFETY: it writes one handle, null if there is none.
        check(unsafe { (api.cuCtxGetCurrent)(&raw mut raw) }, "cuCtxGetCurrent", doing)?;
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: it writes one handle.
        check(unsafe { (api.cuCtxGetDevice)(&raw mut device) }, "cuCtxGetDevice", doing)?;
        Ok(Some(Current { raw: raw.expose_provenance(), device: device.unsigned_abs() }))
    }

    /// Waits until everything that is in any of its streams now is done.
    ///
    /// # Errors
    /// What the driver answers, for work done earlier too: [`is_lost`](crate::Error::is_lost) if some of it failed.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: it waits for the context that is current, which is this one.
        check(unsafe { (Driver::api()?.cuCtxSynchronize)() }, "cuCtxSynchronize", || "waiting for a context".into())
    }

    /// Makes the context current in this thread until the guard is dropped; what was current before is current again then.
    ///
    /// # Errors
    /// What the driver answers: a context that is lost cannot be entered.
    pub fn enter(&self) -> Result<Guard<'_>> {
        let api = Driver::api()?;
        // SAFETY: retained by `Held`, or kept by whoever answered for it (`from_raw`, 2).
        let answer = unsafe { (api.cuCtxPushCurrent_v2)(self.held.raw) };
        check(answer, "cuCtxPushCurrent_v2", || "entering a context".into())?;
        Ok(Guard { context: self, of_this_thread: PhantomData })
    }

    /// The `CUcontext`.
    pub fn raw(&self) -> usize {
        self.held.raw.expose_provenance()
    }

    /// Whether it is a context of this device.
    pub fn is_of(&self, device: &Device) -> bool {
        self.held.device == device.raw()
    }
}

impl Guard<'_> {
    /// The context that is current.
    pub fn context(&self) -> &Context {
        self.context
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let Ok(api) = Driver::api() else { return };
        let mut raw = std::ptr::null_mut();
        // What comes out need not be ours: a caller may have put another in its place, as `cudaSetDevice` does.
        // SAFETY: it writes one handle. The thread has the stack that it was pushed on, since a guard cannot be sent.
        unsafe { (api.cuCtxPopCurrent_v2)(&raw mut raw) };
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_retained {
            return;
        }
        if let Ok(api) = Driver::api() {
            // SAFETY: retained once by `primary`, released once here; what was made in it held a clone.
            unsafe { (api.cuDevicePrimaryCtxRelease_v2)(self.device) };
        }
    }
}
