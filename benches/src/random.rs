//! Pseudorandom numbers, the same in every run.

use tensorlend_layout::random::splitmix64;

/// A generator (SplitMix64) with a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        splitmix64(&mut self.0)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// Returns a log-uniform number from `low` to `high`.
    pub fn log_uniform(&mut self, low: u64, high: u64) -> u64 {
        let part = (self.bits() >> 11) as f64 / (1u64 << 53) as f64;
        let (first, last) = ((low as f64).ln(), (high as f64).ln());
        ((first + (last - first) * part).exp().round() as u64).clamp(low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_repeats_and_ranges_hold() {
        let (mut one, mut other) = (Random::new(7), Random::new(7));
        let mut small = 0;
        for _ in 0..1000 {
            let size = one.log_uniform(8, 64 << 20);
            assert!((8..=64 << 20).contains(&size));
            assert_eq!(size, other.log_uniform(8, 64 << 20));
            small += u32::from(size < 23_170);
        }
        assert!((400..600).contains(&small), "half of the sizes lie below the geometric mean: {small}");
        assert!(one.below(3) < 3);
    }
}
