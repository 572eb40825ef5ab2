//! The payload of an exchange. It begins with a stamp, and its pages all differ.

use crate::BaselineError;

const PAGE_BYTES: usize = 4096;

/// Length of the stamp in bytes. A shorter payload contains as many of these bytes as fit.
const STAMP_BYTES: usize = 8;

/// Makes a payload of `bytes` bytes. Its pages differ, so that a page in the wrong place changes
/// the checksum.
pub fn make(bytes: usize) -> Vec<u8> {
    let mut payload = vec![0_u8; bytes];
    let mut page = [0_u8; PAGE_BYTES];
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for word in page.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    for (index, chunk) in payload.chunks_mut(PAGE_BYTES).enumerate() {
        page[STAMP_BYTES..2 * STAMP_BYTES].copy_from_slice(&(index as u64).to_le_bytes());
        chunk.copy_from_slice(&page[..chunk.len()]);
    }
    payload
}

/// Marks the payload as the payload of exchange `stamp`.
pub fn stamp(payload: &mut [u8], stamp: u64) {
    let length = payload.len().min(STAMP_BYTES);
    payload[..length].copy_from_slice(&stamp.to_le_bytes()[..length]);
}

/// Returns the payload's stamp. The stamp of a short payload has only the bytes that fit.
pub fn stamp_of(payload: &[u8]) -> u64 {
    let length = payload.len().min(STAMP_BYTES);
    let mut word = [0_u8; STAMP_BYTES];
    word[..length].copy_from_slice(&payload[..length]);
    u64::from_le_bytes(word)
}

/// Returns the checksum (XXH3, 64 bits) of all bytes.
#[cfg(feature = "ipc")]
pub fn checksum(payload: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(payload)
}

/// Writes every byte with the value of message `number`.
pub fn write_all(payload: &mut [u8], number: u64) {
    payload.fill(number as u8);
}

/// Reads every byte.
///
/// # Errors
///
/// [`BaselineError::Bytes`] if a byte does not have the value of message `number`.
pub fn read_all(payload: &[u8], number: u64) -> Result<(), BaselineError> {
    let (words, rest) = payload.as_chunks::<8>();
    let expected = u64::from_le_bytes([number as u8; 8]);
    // The loop has no early exit. So it reads every byte, and the compiler vectorizes it.
    let wrong = words.iter().fold(0, |wrong, word| wrong | (u64::from_le_bytes(*word) ^ expected));
    let wrong = rest.iter().fold(wrong, |wrong, &byte| wrong | u64::from(byte ^ number as u8));
    if wrong == 0 { Ok(()) } else { Err(BaselineError::Bytes { number }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "ipc")]
    #[test]
    fn pages_differ() {
        let payload = make(3 * PAGE_BYTES);
        let sums: Vec<u64> = payload.chunks(PAGE_BYTES).map(checksum).collect();
        assert!(sums[0] != sums[1] && sums[1] != sums[2]);
    }

    #[test]
    fn stamps_fit_any_length() {
        for bytes in [0, 1, 7, 8, 9] {
            let mut payload = make(bytes);
            stamp(&mut payload, u64::MAX);
            assert_eq!(stamp_of(&payload).count_ones() as usize, 8 * bytes.min(8));
        }
    }

    #[test]
    fn one_wrong_byte_is_seen() {
        for bytes in [1, 7, 8, 9, 1000] {
            let mut payload = make(bytes);
            write_all(&mut payload, 300);
            read_all(&payload, 300).unwrap();
            assert!(read_all(&payload, 301).is_err());
            payload[bytes - 1] ^= 1;
            assert!(read_all(&payload, 300).is_err());
        }
    }
}
