//! What a request comes to: a reply, a refusal, or a wait.

use super::account::NamespaceId;
use super::effect::Lending;
use super::env::Making;
use super::event::MemId;
use super::settings::Role;
use tensorlend_layout::wire::{Policy, Refusal, Reply};

/// How long after the lending a client may keep others waiting for its acknowledgement.
const ACK_NS_MAX: u64 = 5_000_000_000;

/// What a request comes to.
pub type Answer = Result<Outcome, Refusal>;

/// What a request that is not refused comes to.
#[derive(Debug)]
pub enum Outcome {
    /// An answer.
    Reply(Reply),
    /// An answer with descriptors.
    Lend(Reply, Vec<(MemId, Lending)>, Lent),
    /// Memory is being made for it.
    Working(Work),
    /// It has to wait.
    Later(Wait),
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The directory that is being made.
    Directory,
    /// A part of the directory that is being made.
    Names,
    /// A claim in shared memory, of whose end no event tells.
    Claim,
    /// The acknowledgement of this client.
    Ack {
        /// Whose.
        catalogue: u16,
        /// How long after what it was lent.
        ns_max: u64,
    },
    /// Segments that the asker gave back and has not unmapped yet.
    Quiet,
    /// A segment that is on its way into a file, or back.
    Spilled,
    /// What the daemon is taking apart, and may make room.
    Chores,
    /// Clients of this daemon's predecessor, which still read what that one wrote.
    Return,
}

impl Wait {
    /// The acknowledgement of a client that may take its time.
    pub fn ack(catalogue: u16) -> Self {
        Self::Ack { catalogue, ns_max: ACK_NS_MAX }
    }
}

/// What a client's next acknowledgement is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lent {
    /// Somebody else's memory.
    Nothing,
    /// The directory, to one that comes back.
    Back,
    /// Its own sheets.
    Welcome,
    /// The segment with this first slot number, and its slots.
    Segment(u32),
    /// This part of its cells.
    Cells(u8),
    /// The ring of the stream at this place, with this id.
    Ring(u32, u64),
}

/// A request for which memory is being made.
#[derive(Debug)]
pub struct Work {
    pub what: What,
    pub making: Vec<Making>,
}

/// What the memory is for.
#[derive(Debug)]
pub enum What {
    Join { namespace: NamespaceId, number: u16, label: String, role: Role },
    Segment { base: u32, log2: u8 },
    Cells { part: u8 },
    Ring { name: String, capacity: u32, policy: Policy },
}
