//! The outcome of a request: a reply, a refusal, or a wait.

use super::account::NamespaceId;
use super::effect::Lending;
use super::event::{ConnId, MemId};
use super::orders::Making;
use super::settings::Role;
use tensorlend_layout::wire::{Policy, Refusal, Reply};

/// Maximum time, after lending to a client, for which the client may delay others by not acknowledging.
const ACK_NS_MAX: u64 = 5_000_000_000;

/// The result of a request.
pub type Answer = Result<Outcome, Refusal>;

/// The outcome of a request that is not refused.
#[derive(Debug)]
pub enum Outcome {
    /// A response.
    Reply(Reply),
    /// A response with descriptors.
    Lend(Reply, Vec<(MemId, Lending)>, Lent),
    /// The daemon makes memory for the request first.
    Working(Work),
    /// The request waits.
    Later(Wait),
}

/// The reason why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The daemon is making the directory.
    Directory,
    /// The daemon is making a part of the directory.
    Names,
    /// The end of a claim in shared memory. No event reports that end.
    Claim,
    /// The acknowledgement of a client.
    Ack {
        /// The client.
        catalogue: u16,
        /// Maximum wait, counted from the lending that the client must acknowledge.
        ns_max: u64,
    },
    /// Segments that the requester returned and has not unmapped yet.
    Quiescent,
    /// A segment that the daemon is writing to a file or reading back.
    Spilled,
    /// Chores of the daemon that may free memory.
    Chores,
    /// Clients of this daemon's predecessor, which still read the predecessor's directory.
    Return,
    /// Clients of this daemon's predecessor, which may assert claims on items of queues.
    Asserted {
        /// End of the wait.
        until_ns: u64,
    },
}

impl Wait {
    /// Returns a wait for the acknowledgement of a client that may be slow.
    pub fn ack(catalogue: u16) -> Self {
        Self::Ack { catalogue, ns_max: ACK_NS_MAX }
    }
}

/// The memory whose receipt the client's next acknowledgement confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lent {
    /// Memory of another client.
    Nothing,
    /// The directory, lent to a client that comes back.
    Back,
    /// The client's own sheets.
    Welcome,
    /// The segment with this first slot number, and its slots.
    Segment(u32),
    /// This part of the client's cells.
    Cells(u8),
    /// The ring of the stream with this entry and id.
    Ring(u32, u64),
}

/// A request that waits for memory.
#[derive(Debug)]
pub struct Work {
    pub what: What,
    pub making: Vec<Making>,
}

/// The client of a request.
#[derive(Clone, Copy, Debug)]
pub struct Requester {
    pub conn: ConnId,
    pub catalogue: u16,
}

/// A client that joins.
#[derive(Debug)]
pub struct Joining {
    /// The number of its catalogue.
    pub number: u16,
    pub label: String,
    pub role: Role,
}

/// A request for a stream's ring.
#[derive(Debug)]
pub struct RingRequest {
    /// The catalogue of the requester.
    pub producer: u16,
    /// The stream's name.
    pub name: String,
    /// Number of messages.
    pub capacity: u32,
    pub policy: Policy,
}

/// The use of the memory.
#[derive(Debug)]
pub enum What {
    Join { namespace: NamespaceId, joining: Joining },
    Segment { base: u32, log2: u8 },
    Cells { part: u8 },
    Ring(RingRequest),
}
