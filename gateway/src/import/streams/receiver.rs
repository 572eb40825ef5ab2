//! One link of a stream at its receiver. The module checks the order of pieces and detects lost
//! messages.
//!
//! This is a pure state machine without clock, socket and bytes.

use crate::wire::{Chunk, Descriptor, Message, NodeName, Part};
use std::ops::Range;
use std::sync::Arc;

/// The action that an arrived piece requires.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A message begins with this chunk. An incomplete message before it is abandoned.
    Begin(Arc<Descriptor>, Chunk),
    /// Write more bytes of the message that has begun.
    Write(Chunk),
    /// Ignore the piece, because its message arrived before the link was opened again.
    Skip,
    /// The stream has ended.
    End,
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
    sequence: u64,
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
    /// Number in the stream of the next message; `None` if it may have any number.
    wanted: Option<u64>,
    /// Numbers in the stream of messages that a reopened link may repeat. These messages arrived
    /// after this node chose the number for its request.
    repeated: Range<u64>,
    lost: u64,
    received: u64,
}

impl Receiver {
    /// Makes the state of a new link to `node`.
    pub fn new(node: NodeName) -> Self {
        Self { node, next: 0, begun: None, wanted: None, repeated: 0..0, lost: 0, received: 0 }
    }

    /// Opens the link again from message `from` of the stream on; `None` means the newest. The
    /// link's own numbers restart at 0, and those of the stream continue.
    pub fn on_reopened(&mut self, from: Option<u64>) {
        let wanted = self.wanted.unwrap_or(0);
        // `from` is `None` if no number was known. Then the sender starts with the newest message,
        // which is the one before the next number, or a later one. If `from` is larger than the
        // next number, the stream has ended since. The sender detects this by `from`, and sends the
        // new stream from its first message on.
        let from = from.unwrap_or(wanted.saturating_sub(1));
        self.repeated = if from > wanted { 0..wanted } else { from..wanted };
        (self.next, self.begun) = (0, None);
    }

    /// Notes the end of the stream. If the producer opens the stream again, its numbers restart at
    /// 0.
    pub fn on_ended(&mut self) {
        (self.begun, self.wanted, self.repeated) = (None, Some(0), 0..0);
    }

    /// Handles a piece, and returns the step to perform with it.
    ///
    /// # Errors
    /// [`BadPiece`] if the piece is invalid. The caller then drops the piece.
    pub fn on_piece(&mut self, message: Message) -> Result<Step, BadPiece> {
        let Message { number, part } = message;
        match part {
            Part::First { .. } | Part::End if number < self.next => Err(BadPiece::Old),
            Part::First { .. } | Part::End if number == u64::MAX => Err(BadPiece::Number),
            Part::First { sequence, descriptor, chunk } => {
                self.next = number + 1;
                self.begun = None;
                if descriptor.origin != self.node {
                    return Err(BadPiece::Origin);
                }
                if self.repeated.contains(&sequence) {
                    return Ok(Step::Skip);
                }
                // This message is new, so none of the following messages is a repetition. A small
                // number in them means that the producer has opened the stream again.
                self.repeated = 0..0;
                // A number below the expected one means a new stream, of which no message is lost.
                self.lost = self.lost.saturating_add(self.wanted.map_or(0, |wanted| sequence.saturating_sub(wanted)));
                self.wanted = Some(sequence);
                let (bytes, here) = (descriptor.bytes(), u64::from(chunk.bytes));
                self.begun = Some(Begun { number, sequence, bytes, here });
                Ok(Step::Begin(Arc::new(descriptor), chunk))
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
            Part::End => {
                self.next = number + 1;
                self.on_ended();
                Ok(Step::End)
            }
        }
    }

    /// Completes the current message if all its bytes have arrived. Returns true in that case.
    pub fn take(&mut self) -> bool {
        let Some(begun) = self.begun.take_if(|begun| begun.here == begun.bytes) else { return false };
        self.wanted = Some(begun.sequence.saturating_add(1));
        self.received += 1;
        true
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

    /// Returns the number in the stream of the next message; `None` if it may have any number.
    pub fn wanted(&self) -> Option<u64> {
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

    fn first(number: u64, sequence: u64, of: u64, bytes: u32) -> Message {
        let shape = Shape::Tensor(TensorShape { dtype: (1, 8, 1), shape: vec![of], metadata: vec![], timestamp_ns: 0 });
        let descriptor = Descriptor { origin: node(), shape };
        let chunk = Chunk { bytes, ..Chunk::default() };
        Message { number, part: Part::First { sequence, descriptor, chunk } }
    }

    fn more(number: u64, offset: u64, bytes: u32) -> Message {
        Message { number, part: Part::More(Chunk { offset, bytes, ..Chunk::default() }) }
    }

    #[test]
    fn pieces_make_messages() {
        let mut receiver = Receiver::new(node());
        assert!(matches!(receiver.on_piece(first(0, 5, 10, 4)), Ok(Step::Begin(..))));
        assert!(!receiver.take());
        assert_eq!((receiver.next(), receiver.here()), (0, 4));
        assert!(matches!(receiver.on_piece(more(0, 4, 6)), Ok(Step::Write(_))));
        assert!(receiver.take() && !receiver.take());
        assert_eq!((receiver.next(), receiver.wanted(), receiver.counts()), (1, Some(6), (1, 0)));
        assert_eq!(receiver.on_piece(Message { number: 1, part: Part::End }), Ok(Step::End));
        // The producer opened the stream again: its numbers begin again, and nothing is lost.
        assert_eq!(receiver.wanted(), Some(0));
        assert!(receiver.on_piece(first(2, 0, 0, 0)).is_ok() && receiver.take());
        assert_eq!(receiver.counts(), (2, 0));
        // The producer opens the stream again, and the first two messages of the new stream do not arrive.
        receiver.on_ended();
        assert!(receiver.on_piece(first(3, 2, 0, 0)).is_ok() && receiver.take());
        assert_eq!(receiver.counts(), (3, 2));
    }

    #[test]
    fn what_is_missing_is_counted_once() {
        let mut receiver = Receiver::new(node());
        assert!(receiver.on_piece(first(0, 0, 10, 4)).is_ok());
        // The rest of this message did not arrive, nor did the two messages after it.
        assert!(receiver.on_piece(first(3, 3, 0, 0)).is_ok() && receiver.take());
        assert_eq!(receiver.counts(), (1, 3));
        receiver.on_reopened(Some(4));
        assert!(receiver.on_piece(first(0, 10, 0, 0)).is_ok() && receiver.take());
        assert_eq!(receiver.counts(), (2, 9));
        receiver.on_silence(5);
        assert_eq!((receiver.next(), receiver.on_piece(first(4, 11, 0, 0))), (5, Err(BadPiece::Old)));
    }

    /// Returns a receiver that has taken the message with this number of the stream, and the two after it.
    fn three(sequence: u64) -> Receiver {
        let mut receiver = Receiver::new(node());
        for n in 0..3 {
            assert!(receiver.on_piece(first(n, sequence + n, 0, 0)).is_ok() && receiver.take());
        }
        receiver
    }

    fn takes(receiver: &mut Receiver, number: u64, sequence: u64) -> bool {
        receiver.on_piece(first(number, sequence, 0, 0)).is_ok() && receiver.take()
    }

    #[test]
    fn what_was_taken_before_the_link_was_opened_anew_is_not_taken_twice() {
        // The receiver took two messages between the request and the opening of the new link.
        let mut receiver = three(5);
        receiver.on_reopened(Some(6));
        assert_eq!(receiver.on_piece(first(0, 6, 10, 4)), Ok(Step::Skip));
        assert_eq!((receiver.take(), receiver.next(), receiver.here(), receiver.wanted()), (false, 1, 0, Some(8)));
        assert!(!takes(&mut receiver, 1, 7) && takes(&mut receiver, 2, 8));
        // The new link begins at the newest message, which the receiver already has.
        let mut receiver = three(5);
        receiver.on_reopened(None);
        assert!(!takes(&mut receiver, 0, 7) && takes(&mut receiver, 1, 8));
        assert_eq!(receiver.counts(), (4, 0));
    }

    #[test]
    fn a_stream_that_was_opened_anew_meanwhile_is_taken_from_its_beginning() {
        let mut receiver = three(5);
        receiver.on_reopened(Some(6));
        assert!((0..9).all(|n| takes(&mut receiver, n, n)));
        let mut receiver = three(5);
        receiver.on_reopened(Some(6));
        assert_eq!(receiver.on_piece(Message { number: 0, part: Part::End }), Ok(Step::End));
        assert!((0..9).all(|n| takes(&mut receiver, n + 1, n)));
        // The end of the stream and its first message came between the request and the new link.
        let mut receiver = three(5);
        receiver.on_ended();
        assert!(takes(&mut receiver, 3, 0));
        receiver.on_reopened(Some(8));
        assert!(!takes(&mut receiver, 0, 0) && takes(&mut receiver, 1, 1));
        assert_eq!(receiver.counts().1, 0);
    }

    #[test]
    fn what_cannot_be_is_dropped() {
        let mut receiver = Receiver::new(node());
        assert_eq!(receiver.on_piece(more(0, 0, 1)), Err(BadPiece::Old));
        for bad in [more(0, 5, 1), more(0, 4, 7), more(0, 4, 0), more(0, u64::MAX, 1)] {
            receiver.on_reopened(None);
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
        assert!(receiver.on_piece(Message { number: u64::MAX, part: Part::End }).is_err());
    }

    proptest! {
        /// For all pieces in every order: a received message is whole, and numbers only grow.
        #[test]
        fn nothing_is_taken_that_is_not_whole(pieces in proptest::collection::vec((any::<bool>(), 0u64..4, 0u64..4, 0u32..4), 0..200)) {
            let mut receiver = Receiver::new(node());
            let (mut here, mut before) = (None, 0);
            for (begins, number, at, bytes) in pieces {
                let piece = if begins { first(number, at, 3, bytes.min(3)) } else { more(number, at, bytes) };
                match receiver.on_piece(piece) {
                    Ok(Step::Begin(_, chunk)) => here = Some(u64::from(chunk.bytes)),
                    Ok(Step::Write(chunk)) => here = here.map(|here| here + u64::from(chunk.bytes)),
                    Ok(Step::Skip | Step::End) => unreachable!("none was said"),
                    Err(_) => {}
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
