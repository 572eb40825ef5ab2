//! Waits of subscribers for messages.

use crate::error::Result;
use crate::stream::message::Message;
use crate::stream::subscriber::Subscription;
use crate::wait::{Deadline, spin};
use tensorlend_layout::stream::Ring;
use tensorlend_layout::wake;
use tensorlend_layout::word::Bell;
use tensorlend_os::futex;

impl Subscription {
    pub(crate) fn recv_until(&mut self, deadline: Deadline) -> Result<Message> {
        self.session.check()?;
        if let Some(message) = self.poll()? {
            return Ok(message);
        }
        if self.spin_until_sent()
            && let Some(message) = self.poll()?
        {
            return Ok(message);
        }
        self.sleep(&deadline, Self::poll)
    }

    /// Polls for a short time whether the next message was sent.
    #[inline]
    pub(super) fn spin_until_sent(&self) -> bool {
        self.spin.until(|| self.is_sent())
    }

    /// Waits until `take` returns something: sleeps between calls.
    #[cold]
    pub(super) fn sleep<T>(
        &mut self,
        deadline: &Deadline,
        mut take: impl FnMut(&mut Self) -> Result<Option<T>>,
    ) -> Result<T> {
        loop {
            let ring = self.ring();
            let sample = self.park();
            let got = take(self);
            if let Ok(None) = got {
                let Some(nap) = deadline.nap() else {
                    self.unpark();
                    return Err(
                        deadline.error(format!("a message of stream {:?}: its producer has sent none", self.name()))
                    );
                };
                // If the subscription has joined another ring, the sample is of the former ring's bell, and nobody has declared
                // a sleep on the new one.
                if self.ring() == ring {
                    futex::wait(&self.at.head.bell, sample, nap);
                }
            }
            self.unpark();
            if let Some(taken) = got? {
                return Ok(taken);
            }
            // If the bell rang without a message, the producer has announced that one follows soon.
            let is_soon = self.at.head.bell.read() != sample;
            let found = if is_soon { spin::soon(|| take(self))? } else { take(self)? };
            if let Some(taken) = found {
                return Ok(taken);
            }
        }
    }

    /// Returns whether the next message's entry shows that the message was sent. Reads one cache line, and only hints: see
    /// [`Ring::is_sent`].
    #[inline]
    fn is_sent(&self) -> bool {
        Ring { head: &self.at.head, entries: &self.at.entries }.is_sent(self.next)
    }

    /// Declares that this client sleeps on the stream's bell; returns the bell's sample, taken before.
    pub(crate) fn park(&self) -> u32 {
        wake::park(&self.at.head.bell, &self.words().parked, 1)
    }

    pub(crate) fn unpark(&self) {
        self.words().parked.set(0);
    }

    /// Returns the bell that rings with each message.
    pub(crate) fn bell(&self) -> &Bell {
        &self.at.head.bell
    }
}
