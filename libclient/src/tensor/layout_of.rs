//! The description of a leased slot, from its record and its extension: shape, strides and metadata. Also the index
//! of a dataset.
#![allow(unsafe_code)]

use crate::segment::bytes::Bytes;
use crate::tensor::dims::Dims;
use tensorlend_layout::dataset;
use tensorlend_layout::tensor::{BadTensor, METADATA_INLINE, SlotInfo, check_extent};

/// The locations of a tensor's elements, checked against the tensor's bytes, and its metadata.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Sizes in elements.
    pub shape: Dims<u64>,
    /// Strides in elements.
    pub strides: Dims<i64>,
    /// True if the strides are the row-major (C order) ones.
    pub row_major: bool,
    /// Number of elements.
    pub elements: u64,
    /// The producer's metadata.
    pub metadata: Vec<u8>,
}

/// Copies the index of a dataset before any check, because its producer can write to it. The caller must hold the
/// lease that covers `bytes`.
#[inline(always)]
pub fn copy_index(bytes: &Bytes, into: &mut Vec<u64>) {
    let length = bytes.len().min(dataset::BYTES_MAX);
    // SAFETY: contract 1 and 2 of `bytes.rs`: the caller holds the lease and the segment. This function copies the
    // bytes and keeps no reference.
    let bytes = unsafe { &bytes.read()[..length] };
    let (words, rest) = bytes.as_chunks::<8>();
    into.extend(words.iter().map(|word| u64::from_ne_bytes(*word)));
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        into.push(u64::from_ne_bytes(last));
    }
}

/// Prefetches the index of a dataset, up to 512 bytes, while the caller handles other items. The caller must hold the
/// lease that covers `bytes`.
#[inline(always)]
pub fn fetch_index(bytes: &Bytes) {
    // SAFETY: contract 1 and 2 of `bytes.rs`: the caller holds the lease and the segment. The bytes are only
    // prefetched.
    let bytes = unsafe { bytes.read() };
    for byte in bytes.iter().step_by(64).take(8) {
        std::hint::black_box(*byte);
    }
}

/// Reads and checks a layout. The caller must hold the lease that covers `info` and its extension.
#[inline(always)]
pub fn read(info: &SlotInfo, bytes_of_slot: u64, extension: Option<&Bytes>) -> Result<Layout, BadTensor> {
    let Some(extension) = extension else {
        let shape = Dims::of_four(info.dims, info.ndim).ok_or(BadTensor::Dimensions)?;
        let elements = check_extent(info.dtype, &shape, None, info.byte_offset, bytes_of_slot)?;
        // The metadata is usually empty, and an empty vector needs no allocation.
        let metadata = metadata_of(info);
        let strides = Dims::row_major(&shape);
        return Ok(Layout { shape, strides, row_major: true, elements, metadata });
    };
    read_extended(info, bytes_of_slot, extension)
}

#[cold]
fn read_extended(info: &SlotInfo, bytes_of_slot: u64, extension: &Bytes) -> Result<Layout, BadTensor> {
    // SAFETY: contract 1 and 2 of `bytes.rs`: the lease also covers the extension, and the caller holds its segment.
    // This function copies the bytes and keeps no reference.
    let bytes = unsafe { extension.read() };
    let bytes = bytes.get(..info.extension_bytes()).ok_or(BadTensor::Metadata)?;
    let sizes_bytes = usize::from(info.ndim) * 8;
    let (sizes, rest) = bytes.split_at(sizes_bytes);
    let words = |bytes: &[u8]| -> Vec<u64> {
        bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("eight bytes"))).collect()
    };
    let shape = Dims::new(&words(sizes)).ok_or(BadTensor::Dimensions)?;
    let (strides, metadata) = if info.strided {
        let (steps, metadata) = rest.split_at(sizes_bytes);
        let steps: Vec<i64> = words(steps).into_iter().map(u64::cast_signed).collect();
        (Dims::new(&steps), metadata)
    } else {
        (None, rest)
    };
    let elements = check_extent(info.dtype, &shape, strides.as_deref(), info.byte_offset, bytes_of_slot)?;
    Ok(Layout {
        row_major: strides.is_none(),
        strides: strides.unwrap_or_else(|| Dims::row_major(&shape)),
        shape,
        elements,
        metadata: metadata.to_vec(),
    })
}

/// Returns the metadata of a record that is not extended.
#[inline(always)]
pub fn metadata_of(info: &SlotInfo) -> Vec<u8> {
    if info.metadata_bytes == 0 { Vec::new() } else { inline_metadata(info) }
}

#[cold]
fn inline_metadata(info: &SlotInfo) -> Vec<u8> {
    let mut metadata: Vec<u8> = info.metadata.iter().flat_map(|word| word.to_le_bytes()).collect();
    metadata.truncate((info.metadata_bytes as usize).min(METADATA_INLINE));
    metadata
}
