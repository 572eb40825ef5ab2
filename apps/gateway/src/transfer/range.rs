//! One transfer, as the ranges of a value's bytes that were requested, received, and copied.
//!
//! This is a pure state machine without clock, socket and bytes. A transfer requests several ranges
//! at once and takes their responses in any order. After a failed request it waits for a growing
//! delay and requests the range again, so it continues when a lost node returns.

use crate::budget::Share;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The limits of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Maximum bytes of one range.
    pub chunk_bytes: u32,
    /// Maximum bytes requested and not yet received.
    pub window_bytes: u64,
    /// Time without progress after which the transfer has failed.
    pub stall_timeout: Duration,
    /// Maximum number of damaged responses for one range.
    pub damaged_max: u32,
}

/// Delay before the first retry. Each further failure in a row doubles the delay.
const AGAIN: Duration = Duration::from_millis(50);
/// Maximum delay before a retry.
const AGAIN_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Offset of the range's first byte in the value.
    pub offset: u64,
    pub bytes: u32,
}

/// The state of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The transfer continues, because bytes are missing.
    Going,
    /// All bytes have arrived.
    Complete,
    /// No progress for [`Rules::stall_timeout`].
    Stuck,
    /// One range arrived damaged too often.
    Damaged,
}

/// One transfer, with the state of the ranges of a value.
#[derive(Debug)]
pub struct Transfer {
    rules: Rules,
    total: u64,
    /// Offset of the first byte that was never requested.
    next: u64,
    /// Ranges to request again, after a failure or damage.
    again: VecDeque<Range>,
    /// Ranges in flight: offset and number of bytes.
    flying: BTreeMap<u64, u32>,
    flying_bytes: u64,
    /// Ranges that have arrived and that a worker copies: offset and number of bytes.
    landing: BTreeMap<u64, u32>,
    done: u64,
    damaged: BTreeMap<u64, u32>,
    progress: Instant,
    troubles: u32,
    not_before: Instant,
    /// Whether the budget refused room for the next range.
    held_up: bool,
}

impl Transfer {
    /// Makes a transfer of `total` bytes. The first `here` bytes have arrived already.
    pub fn new(rules: Rules, total: u64, here: u64, now: Instant) -> Self {
        Self {
            rules,
            total,
            next: here.min(total),
            again: VecDeque::new(),
            flying: BTreeMap::new(),
            flying_bytes: 0,
            landing: BTreeMap::new(),
            done: here.min(total),
            damaged: BTreeMap::new(),
            progress: now,
            troubles: 0,
            not_before: now,
            held_up: false,
        }
    }

    /// Returns the state of the transfer at time `now`.
    pub fn standing(&self, now: Instant) -> Standing {
        if self.done == self.total {
            Standing::Complete
        } else if self.damaged.values().any(|&times| times > self.rules.damaged_max) {
            Standing::Damaged
        } else if now.saturating_duration_since(self.progress) > self.rules.stall_timeout {
            Standing::Stuck
        } else {
            Standing::Going
        }
    }

    /// Returns the ranges to request now. As many as fit into the transfer's window and its node's
    /// share of the budget.
    pub fn fill(&mut self, now: Instant, share: &mut Share<'_>) -> Vec<Range> {
        let mut asked = Vec::new();
        self.held_up = false;
        if now < self.not_before {
            return asked;
        }
        // After a failure the transfer requests one range at a time, until a range arrives.
        let window = if self.troubles > 0 { u64::from(self.rules.chunk_bytes) } else { self.rules.window_bytes };
        loop {
            let fresh = self.again.is_empty();
            let range = match self.again.front() {
                Some(range) => *range,
                None if self.next < self.total => {
                    let bytes = (self.total - self.next).min(u64::from(self.rules.chunk_bytes)) as u32;
                    Range { offset: self.next, bytes }
                }
                None => return asked,
            };
            let bytes = u64::from(range.bytes);
            // A single range may always be in flight, even if it is longer than the window.
            let room = self.flying_bytes == 0 || self.flying_bytes + bytes <= window;
            if !room {
                return asked;
            }
            if !share.take(bytes) {
                self.held_up = true;
                if self.flying_bytes == 0 {
                    // Other transfers use up the budget. This wait must not count as a stall of this transfer.
                    self.progress = now;
                }
                return asked;
            }
            if fresh {
                self.next += bytes;
            } else {
                self.again.pop_front();
            }
            self.flying_bytes += bytes;
            self.flying.insert(range.offset, range.bytes);
            asked.push(range);
        }
    }

    /// Handles an arrived range. Returns true if the range was in flight. Then the caller must copy
    /// its bytes and call [`Transfer::on_landed`]. Until that call, the bytes count against the
    /// window.
    pub fn on_bytes(&mut self, range: Range, now: Instant) -> bool {
        if !self.end_of(range) {
            return false;
        }
        (self.troubles, self.not_before, self.progress) = (0, now, now);
        self.landing.insert(range.offset, range.bytes);
        true
    }

    /// Handles the end of a range's copy. `whole` is false if the bytes were damaged. Then the
    /// transfer requests the range again.
    pub fn on_landed(&mut self, range: Range, whole: bool, now: Instant, share: &mut Share<'_>) {
        if self.landing.get(&range.offset) != Some(&range.bytes) {
            return;
        }
        self.landing.remove(&range.offset);
        share.give(u64::from(range.bytes));
        if whole {
            self.done += u64::from(range.bytes);
            self.progress = now;
        } else {
            *self.damaged.entry(range.offset).or_default() += 1;
            self.again.push_back(range);
        }
    }

    /// Handles a request that failed, or whose response was invalid.
    pub fn on_trouble(&mut self, range: Range, now: Instant, share: &mut Share<'_>) {
        if !self.end_of(range) {
            return;
        }
        share.give(u64::from(range.bytes));
        self.again.push_back(range);
        // Requests that were sent together usually fail together. Count only the first failure of each delay.
        if now >= self.not_before {
            self.not_before = now + AGAIN.saturating_mul(1 << self.troubles.min(10)).min(AGAIN_MAX);
            self.troubles += 1;
        }
    }

    /// Retries at once, because the node is reachable again.
    pub fn on_way(&mut self, now: Instant) {
        (self.not_before, self.progress) = (now, now);
    }

    /// Ends the transfer, and returns its bytes to the budget.
    pub fn end(&mut self, share: &mut Share<'_>) {
        share.give(self.flying_bytes + self.landing.values().map(|&bytes| u64::from(bytes)).sum::<u64>());
        self.flying.clear();
        self.landing.clear();
        self.flying_bytes = 0;
    }

    /// Returns true if the transfer waits for room in the budget that other transfers or streams use.
    pub fn is_held_up(&self) -> bool {
        self.held_up
    }

    fn end_of(&mut self, range: Range) -> bool {
        if self.flying.get(&range.offset) != Some(&range.bytes) {
            return false;
        }
        self.flying.remove(&range.offset);
        self.flying_bytes -= u64::from(range.bytes);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::wire::NodeName;
    use proptest::prelude::*;

    const RULES: Rules =
        Rules { chunk_bytes: 10, window_bytes: 30, stall_timeout: Duration::from_secs(30), damaged_max: 3 };

    fn node() -> NodeName {
        NodeName::new("node7").unwrap()
    }

    #[test]
    fn ranges_are_asked_within_the_window_and_taken_in_any_order() {
        let (node, now, mut budget) = (node(), Instant::now(), Budget::new(2000));
        let mut transfer = Transfer::new(RULES, 55, 5, now);
        let asked = transfer.fill(now, &mut budget.of(&node));
        assert_eq!(asked.iter().map(|r| (r.offset, r.bytes)).collect::<Vec<_>>(), [(5, 10), (15, 10), (25, 10)]);
        assert!(transfer.fill(now, &mut budget.of(&node)).is_empty());
        for range in asked.iter().rev() {
            assert!(transfer.on_bytes(*range, now));
            assert!(!transfer.on_bytes(*range, now));
            transfer.on_landed(*range, true, now, &mut budget.of(&node));
        }
        let rest = transfer.fill(now, &mut budget.of(&node));
        assert_eq!(rest.last(), Some(&Range { offset: 45, bytes: 10 }));
        assert_eq!((transfer.done, transfer.total), (35, 55));
        assert!(!transfer.on_bytes(Range { offset: 45, bytes: 11 }, now));
    }

    #[test]
    fn nothing_to_be_read_is_complete_at_once() {
        assert_eq!(Transfer::new(RULES, 0, 0, Instant::now()).standing(Instant::now()), Standing::Complete);
    }

    #[test]
    fn a_transfer_waits_longer_and_longer_and_gives_up() {
        let (node, start, mut budget) = (node(), Instant::now(), Budget::new(2000));
        let mut transfer = Transfer::new(RULES, 20, 0, start);
        let (mut now, mut asked) = (start, 0);
        while transfer.standing(now) == Standing::Going {
            for range in transfer.fill(now, &mut budget.of(&node)) {
                asked += 1;
                transfer.on_trouble(range, now, &mut budget.of(&node));
            }
            now += Duration::from_millis(10);
        }
        assert_eq!((transfer.standing(now), budget.in_flight()), (Standing::Stuck, 0));
        assert!((10..40).contains(&asked), "{asked}");
    }

    #[test]
    fn what_comes_damaged_is_asked_for_again_and_not_for_ever() {
        let (node, now, mut budget) = (node(), Instant::now(), Budget::new(2000));
        let mut transfer = Transfer::new(RULES, 10, 0, now);
        let mut times = 0;
        while transfer.standing(now) == Standing::Going {
            let range = transfer.fill(now, &mut budget.of(&node))[0];
            assert!(transfer.on_bytes(range, now));
            transfer.on_landed(range, false, now, &mut budget.of(&node));
            times += 1;
        }
        assert_eq!((transfer.standing(now), times), (Standing::Damaged, 4));
    }

    proptest! {
        /// For all losses, delays and damaged packets: each byte is copied once, and the whole budget is returned.
        #[test]
        fn every_byte_lands_once(total in 0u64..500, here in 0u64..20, steps in proptest::collection::vec((0u8..4, any::<u16>()), 0..600)) {
            let (node, mut now, mut budget) = (node(), Instant::now(), Budget::new(120));
            let rules = Rules { damaged_max: u32::MAX, stall_timeout: Duration::from_secs(1 << 30), ..RULES };
            let mut transfer = Transfer::new(rules, total, here, now);
            let mut landed = vec![false; total as usize];
            landed[..here.min(total) as usize].fill(true);
            let mut flying: Vec<Range> = Vec::new();
            let mut land = |transfer: &mut Transfer, budget: &mut Budget, range: Range, whole: bool, now| {
                transfer.on_landed(range, whole, now, &mut budget.of(&node));
                if whole {
                    for byte in &mut landed[range.offset as usize..][..range.bytes as usize] {
                        assert!(!std::mem::replace(byte, true), "twice");
                    }
                }
            };
            for (step, pick) in steps {
                now += Duration::from_millis(u64::from(pick % 97));
                flying.extend(transfer.fill(now, &mut budget.of(&node)));
                prop_assert!(flying.iter().map(|r| u64::from(r.bytes)).sum::<u64>() <= 60);
                if flying.is_empty() { continue }
                let range = flying.swap_remove(usize::from(pick) % flying.len());
                match step {
                    0 => transfer.on_trouble(range, now, &mut budget.of(&node)),
                    step => {
                        prop_assert!(transfer.on_bytes(range, now));
                        land(&mut transfer, &mut budget, range, step > 1, now);
                    }
                }
            }
            // No more failures from here on.
            for _ in 0..1000 {
                now += Duration::from_secs(3);
                flying.extend(transfer.fill(now, &mut budget.of(&node)));
                for range in flying.drain(..) {
                    prop_assert!(transfer.on_bytes(range, now));
                    land(&mut transfer, &mut budget, range, true, now);
                }
            }
            prop_assert_eq!(transfer.standing(now), Standing::Complete);
            prop_assert_eq!(budget.in_flight(), 0);
            prop_assert!(landed.iter().all(|byte| *byte));
        }
    }
}
