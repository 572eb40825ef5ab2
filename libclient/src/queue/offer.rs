//! Items that a producer is putting into a queue.

use super::Queue;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::wait::{Deadline, Timeout};
use tensorlend_layout::wire::{QueueRequest, Request};
use tensorlend_layout::word::Cell;

/// Number of finished items after which a producer frees their memory.
const FINISHED_MAX: u64 = 16;

/// An item that a producer is putting into a queue. Dropping the offer frees the item's memory.
#[doc(hidden)]
#[derive(Debug)]
pub struct Offer {
    pub(super) queue: Queue,
    /// The item's slot. `None`: the queue has the item, or may have it.
    pub(super) value: Option<Cell>,
}

impl Offer {
    /// Appends the item, like [`Queue::put`]. After [`Error::Timeout`], the caller may call this method again.
    ///
    /// # Errors
    /// The errors of [`Queue::put`].
    pub fn wait(&mut self, timeout: impl Into<Timeout>) -> Result<u64> {
        let deadline = Deadline::new(timeout);
        let queue = self.queue.clone();
        let session = queue.client.session();
        session.check()?;
        // Consumers finish items without this client. So this client frees the memory here, in batches.
        session.names().notices_from(FINISHED_MAX)?;
        match self.append(session)? {
            Some(number) => Ok(number),
            // A daemon that ends during the wait may be replaced: the item is in no request.
            None => queue.ask_until(deadline, || {
                session.names().notices_from(1)?;
                self.append(session)
            }),
        }
    }

    /// Appends the item; returns `None` if the queue is full.
    fn append(&mut self, session: &Session) -> Result<Option<u64>> {
        let Queue { name, max, .. } = &self.queue;
        let Some(value) = self.value.take() else { return Err(Error::Argument("the item is in the queue".into())) };
        let ask = |cells: Vec<u32>| {
            let cell = cells.first().copied().unwrap_or(u32::MAX);
            let request = QueueRequest::Put { list: name.clone(), cell, max: *max };
            session.control.call(&Request::Queue(request), "append to list", name)
        };
        let number = session.names().append_unless_full(&[value], &ask)?;
        if number.is_none() {
            self.value = Some(value);
        }
        Ok(number)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if let Some(value) = self.value.take()
            && !self.queue.client.session().is_forked()
        {
            self.queue.client.session().alloc().take_back(value);
        }
    }
}
