//! The size of a segment, and its slot numbers.

use tensorlend_layout::Uuid;
use tensorlend_layout::number::{ClientNo, SlotNo};

#[derive(Clone, Copy, Debug)]
pub struct SegmentSize {
    pub bytes: u64,
    /// log2 of the number of the segment's slots.
    pub log2: u8,
}

#[derive(Clone, Copy, Debug)]
pub struct SizeOnDevice {
    pub device: Uuid,
    pub size: SegmentSize,
}

/// The identity of a client's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentId {
    /// The client's catalogue.
    pub owner: ClientNo,
    /// The first slot number.
    pub base: SlotNo,
}

/// The slot numbers of a segment.
#[derive(Clone, Copy, Debug)]
pub struct SlotRange {
    /// The catalogue of the segment's owner.
    pub owner: ClientNo,
    /// The first slot number.
    pub base: SlotNo,
    pub log2: u8,
}
