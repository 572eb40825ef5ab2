//! Messages that are lost between another machine and a subscriber of this machine, and the end of the gateway that receives
//! them.
//!
//! A gateway sends each message with its [`Origin`]: the identity of the original stream, and the message's number there. So
//! a subscriber counts every message that it misses, whatever caused the loss, also if the next gateway has opened another ring in the
//! meantime.

use crate::error::{Error, RemoteTrouble, Result};
use crate::stream::subscriber::Subscription;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use tensorlend_layout::random::splitmix64;
use tensorlend_layout::stream::{Found, HeaderSummary, Ring};
use tensorlend_layout::tensor::Origin;

/// Time for which a subscriber waits for the next gateway before it reports that the gateway has ended.
const RETURN: Duration = Duration::from_secs(10);

/// A position in a stream. Only a gateway needs this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamPosition {
    /// The identity of the stream's epoch. A stream that is opened again has another identity.
    pub stream: u64,
    /// The number of the next message.
    pub number: u64,
}

/// The process that fills a local stream, as far as a subscriber knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A program of this machine; or a gateway that the subscriber has not asked.
    Unknown,
    /// A gateway. It has reached this position in the original stream, if it knows one.
    Gateway(Option<StreamPosition>),
}

/// The progress of a subscription in the original stream.
#[derive(Default)]
pub(crate) struct Progress {
    /// Whether the subscription asked a gateway for the stream.
    is_asked: bool,
    /// The next message of the original stream; `None` if it may be any message.
    next: Option<Origin>,
    /// Messages that the local ring has lost since the last message. They are counted already.
    skipped: u64,
    /// Such messages of earlier rings.
    skipped_earlier: u64,
    /// The id of the ring whose end was counted last.
    ended: u64,
    /// Time at which the subscription noticed that the gateway has ended.
    away: Option<Instant>,
}

impl Progress {
    /// Starts a subscription. `is_asked` is true if a gateway receives the stream for it.
    pub(crate) fn new(is_asked: bool) -> Self {
        Self { is_asked, ..Self::default() }
    }

    /// Returns whether a gateway fills this stream.
    pub(crate) fn is_remote(&self) -> bool {
        self.is_asked || self.next.is_some()
    }

    /// Returns whether the next message is known.
    pub(crate) fn is_known(&self) -> bool {
        self.next.is_some()
    }

    /// Sets the next message of the original stream.
    pub(crate) fn expect(&mut self, next: Option<Origin>) {
        self.next = next;
    }

    /// Notes that the local ring has lost messages, which the caller counts.
    pub(crate) fn skip(&mut self, lost: u64) {
        self.skipped = self.skipped.saturating_add(lost);
    }

    /// Notes that a message with these words was taken. Returns the number of messages lost before it that are not counted
    /// yet; `None` if the subscription has taken the message before. A gateway sends a message again if it does not know that
    /// the former gateway has sent it.
    #[inline]
    pub(crate) fn take(&mut self, words: &HeaderSummary) -> Option<u64> {
        let Some(origin) = Origin::unpack(words) else { return Some(0) };
        if self.next.is_some_and(|next| next.stream == origin.stream && origin.number < next.number) {
            return None;
        }
        let (skipped, earlier) = (std::mem::take(&mut self.skipped), std::mem::take(&mut self.skipped_earlier));
        let lost = self.next.map_or(0, |next| {
            // The first message of a stream that was opened again has the number 0. The messages of the earlier rings belong
            // to the former stream.
            let (from, earlier) = if next.stream == origin.stream { (next.number, earlier) } else { (0, 0) };
            origin.number.saturating_sub(from).saturating_sub(skipped).saturating_sub(earlier)
        });
        self.next = Some(Origin { number: origin.number.saturating_add(1), ..origin });
        Some(lost)
    }

    /// Notes the end of the stream in the ring with this id, before which `lost` messages did not get into the ring. Returns
    /// the number of messages lost that are not counted yet.
    pub(crate) fn end(&mut self, ring: u64, lost: u64) -> u64 {
        if std::mem::replace(&mut self.ended, ring) == ring {
            return 0;
        }
        if let Some(next) = &mut self.next {
            next.number = next.number.saturating_add(lost);
        }
        lost
    }

    /// Notes that the subscription reads another ring, whose gateway is there.
    pub(crate) fn on_gateway(&mut self) {
        self.away = None;
        self.skipped_earlier = self.skipped_earlier.saturating_add(std::mem::take(&mut self.skipped));
    }

    /// Returns whether the next gateway may still come. After the time for this has passed, returns false once, and then begins
    /// again. So a loop that ignores the error waits.
    pub(crate) fn may_return(&mut self) -> bool {
        let since = *self.away.get_or_insert_with(Instant::now);
        let may = since.elapsed() < RETURN;
        if !may {
            self.away = None;
        }
        may
    }
}

impl Subscription {
    /// Sets the position in the original stream at which the subscription begins, if it has taken no message yet. The first
    /// message sets it if the ring has one for this subscription. `position` is that of an empty ring.
    pub(super) fn expect(&mut self, position: Option<StreamPosition>) {
        if self.progress.is_known() || self.next < self.at.head.head.read() {
            return;
        }
        let next = match self.next.checked_sub(1) {
            Some(last) => self.origin(last).map(|last| Origin { number: last.number.saturating_add(1), ..last }),
            None => position.map(Origin::from),
        };
        self.progress.expect(next);
    }

    /// Returns the origin of a message that the ring still has.
    fn origin(&self, number: u64) -> Option<Origin> {
        let ring = Ring { head: &self.at.head, entries: &self.at.entries };
        let Found::Message(cell, words) = ring.find(number) else { return None };
        Origin::unpack(&words).filter(|_| ring.still_has(number, cell))
    }

    /// Returns the position in the original stream after the newest message of this ring, which a gateway has filled.
    pub(super) fn filled(&self) -> Option<StreamPosition> {
        let head = self.at.head.head.read();
        // A producer that was killed may have sent one message more than its count says.
        let last = self.origin(head).or_else(|| self.origin(head.checked_sub(1)?))?;
        Some(StreamPosition { stream: last.stream, number: last.number.saturating_add(1) })
    }

    /// Returns the identity of the epoch of the stream that the subscription reads. A stream that is opened again has another
    /// one, also after a restart of the machine. Only a gateway needs it.
    #[doc(hidden)]
    pub fn identity(&self) -> u64 {
        // Ids are unique in one directory, and each directory has another seed.
        splitmix64(&mut (self.session.directory.head().seed.peek() ^ self.ring()))
    }

    /// Waits for the next gateway, because the one that filled the ring has ended. That is not the end of the original stream.
    pub(super) fn await_gateway(&mut self) -> Result<bool> {
        if self.progress.may_return() {
            return Ok(false);
        }
        Err(Error::Remote { name: self.name().to_owned(), cause: RemoteTrouble::NotContinued })
    }
}

impl From<StreamPosition> for Origin {
    fn from(StreamPosition { stream, number }: StreamPosition) -> Self {
        Self { stream, number }
    }
}

impl From<Origin> for StreamPosition {
    fn from(Origin { stream, number }: Origin) -> Self {
        Self { stream, number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(stream: u64, number: u64) -> HeaderSummary {
        Origin { stream, number }.pack()
    }

    #[test]
    fn every_gap_is_counted_once() {
        let mut progress = Progress::new(true);
        // Without a known position, the subscription begins with its first message.
        assert_eq!([7, 8, 12].map(|number| progress.take(&words(1, number))), [Some(0), Some(0), Some(3)]);
        // The local ring lost two, which the caller has counted.
        progress.skip(2);
        assert_eq!(progress.take(&words(1, 20)), Some(5));
        // Messages that come again, and one of a local producer.
        assert_eq!([20, 3].map(|number| progress.take(&words(1, number))), [None, None]);
        assert_eq!((progress.take(&[0; 6]), progress.take(&words(1, 21))), (Some(0), Some(0)));
        // The original stream was opened again.
        assert_eq!((progress.take(&words(2, 4)), progress.take(&words(2, 5))), (Some(4), Some(0)));
        assert_eq!((progress.end(9, 3), progress.end(9, 3), progress.take(&words(2, 9))), (3, 0, Some(0)));
        let mut known = Progress::new(true);
        known.expect(Some(Origin { stream: 1, number: 5 }));
        assert_eq!(known.take(&words(1, 8)), Some(3));
    }

    #[test]
    fn messages_lost_in_another_ring_count_once() {
        // The next gateway's ring continues the same stream, or has a stream that was opened again.
        for (stream, number, lost) in [(1, 20, 8), (2, 4, 4)] {
            let mut progress = Progress::new(true);
            progress.take(&words(1, 9));
            progress.skip(2);
            progress.on_gateway();
            assert_eq!(progress.take(&words(stream, number)), Some(lost));
            assert_eq!(progress.take(&words(stream, number + 2)), Some(1));
        }
        // One ring has the end of the former stream and the beginning of the next one.
        let mut progress = Progress::new(true);
        progress.take(&words(1, 9));
        progress.skip(6);
        assert_eq!(progress.take(&words(2, 4)), Some(0));
    }

    #[test]
    fn what_was_lost_before_the_subscription_is_not_counted() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let client = crate::Client::builder().socket(broker.socket()).connect().unwrap();
        let stream = client.stream("cam").open().unwrap();
        let mut before = client.subscribe("cam").unwrap();
        stream.end(5);
        let mut after = client.subscribe("cam").unwrap();
        for (frames, lost) in [(&mut before, 5), (&mut after, 0)] {
            assert!(matches!(frames.recv(), Err(Error::StreamEnded(_))));
            assert_eq!(frames.lost(), lost);
        }
    }
}
