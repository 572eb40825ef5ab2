//! Copies between host and device.
//!
//! The contract: a device range lies in a mapped segment, and belongs to a draft (to write) or a lease (to read). The
//! copying function waits until the copy is done, so that borrows on the host last long enough.
#![allow(unsafe_code)]

use crate::error::Result;
use crate::gpu::{Gpu, trouble};
use crate::segment::bytes::Bytes;
use crate::segment::map::DeviceRange;
use crate::session::Session;
use std::sync::Arc;
use tensorlend_cuda::{Stream, copy};

/// Minimum length of a copy through the staging buffer, in bytes. For shorter copies the driver's own path is as fast.
const STAGED_BYTES_MIN: usize = 256 << 10;
/// Bytes of one half of the staging buffer: the host fills one half while the device reads the other.
const HALF_BYTES: usize = 2 << 20;

/// Copies all of `bytes` to the device; blocks until it is done.
pub fn copy_in(session: &Arc<Session>, gpu: &Gpu, to: DeviceRange, bytes: &[u8]) -> Result<()> {
    let doing = "copy to a device";
    assert!(bytes.len() as u64 <= to.bytes, "more than there is room for");
    if bytes.is_empty() {
        return Ok(());
    }
    if bytes.len() >= STAGED_BYTES_MIN
        && let Ok(stage) = Stage::new(session, gpu)
    {
        return stage.copy_in(gpu, to.ptr, bytes);
    }
    let context = gpu.context(doing)?;
    let _current = context.enter().map_err(trouble(doing))?;
    // SAFETY: the contract on device ranges; the lengths were compared. The bytes stay borrowed until the copy is done.
    unsafe { copy::htod(to.ptr, bytes.as_ptr(), bytes.len()) }.map_err(trouble(doing))?;
    // From pageable memory the call returns before the bytes have arrived.
    tensorlend_cuda::StreamRef::LEGACY.synchronize().map_err(trouble(doing))
}

/// Copies `from` to the host; blocks until it is done. `out` has the same length.
pub fn copy_out(gpu: &Gpu, from: DeviceRange, out: &mut [u8]) -> Result<()> {
    let doing = "copy from a device";
    assert!(out.len() as u64 <= from.bytes, "more than there is");
    if out.is_empty() {
        return Ok(());
    }
    let context = gpu.context(doing)?;
    let _current = context.enter().map_err(trouble(doing))?;
    // SAFETY: the contract on device ranges; the lengths were compared. The call returns when the copy is done.
    unsafe { copy::dtoh(out.as_mut_ptr(), from.ptr, out.len()) }.map_err(trouble(doing))
}

/// Copies on the device, as many bytes as the range has; blocks until it is done.
pub fn copy_on(gpu: &Gpu, to: DeviceRange, from: u64) -> Result<()> {
    let doing = "copy on a device";
    if to.bytes == 0 {
        return Ok(());
    }
    let context = gpu.context(doing)?;
    let _current = context.enter().map_err(trouble(doing))?;
    // SAFETY: the contract on device ranges holds for both; they are different slots or blocks.
    unsafe { copy::dtod(to.ptr, from, to.bytes as usize) }.map_err(trouble(doing))?;
    tensorlend_cuda::StreamRef::LEGACY.synchronize().map_err(trouble(doing))
}

/// A page-locked slot in this client's host memory.
struct Stage<'s> {
    session: &'s Arc<Session>,
    slot: u32,
    bytes: Bytes,
    stream: Stream,
}

impl<'s> Stage<'s> {
    fn new(session: &'s Arc<Session>, gpu: &Gpu) -> Result<Self> {
        let doing = "copy to a device";
        let stream = Stream::new(&gpu.context(doing)?).map_err(trouble(doing))?;
        let taken = session.alloc().take_unwatched(&**session, 2 * HALF_BYTES as u64)?;
        let stage = Self { session, slot: taken.slot(), bytes: taken.bytes, stream };
        if let Some((range, locked)) = session.alloc().host_segment(stage.slot) {
            locked.lock(gpu, range, false, doing)?;
        }
        Ok(stage)
    }

    fn copy_in(mut self, gpu: &Gpu, to: u64, bytes: &[u8]) -> Result<()> {
        let doing = "copy to a device";
        let events = [gpu.event(doing)?, gpu.event(doing)?];
        let copied = (|| {
            let mut to = to;
            for (turn, part) in bytes.chunks(HALF_BYTES).enumerate() {
                let event = &events[turn % 2];
                if turn >= 2 {
                    event.synchronize().map_err(trouble(doing))?;
                }
                // SAFETY: contract 1 and 3 of `bytes.rs`: the slot belongs to this stage, and the device has read this
                // half.
                let half = &mut unsafe { self.bytes.write() }[turn % 2 * HALF_BYTES..][..part.len()];
                half.copy_from_slice(part);
                // SAFETY: the contract on device ranges. The code below keeps the slot until the stream has passed the copy.
                unsafe { copy::htod_async(to, half.as_ptr(), half.len(), &self.stream) }.map_err(trouble(doing))?;
                event.record(&self.stream).map_err(trouble(doing))?;
                to += part.len() as u64;
            }
            Ok(())
        })();
        // Synchronize even after an error: pending copies must end before the slot is freed.
        let done = self.stream.synchronize().map_err(trouble(doing));
        for event in events {
            gpu.give_event(event);
        }
        copied.and(done)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // The instruments did not count this slot.
        self.session.alloc().drop_unkept(self.slot);
    }
}
