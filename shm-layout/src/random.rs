//! Pseudorandom numbers from a seed. The numbers are the same on every machine and in every
//! version, so a recorded seed reproduces a test run.

/// Returns the next number of a sequence (SplitMix64; Steele, Lea, Flood: Fast splittable
/// pseudorandom number generators, 2014).
///
/// ```
/// use tensorlend_layout::random::splitmix64;
///
/// let mut state = 0;
/// assert_eq!(splitmix64(&mut state), 0xE220_A839_7B1D_CDAF);
/// ```
pub const fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
