//! Claims on items of queues.

use crate::client::Client;
use crate::error::{Error, Result};
use crate::session::Session;
use tensorlend_layout::wire::{QueueItem as ItemId, QueueRequest, Reply, Request};

/// A consumer's claim on an item, which dropping gives back.
#[doc(hidden)]
#[derive(Debug)]
pub struct Claim {
    pub(super) client: Client,
    pub(super) item: ItemId,
    pub(super) finished: bool,
}

impl Claim {
    /// Confirms the item: see [`QueueItem::done`].
    ///
    /// # Errors
    /// As [`QueueItem::done`].
    pub fn done(mut self) -> Result<bool> {
        let session = self.client.session();
        session.check()?;
        let existed = finish(session, self.item)?;
        self.finished = true;
        Ok(existed)
    }

    /// Gives the item back: see [`QueueItem::give_back`].
    ///
    /// # Errors
    /// As [`QueueItem::give_back`].
    pub fn give_back(mut self) -> Result<()> {
        self.client.session().check()?;
        self.finished = true;
        give_back(self.client.session(), self.item)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let session = self.client.session();
        // The claim belongs to the parent of a forked child.
        if !self.finished && session.check().is_ok() {
            // An error does not matter: the claim ends with the daemon or with the session.
            let _ = give_back(session, self.item);
        }
    }
}

/// Deletes a claimed item; returns false if the claim was over.
pub fn finish(session: &Session, item: ItemId) -> Result<bool> {
    const DOING: &str = "finish an item of a queue";
    let reply = session.control.call(&Request::Queue(QueueRequest::Done(item)), DOING, "")?;
    session.queue_claims().remove(item);
    match reply {
        Reply::Deleted { existed } => Ok(existed),
        _ => Err(Error::Protocol { doing: DOING }),
    }
}

/// Ends a claim. Even if the daemon does not answer, the next one does not learn of the claim.
pub fn give_back(session: &Session, item: ItemId) -> Result<()> {
    session.queue_claims().remove(item);
    let request = Request::Queue(QueueRequest::GiveBack(item));
    session.control.call(&request, "give an item back to a queue", "").map(|_| ())
}
