//! Messages of another gateway: arbitrary headers, keys and packed chunks.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tensorlend_gateway::key::Key;
use tensorlend_gateway::transport::Body;
use tensorlend_gateway::wire::{AboutName, Changed, Chunk, Codec, Head, NameAnswer, decode, encode};

/// Longer chunks would test nothing more.
const CHUNK_BYTES_MAX: usize = 1 << 16;

fn head<H: Head + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(head) = decode::<H>(bytes) {
        assert_eq!(decode::<H>(&encode(&head)).as_ref(), Ok(&head), "what was believed can be said again");
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&which, data)) = data.split_first() else { return };
    match which % 5 {
        0 => head::<AboutName>(data),
        1 => {
            head::<NameAnswer>(data);
            if let Ok(NameAnswer::Value { descriptor, chunk, .. }) = decode(data) {
                assert!(i64::try_from(descriptor.bytes()).is_ok());
                assert!(chunk.offset + u64::from(chunk.bytes) <= descriptor.bytes());
            }
        }
        2 => head::<Changed>(data),
        3 => {
            let Ok(text) = std::str::from_utf8(data) else { return };
            if let Ok(key) = Key::parse(text) {
                assert_eq!(key.expression(), text, "a key has one form");
            }
        }
        _ => {
            let &[codec, element, low, high, ref packed @ ..] = data else { return };
            let codec =
                [Codec::Plain, Codec::Lz4, Codec::Zstd, Codec::ShuffledZstd { element }][usize::from(codec) % 4];
            let bytes = usize::from(u16::from_le_bytes([low, high])).min(CHUNK_BYTES_MAX);
            let (left, right) = packed.split_at(packed.len() / 2);
            let body = Body::pieces(vec![Bytes::copy_from_slice(left), Bytes::copy_from_slice(right)]);
            let chunk = Chunk { offset: 0, bytes: bytes as u32, codec, checksum: None };
            let _ = chunk.unpack(&body, &mut vec![0; bytes]);
        }
    }
});
