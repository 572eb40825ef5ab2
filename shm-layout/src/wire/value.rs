//! The contents of names, for listings.

use crate::number::EntryNo;
use serde::{Deserialize, Serialize};

/// Maximum number of names in a [`ValuesOf`](super::Request::ValuesOf), so that their contents fit
/// into a packet.
pub const VALUES_MAX: usize = 320;

/// A name, as a client found it in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NameAt {
    /// Index of the name's entry in the directory.
    pub entry: EntryNo,
    /// The entry's owner word.
    pub owner_word: u64,
}

/// The contents of a name when the daemon read the name. Cells and records are allegations of the
/// name's client, so the reader checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ValueAt {
    /// The daemon could not read the value, and the reader leases the value itself. Either the
    /// name's owner word has changed, or a client replaced the value during the read. Or the daemon
    /// does not know yet that the owner has mapped the memory.
    Unknown,
    /// The cell's client deleted the name.
    Deleted,
    /// The owner word refers to no cell of its client, or the cell refers to no slot of its client.
    Nowhere,
    /// The value is in the memory of a device.
    OnDevice,
    /// The value is in a slot. The record belonged to the cell's value when the daemon read both.
    Slot {
        cell: u64,
        record: [u64; 16],
        segment_bytes: u64,
        /// Whether bytes of the slot, or of a later slot in its chain, are in a file or on the way
        /// to or from a file. A hint.
        in_file: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::super::{PACKET_BYTES_MAX, Reply, Request, encode};
    use super::*;

    #[test]
    fn the_longest_messages_fit_into_a_packet() {
        let names = vec![NameAt { entry: EntryNo::new(u32::MAX), owner_word: u64::MAX }; VALUES_MAX];
        assert!(encode(&Request::ValuesOf { names }).len() <= PACKET_BYTES_MAX);
        let value = ValueAt::Slot { cell: u64::MAX, record: [u64::MAX; 16], segment_bytes: u64::MAX, in_file: true };
        assert!(encode(&Reply::Values(vec![value; VALUES_MAX])).len() <= PACKET_BYTES_MAX);
    }
}
