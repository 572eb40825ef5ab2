//! Codecs, which compress tensor bytes between gateways.
//!
//! Compression takes time on both sides, and some data, such as noise in floating-point numbers,
//! does not shrink. So the sender compresses a sample of each chunk first, and compresses the chunk
//! only if the sample shrinks by at least a tenth. Shuffling reorders the bytes before Zstandard
//! compresses them. It puts bytes of equal significance next to each other, because the sign and
//! exponent bytes of neighboring numbers are similar.

use super::{Body, Chunk};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::cell::RefCell;
use xxhash_rust::xxh3::Xxh3;

/// The encoding of one chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Codec {
    /// The bytes are uncompressed.
    #[default]
    Plain,
    /// LZ4 in its block format.
    Lz4,
    /// One Zstandard frame.
    Zstd,
    /// Shuffled bytes in one Zstandard frame. First come byte 0 of all elements, then byte 1 of all
    /// elements, and so on. The bytes of an incomplete last element follow.
    ShuffledZstd {
        /// Size of one element in bytes: 2 to 16.
        element: u8,
    },
}

/// The codecs that a gateway can decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Codecs {
    /// Whether the gateway decodes [`Codec::Lz4`].
    pub lz4: bool,
    /// Whether the gateway decodes [`Codec::Zstd`] and [`Codec::ShuffledZstd`].
    pub zstd: bool,
}

impl Codecs {
    /// All codecs of this version.
    pub const ALL: Self = Self { lz4: true, zstd: true };
}

/// The configured compression of the bytes that other nodes send to this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Packing {
    /// No compression.
    #[default]
    None,
    /// LZ4, for links of about 1 Gbit/s.
    Lz4,
    /// Zstandard, for slower links.
    Zstd,
}

impl Packing {
    /// Returns the codecs that the receiver allows the sender.
    pub fn codecs(self) -> Codecs {
        Codecs { lz4: self == Self::Lz4, zstd: self == Self::Zstd }
    }
}

/// The reason why a chunk is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadChunk {
    /// The chunk's length differs from the length that its head states.
    #[error("{found} bytes, where {wanted} belong")]
    Length {
        /// Number of bytes received, after decompression if that succeeded.
        found: u64,
        /// Number of bytes expected.
        wanted: u64,
    },
    /// The body cannot be decompressed.
    #[error("cannot be unpacked")]
    Packed,
    /// The bytes differ from those that were sent.
    #[error("the checksum is another one")]
    Checksum,
    /// The chunk's range is outside the value that is being received.
    #[error("bytes {from} to {to} of a value of {of}")]
    Range {
        /// Offset of the range's first byte.
        from: u64,
        /// Offset after the range's last byte.
        to: u64,
        /// Length of the value in bytes.
        of: u64,
    },
}

/// Zstandard's compression level, the fastest one that compresses shuffled numbers as well as the
/// default level.
const LEVEL: i32 = 1;
/// Size of a sample in bytes.
const SAMPLE: usize = 32 << 10;
/// Minimum size in bytes of a chunk that is worth compressing.
const WORTH: usize = 512;

thread_local! {
    static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Compresses a chunk if that makes it shorter by at least a tenth. `element` is the size in bytes of an element of the
/// chunk's tensor.
pub fn pack(body: Body, element: usize, packing: Packing, allowed: Codecs) -> (Codec, Body) {
    let codec = match packing {
        Packing::Lz4 if allowed.lz4 => Codec::Lz4,
        Packing::Zstd if allowed.zstd => match element {
            2..=16 => Codec::ShuffledZstd { element: element as u8 },
            _ => Codec::Zstd,
        },
        _ => return (Codec::Plain, body),
    };
    let bytes = body.len();
    if bytes < WORTH {
        return (Codec::Plain, body);
    }
    let packed = {
        let whole = body.contiguous();
        let middle = (whole.len() / 2).saturating_sub(SAMPLE / 2) / 16 * 16;
        let sample = &whole[middle..whole.len().min(middle + SAMPLE)];
        let saves = |packed: &Vec<u8>, of: usize| packed.len() <= of - of / 10;
        // Compressing a sample of a short chunk would take about as long as compressing the chunk.
        // So only a long chunk has a sample.
        let pays =
            whole.len() <= 2 * SAMPLE || squeeze(codec, sample).is_some_and(|packed| saves(&packed, sample.len()));
        pays.then(|| squeeze(codec, &whole)).flatten().filter(|packed| saves(packed, whole.len()))
    };
    match packed {
        Some(packed) => (codec, Body::of(Bytes::from(packed))),
        None => (Codec::Plain, body),
    }
}

/// Decompresses a chunk into `out`, which must have the chunk's uncompressed length.
///
/// # Errors
/// [`BadChunk`]. Then the contents of `out` are unspecified.
pub fn unpack(codec: Codec, body: &Body, out: &mut [u8]) -> Result<(), BadChunk> {
    let wanted = out.len() as u64;
    let packed = body.len();
    if codec == Codec::Plain {
        return if body.copy_to(out) { Ok(()) } else { Err(BadChunk::Length { found: packed as u64, wanted }) };
    }
    // The sender never sends a compressed chunk that is longer than its bytes. The check also bounds the copy below.
    if packed > out.len() {
        return Err(BadChunk::Packed);
    }
    let body = body.contiguous();
    let length = match codec {
        Codec::Plain => unreachable!("returned above"),
        Codec::Lz4 => lz4_flex::block::decompress_into(&body, out).map_err(|_| BadChunk::Packed)?,
        Codec::Zstd => expand(&body, out)?,
        Codec::ShuffledZstd { element } => {
            let mut shuffled = vec![0; out.len()];
            let length = expand(&body, &mut shuffled)?;
            if length == out.len() {
                unshuffle(&shuffled, usize::from(element), out);
            }
            length
        }
    };
    if length == out.len() { Ok(()) } else { Err(BadChunk::Length { found: length as u64, wanted }) }
}

/// Returns the checksum of these bytes, which is XXH3 with 64 bits and seed 0.
pub fn checksum(body: &Body) -> u64 {
    let mut hash = Xxh3::new();
    body.for_each(|piece| hash.update(piece));
    hash.digest()
}

impl Chunk {
    /// Compresses bytes of a value as [`pack`] does. Returns the chunk and its body.
    pub fn pack(
        offset: u64,
        body: Body,
        element: usize,
        packing: Packing,
        allowed: Codecs,
        with_checksum: bool,
    ) -> (Self, Body) {
        let bytes = body.len() as u32;
        let checksum = with_checksum.then(|| checksum(&body));
        let (codec, body) = pack(body, element, packing, allowed);
        (Self { offset, bytes, codec, checksum }, body)
    }

    /// Decompresses the chunk's body into `out`, and compares the checksum if the chunk has one.
    ///
    /// # Errors
    /// [`BadChunk`]. Then the contents of `out` are unspecified.
    pub fn unpack(&self, body: &Body, out: &mut [u8]) -> Result<(), BadChunk> {
        if out.len() as u64 != u64::from(self.bytes) {
            return Err(BadChunk::Length { found: u64::from(self.bytes), wanted: out.len() as u64 });
        }
        unpack(self.codec, body, out)?;
        match self.checksum {
            Some(sum) if xxhash_rust::xxh3::xxh3_64(out) != sum => Err(BadChunk::Checksum),
            _ => Ok(()),
        }
    }
}

fn squeeze(codec: Codec, bytes: &[u8]) -> Option<Vec<u8>> {
    match codec {
        Codec::Plain => None,
        Codec::Lz4 => Some(lz4_flex::block::compress(bytes)),
        Codec::Zstd => compress(bytes),
        Codec::ShuffledZstd { element } => compress(&shuffle(bytes, usize::from(element))),
    }
}

fn compress(bytes: &[u8]) -> Option<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = zstd::bulk::Compressor::new(LEVEL).ok();
        }
        kept.as_mut()?.compress(bytes).ok()
    })
}

fn expand(bytes: &[u8], out: &mut [u8]) -> Result<usize, BadChunk> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = zstd::bulk::Decompressor::new().ok();
        }
        let decompressor = kept.as_mut().ok_or(BadChunk::Packed)?;
        decompressor.decompress_to_buffer(bytes, out).map_err(|_| BadChunk::Packed)
    })
}

fn shuffle(bytes: &[u8], element: usize) -> Vec<u8> {
    let (whole, rest) = bytes.split_at(bytes.len() / element * element);
    let count = whole.len() / element;
    let mut out = vec![0; bytes.len()];
    for (significance, plane) in out.chunks_exact_mut(count.max(1)).take(element).enumerate() {
        for (to, from) in plane.iter_mut().zip(whole.chunks_exact(element)) {
            *to = from[significance];
        }
    }
    out[whole.len()..].copy_from_slice(rest);
    out
}

fn unshuffle(bytes: &[u8], element: usize, out: &mut [u8]) {
    // The check of a message's head rejects elements of 0 bytes. This function does not rely on
    // that check.
    let element = element.max(1);
    let (whole, rest) = bytes.split_at(bytes.len() / element * element);
    let count = whole.len() / element;
    for (significance, plane) in whole.chunks_exact(count.max(1)).take(element).enumerate() {
        for (to, from) in out.chunks_exact_mut(element).zip(plane) {
            to[significance] = *from;
        }
    }
    out[whole.len()..].copy_from_slice(rest);
}

impl Body {
    /// Returns the bytes in one piece. Borrows them if they are contiguous, and otherwise copies
    /// them.
    pub fn contiguous(&self) -> Cow<'_, [u8]> {
        self.as_one().map_or_else(
            || {
                let mut whole = Vec::with_capacity(self.len());
                self.for_each(|piece| whole.extend_from_slice(piece));
                Cow::Owned(whole)
            },
            Cow::Borrowed,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tensorlend_layout::random::splitmix64;

    fn there_and_back(bytes: &[u8], element: usize, packing: Packing) -> Codec {
        let (left, right) = bytes.split_at(bytes.len() / 3);
        let body = Body::pieces(vec![Bytes::copy_from_slice(left), Bytes::copy_from_slice(right)]);
        let (chunk, body) = Chunk::pack(7, body, element, packing, Codecs::ALL, true);
        assert!(body.len() <= bytes.len());
        let mut out = vec![0xee; bytes.len()];
        chunk.unpack(&body, &mut out).unwrap();
        assert_eq!(out, bytes);
        chunk.codec
    }

    #[test]
    fn what_does_not_get_smaller_is_sent_as_it_lies() {
        let mut state = 1_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| splitmix64(&mut state) as u8).take(100_000).collect();
        for packing in [Packing::None, Packing::Lz4, Packing::Zstd] {
            assert_eq!(there_and_back(&noise, 4, packing), Codec::Plain);
        }
        let smooth: Vec<u8> = (0..50_000).flat_map(|n| (f64::from(n) * 1e-3 + 20.0).to_le_bytes()).collect();
        assert_eq!(there_and_back(&smooth, 8, Packing::Zstd), Codec::ShuffledZstd { element: 8 });
        assert_eq!(there_and_back(&smooth, 1, Packing::Zstd), Codec::Zstd);
        assert_eq!(there_and_back(&vec![7; 100_000], 1, Packing::Lz4), Codec::Lz4);
        assert_eq!(there_and_back(&[7; 100], 1, Packing::Lz4), Codec::Plain, "too short");
    }

    #[test]
    fn numbers_that_change_slowly_get_smaller_by_shuffling() {
        let smooth: Vec<u8> = (0..50_000).flat_map(|n| ((n as f32) * 1e-3 + 300.0).to_le_bytes()).collect();
        let of = |element| pack(Body::of(smooth.clone().into()), element, Packing::Zstd, Codecs::ALL).1.len();
        assert!(of(4) * 10 < of(1) * 9, "{} against {}", of(4), of(1));
    }

    #[test]
    fn what_was_damaged_on_the_way_is_found() {
        let bytes = vec![7; 4096];
        let (chunk, body) = Chunk::pack(0, Body::of(bytes.into()), 4, Packing::None, Codecs::ALL, true);
        let mut damaged = body.contiguous().into_owned();
        damaged[100] ^= 1;
        let mut out = vec![0; 4096];
        assert_eq!(chunk.unpack(&Body::of(damaged.into()), &mut out), Err(BadChunk::Checksum));
        assert!(matches!(chunk.unpack(&Body::default(), &mut out), Err(BadChunk::Length { .. })));
        assert!(matches!(chunk.unpack(&body, &mut out[1..]), Err(BadChunk::Length { .. })));
    }

    #[test]
    fn a_bomb_fills_what_it_was_said_to_fill_and_no_more() {
        let bomb = compress(&vec![0; 10 << 20]).unwrap();
        let mut out = vec![0; 64 << 10];
        assert!(unpack(Codec::Zstd, &Body::of(bomb.into()), &mut out).is_err());
        let bomb = lz4_flex::block::compress(&vec![0; 10 << 20]);
        assert!(unpack(Codec::Lz4, &Body::of(bomb.into()), &mut out).is_err());
    }

    proptest! {
        #[test]
        fn all_bytes_come_back(
            pattern in prop::collection::vec(any::<u8>(), 1..40),
            length in 0_usize..150_000,
            element in 1_usize..18,
        ) {
            let bytes: Vec<u8> = pattern.iter().copied().cycle().take(length).collect();
            for packing in [Packing::None, Packing::Lz4, Packing::Zstd] {
                there_and_back(&bytes, element, packing);
            }
        }

        #[test]
        fn any_bytes_are_unpacked_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000), length in 0_usize..4000, element in 0_u8..20) {
            let mut out = vec![0; length];
            let body = Body::of(bytes.into());
            for codec in [Codec::Plain, Codec::Lz4, Codec::Zstd, Codec::ShuffledZstd { element }] {
                let _ = unpack(codec, &body, &mut out);
            }
        }
    }
}
