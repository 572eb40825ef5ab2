//! Shape, strides and metadata of a leased slot, put together from its record and its extension.
#![allow(unsafe_code)]

use crate::bytes::Bytes;
use crate::error::{Error, Result};
use tensorlend_layout::tensor::{BadTensor, METADATA_INLINE, Shape, SlotInfo, Strides, check_extent};

/// Where each element of a tensor lies, checked against its bytes.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Sizes, in elements.
    pub shape: Shape,
    /// Strides in elements; `None`: row-major.
    pub strides: Option<Strides>,
    /// Number of elements.
    pub elements: u64,
}

/// Reads and checks. The caller holds the lease that covers `info` and its extension.
pub fn read(info: &SlotInfo, bytes_of_slot: u64, extension: Option<&Bytes>, name: &str) -> Result<(Layout, Vec<u8>)> {
    let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
    let ndim = usize::from(info.ndim);
    let (shape, strides, metadata) = match extension {
        None => {
            let shape = Shape::new(&info.dims[..ndim]).ok_or_else(|| damaged(BadTensor::Dimensions))?;
            let mut metadata = [0; METADATA_INLINE];
            for (bytes, word) in metadata.chunks_exact_mut(8).zip(info.metadata) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            // Mostly empty, and then no allocation.
            (shape, None, metadata[..info.metadata_bytes as usize].to_vec())
        }
        Some(bytes) => {
            // SAFETY: the extension is covered by the same lease (contract 2), and is copied within this function.
            let bytes = unsafe { bytes.read() };
            let bytes = bytes.get(..info.extension_bytes()).ok_or_else(|| damaged(BadTensor::Metadata))?;
            let (sizes, rest) = bytes.split_at(ndim * 8);
            let words = |bytes: &[u8]| -> Vec<u64> {
                bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("eight bytes"))).collect()
            };
            let shape = Shape::new(&words(sizes)).ok_or_else(|| damaged(BadTensor::Dimensions))?;
            let (strides, metadata) = if info.strided {
                let (steps, metadata) = rest.split_at(ndim * 8);
                let steps: Vec<i64> = words(steps).into_iter().map(|w| w as i64).collect();
                (Strides::new(&steps), metadata)
            } else {
                (None, rest)
            };
            (shape, strides, metadata.to_vec())
        }
    };
    let elements =
        check_extent(info.dtype, &shape, strides.as_deref(), info.byte_offset, bytes_of_slot).map_err(damaged)?;
    Ok((Layout { shape, strides, elements }, metadata))
}
