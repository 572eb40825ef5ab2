//! Copies between host and device.
//!
//! The contract on device ranges: a range is in a mapped segment, and belongs to a draft (to write) or a lease (to
//! read). The copying function waits until the copy is complete, so that borrows on the host last long enough.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::gpu::stream::OnStream;
use crate::gpu::{End, Gpu, trouble};
use crate::segment::janitor::{Ending, Janitor};
use crate::segment::map::DeviceRange;
use std::sync::Arc;
use tensorlend_cuda::copy;
use tensorlend_layout::size;

/// Copies all of `bytes` to the device. Blocks until the copy is complete.
pub fn copy_in(gpu: &Gpu, to: DeviceRange, bytes: &[u8]) -> Result<()> {
    assert!(bytes.len() as u64 <= to.bytes, "more than there is room for");
    if bytes.is_empty() {
        return Ok(());
    }
    gpu.with_stream("copy to a device", |stream| {
        // SAFETY: the range is in a mapped segment of a draft, and has the length of `bytes`. `bytes` stays borrowed until
        // `with_stream` has waited for the copy.
        unsafe { copy::htod_async(to.ptr, bytes.as_ptr(), bytes.len(), stream) }
    })
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

/// Copies `from` to the host. Blocks until the copy is complete. `out` must have the same length.
pub fn copy_out(gpu: &Gpu, from: DeviceRange, out: &mut [u8]) -> Result<()> {
    let doing = "copy from a device";
    assert!(out.len() as u64 <= from.bytes, "more than there is");
    if out.is_empty() {
        return Ok(());
    }
    gpu.with_stream(doing, |stream| {
        // The copy must follow the work in the legacy default stream, for which this stream does not wait.
        tensorlend_cuda::StreamRef::LEGACY.synchronize()?;
        // SAFETY: the range is in a mapped segment of a lease, and has the length of `out`. `out` stays borrowed until
        // `with_stream` has waited for the copy.
        unsafe { copy::dtoh_async(out.as_mut_ptr(), from.ptr, out.len(), stream) }
    })
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
    unsafe { copy::dtod(to.ptr, from, size::index(to.bytes)) }.map_err(trouble(doing))?;
    tensorlend_cuda::StreamRef::LEGACY.synchronize().map_err(trouble(doing))
}
