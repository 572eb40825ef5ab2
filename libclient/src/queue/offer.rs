//! Items on their way into a queue.

use super::Queue;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::wait::{Deadline, Timeout};
use tensorlend_layout::wire::{QueueRequest, Request};
use tensorlend_layout::word::Cell;

/// Number of finished items after which a producer takes their memory back.
const FINISHED_MAX: u64 = 16;

/// An item on its way into a queue. Dropping it frees the item's memory.
#[doc(hidden)]
#[derive(Debug)]
pub struct Offer {
    pub(super) queue: Queue,
    /// `None`: the queue has the item, or may have it.
    pub(super) value: Option<Cell>,
}

impl Offer {
    /// Appends the item, as [`Queue::put`] does. After [`Error::Timeout`], it can be called again.
    ///
    /// # Errors
    /// As [`Queue::put`].
    pub fn wait(&mut self, timeout: impl Into<Timeout>) -> Result<u64> {
        let deadline = Deadline::new(timeout);
        let queue = self.queue.clone();
        let session = queue.client.session();
        session.check()?;
        // Consumers' processes finish items without this client: it takes back the memory here, a batch at a time.
        session.names().notices_from(FINISHED_MAX)?;
        match self.append(session)? {
            Some(number) => Ok(number),
            None => queue.ask_until(deadline, || {
                session.names().notices_from(1)?;
                self.append(session)
            }),
        }
    }

    fn append(&mut self, session: &Session) -> Result<Option<u64>> {
        let Queue { name, max, .. } = &self.queue;
        let Some(value) = self.value.take() else { return Err(Error::Argument("the item is in the queue".into())) };
        let request = |cells: Vec<u32>| {
            let cell = cells.first().copied().unwrap_or(u32::MAX);
            Request::Queue(QueueRequest::Put { list: name.clone(), cell, max: *max })
        };
        let number = session.names().append_unless_full(name, &[value], &request)?;
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
