//! Which segment a slot goes into, and how long a segment is to be. No memory is touched here.
//!
//! What is freed at different times must not lie between what is freed together, for nothing can be moved. So there are
//! three kinds of slots. *Small* ones have segments of their own kind, where they pin nothing but each other. *Long* ones
//! get a segment of their own length, which goes back when they go. The rest shares segments with each other and with
//! what the long ones leave over; a segment that nothing uses is the last choice, so that it stays one to give back.

use crate::alloc::extents::Extents;
use tensorlend_layout::tensor::{ALIGN, PAGE};

/// Length of the first segment of small slots, which a new client waits for, and of the others.
const FIRST_BYTES: (u64, u64) = (512 << 10, 1 << 20);
/// Slots below this part of an ordinary segment are small. The other kinds need no more slots than this.
const SMALL_LOG2: u8 = 8;
/// From this part of an ordinary segment on they are long.
const LONG: u64 = 8;
/// Lengths of segments are rounded up to this part of an ordinary one.
const ROUND: u64 = 32;
/// log2 of the slots of a small segment: of the first, of the next, and at most.
const SLOTS_LOG2: (u8, u8, u8) = (10, 12, 18);
/// Segments that nothing uses are kept while no more than this many bytes are free, or as many as are in use.
const IDLE_BYTES_MIN: u64 = 256 << 20;

/// What a slot of `bytes` bytes takes: whole cache lines, or whole pages from one page on.
#[inline]
pub fn extent_bytes(bytes: u64) -> Option<(u64, u64)> {
    let align = if bytes >= PAGE { PAGE } else { ALIGN };
    Some((bytes.max(1).checked_next_multiple_of(align)?, align))
}

/// One segment's room: extents, and the numbers of its slots.
pub struct Space {
    bytes: u64,
    small: bool,
    extents: Extents,
    /// Numbers that were used and are free.
    numbers: Vec<u32>,
    /// Numbers from here on were never used.
    fresh: u32,
    count: u32,
}

impl Space {
    /// All of `bytes` bytes and 2^`slots_log2` numbers free.
    pub fn new(bytes: u64, slots_log2: u8) -> Self {
        // The kind needs no field on the way to the daemon and back: only small segments have so many numbers.
        let small = slots_log2 >= SLOTS_LOG2.0;
        let count = 1 << slots_log2;
        Self { bytes, small, extents: Extents::new(bytes), numbers: Vec::new(), fresh: 0, count }
    }

    /// Whether nothing is handed out.
    pub fn is_unused(&self) -> bool {
        self.extents.is_unused()
    }

    /// Whether another slot can have a number here.
    pub fn has_numbers(&self) -> bool {
        !self.numbers.is_empty() || self.fresh < self.count
    }

    /// How many bytes would be left over of the hole that [`Space::take`] would take.
    #[cfg(feature = "cuda")]
    pub fn best(&self, length: u64, align: u64) -> Option<u64> {
        self.extents.best(length, align).filter(|_| self.has_numbers())
    }

    /// Whether it has room, and no numbers for it.
    #[cfg(feature = "cuda")]
    pub fn lacks_numbers(&self) -> bool {
        !self.has_numbers() && !self.extents.is_full()
    }

    /// Takes an extent and a number: the number and the offset.
    pub fn take(&mut self, length: u64, align: u64) -> Option<(u32, u64)> {
        if !self.has_numbers() {
            return None;
        }
        let offset = self.extents.take(length, align)?;
        let number = self.numbers.pop().unwrap_or_else(|| {
            self.fresh += 1;
            self.fresh - 1
        });
        Some((number, offset))
    }

    /// Gives both back.
    pub fn give(&mut self, number: u32, offset: u64, length: u64) {
        self.extents.give(offset, length);
        self.numbers.push(number);
    }
}

/// The rules, for a pool whose ordinary segments have so many bytes.
pub struct Placement {
    ordinary: u64,
    /// log2 of the slots to ask for with the next small segment.
    slots_log2: u8,
    /// Whether the daemon had nothing more to lend: then any room will do.
    pub anywhere: bool,
}

impl Placement {
    pub fn new(ordinary: u64) -> Self {
        Self { ordinary, slots_log2: SLOTS_LOG2.1, anywhere: false }
    }

    /// Whether slots of this length have segments of their own kind.
    pub fn is_small(&self, length: u64) -> bool {
        length < self.ordinary >> SMALL_LOG2
    }

    fn is_long(&self, length: u64) -> bool {
        length >= self.ordinary / LONG
    }

    /// Which space an extent is to be taken of.
    pub fn choose<'s>(
        &mut self,
        spaces: impl Iterator<Item = (usize, &'s Space)> + Clone,
        length: u64,
        align: u64,
    ) -> Option<usize> {
        let small = self.is_small(length);
        let mut with_numbers = spaces.clone().filter(|(_, space)| space.has_numbers());
        if small {
            // The first that has room: there may be very many, and one hole is as good as another.
            let fits = |(_, space): &(usize, &Space)| space.small && space.extents.best(length, align).is_some();
            if let Some((at, _)) = with_numbers.clone().find(fits) {
                return Some(at);
            }
            if spaces.clone().any(|(_, space)| space.small && !space.has_numbers() && !space.extents.is_full()) {
                // Even smaller ones than thought: the next segment gets four times the slots.
                self.slots_log2 = (self.slots_log2 + 2).min(SLOTS_LOG2.2);
            }
        } else {
            let best = with_numbers.clone().filter(|(_, space)| !space.small).filter_map(|(at, space)| {
                let spare = space.extents.best(length, align)?;
                Some((space.is_unused(), spare, at))
            });
            if let Some((.., at)) = best.min() {
                return Some(at);
            }
        }
        let fits = |(_, space): &(usize, &Space)| space.extents.best(length, align).is_some();
        with_numbers.find(|at| self.anywhere && fits(at)).map(|(at, _)| at)
    }

    /// What segment to ask for, so that a slot of `length` bytes fits: its bytes and log2 of its slots.
    pub fn wanted<'s>(&self, spaces: impl Iterator<Item = (usize, &'s Space)>, length: u64) -> (u64, u8) {
        if length > self.ordinary {
            return (length, SMALL_LOG2 / 2);
        }
        if self.is_long(length) {
            let bytes = length.next_multiple_of((self.ordinary / ROUND).max(PAGE));
            // Above the half of an ordinary one, that is what the daemon lends.
            return (if bytes > self.ordinary / 2 { self.ordinary } else { bytes }, SMALL_LOG2);
        }
        // As much as there is already of its kind: a client that publishes one small tensor keeps no 64 MiB for it.
        let small = self.is_small(length);
        let bytes: u64 = spaces.filter(|(_, space)| space.small == small).map(|(_, space)| space.bytes).sum();
        let is_first = bytes == 0;
        let least = if small { FIRST_BYTES.0 } else { FIRST_BYTES.1 };
        let bytes = bytes.clamp(least.min(self.ordinary), self.ordinary).max(length);
        let slots_log2 = match (small, is_first) {
            (true, true) => SLOTS_LOG2.0,
            // Not more than have room.
            (true, false) => self.slots_log2.min((bytes / ALIGN).ilog2() as u8).max(SLOTS_LOG2.0),
            (false, _) => SMALL_LOG2,
        };
        (bytes, slots_log2)
    }

    /// Which unused segments make way for one that is asked for, so that a client whose tensors' lengths change exchanges
    /// segments and does not gather them.
    pub fn make_way<'s>(&self, spaces: impl Iterator<Item = (usize, &'s Space)> + Clone, length: u64) -> Vec<usize> {
        if self.is_small(length) {
            return Vec::new();
        }
        let (comes, _) = self.wanted(spaces.clone(), length);
        let mut unused: Vec<(u64, usize)> =
            spaces.filter(|(_, s)| !s.small && s.is_unused()).map(|(at, s)| (s.bytes, at)).collect();
        // None of them has room for it. The longest first, until as much goes as comes.
        unused.sort_unstable();
        let mut gone = 0;
        let enough = unused.iter().rev().take_while(|(bytes, _)| {
            let more = gone < comes;
            gone += bytes;
            more
        });
        enough.map(|&(_, at)| at).collect()
    }

    /// Whether unused segments are too many to keep.
    pub fn is_idle(segment_bytes: u64, used_bytes: u64) -> bool {
        segment_bytes - used_bytes > IDLE_BYTES_MIN.max(used_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend_layout::random::splitmix64;

    const MIB: u64 = 1 << 20;

    /// A client's heap without the memory: the rules, applied as it applies them.
    struct Simulated {
        placement: Placement,
        spaces: Vec<(u64, Space)>,
        next: u64,
        used: u64,
        segments: u64,
        requests: u64,
    }

    type Slot = (u64, u32, u64, u64);

    impl Simulated {
        fn new(ordinary: u64) -> Self {
            let placement = Placement::new(ordinary);
            Self { placement, spaces: Vec::new(), next: 0, used: 0, segments: 0, requests: 0 }
        }

        fn give_back(&mut self, at: usize) {
            let (_, space) = self.spaces.remove(at);
            assert!(space.is_unused());
            self.segments -= space.bytes;
            self.requests += 1;
        }

        fn place(&mut self, length: u64, align: u64) -> Option<Slot> {
            let at = self.placement.choose(self.spaces.iter().map(|(_, s)| s).enumerate(), length, align)?;
            let (id, space) = &mut self.spaces[at];
            let (number, offset) = space.take(length, align).expect("it was chosen");
            self.used += length;
            Some((*id, number, offset, length))
        }

        fn take(&mut self, bytes: u64) -> Slot {
            let (length, align) = extent_bytes(bytes).unwrap();
            if let Some(slot) = self.place(length, align) {
                return slot;
            }
            let mut gone = self.placement.make_way(self.spaces.iter().map(|(_, s)| s).enumerate(), length);
            gone.sort_unstable();
            for at in gone.into_iter().rev() {
                self.give_back(at);
            }
            let (wanted, slots_log2) = self.placement.wanted(self.spaces.iter().map(|(_, s)| s).enumerate(), length);
            // As the daemon rounds.
            let ordinary = self.placement.ordinary;
            let bytes = wanted.next_multiple_of(PAGE);
            let bytes = if bytes > ordinary / 2 { bytes.max(ordinary) } else { bytes };
            assert!(bytes == wanted || wanted > ordinary || length < ordinary / LONG, "the client knows what it gets");
            self.spaces.push((self.next, Space::new(bytes, slots_log2)));
            self.next += 1;
            self.segments += bytes;
            self.requests += 1;
            self.place(length, align).expect("the new segment has room")
        }

        fn give(&mut self, (id, number, offset, length): Slot) {
            let at = self.spaces.iter().position(|(i, _)| *i == id).unwrap();
            self.spaces[at].1.give(number, offset, length);
            self.used -= length;
            if self.spaces[at].1.is_unused() && Placement::is_idle(self.segments, self.used) {
                self.give_back(at);
            }
        }
    }

    /// Each factor of two from 8 B to 64 MiB as often as any other.
    fn log_uniform(state: &mut u64) -> u64 {
        let part = (splitmix64(state) >> 11) as f64 / (1u64 << 53) as f64;
        let (first, last) = (8f64.ln(), (64.0 * MIB as f64).ln());
        (first + (last - first) * part).exp().round() as u64
    }

    /// Peak of the segments by peak of what lives, and the part of steps without the daemon.
    fn never_repeating(seed: u64) -> (f64, f64) {
        let (warm_up, steps) = (500, 1500);
        let mut heap = Simulated::new(64 * MIB);
        let mut state = seed;
        let mut live: Vec<Slot> = Vec::new();
        let (mut live_max, mut segments_max, mut hits) = (0, 0, 0);
        for step in 0..warm_up + steps {
            let before = heap.requests;
            let slot = heap.take(log_uniform(&mut state));
            if live.len() == 64 {
                let gone = live.swap_remove(splitmix64(&mut state) as usize % 64);
                heap.give(gone);
            }
            live.push(slot);
            if step >= warm_up {
                live_max = live_max.max(heap.used);
                segments_max = segments_max.max(heap.segments);
                hits += u32::from(heap.requests == before);
            }
        }
        for slot in live.drain(..) {
            heap.give(slot);
        }
        assert!(heap.used == 0 && heap.spaces.iter().all(|(_, space)| space.is_unused()));
        (segments_max as f64 / live_max as f64, f64::from(hits) / f64::from(steps))
    }

    #[test]
    fn sizes_that_never_repeat_need_little_more_than_they_are() {
        let found: Vec<(f64, f64)> = (0..24).map(never_repeating).collect();
        let mean = found.iter().map(|(peak, _)| peak).sum::<f64>() / found.len() as f64;
        assert!(mean <= 1.32, "on average, segments at their peak are {mean} times what lives at its peak");
        assert!(found.iter().all(|(peak, _)| *peak <= 1.6), "{found:?}");
        assert!(found.iter().all(|(_, hits)| *hits >= 0.95), "{found:?}");
    }

    #[test]
    fn each_kind_has_segments_of_its_own() {
        let mut heap = Simulated::new(64 * MIB);
        let small = heap.take(100);
        let (middle, other) = (heap.take(MIB), heap.take(MIB));
        let long = heap.take(20 * MIB + 1);
        let ids = [small.0, middle.0, other.0, long.0];
        assert_eq!(ids, [0, 1, 2, 3], "a megabyte fills the first segment of its kind");
        assert_eq!(heap.segments, MIB / 2 + MIB + MIB + 22 * MIB);
        // What the long one leaves over is there for others, but not for small ones.
        assert_eq!(heap.take(MIB).0, long.0);
        assert_eq!(heap.take(200_000).0, small.0);
        // An unused segment is the last choice.
        heap.give(middle);
        heap.give(other);
        assert_eq!(heap.take(MIB / 2).0, long.0);
        assert_eq!(heap.take(MIB / 2).0, middle.0);
    }

    #[test]
    fn segments_are_exchanged_and_not_gathered() {
        let mut heap = Simulated::new(64 * MIB);
        for length in [10, 12, 14, 16, 20, 24, 28, 32, 60, 100, 200] {
            let slot = heap.take(length * MIB);
            heap.give(slot);
            assert_eq!(heap.spaces.len(), 1, "{length} MiB");
        }
        assert_eq!(heap.segments, 200 * MIB);
    }

    #[test]
    fn with_nothing_more_to_be_had_any_room_will_do() {
        let mut heap = Simulated::new(64 * MIB);
        let long = heap.take(10 * MIB - 5000);
        assert_eq!(heap.place(64, 64), None);
        heap.placement.anywhere = true;
        assert_eq!(heap.place(64, 64).unwrap().0, long.0);
    }

    #[test]
    fn many_tiny_slots_get_more_numbers() {
        let mut heap = Simulated::new(64 * MIB);
        for _ in 0..10_000 {
            heap.take(1);
        }
        assert_eq!(heap.spaces.iter().map(|(_, space)| space.count).collect::<Vec<_>>(), [1 << 10, 1 << 13, 1 << 14]);
    }
}
