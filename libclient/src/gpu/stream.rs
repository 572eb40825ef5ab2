//! Streams, as callers have them.
//!
//! The contract of a raw handle: 1. it is 0, 1, 2, or a stream of this process, of the device's primary context; 2. it is not
//! destroyed before what it was recorded on is: a draft published or dropped, or a lease dropped.
#![allow(unsafe_code)]

use super::Gpu;
use crate::error::{DeviceTrouble, Error, Result};
use cudarc::driver::CudaStream;
use std::sync::Arc;
use tensorlend_cuda::StreamRef;

/// A stream of the caller's: of `cudarc`, of `tensorlend-cuda`, or by its handle. It is kept as long as something must wait
/// for it.
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
    /// The legacy default stream of the device's primary context: what work is in that names no stream.
    pub const LEGACY: Self = Self(Kind::Raw(1));

    /// A stream by its handle: what CUDA's C interface calls `CUstream` or `cudaStream_t`, and Python's libraries give as a
    /// number. 0 and 1 are the legacy default stream; 2 is that of the thread that publishes or drops what it was recorded on.
    ///
    /// # Safety
    /// 1. `handle` is 0, 1, 2, or a stream of this process, in the primary context of the device that it is used with.
    /// 2. The stream is not destroyed before every draft that it was recorded on is published or dropped, and every lease
    ///    dropped.
    pub unsafe fn from_raw(handle: usize) -> Self {
        Self(Kind::Raw(handle))
    }

    /// Its handle.
    pub fn as_raw(&self) -> usize {
        match &self.0 {
            Kind::Cudarc(stream) => stream.cu_stream().expose_provenance(),
            Kind::Ours(stream) => stream.by_ref().as_raw(),
            Kind::Raw(handle) => *handle,
        }
    }

    pub(crate) fn by_ref(&self) -> StreamRef<'_> {
        // SAFETY: the streams of Arcs live as long as these do, and `self` is borrowed; for a raw handle 1 and 2 hold by
        // whoever made it, and `self` is kept by the draft or lease that it was recorded on.
        unsafe { StreamRef::from_raw(self.as_raw()) }
    }

    /// Whether work of the device's primary context can be in it, as far as it tells.
    pub(crate) fn check(&self, gpu: &Gpu, doing: &str) -> Result<()> {
        let context = match &self.0 {
            Kind::Cudarc(stream) => stream.context().cu_ctx().expose_provenance(),
            Kind::Ours(stream) => stream.context().raw(),
            // The default streams are those of whatever context is current, which is the primary one where it counts.
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

/// The streams that something was recorded on: each once.
#[derive(Debug, Default)]
pub struct Streams(Vec<OnStream>);

impl Streams {
    /// One more; what was there already stays.
    pub fn add(&mut self, stream: OnStream) {
        let raw = stream.as_raw();
        // The calling thread's stream is another one in another thread: it cannot be told apart, and is kept each time.
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

    /// The one that there is, if it is the same for every thread.
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
