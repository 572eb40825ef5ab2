//! Chooses a segment for each slot, and the length of new segments. This code does not access the memory.
//!
//! Slots cannot move. So slots that are freed at different times must not lie between slots that are freed together.
//! There are three kinds of slots. *Small* slots have segments of their own, where they block only each other. A *long*
//! slot gets a segment of its own length, which the client returns with the slot. All other slots share segments with
//! each other and use the space that long slots leave over. An unused segment is the last choice, so that the client
//! can return it.

use crate::alloc::extents::Extents;
use tensorlend_layout::size;
use tensorlend_layout::tensor::{ALIGN, PAGE};
use tensorlend_layout::word::low8;

/// Length in bytes of the first segment of small slots, for which a new client waits.
const FIRST_BYTES: u64 = 128 << 10;
/// Minimum length in bytes of the further segments of small slots, and of the segments of other slots.
const LEAST_BYTES: (u64, u64) = (512 << 10, 1 << 20);
/// Slots shorter than an ordinary segment's length divided by 2^`SMALL_LOG2` are small. Segments for other slots have
/// 2^`SMALL_LOG2` slot numbers.
const SMALL_LOG2: u8 = 8;
/// A slot is long if its length is at least an ordinary segment's length divided by this number.
const LONG: u64 = 8;
/// The lengths of segments are multiples of an ordinary segment's length divided by this number.
const ROUND: u64 = 32;
/// A further segment is as long as all segments of its kind together, until it reaches an ordinary segment's length
/// divided by [`STEP`]. From then on, it has the larger of this length and the total divided by [`GROWTH`]. So a client
/// leaves at most this length or this part unused.
const STEP: u64 = 16;
const GROWTH: u64 = 4;
/// log2 of the number of slots of the first small segment. It is the same for every client, so that the daemon can have a table
/// of this length ready.
const FIRST_LOG2: u8 = 8;
/// log2 of the number of slots of a further small segment, at least and at most. With fewer slots, the table would be no shorter.
const SLOTS_LOG2: (u8, u8) = (5, 18);
/// A further small segment has at most this many times the slots that would fill it, before the number is rounded down to a power
/// of two.
const SLOTS_MARGIN: u64 = 3;
/// A further small segment has at most this many times the slots that the client uses in all its small segments.
const SLOTS_GROWTH: u64 = 8;
/// A small segment has enough slots for tensors of this length, even if the client's tensors are longer. At a limit, the client
/// gets no further segment, and the next tensors may be shorter.
const SLOT_BYTES_MAX: u64 = 16 << 10;
/// The client keeps unused segments while at most this many bytes are free, or at most as many as are in use and a part of
/// [`GROWTH`] more: two values of about one length that replace each other have a segment each.
const IDLE_BYTES_MIN: u64 = 256 << 20;

/// One segment's free extents and slot numbers.
pub struct Space {
    bytes: u64,
    small: bool,
    /// The number of segments that the daemon had lent to this client before this one.
    age: u64,
    extents: Extents,
    /// Slot numbers that were used before and are free.
    numbers: Vec<u32>,
    /// The first slot number that was never used.
    fresh: u32,
    count: u32,
}

impl Space {
    /// Creates a space of `bytes` bytes and `count` slot numbers, all free. `small`: it serves small slots. `age`: the number
    /// of segments that the daemon had lent to this client before this one.
    pub fn new(bytes: u64, count: usize, small: bool, age: u64) -> Self {
        let count = size::count(count);
        Self { bytes, small, age, extents: Extents::new(bytes), numbers: Vec::new(), fresh: 0, count }
    }

    pub fn age(&self) -> u64 {
        self.age
    }

    /// Returns whether no bytes are handed out.
    pub fn is_unused(&self) -> bool {
        self.extents.is_unused()
    }

    /// Returns the number of bytes handed out.
    pub fn taken_bytes(&self) -> u64 {
        self.extents.taken_bytes()
    }

    /// Returns the number of slots in use.
    fn taken(&self) -> u64 {
        u64::from(self.fresh) - self.numbers.len() as u64
    }

    /// Returns whether a slot number is free.
    pub fn has_numbers(&self) -> bool {
        !self.numbers.is_empty() || self.fresh < self.count
    }

    /// Returns the number of bytes that would be left of the extent that [`Space::take`] would use.
    #[cfg(feature = "cuda")]
    pub fn best(&self, length: u64, align: u64) -> Option<u64> {
        self.extents.best(length, align).filter(|_| self.has_numbers())
    }

    /// Returns whether the segment has free bytes, but no free slot number.
    #[cfg(feature = "cuda")]
    pub fn lacks_numbers(&self) -> bool {
        !self.has_numbers() && !self.extents.is_full()
    }

    /// Takes an extent and a slot number. Returns the slot number and the extent's offset.
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

    /// Frees an extent and its slot number.
    pub fn give(&mut self, number: u32, offset: u64, length: u64) {
        self.extents.give(offset, length);
        self.numbers.push(number);
    }
}

/// The placement rules, for a pool with ordinary segments of `ordinary` bytes.
pub struct Placement {
    ordinary: u64,
    /// True if the daemon had no more memory to lend. Then slots go into any segment.
    pub anywhere: bool,
}

impl Placement {
    pub fn new(ordinary: u64) -> Self {
        Self { ordinary, anywhere: false }
    }

    /// Returns whether slots of this length are small, so that they have segments of their own.
    pub fn is_small(&self, length: u64) -> bool {
        length < self.ordinary >> SMALL_LOG2
    }

    fn is_long(&self, length: u64) -> bool {
        length >= self.ordinary / LONG
    }

    /// Returns the space from which the caller should take an extent.
    pub fn choose<'s>(
        &self,
        spaces: impl Iterator<Item = (usize, &'s Space)> + Clone,
        length: u64,
        align: u64,
    ) -> Option<usize> {
        let small = self.is_small(length);
        let mut with_numbers = spaces.filter(|(_, space)| space.has_numbers());
        if small {
            // Use the first space that fits: there may be very many spaces, and no extent is better than another.
            let fits = |(_, space): &(usize, &Space)| space.small && space.extents.best(length, align).is_some();
            if let Some((at, _)) = with_numbers.clone().find(fits) {
                return Some(at);
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

    /// Returns the segment to request for a slot of `length` bytes, as its bytes and the log2 of its number of slots.
    pub fn wanted<'s>(&self, spaces: impl Iterator<Item = (usize, &'s Space)>, length: u64) -> (u64, u8) {
        if length > self.ordinary {
            return (length, SMALL_LOG2 / 2);
        }
        if self.is_long(length) {
            let bytes = length.next_multiple_of((self.ordinary / ROUND).max(PAGE));
            // For more than three quarters of an ordinary segment's length, request an ordinary segment: the daemon may
            // have one ready.
            return (if bytes > self.ordinary / 4 * 3 { self.ordinary } else { bytes }, SMALL_LOG2);
        }
        let small = self.is_small(length);
        let spaces: Vec<&Space> = spaces.map(|(_, space)| space).filter(|space| space.small == small).collect();
        let total: u64 = spaces.iter().map(|space| space.bytes).sum();
        let least = match (small, total) {
            (true, 0) => FIRST_BYTES,
            (true, _) => LEAST_BYTES.0,
            (false, _) => LEAST_BYTES.1,
        };
        let bytes = total.min((self.ordinary / STEP).max(total / GROWTH)).next_multiple_of(PAGE);
        let bytes = bytes.clamp(least.min(self.ordinary), self.ordinary).max(length);
        if !small {
            return (bytes, SMALL_LOG2);
        }
        let Some(newest) = spaces.iter().max_by_key(|space| space.age) else { return (bytes, FIRST_LOG2) };
        // The next slots are probably as long as those in the newest segment.
        let mean = (newest.taken_bytes() + length) / (newest.taken() + 1);
        let taken = spaces.iter().map(|space| space.taken()).sum::<u64>() + 1;
        let slots = (SLOTS_MARGIN * bytes / mean.min(SLOT_BYTES_MAX)).min(SLOTS_GROWTH * taken);
        let slots = slots.max(bytes / SLOT_BYTES_MAX).min(bytes / ALIGN);
        (bytes, low8(slots.ilog2().into()).clamp(SLOTS_LOG2.0, SLOTS_LOG2.1))
    }

    /// Returns the unused segments that the client should return before it requests one of `length` bytes. So a client whose
    /// tensors change their lengths exchanges segments instead of accumulating them.
    pub fn make_way<'s>(&self, spaces: impl Iterator<Item = (usize, &'s Space)> + Clone, length: u64) -> Vec<usize> {
        if self.is_small(length) {
            return Vec::new();
        }
        let (comes, _) = self.wanted(spaces.clone(), length);
        let mut unused: Vec<(u64, usize)> =
            spaces.filter(|(_, s)| !s.small && s.is_unused()).map(|(at, s)| (s.bytes, at)).collect();
        // None of the unused segments is long enough. Return the longest ones, until their total reaches the length of the
        // requested segment.
        unused.sort_unstable();
        let mut gone = 0;
        let enough = unused.iter().rev().take_while(|(bytes, _)| {
            let more = gone < comes;
            gone += bytes;
            more
        });
        enough.map(|&(_, at)| at).collect()
    }

    /// Returns whether the client has more unused segments than it keeps.
    pub fn is_idle(segment_bytes: u64, used_bytes: u64) -> bool {
        segment_bytes - used_bytes > IDLE_BYTES_MIN.max(used_bytes + used_bytes / GROWTH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::heap::extent_bytes;
    use tensorlend_layout::catalogue::{SlotRecord, part_bytes};
    use tensorlend_layout::random::splitmix64;

    const MIB: u64 = 1 << 20;

    /// A client's heap without memory, which applies the rules as the heap does.
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
            let small = self.placement.is_small(length);
            // Rounds as the daemon does.
            let ordinary = self.placement.ordinary;
            let bytes = wanted.next_multiple_of(PAGE);
            let bytes = if bytes > ordinary / 8 * 7 { bytes.max(ordinary) } else { bytes };
            assert!(bytes == wanted || wanted > ordinary || length < ordinary / LONG, "the client knows what it gets");
            self.spaces.push((self.next, Space::new(bytes, 1 << slots_log2, small, self.next)));
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

    /// Returns a length from 8 B to 64 MiB, log-uniform.
    fn log_uniform(state: &mut u64) -> u64 {
        let part = (splitmix64(state) >> 11) as f64 / (1u64 << 53) as f64;
        let (first, last) = (8f64.ln(), (64.0 * MIB as f64).ln());
        (first + (last - first) * part).exp().round() as u64
    }

    /// Returns the peak of segment bytes divided by peak of live bytes, and the fraction of steps without a request to the
    /// daemon.
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
        assert!(mean <= 1.29, "on average, segments at their peak are {mean} times what lives at its peak");
        assert!(found.iter().all(|(peak, _)| *peak <= 1.6), "{found:?}");
        assert!(found.iter().all(|(_, hits)| *hits >= 0.95), "{found:?}");
    }

    #[test]
    fn a_client_leaves_little_unused() {
        for length in [20_480, 100_000, 300_000, MIB, 3 * MIB, 7 * MIB] {
            let mut heap = Simulated::new(64 * MIB);
            while heap.used < 300 * MIB {
                heap.take(length);
                let unused = heap.segments - heap.used;
                // Each full segment has room for less than one slot.
                let fit = heap.next * length;
                assert!(
                    unused <= (heap.used * 3 / 10).max(4 * MIB) + fit,
                    "{unused} of {} for {length}",
                    heap.segments
                );
                assert!(heap.used > 6 * MIB || heap.segments <= 10 * MIB, "100 small clients hold 1000 MiB at most");
            }
            assert!(heap.requests <= 60, "{} requests for {length}", heap.requests);
        }
        for length in 8..=64 {
            let mut heap = Simulated::new(64 * MIB);
            heap.take(length * MIB);
            assert!(heap.segments * 3 <= heap.used * 4, "{} for {length} MiB", heap.segments);
        }
    }

    #[test]
    fn each_kind_has_segments_of_its_own() {
        let mut heap = Simulated::new(64 * MIB);
        let small = heap.take(100);
        let (middle, other) = (heap.take(MIB), heap.take(MIB));
        let long = heap.take(20 * MIB + 1);
        let ids = [small.0, middle.0, other.0, long.0];
        assert_eq!(ids, [0, 1, 2, 3], "a megabyte fills the first segment of its kind");
        assert_eq!(heap.segments, MIB / 8 + MIB + MIB + 22 * MIB);
        // Other slots, except small ones, may use the rest of the long slot's segment.
        assert_eq!(heap.take(MIB).0, long.0);
        assert_eq!(heap.take(100_000).0, small.0);
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
    fn two_lengths_in_turns_keep_their_segments() {
        for other in [800 * MIB + 192, 900 * MIB] {
            let mut heap = Simulated::new(64 * MIB);
            let mut live = heap.take(800 * MIB);
            for round in 0..10 {
                let next = heap.take(if round % 2 == 0 { other } else { 800 * MIB });
                heap.give(std::mem::replace(&mut live, next));
            }
            assert_eq!(heap.requests, 2, "{other}");
        }
    }

    #[test]
    fn with_nothing_more_to_be_had_any_room_will_do() {
        let mut heap = Simulated::new(64 * MIB);
        let long = heap.take(10 * MIB - 5000);
        assert_eq!(heap.place(64, 64), None);
        heap.placement.anywhere = true;
        assert_eq!(heap.place(64, 64).unwrap().0, long.0);
    }

    /// Asserts that the slot records of `slots` slots take at most this part of the segments, that few bytes of the segments are
    /// without slot numbers, and that the client sent few requests.
    fn check_tables(heap: &Simulated, slots: u64, part: f64, what: &str) {
        let table = |count: u64| part_bytes::<SlotRecord>(count as usize) as u64;
        let tables: u64 = heap.spaces.iter().map(|(_, space)| table(space.count.into())).sum();
        // Each table has a header, and fills its last page.
        let always = table(1 << FIRST_LOG2) + 2 * PAGE * heap.next;
        let most = always + ((heap.segments as f64 * part) as u64).min(table(12 * slots)).max(heap.segments / 40);
        assert!(tables <= most, "{what}: {tables} bytes of tables for segments of {} bytes", heap.segments);
        let most = heap.used / 2 * 3 + 4 * MIB;
        assert!(heap.segments <= most, "{what}: {} bytes of segments for {} bytes", heap.segments, heap.used);
        let doublings = u64::from((heap.used / FIRST_BYTES).max(1).ilog2());
        assert!(heap.requests <= 3 + 2 * doublings, "{what}: {} requests for {} bytes", heap.requests, heap.used);
    }

    #[test]
    fn slot_records_follow_the_slots() {
        for length in [1, 64, 100, 200, 256, 500, 1000, 1024, 3000, 4096, 10_000, 20_000, 65_536, 81_920, 200_000] {
            let part = (SLOTS_MARGIN * 128) as f64 / length.clamp(3 * ALIGN, SLOT_BYTES_MAX) as f64;
            let mut heap = Simulated::new(64 * MIB);
            for slots in 1..=(300 * MIB / length).min(20_000) {
                heap.take(length);
                check_tables(&heap, slots, part, &format!("{slots} slots of {length} bytes"));
            }
        }
    }

    #[test]
    fn slot_records_follow_slots_that_change() {
        const SLOTS: u64 = 20_000;
        type Length = fn(u64) -> u64;
        let changes: [(&str, f64, Length); 7] = [
            ("in turns", 0.05, |at| if at.is_multiple_of(2) { 64 } else { 65_536 }),
            ("one long one in ten", 0.1, |at| if at % 10 == 9 { 65_536 } else { 64 }),
            ("short, then long", 2.0, |at| if at < SLOTS / 2 { 64 } else { 65_536 }),
            ("long, then short", 0.05, |at| if at < SLOTS / 2 { 65_536 } else { 64 }),
            ("ten phases", 2.0, |at| if (at / (SLOTS / 10)).is_multiple_of(2) { 64 } else { 65_536 }),
            ("ever longer", 2.0, |at| 64 << (at * 12 / SLOTS)),
            ("ever shorter", 0.1, |at| (128 << 10) >> (at * 12 / SLOTS)),
        ];
        for (what, part, length) in changes {
            let mut heap = Simulated::new(64 * MIB);
            for at in 0..SLOTS {
                heap.take(length(at));
                check_tables(&heap, at + 1, part, &format!("{what}, {at}"));
            }
            // In the end, long slots have most of the bytes.
            check_tables(&heap, SLOTS, 0.05, what);
        }
    }

    #[test]
    fn a_client_at_its_limit_has_numbers_for_shorter_slots() {
        let mut heap = Simulated::new(64 * MIB);
        let mut live: Vec<Slot> = (0..4000).map(|_| heap.take(128 << 10)).collect();
        heap.placement.anywhere = true;
        live.drain(..2000).for_each(|slot| heap.give(slot));
        let more = std::iter::from_fn(|| heap.place(1024, ALIGN)).count();
        assert!(more >= 20_000, "{more} slots of 1 KiB in the place of 2,000 of 128 KiB");
    }
}
