//! The outcome of a request: a reply, a refusal, or a wait.

use super::account::NamespaceId;
use super::effect::Lending;
use super::event::{ConnId, MemId};
use super::orders::Making;
use super::settings::{Peer, Role};
use super::versions::Versions;
use tensorlend_layout::number::{ClientNo, CursorNo, SlotNo, StreamLine};
use tensorlend_layout::wire::{LendingId, Policy, Refusal, Reply};

/// Maximum time for which a client may delay other clients by not acknowledging memory, counted
/// from the lending.
const ACK_NS_MAX: u64 = 5_000_000_000;

pub type RequestResult = Result<Outcome, Refusal>;

/// The outcome of a request that is not refused.
#[derive(Debug)]
pub enum Outcome {
    Reply(Reply),
    /// A response with descriptors.
    Lend(Reply, Vec<(MemId, Lending)>, Lent),
    /// The daemon first allocates memory for the request.
    Working(Work),
    Later(Wait),
    /// The request waits until its queue changes, or until the client ends the wait.
    Blocked,
}

/// The reason why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The daemon is making the directory.
    Directory,
    /// The daemon is making a part of the directory.
    Names,
    /// A client's first-publication claim must end. No event reports the end of a claim.
    Claim,
    /// A client must acknowledge memory.
    Ack {
        number: ClientNo,
        /// Maximum wait, counted from the lending that the client must acknowledge.
        ns_max: u64,
    },
    /// The requester must unmap segments that it has returned.
    Quiescent,
    /// The daemon must finish writing a segment to a file, or reading it back.
    Spilled,
    /// The daemon must finish chores that may free memory.
    Chores,
    /// Clients of the previous daemon must reconnect, because they still read the previous daemon's
    /// directory.
    Return,
    /// Clients of the previous daemon must reconnect, because they may assert claims on items of
    /// queues.
    Asserted {
        /// End of the wait.
        until_ns: u64,
    },
}

impl Wait {
    /// Returns a wait for the acknowledgement of a client, with the maximum wait for a slow client.
    pub fn ack(number: ClientNo) -> Self {
        Self::Ack { number, ns_max: ACK_NS_MAX }
    }
}

/// Memory that the client has yet to acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lent {
    /// Memory of another client.
    Nothing,
    /// Device memory of another client, which this client did not hold before.
    OnDevice(LendingId),
    /// The ring of the stream with this entry and id, to the subscription of this cursor.
    Subscription(StreamLine, u64, CursorNo),
    /// The directory, lent to a client of the previous daemon that has reconnected.
    Back,
    /// The client's own sheets.
    Welcome,
    /// The segment with this first slot number, and its slots.
    Segment(SlotNo),
    /// This part of the client's cells.
    Cells(u8),
    /// The ring of the stream with this entry and id.
    Ring(StreamLine, u64),
}

/// A request that waits until the daemon has allocated memory.
#[derive(Debug)]
pub struct Work {
    pub task: Task,
    pub making: Vec<Making>,
}

#[derive(Clone, Copy, Debug)]
pub struct Requester {
    pub conn: ConnId,
    pub number: ClientNo,
}

/// A client that is joining a namespace.
#[derive(Debug)]
pub struct Joining {
    pub conn: ConnId,
    pub peer: Peer,
    pub number: ClientNo,
    pub label: String,
    pub role: Role,
    pub versions: Versions,
}

#[derive(Debug)]
pub struct RingRequest {
    /// The catalogue of the requester.
    pub producer: ClientNo,
    pub name: String,
    /// Number of messages.
    pub capacity: u32,
    pub policy: Policy,
}

/// The purpose of the memory.
#[derive(Debug)]
pub enum Task {
    Join { namespace: NamespaceId, joining: Joining },
    Segment { base: SlotNo, log2: u8 },
    Cells { part: u8 },
    Ring(RingRequest),
}
