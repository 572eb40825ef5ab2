//! Copies between host and device.
//!
//! The contract on device ranges: a range is in a mapped segment, and belongs to a draft (to write) or a lease (to
//! read). The copying function waits until the copy is complete, so that borrows on the host last long enough.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::gpu::stream::OnStream;
use crate::gpu::{End, Gpu, trouble};
use crate::segment::bytes::Bytes;
use crate::segment::janitor::{Ending, Janitor};
use crate::segment::map::DeviceRange;
use crate::session::Session;
use std::sync::Arc;
use tensorlend_cuda::{Stream, copy};

/// Minimum length of a copy through the staging buffer, in bytes. For shorter copies the driver's own path is as fast.
const STAGED_BYTES_MIN: usize = 256 << 10;
/// Bytes of one half of the staging buffer: the host fills one half while the device reads the other.
const HALF_BYTES: usize = 2 << 20;

/// Copies all of `bytes` to the device. Blocks until the copy is complete.
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
    // SAFETY: the range is in a mapped segment of a draft, and has the length of `bytes`. `bytes` stays borrowed until
    // the copy is done.
    unsafe { copy::htod(to.ptr, bytes.as_ptr(), bytes.len()) }.map_err(trouble(doing))?;
    // From pageable memory, `htod` returns before the bytes have arrived, so synchronize.
    tensorlend_cuda::StreamRef::LEGACY.synchronize().map_err(trouble(doing))
}

/// Queues a copy of bytes to the device, as work of `stream`. `source` must keep the bytes unchanged. The janitor drops
/// `source` when the stream has finished the copy.
pub fn copy_in_later<S: Send + Sync + 'static>(
    gpu: &Arc<Gpu>,
    janitor: &Arc<Janitor>,
    to: DeviceRange,
    source: Arc<S>,
    bytes: impl FnOnce(&S) -> &[u8],
    stream: &OnStream,
) -> Result<()> {
    let doing = "copy to a device";
    let from = bytes(&source);
    if from.len() as u64 != to.bytes {
        let (found, given) = (to.bytes, from.len() as u64);
        return Err(Error::Length { name: "the draft".into(), found, given });
    }
    if from.is_empty() {
        return Ok(());
    }
    let queued = {
        let context = gpu.context(doing)?;
        let _current = context.enter().map_err(trouble(doing))?;
        // SAFETY: the range is in a mapped segment of a draft, and has the bytes' length. The bytes belong to `*source`,
        // which nothing can change or move: the code below keeps a reference to it until the stream has finished the copy.
        unsafe { copy::htod_async(to.ptr, from.as_ptr(), from.len(), stream.by_ref()) }
    };
    drop_after(gpu, janitor, std::iter::once(stream), source);
    queued.map_err(trouble(doing))
}

/// Drops a value when these streams have finished their present work. Does not block.
pub fn drop_after<'s, S: Send + 'static>(
    gpu: &Arc<Gpu>,
    janitor: &Arc<Janitor>,
    streams: impl Iterator<Item = &'s OnStream>,
    value: S,
) {
    match gpu.end_of(streams, "keep memory until a device has read it") {
        End::Events(events) => {
            janitor.start();
            janitor.leave(Ending { gpu: gpu.clone(), events, then: Box::new(move |_| drop(value)), dropped: None });
        }
        End::Now => drop(value),
        // The memory stays in use, because the device may still read it.
        End::Unknown => std::mem::forget(value),
    }
}

/// Copies `from` to the host. Blocks until the copy is complete. `out` must have the same length. With `session`, a long
/// copy runs through a page-locked slot of this session. Without it, the driver copies alone.
pub fn copy_out(session: Option<&Arc<Session>>, gpu: &Gpu, from: DeviceRange, out: &mut [u8]) -> Result<()> {
    let doing = "copy from a device";
    assert!(out.len() as u64 <= from.bytes, "more than there is");
    if out.is_empty() {
        return Ok(());
    }
    if out.len() >= STAGED_BYTES_MIN
        && let Some(Ok(stage)) = session.map(|session| Stage::new(session, gpu))
    {
        return stage.copy_out(gpu, from.ptr, out);
    }
    let context = gpu.context(doing)?;
    let _current = context.enter().map_err(trouble(doing))?;
    // SAFETY: the range is in a mapped segment of a lease, and has the length of `out`. `dtoh` returns when the copy
    // is complete.
    unsafe { copy::dtoh(out.as_mut_ptr(), from.ptr, out.len()) }.map_err(trouble(doing))
}

/// Copies as many bytes as the range `to` has, on the device. Blocks until the copy is complete.
pub fn copy_on(gpu: &Gpu, to: DeviceRange, from: u64) -> Result<()> {
    let doing = "copy on a device";
    if to.bytes == 0 {
        return Ok(());
    }
    let context = gpu.context(doing)?;
    let _current = context.enter().map_err(trouble(doing))?;
    // SAFETY: both ranges are in mapped memory, and they are different slots or blocks.
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
        let context = gpu.context(doing)?;
        let _current = context.enter().map_err(trouble(doing))?;
        let events = [gpu.event(doing)?, gpu.event(doing)?];
        let copied = (|| {
            let mut to = to;
            for (turn, part) in bytes.chunks(HALF_BYTES).enumerate() {
                let event = &events[turn % 2];
                if turn >= 2 {
                    event.synchronize().map_err(trouble(doing))?;
                }
                // SAFETY: the slot belongs to this stage alone and is mapped (contract 1 and 3 of `bytes.rs`), and the
                // device has read this half.
                let half = &mut unsafe { self.bytes.write() }[turn % 2 * HALF_BYTES..][..part.len()];
                half.copy_from_slice(part);
                // SAFETY: the range is in a mapped segment of a draft. The code below keeps the slot until the stream has
                // finished the copy.
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

    /// Copies to the host. While the device writes one half of the slot, this thread copies out of the other half.
    fn copy_out(mut self, gpu: &Gpu, from: u64, out: &mut [u8]) -> Result<()> {
        let doing = "copy from a device";
        let context = gpu.context(doing)?;
        let _current = context.enter().map_err(trouble(doing))?;
        // Wait first: a plain copy follows the work in the legacy default stream, but this stage's own stream does
        // not.
        tensorlend_cuda::StreamRef::LEGACY.synchronize().map_err(trouble(doing))?;
        let events = [gpu.event(doing)?, gpu.event(doing)?];
        // SAFETY: the slot belongs to this stage alone and is mapped (contract 1 and 3 of `bytes.rs`).
        let slot = unsafe { self.bytes.write() };
        let halves = [slot.as_mut_ptr(), slot[HALF_BYTES..].as_mut_ptr()];
        let copied = (|| {
            let mut parts = out.chunks_mut(HALF_BYTES).enumerate();
            let mut arriving: Option<(usize, &mut [u8])> = None;
            loop {
                let next = parts.next();
                if let Some((turn, part)) = &next {
                    let at = from + (turn * HALF_BYTES) as u64;
                    // SAFETY: the range is in a mapped segment of a lease. A part is at most a half, and the code below has
                    // copied the former content of this half. It keeps the slot until the stream has finished the copy.
                    unsafe { copy::dtoh_async(halves[turn % 2], at, part.len(), &self.stream) }
                        .map_err(trouble(doing))?;
                    events[turn % 2].record(&self.stream).map_err(trouble(doing))?;
                }
                if let Some((turn, part)) = arriving.take() {
                    events[turn % 2].synchronize().map_err(trouble(doing))?;
                    // SAFETY: the device has written this half, and writes to it again only after this copy. The parts of
                    // `out` are outside the slot.
                    unsafe { std::ptr::copy_nonoverlapping(halves[turn % 2], part.as_mut_ptr(), part.len()) };
                }
                arriving = next;
                if arriving.is_none() {
                    return Ok(());
                }
            }
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
