//! Bytes between host and device.
//!
//! The contract: 1. a device range lies in a mapped segment, and is a draft's to write or a lease's to read; 2. who copies waits
//! until that is done, so that borrows on the host last long enough.
#![allow(unsafe_code)]

use crate::error::Result;
use crate::gpu::{Gpu, trouble};
use crate::segment::bytes::Bytes;
use crate::segment::map::DeviceRange;
use crate::session::Session;
use std::sync::Arc;
use tensorlend_cuda::{Stream, copy};

/// Shorter copies go the driver's own way, which is as fast.
const STAGED_BYTES_MIN: usize = 256 << 10;
/// Bytes on the way at a time, in two halves: one is filled while the other is read.
const HALF_BYTES: usize = 2 << 20;

/// Copies all of `bytes` to the device, and waits.
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
    // SAFETY: 1, and the length was compared; the bytes are borrowed until all of it is done (2).
    unsafe { copy::htod(to.ptr, bytes.as_ptr(), bytes.len()) }.map_err(trouble(doing))?;
    // From pageable memory the call returns before the bytes have arrived.
    tensorlend_cuda::StreamRef::LEGACY.synchronize().map_err(trouble(doing))
}

/// Copies `from` to the host, and waits. `out` is as long.
pub fn copy_out(gpu: &Gpu, from: DeviceRange, out: &mut [u8]) -> Result<()> {
    let doing = "copy from a device";
    assert!(out.len() as u64 <= from.bytes, "more than there is");
    if out.is_empty() {
        return Ok(());
    }
    let context = gpu.context(doing)?;
    let _current = context.enter().map_err(trouble(doing))?;
    // SAFETY: 1, and the length was compared; it returns when all of it is done.
    unsafe { copy::dtoh(out.as_mut_ptr(), from.ptr, out.len()) }.map_err(trouble(doing))
}

/// Copies on the device, and waits: as many bytes as the range has, from where as many lie.
pub fn copy_on(gpu: &Gpu, to: DeviceRange, from: u64) -> Result<()> {
    let doing = "copy on a device";
    if to.bytes == 0 {
        return Ok(());
    }
    let context = gpu.context(doing)?;
    let _current = context.enter().map_err(trouble(doing))?;
    // SAFETY: 1, for both; they are different slots or blocks.
    unsafe { copy::dtod(to.ptr, from, to.bytes as usize) }.map_err(trouble(doing))?;
    tensorlend_cuda::StreamRef::LEGACY.synchronize().map_err(trouble(doing))
}

/// A slot of our own in host memory, whose pages stay where they are.
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
                // SAFETY: contract 1 and 3 of `bytes.rs`: the slot is ours, and this half of it was read.
                let half = &mut unsafe { self.bytes.write() }[turn % 2 * HALF_BYTES..][..part.len()];
                half.copy_from_slice(part);
                // SAFETY: 1; the slot is kept until the stream has come past, below.
                unsafe { copy::htod_async(to, half.as_ptr(), half.len(), &self.stream) }.map_err(trouble(doing))?;
                event.record(&self.stream).map_err(trouble(doing))?;
                to += part.len() as u64;
            }
            Ok(())
        })();
        // Whatever happened: what is under way ends before the slot goes.
        let done = self.stream.synchronize().map_err(trouble(doing));
        for event in events {
            gpu.give_event(event);
        }
        copied.and(done)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // The instruments were told nothing of it.
        self.session.alloc().drop_unkept(self.slot);
    }
}
