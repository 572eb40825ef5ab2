//! Messages about device memory.

use crate::device::Uuid;
use crate::number::{ClientNo, SlotNo};
use serde::{Deserialize, Serialize};

/// The allocator of device memory. The names are RMM's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Allocator {
    /// Long segments, which all slots of a client share. Each segment is an allocation of the
    /// driver's virtual memory management, exported as a descriptor.
    #[default]
    Pool,
    /// One segment for each slot, from a stream-ordered pool that the daemon owns for the
    /// namespace.
    Async,
    /// Superblocks for one client or stream each, allocated as for `pool`.
    Arena,
}

impl Allocator {
    /// Returns the allocator's code in the directory. The code 0 means host memory.
    ///
    /// ```
    /// use tensorlend_layout::wire::Allocator;
    ///
    /// assert_eq!(Allocator::from_code(Allocator::Arena.code()), Some(Allocator::Arena));
    /// assert_eq!(Allocator::from_code(0), None);
    /// ```
    pub const fn code(self) -> u64 {
        match self {
            Self::Pool => 1,
            Self::Async => 2,
            Self::Arena => 3,
        }
    }

    /// Returns the allocator with this code: the inverse of [`Allocator::code`].
    pub const fn from_code(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::Pool),
            2 => Some(Self::Async),
            3 => Some(Self::Arena),
            _ => None,
        }
    }

    /// Returns the allocator's name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Async => "async",
            Self::Arena => "arena",
        }
    }
}

impl core::fmt::Display for Allocator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// A device whose memory the daemon lends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOffer {
    pub uuid: Uuid,
    pub name: String,
    pub allocator: Allocator,
    /// Length of an ordinary segment in bytes. For [`Allocator::Async`], the granularity of slots.
    pub segment_bytes: u64,
    pub segment_bytes_max: u64,
}

/// The id of one lending of one segment of device memory. No two lendings ever have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LendingId {
    pub owner: ClientNo,
    /// The segment, by the number of its first slot.
    pub base: SlotNo,
    /// Start of the lending, in nanoseconds of `CLOCK_BOOTTIME`. The segment's entry in the
    /// directory has the same value.
    pub since_ns: u64,
}

/// The kind of a device segment's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Export {
    /// An allocation of the driver's virtual memory management, which the client imports and maps.
    Allocation,
    /// A block in a stream-ordered pool. The block is the segment.
    Block {
        /// The pool's number. A client imports each pool once.
        pool: u64,
        /// The driver's export of the block, in two halves.
        pointer: [[u8; 32]; 2],
    },
}

/// A lent segment of device memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSegment {
    pub uuid: Uuid,
    pub bytes: u64,
    /// log2 of the number of slots.
    pub slots_log2: u8,
    /// The member's geometry word for which the reply is valid.
    pub geometry: u64,
    /// The lending. Its `base` is the first slot number.
    pub lending: LendingId,
    /// The kind of the segment's descriptor.
    pub export: Export,
}

/// Usage of one device's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUse {
    /// The device, and the parameters with which the daemon lends its memory.
    pub offer: DeviceOffer,
    /// Maximum bytes of allocations.
    pub bytes_max: u64,
    /// Allocated bytes: lent and idle.
    pub bytes: u64,
    /// Bytes of segments that are lent, or that a client had and has not unmapped.
    pub bytes_in_use: u64,
    /// Segments lent.
    pub segments: u32,
}
