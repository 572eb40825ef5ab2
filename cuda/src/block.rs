//! A block of a stream-ordered pool as a value; dropping it frees the memory.
#![allow(unsafe_code)]

use crate::error::Result;
use crate::pool::Pool;
use crate::stream::Stream;
use std::sync::Arc;

/// Memory of a [`Pool`] that this process has allocated for others to import, and does not use itself.
///
/// Source: CUDA Driver API 13.0, section "Stream Ordered Memory Allocator".
#[derive(Debug)]
pub struct Block {
    pool: Pool,
    stream: Arc<Stream>,
    ptr: u64,
}

impl Block {
    /// Allocates `bytes`, and waits until the memory exists.
    ///
    /// # Errors
    /// As [`Pool::allocate`], and [`Stream::synchronize`].
    pub fn allocate(pool: &Pool, bytes: u64, stream: &Arc<Stream>) -> Result<Self> {
        let ptr = pool.allocate(bytes, &**stream)?;
        let block = Self { pool: pool.clone(), stream: Arc::clone(stream), ptr };
        stream.synchronize()?;
        Ok(block)
    }

    /// Returns the bytes by which another process that has imported the pool imports the block.
    ///
    /// # Errors
    /// As [`Pool::export_pointer`].
    pub fn export(&self) -> Result<[u8; 64]> {
        self.pool.export_pointer(self.ptr)
    }
}

impl Drop for Block {
    /// Frees the block. The owner ensures that every importer has freed it before, or has ended. An importer that still reads the
    /// block reads later allocations there, and cannot harm this process.
    fn drop(&mut self) {
        // SAFETY: `allocate` allocated the block, and only this line frees it. Nothing in this process uses the block, because
        // no other code here has its address. Importers use addresses of their own processes, as the comment above argues.
        let freed = unsafe { self.pool.free(self.ptr, &*self.stream) };
        // A drop cannot report the error. If the context is lost, so is the block.
        let _ = freed.and_then(|()| self.stream.synchronize());
    }
}
