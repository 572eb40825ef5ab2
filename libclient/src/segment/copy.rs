//! Copying into shared memory.
#![allow(unsafe_code)]

/// Minimum length for stores that bypass the caches. As measured (docs/results/tuning.md), an ordinary copy first
/// fetches every line that it then overwrites. A shorter target is usually in a near cache, and then the ordinary copy
/// is faster.
const PAST_CACHES_MIN: usize = 16 << 20;

/// Copies into a draft's bytes.
///
/// # Panics
/// Panics unless both slices have the same length.
#[inline]
pub fn into_shared(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "a tensor is written whole");
    if from.len() < PAST_CACHES_MIN || !past_caches(to, from) {
        to.copy_from_slice(from);
    }
}

/// Copies with stores that bypass the caches. Returns false if the processor has no such stores.
#[cfg(target_arch = "x86_64")]
#[expect(clippy::cast_ptr_alignment, reason = "argued where it is used")]
fn past_caches(to: &mut [u8], from: &[u8]) -> bool {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    if !to.as_ptr().addr().is_multiple_of(LINE) {
        return false;
    }
    let (lines, rest) = to.as_chunks_mut::<LINE>();
    let (sources, last) = from.as_chunks::<LINE>();
    for (line, source) in lines.iter_mut().zip(sources) {
        for part in 0..LINE / 16 {
            // SAFETY: SSE2 is part of x86-64. The 16 bytes from 16 * part on are inside both 64-byte lines. The load
            // needs no alignment. The store needs an alignment of 16 bytes, and the line has one of 64.
            unsafe {
                let bytes = _mm_loadu_si128(source.as_ptr().add(16 * part).cast::<__m128i>());
                _mm_stream_si128(line.as_mut_ptr().add(16 * part).cast::<__m128i>(), bytes);
            }
        }
    }
    rest.copy_from_slice(last);
    // No later store orders these stores, not even a Release store. Without this fence the publication could become
    // visible first. SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_sfence() };
    true
}

#[cfg(not(target_arch = "x86_64"))]
fn past_caches(_: &mut [u8], _: &[u8]) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_whatever_length_and_alignment() {
        let from: Vec<u8> = (0..(PAST_CACHES_MIN + 200) as u32).map(|i| (i % 251) as u8).collect();
        let mut to = vec![0; from.len() + 64];
        let aligned = to.as_ptr().align_offset(64);
        for offset in [aligned, aligned + 1] {
            for length in [0, 1, 63, 4096, PAST_CACHES_MIN, PAST_CACHES_MIN + 1, PAST_CACHES_MIN + 100] {
                for start in [0, 3] {
                    to.fill(0xEE);
                    into_shared(&mut to[offset..offset + length], &from[start..start + length]);
                    assert!(to[offset..offset + length] == from[start..start + length], "{offset} {length} {start}");
                    assert!(to[..offset].iter().chain(&to[offset + length..]).all(|&b| b == 0xEE), "beyond its bytes");
                }
            }
        }
    }
}
