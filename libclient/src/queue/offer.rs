//! Items that a producer is putting into a queue.

use super::Queue;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::wait::{Deadline, Timeout};
use tensorlend_layout::number::CellNo;
use tensorlend_layout::tensor::Sealed;
use tensorlend_layout::wire::{QueueRequest, Request};

/// Number of finished items after which a producer frees their memory.
const FINISHED_MAX: u64 = 16;

/// Items that a producer is putting into a queue: all of them or none. Dropping the offer frees the items' memory.
#[doc(hidden)]
#[derive(Debug)]
pub struct Offer {
    pub(super) queue: Queue,
    /// The items' slots. Empty: the queue has the items, or may have them.
    pub(super) values: Vec<Sealed>,
}

impl Offer {
    /// Appends the items, like [`Queue::put_many`]. Returns the number of the first item. After [`Error::Timeout`], the caller
    /// may call this method again.
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
            // A daemon that ends during the wait may be replaced: the items are in no request.
            None => queue.ask_until(deadline, || {
                session.names().notices_from(1)?;
                self.append(session)
            }),
        }
    }

    /// Appends the items; returns `None` if the queue has no room for all of them.
    fn append(&mut self, session: &Session) -> Result<Option<u64>> {
        let Queue { name, max, .. } = &self.queue;
        let values = std::mem::take(&mut self.values);
        if values.is_empty() {
            return Err(Error::Argument(
                "this offer has no items: they are in the queue already, an earlier call failed, or none were given: make \
                 new drafts"
                    .into(),
            ));
        }
        let ask = |cells: Vec<CellNo>| {
            let request = QueueRequest::Put { list: name.clone(), cells, max: *max };
            session.control.call(&Request::Queue(request), "append to list", name)
        };
        let number = session.names().append_unless_full(&values, &ask)?;
        if number.is_none() {
            self.values = values;
        }
        Ok(number)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let session = self.queue.client.session();
        if !self.values.is_empty() && !session.is_forked() {
            for sealed in self.values.drain(..) {
                session.alloc().take_back(sealed.value);
            }
        }
    }
}
