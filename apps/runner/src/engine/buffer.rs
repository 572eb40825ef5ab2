//! The memory into which engines write outputs.

use tensorlend::{DType, Draft};

/// An output of a run: its memory and its shape.
#[derive(Debug)]
pub struct Output {
    pub dtype: DType,
    pub shape: Vec<u64>,
    pub buffer: Buffer,
}

/// Memory for one output.
#[derive(Debug)]
pub enum Buffer {
    /// Shared memory of the response.
    Lent(Draft),
    /// Private memory, for an output that must be split or converted before the worker sends it.
    Owned(OwnedBytes),
}

impl Buffer {
    /// Returns all bytes. The bytes may have former contents, so the engine must write each of
    /// them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Lent(draft) => draft.bytes_mut(),
            Self::Owned(own) => own.bytes_mut(),
        }
    }
}

/// Bytes in private memory, aligned for every element type.
#[derive(Debug, Default)]
pub struct OwnedBytes {
    words: Vec<u128>,
    len: usize,
}

impl OwnedBytes {
    /// Allocates `len` bytes, all 0.
    pub fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(size_of::<u128>())], len }
    }

    /// Returns a copy of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut own = Self::new(bytes.len());
        own.bytes_mut().copy_from_slice(bytes);
        own
    }

    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}
