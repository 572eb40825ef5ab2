//! Names that an attacker chooses so that they lengthen the search for another one.

use tensorlend_layout::directory::Directory;

/// Returns names of eight characters whose hashes differ from `target` in the lowest `free` bits only. XXH3 of eight bytes is a
/// permutation, and every member knows the seed and can invert it (XXH3_len_4to8_64b in xxhash.h).
pub fn chosen_keys(d: &Directory, target: u64, free: u32) -> impl Iterator<Item = Vec<u8>> + use<> {
    const PRIME: u64 = 0x9FB2_1C65_1E98_DF25;
    let inverse = (0..6).fold(PRIME, |x, _| x.wrapping_mul(2u64.wrapping_sub(PRIME.wrapping_mul(x))));
    let keyed_of = move |hash: u64| {
        let mut h = (0..3).fold(hash, |h, _| hash ^ h >> 28).wrapping_mul(inverse);
        h = (h ^ ((h >> 35) + 8)).wrapping_mul(inverse);
        // The 64th power of h ^ rotl(h, 49) ^ rotl(h, 24) is the identity, so the 63rd is the inverse.
        (0..6).fold(h, |h, power| h ^ h.rotate_left(49 << power & 63) ^ h.rotate_left(24 << power & 63))
    };
    let as_input = |key: &[u8; 8]| u64::from_le_bytes(*key).rotate_left(32);
    let flip = keyed_of(d.hash(b"abcdefgh")) ^ as_input(b"abcdefgh");
    let mask = (1u64 << free) - 1;
    (0u64..1 << free)
        .map(move |i| keyed_of(target & !mask | i.wrapping_mul(PRIME) & mask) ^ flip)
        .map(|input| input.rotate_right(32).to_le_bytes().to_vec())
        .filter(|key| key.iter().all(|byte| (b' '..=b'~').contains(byte)))
}
