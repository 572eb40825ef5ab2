//! The segments that the daemon lent to a client.

use crate::core::account::Charge;
use crate::core::device::OnDevice;
use crate::core::event::{MemId, Unmade};
use crate::core::orders::{Making, Part};
use std::collections::{BTreeMap, btree_map};
use tensorlend_layout::catalogue::{SlotRecord, SlotsPart};
use tensorlend_layout::number::{SegmentLine, SlotNo};
use tensorlend_layout::word::SLOTS_MAX;

/// The location of a segment's bytes.
#[derive(Debug, Default)]
pub enum Residence {
    /// The bytes are in memory.
    #[default]
    Memory,
    /// The bytes are in memory, and a worker is writing them to a file.
    Leaving {
        /// Whether the segment has been lent since the write began.
        lent: bool,
    },
    /// The bytes are in a file.
    File {
        /// The reason why the last read of the file failed.
        failed: Option<Unmade>,
    },
    /// The bytes are in a file, and a worker is reading them into memory.
    Returning { making: Making },
    /// The bytes are lost. The owner had released the segment for spill, and the only copy was
    /// memory of the previous daemon. The copy ended with that daemon. The owner lives, and has not
    /// freed the slots yet.
    Lost,
}

impl Residence {
    /// Returns true if the bytes count in the pool.
    pub fn is_in_memory(&self) -> bool {
        matches!(self, Self::Memory | Self::Leaving { .. })
    }
}

impl Making {
    /// Converts a finished order to the segment that is lent under this line, with its slot records. A segment of
    /// device memory gets its device later.
    pub fn into_segment(self, slots_log2: u8, slots: Part, line: SegmentLine) -> Segment {
        Segment {
            mem: self.mem,
            bytes: self.segment_bytes.expect("it is a segment"),
            charge: self.charge,
            slots_log2,
            slots,
            line,
            residence: Residence::Memory,
            released_ns: None,
            tried_ns: None,
            wanted_ns: None,
            device: None,
        }
    }
}

#[derive(Debug)]
pub struct Segment {
    /// The memory of the tensor bytes, or the file that holds them.
    pub mem: MemId,
    pub bytes: u64,
    pub charge: Charge,
    pub slots_log2: u8,
    /// The records of the segment's slots. The flag `acked` also holds for the segment.
    pub slots: Part,
    /// The segment's index in the directory's table.
    pub line: SegmentLine,
    pub residence: Residence,
    /// Time at which the living owner released the segment for spill. From then on the owner frees
    /// slots but writes none.
    pub released_ns: Option<u64>,
    /// Time of the last attempt to spill the segment.
    pub tried_ns: Option<u64>,
    /// Time at which the daemon asked clients to let go of the segment. `None`: it did not, or it has lent
    /// the segment to a reader since.
    pub wanted_ns: Option<u64>,
    /// The device of the segment's bytes, if the bytes are on a device. The kernel cannot probe
    /// memory for which the daemon has only the driver's descriptor.
    pub device: Option<OnDevice>,
}

impl Segment {
    /// Returns true if no copy of the segment's bytes exists.
    pub fn is_lost(&self) -> bool {
        matches!(self.residence, Residence::Lost)
    }
}

/// The segments of a client, by first slot number.
#[derive(Debug, Default)]
pub struct ClientSegments(BTreeMap<SlotNo, Segment>);

impl ClientSegments {
    pub fn insert(&mut self, base: SlotNo, segment: Segment) {
        self.0.insert(base, segment);
    }

    pub fn remove(&mut self, base: SlotNo) -> Option<Segment> {
        self.0.remove(&base)
    }

    pub fn get_mut(&mut self, base: SlotNo) -> Option<&mut Segment> {
        self.0.get_mut(&base)
    }

    pub fn values_mut(&mut self) -> btree_map::ValuesMut<'_, SlotNo, Segment> {
        self.0.values_mut()
    }

    /// Returns the segment of a slot, and the segment's first slot number.
    pub fn containing(&self, slot: SlotNo) -> Option<(SlotNo, &Segment)> {
        let (&base, segment) = self.0.range(..=slot).next_back()?;
        (slot - base < 1 << segment.slots_log2).then_some((base, segment))
    }

    /// Returns the segment's first slot number and the slot's record. The record is an allegation
    /// of the client.
    pub fn slot(&self, slot: SlotNo) -> Option<(SlotNo, [u64; 16])> {
        let (base, segment) = self.containing(slot)?;
        let mut record = [0; 16];
        let at = size_of::<SlotsPart>() + (slot - base) as usize * size_of::<SlotRecord>();
        segment.slots.view.words(at, &mut record).then_some((base, record))
    }

    /// Returns the first free aligned range of 2^`log2` slot numbers.
    pub fn free_range(&self, log2: u8) -> Option<SlotNo> {
        let slots = 1u32 << log2;
        let mut base = 0;
        for (&taken, segment) in &self.0 {
            if base + slots <= taken.get() {
                break;
            }
            base = base.max((taken.get() + (1 << segment.slots_log2)).next_multiple_of(slots));
        }
        // The last slot number means "no slot".
        (base + slots <= SLOTS_MAX).then(|| SlotNo::new(base))
    }

    /// Returns the memory that the client may have written and that the kernel can probe for
    /// writers.
    pub fn memories(&self) -> impl Iterator<Item = MemId> + '_ {
        let in_memory = self.0.values().filter(|s| s.device.is_none() && s.residence.is_in_memory());
        in_memory.map(|s| s.mem).chain(self.0.values().map(|s| s.slots.mem))
    }
}

impl std::ops::Deref for ClientSegments {
    type Target = BTreeMap<SlotNo, Segment>;

    fn deref(&self) -> &BTreeMap<SlotNo, Segment> {
        &self.0
    }
}
