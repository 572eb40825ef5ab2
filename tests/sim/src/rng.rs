//! Pseudorandom numbers, the same on every machine.

/// A splitmix64 generator: small, and every seed gives a different sequence. It may begin with given numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64, std::collections::VecDeque<u8>);

impl Rng {
    /// Returns the sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed, std::collections::VecDeque::new())
    }

    /// Returns these small numbers first, then the sequence of seed 0.
    pub fn of(choices: &[u8]) -> Self {
        Self(0, choices.iter().copied().collect())
    }

    /// Returns any number.
    pub fn next(&mut self) -> u64 {
        if let Some(chosen) = self.1.pop_front() {
            return chosen.into();
        }
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// As [`Rng::below`], for indices.
    pub fn index(&mut self, end: usize) -> usize {
        self.below(end as u64) as usize
    }

    /// Returns true with this probability in percent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns a random element of `of`.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }
}
