//! Where an output is written.

use tensorlend::{DType, Draft};

/// An output that was computed.
#[derive(Debug)]
pub struct Output {
    pub dtype: DType,
    pub shape: Vec<u64>,
    pub place: Place,
}

/// Room for a tensor.
#[derive(Debug)]
pub enum Place {
    /// In the broker's memory, where it will be read.
    Lent(Draft),
    /// In this process, to be taken apart or changed first.
    Own(Own),
}

impl Place {
    /// All of its bytes; whatever lay there before, until they are written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Lent(draft) => draft.bytes_mut(),
            Self::Own(own) => own.bytes_mut(),
        }
    }
}

/// Bytes of this process, aligned for every element type.
#[derive(Debug, Default)]
pub struct Own {
    words: Vec<u128>,
    len: usize,
}

impl Own {
    /// So many, all 0.
    pub fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(size_of::<u128>())], len }
    }

    /// These.
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
