//! Pseudorandom numbers, the same on every machine.

use tensorlend_layout::random::splitmix64;

/// A generator (splitmix64): small, and every seed gives another sequence. It may begin with chosen numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64, std::collections::VecDeque<u8>);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed, std::collections::VecDeque::new())
    }

    /// Returns these small numbers first, then the sequence of seed 0.
    pub fn of(choices: &[u8]) -> Self {
        Self(0, choices.iter().copied().collect())
    }

    pub fn next(&mut self) -> u64 {
        if let Some(chosen) = self.1.pop_front() {
            return chosen.into();
        }
        splitmix64(&mut self.0)
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
