//! A fast hasher for the client's own maps.

use std::hash::Hasher;

/// A hasher of values that are hashes already, and of cell numbers, which hash tables need mixed.
#[derive(Default)]
pub struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u32(&mut self, cell: u32) {
        // Fibonacci hashing: the factor is 2^64 divided by the golden ratio. The upper bits of the product are the mixed
        // ones, and a hash table selects its bucket by the lower ones.
        self.0 = u64::from(cell).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
