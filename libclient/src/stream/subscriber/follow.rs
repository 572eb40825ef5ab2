//! The end of a stream, and its continuation by another producer.

use super::Subscription;
use crate::error::{Error, Result};
use crate::stream::message::Start;
use std::sync::Arc;
use tensorlend_layout::name::stream_key;
use tensorlend_layout::stream::{Closed, Found, Ring};

impl Subscription {
    #[cold]
    pub(super) fn follow_on(&mut self) -> Result<bool> {
        if self.owner_word()?.read() != self.at.owner_word.0 {
            return self.rejoin();
        }
        let closed = Closed::unpack(self.at.head.closed.read());
        let over = closed.is_some() || !self.session.is_alive(self.at.owner_word.owner());
        if !over {
            return Ok(false);
        }
        // From here on, messages that were sent before the close are visible.
        let ring = Ring { head: &self.at.head, entries: &self.at.entries };
        if ring.find(self.next) != Found::NotYet {
            return Ok(true);
        }
        // The subscription reads no more messages from its cached segments, so drop them.
        self.forget_near();
        match closed {
            Some(Closed::Ended { lost }) => {
                let lost = self.progress.end(self.at.id, lost);
                self.count(lost);
                Err(self.ended())
            }
            None if !self.progress.is_remote() => Err(self.ended()),
            Some(Closed::Left) | None => self.await_gateway(),
        }
    }

    fn ended(&self) -> Error {
        // A session that has ended sees no other producer of the name.
        if self.session.control.is_dead() {
            return self.session.control.ended("wait for a message", Error::SessionEnded);
        }
        Error::StreamEnded(self.name.clone())
    }

    /// Handles a changed owner word: the stream was deleted, or has another producer. Returns false if the subscription waits
    /// for the next gateway.
    pub(super) fn rejoin(&mut self) -> Result<bool> {
        self.forget_near();
        let live = self.session.find(&stream_key(&self.name)).is_some_and(|f| f.owner_word.is_live());
        if !live {
            // The subscriber reads no more messages, so the producer may drop the ring's messages.
            self.words().next.set(u64::MAX);
            return Err(self.ended());
        }
        let joined = Self::join(&self.session, &self.name, self.cursor, self.wake.is_some());
        if joined.is_err() {
            // The daemon may have listed the cursor. u64::MAX blocks no producer.
            self.words().next.set(u64::MAX);
        }
        let (at, wake) = match joined {
            // The next gateway was killed while it opened the stream.
            Err(e) if e.is_not_found() && self.progress.is_remote() => return self.await_gateway(),
            Err(e) if e.is_not_found() => return Err(self.ended()),
            other => other?,
        };
        let unread = self.at.head.head.read().saturating_sub(self.next);
        self.at = at;
        self.wake = wake.map(Arc::new);
        self.progress.on_gateway();
        self.begin(Start::Oldest);
        self.first = u64::MAX;
        // The origins of the messages count what a gateway's streams have lost.
        if !self.progress.is_remote() {
            self.count(unread.saturating_add(self.next));
        }
        Ok(true)
    }
}
