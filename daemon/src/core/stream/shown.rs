//! The parts of streams that observers see.

use super::super::client::Client;
use super::super::members::Members;
use super::{Stream, Streams, Subscriber};
use tensorlend_layout::leases::CURSORS;
use tensorlend_layout::stream::StreamRing;
use tensorlend_layout::wire::{STREAMS_SHOWN_MAX, Shown, StreamShown, SubscriberShown};

impl Streams {
    /// Returns the streams from this index on, with the progress of their subscribers.
    pub fn show(&self, members: &Members, from: u32) -> Shown {
        let mut all = self.table.range(from..);
        let streams = all.by_ref().take(STREAMS_SHOWN_MAX).map(|(&index, stream)| stream.show(members, index));
        Shown::Streams { streams: streams.collect(), next: all.next().map(|(&index, _)| index) }
    }
}

impl Stream {
    fn show(&self, members: &Members, index: u32) -> StreamShown {
        let (tail, sent) =
            self.ring.view.at::<StreamRing>(0).map_or((0, 0), |head| (head.tail.read(), head.head.read()));
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
        let Self { catalogue: client, cursor, .. } = *self;
        let table = members.get(client).and_then(Client::lease_table);
        let words = table.filter(|_| usize::from(cursor) < CURSORS).map(|table| &table.cursors[usize::from(cursor)]);
        let begun = words.filter(|it| it.stream.read() == stream && it.next.read() != u64::MAX);
        SubscriberShown {
            client,
            cursor,
            lag: begun.map(|it| sent.saturating_sub(it.next.read())),
            lost: begun.map_or(0, |it| it.lost.read()),
        }
    }
}
