//! The subscribers of a stream, which the directory lists for its producer.

use super::{Stream, Subscriber};
use crate::core::env::Env;
use crate::core::members::Members;
use std::collections::BTreeSet;
use tensorlend_layout::directory::{SUBSCRIBERS, StreamEntry};
use tensorlend_layout::wire::Refusal;
use tensorlend_layout::word::SubscriberWord;

impl Stream {
    /// Removes the subscribers for which `leaves` returns true. The producer reads the list again
    /// after a change of its version.
    pub(super) fn drop_subscribers(
        &mut self,
        entry: &StreamEntry,
        env: &mut Env,
        leaves: impl Fn(&Subscriber) -> bool,
    ) {
        for (at, slot) in self.subscribers.iter_mut().enumerate() {
            if let Some(subscriber) = slot.take_if(|s| leaves(s)) {
                entry.subscribers[at].set(0);
                if let Some((wake, charge)) = subscriber.wake {
                    env.end_wake(wake, charge);
                }
                tensorlend_layout::crash_point!("daemon: subscriber removed");
                entry.subscribers_version.add(1);
            }
        }
        while self.subscribers.last().is_some_and(Option::is_none) {
            self.subscribers.pop();
        }
        entry.subscribers_count.set(self.subscribers.len() as u64);
    }

    /// Returns the index of a free subscriber of the stream.
    pub(super) fn free_subscriber(&self) -> Result<usize, Refusal> {
        let at = self.subscribers.iter().position(Option::is_none).unwrap_or(self.subscribers.len());
        if at == SUBSCRIBERS {
            let why = format!(
                "stream {:?} has {SUBSCRIBERS} subscribers, the most that a stream may have: close one",
                self.name
            );
            return Err(Refusal::Bad(why));
        }
        Ok(at)
    }

    /// Adds a subscriber of this epoch at a free index, and lists it for the producer.
    pub(super) fn add_subscriber(&mut self, entry: &StreamEntry, at: usize, epoch: u32, subscriber: Subscriber) {
        let Subscriber { number, cursor, ref wake } = subscriber;
        entry.subscribers[at].set(SubscriberWord::new(number, cursor, epoch, wake.is_some()).0);
        if at == self.subscribers.len() {
            self.subscribers.push(None);
        }
        self.subscribers[at] = Some(subscriber);
        entry.subscribers_count.set(self.subscribers.len() as u64);
        tensorlend_layout::crash_point!("daemon: subscriber written");
        entry.subscribers_version.add(1);
    }

    /// Checks that the producer finds each subscriber, and that each subscriber is a live client with one subscription at
    /// each of its cursors.
    pub(super) fn check_subscribers(&self, entry: &StreamEntry, members: &Members) {
        let mut cursors = BTreeSet::new();
        for (word, subscriber) in entry.subscribers.iter().zip(&self.subscribers) {
            let expected = subscriber.as_ref().map_or(0, |it| {
                let client = members.get(it.number).filter(|client| client.is_live()).expect("a subscriber lives");
                assert!(cursors.insert((it.number, it.cursor)), "cursor {} of {} is used twice", it.cursor, it.number);
                SubscriberWord::new(it.number, it.cursor, client.member.epoch(), it.wake.is_some()).0
            });
            assert_eq!(word.peek(), expected, "a subscriber of stream {:?}", self.name);
        }
    }
}
