//! Lengths of sheets, in bytes.

use super::settings::{NamespaceLimits, RESERVED_SESSIONS};
use tensorlend_layout::catalogue::{Catalogue, CellRecord, SlotRecord, cells_count, part_bytes};
use tensorlend_layout::directory::Geometry;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::size;
use tensorlend_layout::stream::{RingEntry, StreamRing};

/// log2 of the maximum number of slots of a segment.
pub const SLOTS_LOG2_MAX: u8 = 20;
/// Length of the first part of a client's catalogue.
pub const CATALOGUE: u64 = size_of::<Catalogue>() as u64;
/// Length of a client's lease table.
pub const LEASES: u64 = size_of::<LeaseTable>() as u64;

/// Returns the length of a further part of a client's cells.
pub fn cells(part: u8) -> u64 {
    part_bytes::<CellRecord>(cells_count(part)) as u64
}

/// Returns the length of the records of `count` slots.
pub fn slots(count: usize) -> u64 {
    part_bytes::<SlotRecord>(count) as u64
}

/// Returns the length of a ring of `capacity` messages.
pub fn ring(capacity: u32) -> u64 {
    (size_of::<StreamRing>() as u64 + u64::from(capacity) * size_of::<RingEntry>() as u64).next_multiple_of(4096)
}

/// Returns the sizes of the tables of a directory with these limits.
pub fn geometry(limits: &NamespaceLimits) -> Geometry {
    Geometry {
        // No client has number 0.
        members: (limits.members_max + RESERVED_SESSIONS).min(u32::from(u16::MAX)) + 1,
        names: limits.names_max,
        lists: limits.lists_max,
        streams: limits.streams_max,
        segments: limits.segments_max,
    }
}

/// Returns the maximum number of clients for a table of members with `lines` entries, excluding the
/// reserved entries.
pub fn members_max(lines: usize) -> u32 {
    size::count(lines).saturating_sub(1 + RESERVED_SESSIONS).max(1)
}

/// Returns the bytes of the sheets that a namespace with one client needs: directory, catalogue and lease table.
pub fn sheet_bytes_min(limits: &NamespaceLimits) -> u64 {
    geometry(limits).bytes() + CATALOGUE + LEASES
}
