//! Contexts: the environment in which work on a device runs.
#![allow(unsafe_code)]

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Result, check};
use cudarc::driver::sys;
use std::marker::PhantomData;
use std::sync::Arc;

/// A context of a device. A clone is cheap. The last clone releases the context, after the last
/// stream, event or block made in it.
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

// SAFETY: a context is a handle that any thread may use. It may be current in several threads at a
// time.
unsafe impl Send for Held {}
// SAFETY: a context is a handle that several threads may use at a time, and the value is immutable.
unsafe impl Sync for Held {}

/// The current context of the calling thread, and its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Current {
    /// The handle: a `CUcontext`.
    pub raw: usize,
    /// The device's ordinal.
    pub device: u32,
}

/// A guard that makes the context current in this thread. Guards must end in the reverse order of
/// their beginnings.
#[derive(Debug)]
#[must_use = "the context is current only as long as this lives"]
pub struct Guard<'c> {
    context: &'c Context,
    /// Keeps the guard in its thread, because each thread has a current context of its own.
    of_this_thread: PhantomData<*const ()>,
}

impl Context {
    /// Retains the device's primary context, which frameworks share within a process. The first use
    /// creates the context. That takes some tenths of a second, and some hundred MiB of the
    /// device's memory until the last user in the process releases the context.
    ///
    /// # Errors
    /// [`is_out_of_memory`](crate::Error::is_out_of_memory); otherwise the driver's error.
    pub fn primary(device: &Device) -> Result<Self> {
        let (api, mut raw) = (Driver::api()?, std::ptr::null_mut());
        // SAFETY: the call writes one handle.
        let answer = unsafe { (api.cuDevicePrimaryCtxRetain)(&raw mut raw, device.raw()) };
        check(answer, "cuDevicePrimaryCtxRetain", || format!("retaining the primary context of {device}"))?;
        Ok(Self { held: Arc::new(Held { raw, device: device.raw(), is_retained: true }) })
    }

    /// Returns true if this process already has the device's primary context. Does not create the
    /// context.
    ///
    /// # Errors
    /// The driver's error.
    pub fn is_primary_active(device: &Device) -> Result<bool> {
        let (api, mut flags, mut active) = (Driver::api()?, 0, 0);
        // SAFETY: the call writes one unsigned int and one int.
        let answer = unsafe { (api.cuDevicePrimaryCtxGetState)(device.raw(), &raw mut flags, &raw mut active) };
        check(answer, "cuDevicePrimaryCtxGetState", || format!("asking for the primary context of {device}"))?;
        Ok(active != 0)
    }

    /// Wraps a context of another library, such as that of [`Context::current`]. The result never
    /// releases the context.
    ///
    /// # Safety
    /// 1. `raw` is a `CUcontext` of `device` in this process.
    /// 2. The context outlives this value and everything made in it.
    pub unsafe fn from_raw(raw: usize, device: &Device) -> Self {
        let raw = std::ptr::with_exposed_provenance_mut(raw);
        Self { held: Arc::new(Held { raw, device: device.raw(), is_retained: false }) }
    }

    /// Returns the current context of this thread, or `None`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn current() -> Result<Option<Current>> {
        let (api, mut raw, mut device) = (Driver::api()?, std::ptr::null_mut(), 0);
        let doing = || "asking for the current context".into();
        // SAFETY: the call writes one handle, which is null if there is no context.
        check(unsafe { (api.cuCtxGetCurrent)(&raw mut raw) }, "cuCtxGetCurrent", doing)?;
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: the call writes one handle.
        check(unsafe { (api.cuCtxGetDevice)(&raw mut device) }, "cuCtxGetDevice", doing)?;
        Ok(Some(Current { raw: raw.expose_provenance(), device: device.unsigned_abs() }))
    }

    /// Waits for all present work in all streams of the context.
    ///
    /// # Errors
    /// The driver's error, including the error of earlier work: [`is_lost`](crate::Error::is_lost)
    /// if some of it failed.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the call waits for the current context, which is this one.
        check(unsafe { (Driver::api()?.cuCtxSynchronize)() }, "cuCtxSynchronize", || "waiting for a context".into())
    }

    /// Makes the context current in this thread until the guard is dropped. The drop restores the
    /// former context.
    ///
    /// # Errors
    /// The driver's error. A lost context cannot be entered.
    pub fn enter(&self) -> Result<Guard<'_>> {
        let api = Driver::api()?;
        // SAFETY: the context exists, because `Held` retains it, or because the caller of
        // `from_raw` guarantees that it outlives this value.
        let answer = unsafe { (api.cuCtxPushCurrent_v2)(self.held.raw) };
        check(answer, "cuCtxPushCurrent_v2", || "entering a context".into())?;
        Ok(Guard { context: self, of_this_thread: PhantomData })
    }

    /// Returns the driver's handle, a `CUcontext`.
    pub fn raw(&self) -> usize {
        self.held.raw.expose_provenance()
    }

    /// Returns true if the context belongs to this device.
    pub fn is_of(&self, device: &Device) -> bool {
        self.held.device == device.raw()
    }
}

impl Guard<'_> {
    /// Returns the context that this guard has made current.
    pub fn context(&self) -> &Context {
        self.context
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let Ok(api) = Driver::api() else { return };
        let mut raw = std::ptr::null_mut();
        // The popped context may be another one, because a caller may have replaced this one, as
        // `cudaSetDevice` does.
        // SAFETY: the call writes one handle. A guard cannot be sent to another thread, so this pop
        // is on the same thread as the push.
        unsafe { (api.cuCtxPopCurrent_v2)(&raw mut raw) };
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_retained {
            return;
        }
        if let Ok(api) = Driver::api() {
            // SAFETY: `primary` retained the context once, and this line releases it once.
            // Everything made in the context had a clone of this value, so nothing made in it
            // remains.
            unsafe { (api.cuDevicePrimaryCtxRelease_v2)(self.device) };
        }
    }
}
