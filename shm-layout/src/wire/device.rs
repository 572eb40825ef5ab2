//! What client and daemon say about device memory.

use crate::device::Uuid;
use serde::{Deserialize, Serialize};

/// Who allocates device memory, by RMM's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Allocator {
    /// Long segments, which all slots of a client share; each is an allocation of the driver's virtual memory management,
    /// exported as a descriptor.
    #[default]
    Pool,
    /// A segment for each slot, from a stream-ordered pool of the namespace's that the daemon owns.
    Async,
    /// Superblocks for one client or stream each, made as those of `pool`.
    Arena,
}

impl Allocator {
    /// Its code in the directory; 0 means host memory.
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

    /// The inverse of [`Allocator::code`].
    pub const fn from_code(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::Pool),
            2 => Some(Self::Async),
            3 => Some(Self::Arena),
            _ => None,
        }
    }

    /// Its name in the configuration.
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

/// A device of which the daemon lends memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOffer {
    /// Which.
    pub uuid: Uuid,
    /// Its name, as its driver tells it.
    pub name: String,
    /// Who allocates.
    pub allocator: Allocator,
    /// Length of an ordinary segment in bytes; for [`Allocator::Async`] the granularity of slots.
    pub segment_bytes: u64,
    /// Longest segment in bytes that may be asked for.
    pub segment_bytes_max: u64,
}

/// One lending of one segment of device memory: no other, before or after it, has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LendingId {
    /// Whose segment.
    pub catalogue: u16,
    /// First of its slots.
    pub base: u32,
    /// Since when it is lent: nanoseconds of `CLOCK_BOOTTIME`, as its line in the directory says.
    pub since_ns: u64,
}

/// What the descriptor of a segment of device memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Export {
    /// An allocation of the driver's virtual memory management, to be imported and mapped.
    Allocation,
    /// A stream-ordered pool, of which it is one block.
    Block {
        /// The pool's number: it is imported once.
        pool: u64,
        /// What the driver exported of the block, in two halves.
        pointer: [[u8; 32]; 2],
    },
}

/// A segment of device memory, lent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSegment {
    /// On which device.
    pub uuid: Uuid,
    /// Length of the segment in bytes.
    pub bytes: u64,
    /// log2 of the slot numbers.
    pub slots_log2: u8,
    /// The member's geometry word for which this holds.
    pub geometry: u64,
    /// Which lending this is; its `base` is the first slot number.
    pub lending: LendingId,
    /// What its descriptor is.
    pub export: Export,
}

/// What is in use of one device's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUse {
    /// Which device, and how memory of it is lent.
    pub offer: DeviceOffer,
    /// Bytes that may be allocated.
    pub bytes_max: u64,
    /// Bytes that are allocated: lent and idle.
    pub bytes: u64,
    /// Bytes of segments that are lent, or that somebody had and has not let go of.
    pub bytes_in_use: u64,
    /// Segments lent.
    pub segments: u32,
}
