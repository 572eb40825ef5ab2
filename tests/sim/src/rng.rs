//! Numbers from a seed, the same on every machine.

/// A generator (splitmix64): small, and every seed gives another sequence. It may begin with numbers that somebody chose.
#[derive(Clone, Debug)]
pub struct Rng(u64, std::collections::VecDeque<u8>);

impl Rng {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed, std::collections::VecDeque::new())
    }

    /// First these small numbers, then those of seed 0.
    pub fn of(choices: &[u8]) -> Self {
        Self(0, choices.iter().copied().collect())
    }

    /// Any number.
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

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// As [`Rng::below`], for places in arrays.
    pub fn index(&mut self, end: usize) -> usize {
        self.below(end as u64) as usize
    }

    /// Whether an event comes that comes so often in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }
}
