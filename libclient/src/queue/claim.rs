//! Claims on items of queues.

use crate::client::Client;
use crate::error::{Error, Result};
use crate::session::Session;
use tensorlend_layout::wire::{QueueClaim, QueueRequest, Reply, Request};

/// A consumer's claim on an item, which dropping gives back.
#[doc(hidden)]
#[derive(Debug)]
pub struct Claim {
    pub(super) client: Client,
    pub(super) granted: QueueClaim,
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
        self.finished = true;
        finish(session, self.granted)
    }

    /// Gives the item back: see [`QueueItem::give_back`].
    ///
    /// # Errors
    /// As [`QueueItem::give_back`].
    pub fn give_back(mut self) -> Result<()> {
        self.client.session().check()?;
        self.finished = true;
        give_back(self.client.session(), self.granted)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let session = self.client.session();
        // The claim belongs to the parent of a forked child.
        if !self.finished && session.check().is_ok() {
            // An error does not matter: the claim ends with the session's next request.
            let _ = give_back(session, self.granted);
        }
    }
}

/// Deletes a claimed item; returns false if the claim was over. After an error the request is repeated.
pub fn finish(session: &Session, claim: QueueClaim) -> Result<bool> {
    const DOING: &str = "finish an item of a queue";
    let reply = session.control.deliver(&Request::Queue(QueueRequest::Done(claim)), DOING);
    // Unanswered confirmations assert their claims to the next daemon: see `Control::unconfirmed`.
    session.queue_claims().remove(claim);
    tensorlend_layout::crash_point!("queue: confirmed");
    match reply? {
        Reply::Deleted { existed } => Ok(existed),
        _ => Err(Error::Protocol { doing: DOING }),
    }
}

/// Ends a claim. After an error the request is repeated; the next daemon does not learn of the claim.
pub fn give_back(session: &Session, claim: QueueClaim) -> Result<()> {
    session.queue_claims().remove(claim);
    let request = Request::Queue(QueueRequest::GiveBack(claim));
    session.control.deliver(&request, "give an item back to a queue").map(|_| ())
}
