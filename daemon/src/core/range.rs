//! The size of a segment, and its slot numbers.

use tensorlend_layout::Uuid;

/// The size of a segment.
#[derive(Clone, Copy, Debug)]
pub struct SegmentSize {
    pub bytes: u64,
    /// log2 of the number of its slots.
    pub log2: u8,
}

/// A segment of this size on a device.
#[derive(Clone, Copy, Debug)]
pub struct SizeOnDevice {
    pub device: Uuid,
    pub size: SegmentSize,
}

/// A segment of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentId {
    /// The client's catalogue.
    pub owner: u16,
    /// The first slot number.
    pub base: u32,
}

/// The slot numbers of a segment.
#[derive(Clone, Copy, Debug)]
pub struct SlotRange {
    /// The catalogue of the segment's owner.
    pub owner: u16,
    /// The first slot number.
    pub base: u32,
    /// log2 of their number.
    pub log2: u8,
}
