//! Captures of graphs, and who asks about events meanwhile.
#![allow(unsafe_code)]

use crate::driver::Driver;
use std::ffi::c_uint;
use std::marker::PhantomData;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;

/// While this lives, calls of this thread neither fail nor spoil a capture because some thread records a graph: in the
/// usual mode of capture, even to ask whether an event has fired does both. For threads that ask about nothing that is being
/// captured.
///
/// Source: CUDA Driver API 13.0, section "Stream Management", `cuThreadExchangeStreamCaptureMode`.
#[derive(Debug)]
#[must_use = "the mode holds only as long as this lives"]
pub struct Relaxed {
    before: Option<c_uint>,
    /// The mode is the thread's.
    of_this_thread: PhantomData<*const ()>,
}

impl Relaxed {
    /// Enters the mode, where the driver has it.
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

/// The mode before; `None` if there is none to speak of.
fn exchange(mut mode: c_uint) -> Option<c_uint> {
    let exchange = Driver::get().ok()?.exchange_capture_mode()?;
    // SAFETY: it reads one mode, which is one of the header's or what it wrote before, and writes the mode before.
    let answer = unsafe { exchange(&raw mut mode) };
    (answer == 0).then_some(mode)
}
