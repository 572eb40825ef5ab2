//! The identity of a client.

use tensorlend::observe::{ClientNo, ClientSeen};

/// A client's number, and the epoch of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId {
    pub number: ClientNo,
    pub epoch: u32,
}

impl MemberId {
    pub fn of(client: &ClientSeen) -> Self {
        Self { number: client.number, epoch: client.epoch }
    }
}
