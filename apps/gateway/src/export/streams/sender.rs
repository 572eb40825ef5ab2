//! Flow control of one link of a stream at its sender. It decides which messages are sent, and
//! which are dropped.
//!
//! This is a pure state machine without clock, socket and thread.

use crate::wire::LINK_TIMEOUT;
use std::collections::VecDeque;
use std::time::Instant;

/// Maximum number of messages of one link that are queued or in flight. A receiving gateway
/// requests this number. Each queued message holds a lease, and all links together must not use up
/// the session's leases.
const WINDOW_MESSAGES_MAX: u32 = 16;

/// Whether a piece may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The piece may be sent now. It occupies the window from now on.
    Now,
    /// The window has no room yet.
    Later,
    /// The piece must not be sent, because the receiver has abandoned its message.
    Never,
}

/// Flow control of one link. `M` is a message.
///
/// Invariants: `flying_bytes + taken == flying.sum()`. `flying_bytes` exceeds `window_bytes` only
/// if a single piece is larger than the window, or after a grant has shrunk the window.
#[derive(Debug)]
pub struct Sender<M> {
    window_messages: usize,
    window_bytes: u64,
    drop_oldest: bool,
    waiting: VecDeque<M>,
    /// Bytes sent, for each message that occupies the window, the oldest first.
    flying: VecDeque<u64>,
    /// Bytes of the first message in `flying` that no longer occupy the window.
    taken: u64,
    flying_bytes: u64,
    /// Number of the next message.
    next: u64,
    dropped: u64,
    heard: Instant,
}

impl<M> Sender<M> {
    /// Makes the state of a new link. Its window has at most 16 messages.
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

    /// Returns true if the sender may take the next message of the local stream. A link that drops
    /// messages may always take one. Any other link takes only a message that can be sent at once.
    /// So the ring of the stream fills, and the stream's own policy applies.
    pub fn wants(&self) -> bool {
        self.drop_oldest || (self.waiting.is_empty() && self.has_room())
    }

    /// Queues a message of the local stream.
    pub fn on_message(&mut self, message: M) {
        if self.drop_oldest && self.waiting.len() >= self.window_messages {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back(message);
    }

    /// Returns the message to be sent now, and its number. The caller sends the message in pieces.
    pub fn take(&mut self) -> Option<(u64, M)> {
        if !self.has_room() {
            return None;
        }
        let message = self.waiting.pop_front()?;
        self.flying.push_back(0);
        self.next += 1;
        Some((self.next - 1, message))
    }

    pub fn piece_bytes_max(&self) -> u64 {
        self.window_bytes
    }

    /// Reserves room in the window for a piece of message `number`.
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

    /// Handles a grant of the receiver, which has taken all messages before `through`, and `taken` bytes of message
    /// `through`. The window has `window_bytes` from now on. Numbers that were never sent are ignored.
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

    /// Returns true if the receiver has sent no grant for more than [`LINK_TIMEOUT`].
    pub fn is_timed_out(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) > LINK_TIMEOUT
    }

    /// Returns the number of messages whose sending has at least begun.
    pub fn sent(&self) -> u64 {
        self.next
    }

    /// Returns the number of messages that were dropped because there was no room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the number of the first message that occupies the window.
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
    use std::time::Duration;

    #[test]
    fn a_full_window_holds_up_the_stream() {
        let now = Instant::now();
        let mut sender = Sender::new(2, 100, false, now);
        for n in 0..2 {
            assert!(sender.wants());
            sender.on_message(n);
            assert_eq!(sender.take(), Some((n, n)));
            assert!(sender.send(n, 10) == Room::Now);
        }
        assert!(!sender.wants());
        sender.on_grant(1, 0, 100, now);
        assert!(sender.wants());
        sender.on_message(2);
        assert_eq!(sender.take(), Some((2, 2)));
        // The sender sends a large message in pieces, as the window has room for them.
        assert!(sender.send(2, 80) == Room::Now && sender.send(2, 20) == Room::Later);
        sender.on_grant(2, 0, 100, now);
        assert!(sender.send(2, 20) == Room::Now && sender.send(2, 1) == Room::Later && !sender.wants());
        sender.on_grant(2, 50, 100, now);
        assert!(sender.wants() && sender.send(2, 50) == Room::Now && sender.send(2, 1) == Room::Later);
        // A smaller window counts from now on.
        sender.on_grant(2, 100, 40, now);
        assert!(sender.send(2, 1) == Room::Later);
        sender.on_grant(3, 0, 40, now);
        assert!(sender.wants() && sender.dropped() == 0);
    }

    #[test]
    fn a_message_that_was_given_up_there_takes_no_room() {
        let now = Instant::now();
        let mut sender = Sender::new(2, 100, false, now);
        sender.on_message(0);
        sender.take();
        assert!(sender.send(0, 60) == Room::Now);
        sender.on_grant(1, 0, 100, now);
        assert!(sender.send(0, 60) == Room::Never);
        sender.on_message(1);
        assert!(sender.take().is_some() && sender.send(1, 100) == Room::Now && sender.send(1, 1) == Room::Later);
    }

    #[test]
    fn the_oldest_are_left_out() {
        let now = Instant::now();
        let mut sender = Sender::new(2, 100, true, now);
        for n in 0..10 {
            assert!(sender.wants());
            sender.on_message(n);
            sender.take();
        }
        assert_eq!((sender.sent(), sender.dropped()), (2, 6));
        sender.on_grant(2, 0, 100, now);
        assert_eq!((sender.take(), sender.take(), sender.take()), (Some((2, 8)), Some((3, 9)), None));
    }

    #[test]
    fn a_link_keeps_no_more_messages_than_any_needs() {
        let now = Instant::now();
        let mut sender = Sender::new(u32::MAX, 1, true, now);
        (0..1000).for_each(|n| sender.on_message(n));
        assert_eq!((sender.waiting.len(), sender.dropped()), (16, 984));
        assert_eq!(sender.take(), Some((0, 984)));
    }

    #[test]
    fn who_says_nothing_is_timed_out() {
        let now = Instant::now();
        let mut sender = Sender::<()>::new(2, 100, true, now);
        sender.on_grant(u64::MAX, u64::MAX, 100, now + LINK_TIMEOUT);
        assert!(!sender.is_timed_out(now + LINK_TIMEOUT * 2));
        assert!(sender.is_timed_out(now + LINK_TIMEOUT * 2 + Duration::from_secs(1)));
    }

    proptest! {
        /// For every sequence of grants: no more than the window is in flight, in order, and each message that is not
        /// sent is counted.
        #[test]
        fn the_window_holds(steps in proptest::collection::vec((0u8..4, 0u64..20, 0u64..60), 0..300), drop_oldest: bool) {
            let now = Instant::now();
            let mut sender = Sender::new(4, 50, drop_oldest, now);
            // For each message: the bytes sent, and the bytes granted.
            let (mut next, mut sent, mut pieces) = (0, Vec::new(), Vec::<(u64, u64)>::new());
            let mut granted = 0;
            for (step, n, bytes) in steps {
                match step {
                    0 if sender.wants() => { sender.on_message(next); next += 1; }
                    1 => if let Some(taken) = sender.take() { sent.push(taken); pieces.push((0, 0)); },
                    2 => {
                        sender.on_grant(n, bytes, 50, now);
                        granted = granted.max(n.min(sent.len() as u64));
                        for piece in &mut pieces[..granted as usize] { piece.1 = piece.0; }
                        if n == granted && let Some(piece) = pieces.get_mut(n as usize) { piece.1 = piece.1.max(bytes.min(piece.0)); }
                    }
                    3 => if let Some((number, _)) = sent.last() {
                        let before: u64 = pieces.iter().map(|(sent, granted)| sent - granted).sum();
                        match sender.send(*number, bytes) {
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
                prop_assert_eq!(sender.flying_bytes, pieces.iter().map(|(sent, granted)| sent - granted).sum::<u64>());
                prop_assert_eq!(sender.flying_bytes + sender.taken, sender.flying.iter().sum::<u64>());
                prop_assert!(sent.iter().map(|(number, _)| *number).eq(0..sent.len() as u64));
                prop_assert!(sent.windows(2).all(|two| two[0].1 < two[1].1));
                prop_assert_eq!(sender.waiting.len() as u64 + sent.len() as u64 + sender.dropped(), next);
                prop_assert!(drop_oldest || sender.dropped() == 0);
            }
        }
    }
}
