//! The relaxed capture mode, for event queries while another thread captures a graph.
#![allow(unsafe_code)]

use crate::driver::Driver;
use std::ffi::c_uint;
use std::marker::PhantomData;

/// The value of `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;

/// A guard for calls of this thread while another thread captures a graph. During the guard, these
/// calls neither fail nor invalidate the capture. In the usual capture mode, even the query of an
/// event does both. The thread must not query anything that is being captured.
///
/// Source: CUDA Driver API 13.0, section "Stream Management", `cuThreadExchangeStreamCaptureMode`.
#[derive(Debug)]
#[must_use = "the mode holds only as long as this lives"]
pub struct Relaxed {
    before: Option<c_uint>,
    /// Keeps the guard in its thread, because the mode belongs to the thread.
    of_this_thread: PhantomData<*const ()>,
}

impl Relaxed {
    /// Enters the relaxed mode, if the driver has capture modes.
    pub fn enter() -> Self {
        Self { before: exchange(RELAXED), of_this_thread: PhantomData }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            exchange(before);
        }
    }
}

/// Sets the mode and returns the former mode. Returns `None` if the driver has no modes or refuses.
fn exchange(mut mode: c_uint) -> Option<c_uint> {
    let exchange = Driver::get().ok()?.exchange_capture_mode()?;
    // SAFETY: the call reads one mode, which comes from the header or from a former call. The call
    // writes the former mode.
    let answer = unsafe { exchange(&raw mut mode) };
    (answer == 0).then_some(mode)
}
