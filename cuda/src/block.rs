//! A block of a stream-ordered pool, owned by a value that frees the memory when dropped.
#![allow(unsafe_code)]

use crate::error::Result;
use crate::pool::Pool;
use crate::stream::Stream;
use std::sync::Arc;

/// Memory of a [`Pool`] that this process has allocated for others to import. This process does not
/// use the memory itself.
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
    /// The errors of [`Pool::allocate`] and [`Stream::synchronize`].
    pub fn allocate(pool: &Pool, bytes: u64, stream: &Arc<Stream>) -> Result<Self> {
        let ptr = pool.allocate(bytes, &**stream)?;
        let block = Self { pool: pool.clone(), stream: Arc::clone(stream), ptr };
        stream.synchronize()?;
        Ok(block)
    }

    /// Returns the 64 bytes that identify the block to a process that has imported the pool. That
    /// process imports the block with them.
    ///
    /// # Errors
    /// The errors of [`Pool::export_pointer`].
    pub fn export(&self) -> Result<[u8; 64]> {
        self.pool.export_pointer(self.ptr)
    }
}

impl Drop for Block {
    /// Frees the block. Before that, the owner ensures that every importer has freed the block or
    /// has ended. An importer that still reads the block then reads later allocations, but cannot
    /// harm this process.
    fn drop(&mut self) {
        // SAFETY: `allocate` allocated the block, and only this line frees it. No code in this
        // process uses the block, because no other code here has its address. Importers use
        // addresses of their own processes.
        let freed = unsafe { self.pool.free(self.ptr, &*self.stream) };
        // A drop cannot report the error. If the context is lost, the block is lost too.
        let _ = freed.and_then(|()| self.stream.synchronize());
    }
}
