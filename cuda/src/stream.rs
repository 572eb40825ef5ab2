//! Streams: sequences of work on a device, executed in order.
#![allow(unsafe_code)]

use crate::context::Context;
use crate::driver::Driver;
use crate::error::{Result, check, is_done};
use crate::event::Event;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::marker::PhantomData;

/// A stream that this process created. Its work runs in order, and does not synchronize with the
/// legacy default stream.
///
/// Source: CUDA Driver API 13.0, section "Stream Management".
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    context: Context,
}

/// A borrowed stream, for the lifetime `'s`. Believed, and to be confirmed on hardware: calls on a
/// stream with its own context need no current context. The default streams belong to the current
/// context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRef<'s> {
    raw: sys::CUstream,
    of: PhantomData<&'s Stream>,
}

// SAFETY: a stream is a handle that any thread may use. The driver orders the work of several
// threads.
unsafe impl Send for Stream {}
// SAFETY: a stream is a handle that several threads may use at a time. The driver orders their
// work.
unsafe impl Sync for Stream {}
// SAFETY: a stream is a handle that any thread may use. The driver orders the work of several
// threads.
unsafe impl Send for StreamRef<'_> {}
// SAFETY: a stream is a handle that several threads may use at a time. The driver orders their
// work.
unsafe impl Sync for StreamRef<'_> {}

impl Stream {
    /// Creates a stream in a context.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(context: &Context) -> Result<Self> {
        let _current = context.enter()?;
        let (api, mut raw) = (Driver::api()?, std::ptr::null_mut());
        // SAFETY: the call writes one handle.
        let answer = unsafe { (api.cuStreamCreate)(&raw mut raw, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32) };
        check(answer, "cuStreamCreate", || "making a stream".into())?;
        Ok(Self { raw, context: context.clone() })
    }

    /// Borrows the stream.
    #[inline]
    pub fn by_ref(&self) -> StreamRef<'_> {
        StreamRef { raw: self.raw, of: PhantomData }
    }

    /// Returns the stream's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Waits for all present work in the stream, like [`StreamRef::synchronize`].
    ///
    /// # Errors
    /// The errors of [`StreamRef::synchronize`].
    pub fn synchronize(&self) -> Result<()> {
        self.by_ref().synchronize()
    }

    /// Returns true if all present work in the stream is done, like [`StreamRef::query`].
    ///
    /// # Errors
    /// The errors of [`StreamRef::query`].
    pub fn query(&self) -> Result<bool> {
        self.by_ref().query()
    }

    /// Makes later work in the stream wait for an event, like [`StreamRef::wait_event`].
    ///
    /// # Errors
    /// The errors of [`StreamRef::wait_event`].
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        self.by_ref().wait_event(event)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(api) = Driver::api() {
            // SAFETY: `new` created the stream, and this line destroys it once. The field `context`
            // keeps the context alive. The stream's work continues, and the driver frees its
            // resources when the work is done.
            unsafe { (api.cuStreamDestroy_v2)(self.raw) };
        }
    }
}

impl<'s> From<&'s Stream> for StreamRef<'s> {
    fn from(stream: &'s Stream) -> Self {
        stream.by_ref()
    }
}

impl StreamRef<'static> {
    /// The legacy default stream of the current context. All streams synchronize with it, except
    /// the non-blocking ones.
    pub const LEGACY: Self = Self { raw: std::ptr::without_provenance_mut(1), of: PhantomData };

    /// The default stream of the calling thread in the current context.
    pub const PER_THREAD: Self = Self { raw: std::ptr::without_provenance_mut(2), of: PhantomData };
}

impl StreamRef<'_> {
    /// Wraps a caller's stream, given its handle. The handle is a `CUstream` or `cudaStream_t` in
    /// CUDA's C interface, and a number in DLPack's `__dlpack__` and in the numpy-like
    /// `__cuda_array_interface__`. 0 and 1 are the legacy default stream, and 2 is the calling
    /// thread's stream. The caller interprets a protocol's -1 or 0.
    ///
    /// # Safety
    /// 1. `raw` is 0, 1, 2, or a stream of this process.
    /// 2. The stream outlives the lifetime that the caller chooses for the result.
    pub unsafe fn from_raw(raw: usize) -> Self {
        Self { raw: std::ptr::with_exposed_provenance_mut(raw), of: PhantomData }
    }

    /// Returns the driver's handle: 0 to 2 for the default streams, otherwise a `CUstream`.
    pub fn as_raw(self) -> usize {
        self.raw.expose_provenance()
    }

    /// Returns the context of the stream's work. For a default stream, this is the current context
    /// of this thread.
    ///
    /// # Errors
    /// The driver's error.
    pub fn context(self) -> Result<usize> {
        let (api, mut context) = (Driver::api()?, std::ptr::null_mut());
        // SAFETY: the call writes one handle. The stream is valid: the caller of `from_raw`
        // guarantees that it exists for the lifetime of this value, or its owner lends it.
        let answer = unsafe { (api.cuStreamGetCtx)(self.raw(), &raw mut context) };
        check(answer, "cuStreamGetCtx", || "asking for a stream's context".into())?;
        Ok(context.expose_provenance())
    }

    /// Waits for all present work in the stream.
    ///
    /// # Errors
    /// The driver's error, including the error of earlier work: [`is_lost`](crate::Error::is_lost)
    /// if some of it failed.
    pub fn synchronize(self) -> Result<()> {
        let api = Driver::api()?;
        // SAFETY: the stream exists: the caller of `from_raw` guarantees that it exists for the
        // lifetime of this value, or its owner lends it.
        check(unsafe { (api.cuStreamSynchronize)(self.raw) }, "cuStreamSynchronize", || "waiting for a stream".into())
    }

    /// Returns true if all present work in the stream is done.
    ///
    /// # Errors
    /// The errors of [`StreamRef::synchronize`].
    pub fn query(self) -> Result<bool> {
        let api = Driver::api()?;
        // SAFETY: the stream exists: the caller of `from_raw` guarantees that it exists for the
        // lifetime of this value, or its owner lends it.
        is_done(unsafe { (api.cuStreamQuery)(self.raw) }, "cuStreamQuery", || "asking a stream".into())
    }

    /// Makes later work in the stream wait for the event's present record. The caller does not
    /// wait. The event may belong to another device. The caller may drop the event, or record it
    /// again, right afterwards.
    ///
    /// # Errors
    /// The driver's error.
    pub fn wait_event(self, event: &Event) -> Result<()> {
        let api = Driver::api()?;
        // SAFETY: the stream exists: the caller of `from_raw` guarantees that it exists for the
        // lifetime of this value, or its owner lends it. The event is borrowed from its owner.
        let answer = unsafe { (api.cuStreamWaitEvent)(self.raw, event.raw(), 0) };
        check(answer, "cuStreamWaitEvent", || "letting a stream wait for an event".into())
    }

    /// Makes later work in the stream wait for a word of 32 bits: until `word - value`, modulo 2^32
    /// and read as a signed number, is not negative. The caller does not wait. Unlike another
    /// process's event, the word can be written when that process is dead.
    ///
    /// # Errors
    /// [`is_unsupported`](crate::Error::is_unsupported) if the device has no such wait; otherwise
    /// the driver's error.
    ///
    /// # Safety
    /// 1. `at` is the device's address of an aligned word in device memory or registered host
    ///    memory, until the stream has passed the wait.
    pub unsafe fn wait_word(self, at: u64, value: u32) -> Result<()> {
        let (api, flags) = (Driver::api()?, sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32);
        // SAFETY: the stream exists: the caller of `from_raw` guarantees that it exists for the
        // lifetime of this value, or its owner lends it. The caller guarantees that the address is
        // valid.
        let answer = unsafe { (api.cuStreamWaitValue32_v2)(self.raw, at, value, flags) };
        check(answer, "cuStreamWaitValue32_v2", || "letting a stream wait for a word".into())
    }

    /// Calls a function of the host after the present work in the stream, on a thread of the driver.
    /// Later work in the stream waits for the function. If the stream's context is lost, the driver
    /// does not call the function.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// 1. `data` is valid for `function` until the function has returned, or the context is lost.
    /// 2. The function calls nothing of CUDA, and does not wait for a thread that does.
    pub unsafe fn call(self, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> Result<()> {
        let api = Driver::api()?;
        // SAFETY: the stream exists: the caller of `from_raw` guarantees that it exists for the
        // lifetime of this value, or its owner lends it. The caller guarantees the rest.
        let answer = unsafe { (api.cuLaunchHostFunc)(self.raw, Some(function), data) };
        check(answer, "cuLaunchHostFunc", || "queueing a function of the host".into())
    }

    pub(crate) fn raw(self) -> sys::CUstream {
        self.raw
    }
}
