//! How long sheets are, in bytes.

use tensorlend_layout::catalogue::{Catalogue, CellRecord, SlotRecord, cells_count, part_bytes};
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::stream::{RingEntry, StreamRing};

/// A client's catalogue.
pub const CATALOGUE: u64 = size_of::<Catalogue>() as u64;
/// A client's lease table.
pub const LEASES: u64 = size_of::<LeaseTable>() as u64;

/// A further part of a client's cells.
pub fn cells(part: u8) -> u64 {
    part_bytes::<CellRecord>(cells_count(part)) as u64
}

/// The records of so many slots.
pub fn slots(count: usize) -> u64 {
    part_bytes::<SlotRecord>(count) as u64
}

/// A ring of so many messages.
pub fn ring(capacity: u32) -> u64 {
    (size_of::<StreamRing>() as u64 + u64::from(capacity) * size_of::<RingEntry>() as u64).next_multiple_of(4096)
}
