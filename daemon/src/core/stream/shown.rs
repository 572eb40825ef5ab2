//! The parts of streams that observers see.

use super::super::client::Client;
use super::super::members::Members;
use super::{Stream, Streams, Subscriber};
use std::mem::offset_of;
use tensorlend_layout::leases::{CURSORS, Cursor, LeaseTable};
use tensorlend_layout::number::StreamLine;
use tensorlend_layout::stream::StreamRing;
use tensorlend_layout::wire::{STREAMS_SHOWN_MAX, Shown, StreamShown, SubscriberShown};

impl Streams {
    /// Returns the streams from this index on, with the progress of their subscribers.
    pub fn show(&self, members: &Members, from: StreamLine) -> Shown {
        let mut all = self.table.range(from..);
        let streams = all.by_ref().take(STREAMS_SHOWN_MAX).map(|(&index, stream)| stream.show(members, index));
        Shown::Streams { streams: streams.collect(), next: all.next().map(|(&index, _)| index) }
    }
}

impl Stream {
    fn show(&self, members: &Members, index: StreamLine) -> StreamShown {
        let word = |offset| self.ring.view.word(offset).unwrap_or(0);
        let (tail, sent) = (word(offset_of!(StreamRing, tail)), word(offset_of!(StreamRing, head)));
        let subscribers = self.subscribers.iter().flatten().map(|it| it.show(members, self.id, sent));
        StreamShown {
            name: self.name.clone(),
            index,
            id: self.id,
            producer: self.producer,
            capacity: self.capacity,
            policy: self.policy,
            sent,
            held: sent.saturating_sub(tail).min(self.capacity.into()),
            is_closed: self.is_closed(),
            subscribers: subscribers.collect(),
        }
    }
}

impl Subscriber {
    fn show(&self, members: &Members, stream: u64, sent: u64) -> SubscriberShown {
        let Self { number: client, cursor, .. } = *self;
        let table = members.get(client).and_then(Client::lease_table);
        let at = offset_of!(LeaseTable, cursors) + cursor.index() * size_of::<Cursor>();
        let word = |offset| table.filter(|_| cursor.index() < CURSORS)?.word(at + offset);
        let follows = word(offset_of!(Cursor, stream)) == Some(stream);
        let next = word(offset_of!(Cursor, next)).filter(|&next| follows && next != u64::MAX);
        let lost = next.and_then(|_| word(offset_of!(Cursor, lost))).unwrap_or(0);
        SubscriberShown { client, cursor, lag: next.map(|next| sent.saturating_sub(next)), lost }
    }
}
