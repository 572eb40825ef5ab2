//! Queues: lists whose items each go to one of several consumers. The daemon grants the claims on
//! items.

use crate::number::CellNo;
use serde::{Deserialize, Serialize};

/// Maximum number of items that a client claims at a time. Each claimed item usually has a lease,
/// and a client has at most this many leases.
pub const CLAIMS_MAX: usize = 4096;

/// Maximum number of claims that a client asserts when it continues its session ([`super::Return::claims`]).
pub const ASSERTED_MAX: usize = 1024;

/// Maximum number of claims that one [`QueueRequest::Claim`] confirms, and maximum number of items that it claims.
pub const CLAIM_BATCH_MAX: usize = 64;

/// An item of a queue. Renaming the queue changes neither number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QueueItem {
    /// The list's id.
    pub list: u64,
    /// The item's number in the list.
    pub number: u64,
}

/// A client's claim on an item. The daemon numbers all claims of a namespace, so that an old claim on an item differs from
/// a newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueClaim {
    pub item: QueueItem,
    /// The claim's number. Neither this daemon nor a later one assigns the number again.
    pub grant: u64,
}

/// A request about a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueRequest {
    /// Appends filled cells to a list, as [`super::Request::ListAppend`] does, unless more than `max` items would then wait in
    /// the list. Reply: [`super::Reply::Appended`] or [`QueueReply::Full`].
    Put {
        /// The list's name.
        list: String,
        /// The cells, fresh and filled, in order. From 1 to [`super::APPEND_MAX`], and at most `max`.
        cells: Vec<CellNo>,
        /// Maximum number of waiting items. While the list has items, the daemon refuses a different maximum. 0: the maximum that
        /// another client gave; without one, no maximum.
        max: u64,
    },
    /// Deletes the items of `done` that this client has claimed, as [`QueueRequest::Done`] does. Then claims the first items
    /// that wait. Reply: [`QueueReply::Claimed`] or [`QueueReply::Empty`]. With `wait`, the daemon sends no `Empty` before
    /// [`QueueRequest::Stop`].
    Claim {
        /// The list's name.
        list: String,
        /// The claims to confirm, of any list, at most [`CLAIM_BATCH_MAX`].
        done: Vec<QueueClaim>,
        /// Maximum number of items to claim, from 1 to [`CLAIM_BATCH_MAX`].
        max: u8,
        /// Whether to wait while the queue is empty.
        wait: bool,
    },
    /// Deletes an item that this client has claimed. Reply: [`super::Reply::Deleted`]. If this
    /// client does not have this claim, `existed` is false and nothing changes.
    Done(QueueClaim),
    /// Ends this client's claim on an item. The item waits again, before all later items. Without
    /// this claim nothing changes. Reply: [`super::Reply::Done`].
    GiveBack(QueueClaim),
    /// Requests the number of items. Reply: [`QueueReply::Size`].
    Size {
        /// The list's name.
        list: String,
    },
    /// Ends the wait of this client's [`QueueRequest::Claim`], which the daemon then answers with [`QueueReply::Empty`]. A client
    /// sends it after a request that waits, before any other request, and at most once. It has no reply of its own: if the
    /// daemon has already answered the request, nothing changes.
    Stop,
}

/// A response about a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueReply {
    /// Each item belongs to the client until it is done, is given back, or the client's session ends. There is at least one
    /// item.
    Claimed(Vec<QueueClaim>),
    /// No item waits.
    Empty,
    /// More items than the request's maximum would wait. Nothing was appended.
    Full,
    /// The number of items.
    Size {
        /// Items that no client has claimed.
        waiting: u64,
        /// Items that a client has claimed.
        claimed: u64,
    },
}

impl QueueRequest {
    /// Returns the list for whose items the request may wait.
    pub fn waits_for(&self) -> Option<&str> {
        match self {
            Self::Claim { list, wait: true, .. } => Some(list),
            _ => None,
        }
    }
}
