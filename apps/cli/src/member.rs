//! The identity of a client.

use tensorlend::observe::{ClientNo, ClientSeen};

/// A client's number, and the epoch of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId {
    pub catalogue: ClientNo,
    pub epoch: u32,
}

impl MemberId {
    pub fn of(client: &ClientSeen) -> Self {
        Self { catalogue: client.catalogue, epoch: client.epoch }
    }
}
