//! Claims on items of queues.

use crate::client::Client;
use crate::error::{Error, Result};
use crate::session::Session;
use tensorlend_layout::wire::{QueueClaim, QueueRequest, Reply, Request};

/// A consumer's claim on an item. Dropping the claim gives the item back.
#[doc(hidden)]
#[derive(Debug)]
pub struct Claim {
    client: Client,
    pub(super) granted: QueueClaim,
    finished: bool,
}

impl Claim {
    pub(super) fn new(client: Client, granted: QueueClaim) -> Self {
        Self { client, granted, finished: false }
    }

    /// Returns whether the claim belongs to this client's session.
    pub(super) fn is_of(&self, client: &Client) -> bool {
        std::sync::Arc::ptr_eq(self.client.session(), client.session())
    }

    /// Returns the claim itself, which the caller ends.
    pub(super) fn take(mut self) -> QueueClaim {
        self.finished = true;
        self.granted
    }

    /// Confirms the item: see [`QueueItem::done`].
    ///
    /// # Errors
    /// The errors of [`QueueItem::done`].
    pub fn done(mut self) -> Result<bool> {
        let session = self.client.session();
        session.check()?;
        self.finished = true;
        finish(session, self.granted)
    }

    /// Gives the item back: see [`QueueItem::give_back`].
    ///
    /// # Errors
    /// The errors of [`QueueItem::give_back`].
    pub fn give_back(mut self) -> Result<()> {
        self.client.session().check()?;
        self.finished = true;
        give_back(self.client.session(), self.granted)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let session = self.client.session();
        // In a forked child the claim belongs to the parent, so the child does not give it back.
        if !self.finished && session.check().is_ok() {
            // Ignore an error: the claim then ends with the session's next request.
            let _ = give_back(session, self.granted);
        }
    }
}

/// Deletes a claimed item. Returns false if the claim was over. After an error the client repeats the request.
pub fn finish(session: &Session, claim: QueueClaim) -> Result<bool> {
    const DOING: &str = "finish an item of a queue";
    let reply = session.control.deliver(&Request::Queue(QueueRequest::Done(claim)), DOING);
    // For a confirmation without a response, the client asserts the claim to the next daemon: see
    // `Control::asserted`.
    session.control.claims().remove(claim);
    tensorlend_layout::crash_point!("queue: confirmed");
    match reply? {
        Reply::Deleted { existed } => Ok(existed),
        _ => Err(Error::Protocol { doing: DOING }),
    }
}

/// Ends a claim. After an error the client repeats the request, and does not assert the claim to the next daemon.
pub fn give_back(session: &Session, claim: QueueClaim) -> Result<()> {
    session.control.claims().remove(claim);
    let request = Request::Queue(QueueRequest::GiveBack(claim));
    session.control.deliver(&request, "give an item back to a queue").map(|_| ())
}
