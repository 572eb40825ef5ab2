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
        self.wait(deadline)
    }

    /// Waits for the next message: polls for a short time, and then sleeps.
    #[inline(never)]
    fn wait(&mut self, deadline: Deadline) -> Result<Message> {
        let (spinning, mut polls) = (self.spin.clone(), 0u32);
        let found = spinning.poll(|| {
            polls += 1;
            // One poll in sixteen also finds a lost message, and the end of the stream.
            if polls.is_multiple_of(16) || self.is_sent() { self.poll() } else { Ok(None) }
        });
        if let Some(message) = found? {
            return Ok(message);
        }
        loop {
            let sample = self.park();
            let got = self.poll();
            if let Ok(None) = got {
                let Some(nap) = deadline.nap() else {
                    self.unpark();
                    return Err(
                        deadline.error(format!("a message of stream {:?}: its producer has sent none", self.name()))
                    );
                };
                futex::wait(&self.at.head.bell, sample, nap);
            }
            self.unpark();
            if let Some(message) = got? {
                return Ok(message);
            }
            // If the bell rang without a message, the producer has announced that one follows soon.
            let is_soon = self.at.head.bell.read() != sample;
            let found = if is_soon { spin::soon(|| self.poll())? } else { self.poll()? };
            if let Some(message) = found {
                return Ok(message);
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
