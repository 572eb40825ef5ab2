//! The bytes of a leased dataset's index.
#![allow(unsafe_code)]

use crate::segment::bytes::Bytes;
use tensorlend_layout::dataset;

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
