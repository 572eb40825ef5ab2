//! Queues: lists whose items each go to one of several consumers. The daemon grants the claims.

use serde::{Deserialize, Serialize};

/// Maximum number of items that a client claims at a time: each claimed item usually has a lease, and a client has at
/// most this many.
pub const CLAIMS_MAX: usize = 4096;

/// Maximum number of claims that a client asserts when it continues its session ([`super::Return::claims`]).
pub const ASSERTED_MAX: usize = 1024;

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
    /// The item.
    pub item: QueueItem,
    /// The claim's number, which the daemon never assigns again, nor does its successor.
    pub grant: u64,
}

/// A request about a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueRequest {
    /// Appends a filled cell to a list, as [`super::Request::ListAppend`] does, unless `max` items or more wait in it.
    /// Reply: [`super::Reply::Appended`] or [`QueueReply::Full`].
    Put {
        /// The list's name.
        list: String,
        /// The cell, fresh and filled.
        cell: u32,
        /// Maximum number of items that wait; 0: no maximum.
        max: u64,
    },
    /// Claims the first item that waits. Reply: [`QueueReply::Claimed`] or [`QueueReply::Empty`].
    Claim {
        /// The list's name.
        list: String,
    },
    /// Deletes an item that this client has claimed. Reply: [`super::Reply::Deleted`]; `existed` is false, and nothing
    /// changes, if this client does not have this claim.
    Done(QueueClaim),
    /// Ends this client's claim on an item, which waits again, before all later ones. Without this claim nothing changes.
    /// Reply: [`super::Reply::Done`].
    GiveBack(QueueClaim),
    /// Requests the number of items. Reply: [`QueueReply::Size`].
    Size {
        /// The list's name.
        list: String,
    },
}

/// A response about a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueReply {
    /// The item belongs to the client until it is done, is given back, or the client's session ends.
    Claimed(QueueClaim),
    /// No item waits.
    Empty,
    /// As many items wait as the request allows: nothing was appended.
    Full,
    /// The number of items.
    Size {
        /// Items that no client has claimed.
        waiting: u64,
        /// Items that a client has claimed.
        claimed: u64,
    },
}
