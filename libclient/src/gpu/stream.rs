//! CUDA streams of the caller.
//!
//! The contract of a raw handle has two parts:
//! 1. The handle is 0, 1, 2, or a stream of this process, in the device's primary context.
//! 2. The stream is not destroyed before every draft on which it was recorded is published or dropped, and every lease
//!    on which it was recorded is dropped.
#![allow(unsafe_code)]

use super::Gpu;
use crate::error::{DeviceTrouble, Error, Result};
use cudarc::driver::CudaStream;
use std::sync::Arc;
use tensorlend_cuda::StreamRef;

/// A CUDA stream of the caller: of `cudarc`, of `tensorlend-cuda`, or by its handle. A draft or lease on which the
/// stream is recorded keeps the stream's `Arc` until the stream has finished its work on that draft or lease.
///
/// Most methods take `impl Into<OnStream>`, so you can pass a reference to such an `Arc`:
///
/// ```no_run
/// use std::sync::Arc;
/// use tensorlend::{Client, DType, Device};
///
/// fn produce(client: &Client, stream: &Arc<cudarc::driver::CudaStream>) -> tensorlend::Result<()> {
///     let draft = client.create_on_stream(Device::cuda(0), stream, DType::F32, &[1024])?;
///     // ... launch kernels in `stream` that write at draft.ptr() ...
///     draft.publish("weights")?; // waits for the work in `stream`
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct OnStream(Kind);

#[derive(Clone)]
enum Kind {
    Cudarc(Arc<CudaStream>),
    Ours(Arc<tensorlend_cuda::Stream>),
    Raw(usize),
}

impl From<&Arc<CudaStream>> for OnStream {
    fn from(stream: &Arc<CudaStream>) -> Self {
        Self(Kind::Cudarc(stream.clone()))
    }
}

impl From<&Arc<tensorlend_cuda::Stream>> for OnStream {
    fn from(stream: &Arc<tensorlend_cuda::Stream>) -> Self {
        Self(Kind::Ours(stream.clone()))
    }
}

impl From<&OnStream> for OnStream {
    fn from(stream: &OnStream) -> Self {
        stream.clone()
    }
}

impl OnStream {
    /// The legacy default stream of the device's primary context. Work that names no stream uses it.
    pub const LEGACY: Self = Self(Kind::Raw(1));

    /// Makes a stream from its handle: `CUstream` or `cudaStream_t` in CUDA's C interface, a number in Python's
    /// libraries. 0 and 1 are the legacy default stream. 2 is the default stream of the thread that publishes or drops
    /// the draft or lease.
    ///
    /// # Safety
    /// 1. `handle` is 0, 1, 2, or a stream of this process, in the primary context of the device with which it is used.
    /// 2. The stream is not destroyed before every draft on which it was recorded is published or dropped, and every lease
    ///    on which it was recorded is dropped.
    pub unsafe fn from_raw(handle: usize) -> Self {
        Self(Kind::Raw(handle))
    }

    /// Returns the stream's handle.
    pub fn as_raw(&self) -> usize {
        match &self.0 {
            Kind::Cudarc(stream) => stream.cu_stream().expose_provenance(),
            Kind::Ours(stream) => stream.by_ref().as_raw(),
            Kind::Raw(handle) => *handle,
        }
    }

    pub(crate) fn by_ref(&self) -> StreamRef<'_> {
        // SAFETY: the `Arc`s keep their streams alive, and `self` is borrowed. The creator of a raw handle guarantees
        // that the stream is valid and outlives its drafts and leases. The draft or lease on which the stream was
        // recorded keeps `self`.
        unsafe { StreamRef::from_raw(self.as_raw()) }
    }

    /// Returns whether the stream belongs to the device's primary context, as far as its handle shows.
    pub(crate) fn check(&self, gpu: &Gpu, doing: &str) -> Result<()> {
        let context = match &self.0 {
            Kind::Cudarc(stream) => stream.context().cu_ctx().expose_provenance(),
            Kind::Ours(stream) => stream.context().raw(),
            // The default streams belong to the current context, which is always the primary context when they are
            // used.
            Kind::Raw(0..=2) => return Ok(()),
            Kind::Raw(_) => self.by_ref().context().map_err(super::trouble(doing))?,
        };
        if context == gpu.context(doing)?.raw() {
            return Ok(());
        }
        Err(Error::Device { doing: doing.to_owned(), cause: DeviceTrouble::OtherContext })
    }
}

impl std::fmt::Debug for OnStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "stream {:#x}", self.as_raw())
    }
}

/// The streams recorded on a draft or lease, without duplicates.
#[derive(Debug, Default)]
pub struct Streams(Vec<OnStream>);

impl Streams {
    /// Adds a stream, unless the list contains it already.
    pub fn add(&mut self, stream: OnStream) {
        let raw = stream.as_raw();
        // Handle 2 means another stream in each thread. Equal handles of this value may be different streams, so keep
        // each of them.
        if raw == 2 || !self.0.iter().any(|known| known.as_raw() == raw) {
            self.0.push(stream);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &OnStream> {
        self.0.iter()
    }

    /// Returns the only stream, if there is one and its handle means the same stream in every thread.
    pub fn only(&self) -> Option<&OnStream> {
        match &self.0[..] {
            [one] if one.as_raw() != 2 => Some(one),
            _ => None,
        }
    }

    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}
