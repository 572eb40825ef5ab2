//! One link of a stream, as its sender sees it: what may be sent, and what is left out.
//!
//! No clock, no socket, no thread. What the local stream has goes in, what is to be sent comes out, as much as the other side has
//! room for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A link of which nothing was heard for so long is closed.
pub const FORGOTTEN: Duration = Duration::from_secs(15);

/// One link. `M` is a message.
#[derive(Debug)]
pub struct Outlet<M> {
    window_messages: usize,
    window_bytes: u64,
    drop_oldest: bool,
    waiting: VecDeque<(M, u64)>,
    /// Bytes of messages that were sent and take room.
    flying: VecDeque<u64>,
    flying_bytes: u64,
    /// Number of the next message.
    next: u64,
    dropped: u64,
    heard: Instant,
}

impl<M> Outlet<M> {
    /// One that was just opened.
    pub fn new(window_messages: u32, window_bytes: u64, drop_oldest: bool, now: Instant) -> Self {
        Self {
            window_messages: window_messages.max(1) as usize,
            window_bytes,
            drop_oldest,
            waiting: VecDeque::new(),
            flying: VecDeque::new(),
            flying_bytes: 0,
            next: 0,
            dropped: 0,
            heard: now,
        }
    }

    /// Whether another message is to be taken from the local stream. With the stream's own policy: only what can be sent next, so
    /// that its ring fills and its policy holds.
    pub fn wants(&self) -> bool {
        self.drop_oldest || (self.waiting.is_empty() && self.has_room())
    }

    /// A message was taken.
    pub fn on_message(&mut self, message: M, bytes: u64) {
        if self.drop_oldest && self.waiting.len() >= self.window_messages {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back((message, bytes));
    }

    /// The message that is to be sent now, and its number.
    pub fn take(&mut self) -> Option<(u64, M)> {
        if !self.has_room() {
            return None;
        }
        let (message, bytes) = self.waiting.pop_front()?;
        self.flying.push_back(bytes);
        self.flying_bytes += bytes;
        self.next += 1;
        Some((self.next - 1, message))
    }

    /// The other side says that all before this number makes room. What it cannot say is left aside.
    pub fn on_grant(&mut self, through: u64, now: Instant) {
        self.heard = now;
        let first = self.next - self.flying.len() as u64;
        let freed = through.min(self.next).saturating_sub(first);
        for bytes in self.flying.drain(..freed as usize) {
            self.flying_bytes -= bytes;
        }
    }

    /// Whether nothing was heard for too long.
    pub fn is_forgotten(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) > FORGOTTEN
    }

    /// Messages that were sent.
    pub fn sent(&self) -> u64 {
        self.next
    }

    /// Messages that were left out, since there was no room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// One at least, however large it is.
    fn has_room(&self) -> bool {
        self.flying.len() < self.window_messages && self.flying_bytes < self.window_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_window_holds_up_the_stream() {
        let now = Instant::now();
        let mut outlet = Outlet::new(2, 100, false, now);
        for n in 0..2 {
            assert!(outlet.wants());
            outlet.on_message(n, 10);
            assert_eq!(outlet.take(), Some((n, n)));
        }
        assert!(!outlet.wants());
        outlet.on_grant(1, now);
        assert!(outlet.wants());
        outlet.on_message(2, 1000);
        assert_eq!(outlet.take(), Some((2, 2)));
        // One large message fills it alone.
        outlet.on_grant(2, now);
        assert!(!outlet.wants());
        outlet.on_grant(3, now);
        assert!(outlet.wants() && outlet.dropped() == 0);
    }

    #[test]
    fn the_oldest_are_left_out() {
        let now = Instant::now();
        let mut outlet = Outlet::new(2, 100, true, now);
        for n in 0..10 {
            assert!(outlet.wants());
            outlet.on_message(n, 10);
            outlet.take();
        }
        assert_eq!((outlet.sent(), outlet.dropped()), (2, 6));
        outlet.on_grant(2, now);
        assert_eq!((outlet.take(), outlet.take(), outlet.take()), (Some((2, 8)), Some((3, 9)), None));
    }

    #[test]
    fn who_says_nothing_is_forgotten() {
        let now = Instant::now();
        let mut outlet = Outlet::<()>::new(2, 100, true, now);
        outlet.on_grant(u64::MAX, now + FORGOTTEN);
        assert!(!outlet.is_forgotten(now + FORGOTTEN * 2));
        assert!(outlet.is_forgotten(now + FORGOTTEN * 2 + Duration::from_secs(1)));
    }

    proptest! {
        /// Whatever is granted: no more than the window is on its way, in order, and what is not sent is counted.
        #[test]
        fn the_window_holds(steps in proptest::collection::vec((0u8..3, 0u64..20), 0..300), drop_oldest: bool) {
            let now = Instant::now();
            let mut outlet = Outlet::new(4, 50, drop_oldest, now);
            let (mut next, mut sent, mut granted) = (0, Vec::new(), 0);
            for (step, n) in steps {
                match step {
                    0 if outlet.wants() => { outlet.on_message(next, n); next += 1; }
                    1 => sent.extend(outlet.take()),
                    2 => { outlet.on_grant(n, now); granted = granted.max(n.min(sent.len() as u64)); }
                    _ => {}
                }
                prop_assert!(sent.len() as u64 - granted <= 4);
                prop_assert!(sent.iter().map(|(number, _)| *number).eq(0..sent.len() as u64));
                prop_assert!(sent.windows(2).all(|two| two[0].1 < two[1].1));
                prop_assert_eq!(outlet.waiting.len() as u64 + sent.len() as u64 + outlet.dropped(), next);
                prop_assert!(drop_oldest || outlet.dropped() == 0);
            }
        }
    }
}
