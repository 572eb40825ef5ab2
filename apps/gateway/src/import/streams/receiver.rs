//! One link of a stream at its receiver. The module checks the order of pieces and detects lost
//! messages.
//!
//! This is a pure state machine without clock, socket and bytes.

use crate::wire::{Chunk, Descriptor, Message, NodeName, Part};
use std::sync::Arc;
use tensorlend::remote::StreamPosition;

/// The action that an arrived piece requires.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The message with this position begins with this chunk. An incomplete message before it is abandoned.
    Begin(StreamPosition, Arc<Descriptor>, Chunk),
    /// Write more bytes of the message that has begun.
    Write(Chunk),
    /// Ignore the piece, because its message arrived before the link was opened again.
    Skip,
    /// The stream has ended. This many messages before its end have not arrived.
    End(u64),
}

/// The reason why a piece is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPiece {
    /// The piece belongs to a message that is complete or abandoned.
    #[error("a piece of an earlier message")]
    Old,
    /// The piece does not follow the previous piece of its message.
    #[error("a piece that does not follow")]
    Order,
    /// The message was first published on another node than its sender.
    #[error("a message that is another node's")]
    Origin,
    /// The number is the maximum of its type, which no sender reaches.
    #[error("a number that cannot be")]
    Number,
}

/// A message whose first piece has arrived.
#[derive(Debug)]
struct Begun {
    number: u64,
    bytes: u64,
    here: u64,
}

/// One link of a stream at its receiver.
#[derive(Debug)]
pub struct Receiver {
    node: NodeName,
    /// Number in the link of the first message that has not arrived.
    next: u64,
    begun: Option<Begun>,
    /// Position of the next message in the stream. While a message arrives, its own position.
    wanted: StreamPosition,
    lost: u64,
    received: u64,
}

impl Receiver {
    /// Makes the state of a link to `node`, whose next message is `wanted`.
    pub fn new(node: NodeName, wanted: StreamPosition) -> Self {
        Self { node, next: 0, begun: None, wanted, lost: 0, received: 0 }
    }

    /// Opens the link again. The link's own numbers restart at 0, and the positions in the stream continue.
    pub fn on_reopened(&mut self) {
        (self.next, self.begun) = (0, None);
    }

    /// Handles a piece, and returns the step to perform with it.
    ///
    /// # Errors
    /// [`BadPiece`] if the piece is invalid. The caller then drops the piece.
    pub fn on_piece(&mut self, message: Message) -> Result<Step, BadPiece> {
        let Message { number, part } = message;
        match part {
            Part::First { .. } | Part::End(_) if number < self.next => Err(BadPiece::Old),
            Part::First { .. } | Part::End(_) if number == u64::MAX => Err(BadPiece::Number),
            Part::First { at, descriptor, chunk } => {
                self.next = number + 1;
                self.begun = None;
                if descriptor.origin != self.node {
                    return Err(BadPiece::Origin);
                }
                if at.stream == self.wanted.stream && at.number < self.wanted.number {
                    return Ok(Step::Skip);
                }
                self.miss(at);
                let (bytes, here) = (descriptor.bytes(), u64::from(chunk.bytes));
                self.begun = Some(Begun { number, bytes, here });
                Ok(Step::Begin(at, Arc::new(descriptor), chunk))
            }
            Part::More(chunk) => {
                let begun = self.begun.as_mut().filter(|begun| begun.number == number).ok_or(BadPiece::Old)?;
                let end = chunk.offset.saturating_add(u64::from(chunk.bytes));
                if chunk.offset != begun.here || end > begun.bytes || chunk.bytes == 0 {
                    self.begun = None;
                    return Err(BadPiece::Order);
                }
                begun.here = end;
                Ok(Step::Write(chunk))
            }
            Part::End(at) => {
                self.next = number + 1;
                self.begun = None;
                Ok(Step::End(self.miss(at)))
            }
        }
    }

    /// Counts the messages before `at` that have not arrived, and returns their number. From now on, `at` is the position of
    /// the next message.
    fn miss(&mut self, at: StreamPosition) -> u64 {
        // If the producer has opened the stream again, its first message has the number 0.
        let from = if at.stream == self.wanted.stream { self.wanted.number } else { 0 };
        let lost = at.number.saturating_sub(from);
        self.lost = self.lost.saturating_add(lost);
        self.wanted = StreamPosition { number: at.number.max(from), ..at };
        lost
    }

    /// Returns true if all bytes of the current message have arrived.
    pub fn is_whole(&self) -> bool {
        self.begun.as_ref().is_some_and(|begun| begun.here == begun.bytes)
    }

    /// Completes the current message if all its bytes have arrived. Returns true in that case.
    pub fn take(&mut self) -> bool {
        let is_whole = self.is_whole();
        if is_whole {
            self.begun = None;
            self.wanted.number = self.wanted.number.saturating_add(1);
            self.received += 1;
        }
        is_whole
    }

    /// Abandons the current message.
    pub fn give_up(&mut self) {
        self.begun = None;
    }

    /// Notes that messages of the link below number `sent` are lost if they have not arrived yet.
    pub fn on_silence(&mut self, sent: u64) {
        if sent > self.next {
            (self.next, self.begun) = (sent, None);
        }
    }

    /// Returns the number in the link of the first message that may still arrive.
    pub fn next(&self) -> u64 {
        self.next - u64::from(self.begun.is_some())
    }

    /// Returns the number of arrived bytes of message [`Receiver::next`].
    pub fn here(&self) -> u64 {
        self.begun.as_ref().map_or(0, |begun| begun.here)
    }

    /// Returns the position of the next message in the stream.
    pub fn wanted(&self) -> StreamPosition {
        self.wanted
    }

    /// Returns the number of messages that were received, and that were lost.
    pub fn counts(&self) -> (u64, u64) {
        (self.received, self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Shape, TensorShape};
    use proptest::prelude::*;

    fn node() -> NodeName {
        NodeName::new("node7").unwrap()
    }

    /// The position of a message in the stream of all these tests.
    fn at(number: u64) -> StreamPosition {
        StreamPosition { stream: 7, number }
    }

    fn receiver(wanted: u64) -> Receiver {
        Receiver::new(node(), at(wanted))
    }

    fn of(stream: u64, number: u64, sequence: u64) -> Message {
        let mut message = first(number, sequence, 0, 0);
        if let Part::First { at, .. } = &mut message.part {
            at.stream = stream;
        }
        message
    }

    fn end(number: u64, sequence: u64) -> Message {
        Message { number, part: Part::End(at(sequence)) }
    }

    fn first(number: u64, sequence: u64, of: u64, bytes: u32) -> Message {
        let shape = Shape::Tensor(TensorShape { dtype: (1, 8, 1), shape: vec![of], metadata: vec![], timestamp_ns: 0 });
        let descriptor = Descriptor { origin: node(), shape };
        let chunk = Chunk { bytes, ..Chunk::default() };
        Message { number, part: Part::First { at: at(sequence), descriptor, chunk } }
    }

    fn more(number: u64, offset: u64, bytes: u32) -> Message {
        Message { number, part: Part::More(Chunk { offset, bytes, ..Chunk::default() }) }
    }

    #[test]
    fn pieces_make_messages() {
        let mut receiver = receiver(5);
        assert!(matches!(receiver.on_piece(first(0, 5, 10, 4)), Ok(Step::Begin(..))));
        assert!(!receiver.take());
        assert_eq!((receiver.next(), receiver.here()), (0, 4));
        assert!(matches!(receiver.on_piece(more(0, 4, 6)), Ok(Step::Write(_))));
        assert!(receiver.take() && !receiver.take());
        assert_eq!((receiver.next(), receiver.wanted(), receiver.counts()), (1, at(6), (1, 0)));
        assert_eq!(receiver.on_piece(end(1, 6)), Ok(Step::End(0)));
        // The producer opened the stream again: its numbers begin again, and nothing is lost.
        assert!(receiver.on_piece(of(8, 2, 0)).is_ok() && receiver.take());
        assert_eq!(receiver.counts(), (2, 0));
        // The producer opens the stream again, and the first two messages of the new stream do not arrive.
        assert!(receiver.on_piece(of(9, 3, 2)).is_ok() && receiver.take());
        assert_eq!(receiver.counts(), (3, 2));
    }

    #[test]
    fn what_is_missing_is_counted_once() {
        let mut receiver = receiver(0);
        assert!(receiver.on_piece(first(0, 0, 10, 4)).is_ok());
        // The rest of this message did not arrive, nor did the two messages after it.
        assert!(receiver.on_piece(first(3, 3, 0, 0)).is_ok() && receiver.take());
        assert_eq!(receiver.counts(), (1, 3));
        receiver.on_reopened();
        assert!(receiver.on_piece(first(0, 10, 0, 0)).is_ok() && receiver.take());
        assert_eq!(receiver.counts(), (2, 9));
        receiver.on_silence(5);
        assert_eq!((receiver.next(), receiver.on_piece(first(4, 11, 0, 0))), (5, Err(BadPiece::Old)));
        // The last messages before the end.
        assert_eq!(receiver.on_piece(end(5, 14)), Ok(Step::End(3)));
        assert_eq!((receiver.on_piece(end(6, 14)), receiver.counts()), (Ok(Step::End(0)), (2, 12)));
        // Messages lost before the first one count, too.
        let mut late = self::receiver(2);
        assert!(late.on_piece(first(0, 6, 0, 0)).is_ok() && late.take());
        assert_eq!(late.counts(), (1, 4));
    }

    fn takes(receiver: &mut Receiver, number: u64, sequence: u64) -> bool {
        receiver.on_piece(first(number, sequence, 0, 0)).is_ok() && receiver.take()
    }

    #[test]
    fn what_was_taken_before_the_link_was_opened_anew_is_not_taken_twice() {
        // The receiver took two messages between the request and the opening of the new link.
        let mut receiver = receiver(5);
        assert!((0..3).all(|n| takes(&mut receiver, n, 5 + n)));
        receiver.on_reopened();
        assert_eq!(receiver.on_piece(first(0, 6, 10, 4)), Ok(Step::Skip));
        assert_eq!((receiver.take(), receiver.next(), receiver.here(), receiver.wanted()), (false, 1, 0, at(8)));
        assert!(!takes(&mut receiver, 1, 7) && takes(&mut receiver, 2, 8));
        // A message that was given up is taken if it comes again.
        assert!(receiver.on_piece(first(3, 9, 10, 4)).is_ok());
        receiver.on_reopened();
        assert!(takes(&mut receiver, 0, 9));
        assert_eq!(receiver.counts(), (5, 0));
    }

    #[test]
    fn a_stream_that_was_opened_anew_meanwhile_is_taken_from_its_beginning() {
        let mut receiver = receiver(5);
        assert!((0..3).all(|n| takes(&mut receiver, n, 5 + n)));
        receiver.on_reopened();
        // The new stream has had more messages than the receiver has of the former one.
        assert!((0..20).all(|n| receiver.on_piece(of(8, n, n)).is_ok() && receiver.take()));
        assert_eq!(receiver.counts(), (23, 0));
    }

    #[test]
    fn what_cannot_be_is_dropped() {
        let mut receiver = receiver(0);
        assert_eq!(receiver.on_piece(more(0, 0, 1)), Err(BadPiece::Old));
        for bad in [more(0, 5, 1), more(0, 4, 7), more(0, 4, 0), more(0, u64::MAX, 1)] {
            receiver.on_reopened();
            assert!(receiver.on_piece(first(0, 0, 10, 4)).is_ok());
            assert_eq!(receiver.on_piece(bad), Err(BadPiece::Order));
            assert!(receiver.on_piece(more(0, 4, 6)).is_err() && !receiver.take());
        }
        let mut other = first(1, 1, 0, 0);
        if let Part::First { descriptor, .. } = &mut other.part {
            descriptor.origin = NodeName::new("home").unwrap();
        }
        assert_eq!(receiver.on_piece(other), Err(BadPiece::Origin));
        assert!(receiver.on_piece(first(u64::MAX, 1, 0, 0)).is_err());
        assert!(receiver.on_piece(end(u64::MAX, 0)).is_err());
    }

    proptest! {
        /// For all pieces in every order: a received message is whole, and numbers only grow.
        #[test]
        fn nothing_is_taken_that_is_not_whole(pieces in proptest::collection::vec((any::<bool>(), 0u64..4, 0u64..4, 0u32..4), 0..200)) {
            let mut receiver = receiver(0);
            let (mut here, mut before) = (None, 0);
            for (begins, number, at, bytes) in pieces {
                let piece = if begins { first(number, at, 3, bytes.min(3)) } else { more(number, at, bytes) };
                match receiver.on_piece(piece) {
                    Ok(Step::Begin(_, _, chunk)) => here = Some(u64::from(chunk.bytes)),
                    Ok(Step::Write(chunk)) => here = here.map(|here| here + u64::from(chunk.bytes)),
                    Ok(Step::Skip) | Err(_) => {}
                    Ok(Step::End(_)) => unreachable!("none was said"),
                }
                if receiver.take() {
                    prop_assert_eq!(here.take(), Some(3));
                }
                prop_assert!(receiver.next() >= before);
                before = receiver.next();
            }
        }
    }
}
