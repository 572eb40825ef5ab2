//! One link of a stream, as its sender sees it: what may be sent, and what is left out.
//!
//! No clock, no socket, no thread. What the local stream has goes in, what is to be sent comes out, as much as the other side has
//! room for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A link of which nothing was heard for so long is closed.
pub const FORGOTTEN: Duration = Duration::from_secs(15);

/// Messages of one link that are kept here, or on their way: as many as a gateway asks for. Each that waits is a lease, and all links
/// together have to leave some of the session's.
const WINDOW_MESSAGES_MAX: u32 = 16;

/// Whether a piece may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Now: it takes room from here on.
    Now,
    /// Not yet.
    Later,
    /// Its message was given up there.
    Never,
}

/// One link. `M` is a message.
///
/// `flying_bytes + taken == the sum of flying`, and it is no more than the window, but for one piece that has more, alone.
#[derive(Debug)]
pub struct Outlet<M> {
    window_messages: usize,
    window_bytes: u64,
    drop_oldest: bool,
    waiting: VecDeque<M>,
    /// Bytes that were sent of each message that takes room.
    flying: VecDeque<u64>,
    /// Of the first of these: bytes that take no room any more.
    taken: u64,
    flying_bytes: u64,
    /// Number of the next message.
    next: u64,
    dropped: u64,
    heard: Instant,
}

impl<M> Outlet<M> {
    /// One that was just opened. Of the messages that may be on their way it takes no more than it keeps.
    pub fn new(window_messages: u32, window_bytes: u64, drop_oldest: bool, now: Instant) -> Self {
        Self {
            window_messages: window_messages.clamp(1, WINDOW_MESSAGES_MAX) as usize,
            window_bytes,
            drop_oldest,
            waiting: VecDeque::new(),
            flying: VecDeque::new(),
            taken: 0,
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
    pub fn on_message(&mut self, message: M) {
        if self.drop_oldest && self.waiting.len() >= self.window_messages {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back(message);
    }

    /// The message that is to be sent now, piece by piece, and its number.
    pub fn take(&mut self) -> Option<(u64, M)> {
        if !self.has_room() {
            return None;
        }
        let message = self.waiting.pop_front()?;
        self.flying.push_back(0);
        self.next += 1;
        Some((self.next - 1, message))
    }

    /// Bytes that a piece may have.
    pub fn piece_bytes_max(&self) -> u64 {
        self.window_bytes
    }

    /// A piece of so many bytes of the message of this number is to be sent.
    pub fn send(&mut self, number: u64, bytes: u64) -> Room {
        let at = number.checked_sub(self.first());
        let Some(sent) = at.and_then(|at| self.flying.get_mut(at as usize)) else { return Room::Never };
        if self.flying_bytes > 0 && self.flying_bytes + bytes > self.window_bytes {
            return Room::Later;
        }
        *sent += bytes;
        self.flying_bytes += bytes;
        Room::Now
    }

    /// The other side says that all before message `through` makes room, and so many bytes of that one, and what window there is from now on. What
    /// it cannot say is left aside.
    pub fn on_grant(&mut self, through: u64, taken: u64, window_bytes: u64, now: Instant) {
        (self.heard, self.window_bytes) = (now, window_bytes);
        let freed = through.min(self.next).saturating_sub(self.first());
        for bytes in self.flying.drain(..freed as usize) {
            self.flying_bytes -= bytes - std::mem::take(&mut self.taken);
        }
        if self.first() == through
            && let Some(sent) = self.flying.front()
        {
            let taken = taken.min(*sent).max(self.taken);
            self.flying_bytes -= taken - std::mem::replace(&mut self.taken, taken);
        }
    }

    /// Whether nothing was heard for too long.
    pub fn is_forgotten(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) > FORGOTTEN
    }

    /// Messages that were sent, or begun.
    pub fn sent(&self) -> u64 {
        self.next
    }

    /// Messages that were left out, since there was no room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The number of the first message that takes room.
    fn first(&self) -> u64 {
        self.next - self.flying.len() as u64
    }

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
            outlet.on_message(n);
            assert_eq!(outlet.take(), Some((n, n)));
            assert!(outlet.send(n, 10) == Room::Now);
        }
        assert!(!outlet.wants());
        outlet.on_grant(1, 0, 100, now);
        assert!(outlet.wants());
        outlet.on_message(2);
        assert_eq!(outlet.take(), Some((2, 2)));
        // A large one is sent in pieces, as there is room for them.
        assert!(outlet.send(2, 80) == Room::Now && outlet.send(2, 20) == Room::Later);
        outlet.on_grant(2, 0, 100, now);
        assert!(outlet.send(2, 20) == Room::Now && outlet.send(2, 1) == Room::Later && !outlet.wants());
        outlet.on_grant(2, 50, 100, now);
        assert!(outlet.wants() && outlet.send(2, 50) == Room::Now && outlet.send(2, 1) == Room::Later);
        // A smaller window holds from now on.
        outlet.on_grant(2, 100, 40, now);
        assert!(outlet.send(2, 1) == Room::Later);
        outlet.on_grant(3, 0, 40, now);
        assert!(outlet.wants() && outlet.dropped() == 0);
    }

    #[test]
    fn a_message_that_was_given_up_there_takes_no_room() {
        let now = Instant::now();
        let mut outlet = Outlet::new(2, 100, false, now);
        outlet.on_message(0);
        outlet.take();
        assert!(outlet.send(0, 60) == Room::Now);
        outlet.on_grant(1, 0, 100, now);
        assert!(outlet.send(0, 60) == Room::Never);
        outlet.on_message(1);
        assert!(outlet.take().is_some() && outlet.send(1, 100) == Room::Now && outlet.send(1, 1) == Room::Later);
    }

    #[test]
    fn the_oldest_are_left_out() {
        let now = Instant::now();
        let mut outlet = Outlet::new(2, 100, true, now);
        for n in 0..10 {
            assert!(outlet.wants());
            outlet.on_message(n);
            outlet.take();
        }
        assert_eq!((outlet.sent(), outlet.dropped()), (2, 6));
        outlet.on_grant(2, 0, 100, now);
        assert_eq!((outlet.take(), outlet.take(), outlet.take()), (Some((2, 8)), Some((3, 9)), None));
    }

    #[test]
    fn a_link_keeps_no_more_messages_than_any_needs() {
        let now = Instant::now();
        let mut outlet = Outlet::new(u32::MAX, 1, true, now);
        (0..1000).for_each(|n| outlet.on_message(n));
        assert_eq!((outlet.waiting.len(), outlet.dropped()), (16, 984));
        assert_eq!(outlet.take(), Some((0, 984)));
    }

    #[test]
    fn who_says_nothing_is_forgotten() {
        let now = Instant::now();
        let mut outlet = Outlet::<()>::new(2, 100, true, now);
        outlet.on_grant(u64::MAX, u64::MAX, 100, now + FORGOTTEN);
        assert!(!outlet.is_forgotten(now + FORGOTTEN * 2));
        assert!(outlet.is_forgotten(now + FORGOTTEN * 2 + Duration::from_secs(1)));
    }

    proptest! {
        /// Whatever is granted: no more than the window is on its way, in order, and what is not sent is counted.
        #[test]
        fn the_window_holds(steps in proptest::collection::vec((0u8..4, 0u64..20, 0u64..60), 0..300), drop_oldest: bool) {
            let now = Instant::now();
            let mut outlet = Outlet::new(4, 50, drop_oldest, now);
            // Of each message: bytes that were sent, and bytes that were granted.
            let (mut next, mut sent, mut pieces) = (0, Vec::new(), Vec::<(u64, u64)>::new());
            let mut granted = 0;
            for (step, n, bytes) in steps {
                match step {
                    0 if outlet.wants() => { outlet.on_message(next); next += 1; }
                    1 => if let Some(taken) = outlet.take() { sent.push(taken); pieces.push((0, 0)); },
                    2 => {
                        outlet.on_grant(n, bytes, 50, now);
                        granted = granted.max(n.min(sent.len() as u64));
                        for piece in &mut pieces[..granted as usize] { piece.1 = piece.0; }
                        if n == granted && let Some(piece) = pieces.get_mut(n as usize) { piece.1 = piece.1.max(bytes.min(piece.0)); }
                    }
                    3 => if let Some((number, _)) = sent.last() {
                        let before: u64 = pieces.iter().map(|(sent, granted)| sent - granted).sum();
                        match outlet.send(*number, bytes) {
                            Room::Now => {
                                prop_assert!(*number >= granted && (before == 0 || before + bytes <= 50));
                                pieces[*number as usize].0 += bytes;
                            }
                            Room::Later => prop_assert!(*number >= granted && before > 0 && before + bytes > 50),
                            Room::Never => prop_assert!(*number < granted),
                        }
                    },
                    _ => {}
                }
                prop_assert!(sent.len() as u64 - granted <= 4);
                prop_assert_eq!(outlet.flying_bytes, pieces.iter().map(|(sent, granted)| sent - granted).sum::<u64>());
                prop_assert_eq!(outlet.flying_bytes + outlet.taken, outlet.flying.iter().sum::<u64>());
                prop_assert!(sent.iter().map(|(number, _)| *number).eq(0..sent.len() as u64));
                prop_assert!(sent.windows(2).all(|two| two[0].1 < two[1].1));
                prop_assert_eq!(outlet.waiting.len() as u64 + sent.len() as u64 + outlet.dropped(), next);
                prop_assert!(drop_oldest || outlet.dropped() == 0);
            }
        }
    }
}
