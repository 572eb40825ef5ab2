//! Memory on order. The system layer is making the memory, and an event will report success or
//! failure.

use super::account::{Charge, NamespaceId};
use super::device::DeviceNumber;
use super::effect::{Effect, SheetPlan};
use super::effects::{Effects, PROMPT_BYTES_MAX, PROMPT_SEGMENT_BYTES_MAX};
use super::event::{ConnId, MemId};
use super::range::SlotRange;
use super::spills::Whose;
use std::collections::BTreeMap;
use tensorlend_layout::header::Magic;
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::Export;

/// The purpose of memory on order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Request(ConnId),
    Directory(NamespaceId),
    Spare,
    /// A spilled segment, whose bytes a worker reads back.
    Spilled(Whose),
    /// No purpose, because the requester has disconnected.
    Nobody,
}

impl Purpose {
    /// Returns the connection whose request needs the memory.
    fn conn(self) -> Option<ConnId> {
        match self {
            Self::Request(conn) => Some(conn),
            Self::Directory(_) | Self::Spare | Self::Spilled(_) | Self::Nobody => None,
        }
    }
}

/// Memory to be made.
pub struct Order {
    pub bytes: u64,
    /// The bytes that are allocated at the beginning. 0 for a segment whose pages the client touches first.
    pub bytes_first: u64,
    /// The contents of a sheet. `None` for a segment.
    pub sheet: Option<SheetPlan>,
    pub purpose: Purpose,
    /// Whether an administrator needs the memory, for whom some is reserved.
    pub reserved: bool,
}

impl Order {
    /// Returns an order of a segment with all its pages.
    pub fn segment(bytes: u64, purpose: Purpose) -> Self {
        Self { bytes, bytes_first: bytes, sheet: None, purpose, reserved: false }
    }

    /// Returns an order of a sheet for a connection's request.
    pub fn sheet(bytes: u64, plan: SheetPlan, conn: ConnId) -> Self {
        Self { sheet: Some(plan), ..Self::segment(bytes, Purpose::Request(conn)) }
    }

    /// Returns an order of the slot records for a range of slots.
    pub fn slots(bytes: u64, SlotRange { owner, base, log2 }: SlotRange, conn: ConnId) -> Self {
        let plan = SheetPlan { magic: Magic::Slots, owner, count: 1 << log2, first: base.into() };
        Self::sheet(bytes, plan, conn)
    }
}

/// Memory on order for a request.
#[derive(Debug)]
pub struct Making {
    pub mem: MemId,
    pub charge: Charge,
    /// Length of a segment, which counts in a pool. `None` for a sheet.
    pub segment_bytes: Option<u64>,
    /// The device of the memory, or `None` for host memory.
    pub device: Option<DeviceNumber>,
    /// The kind of the descriptor, for device memory that exists.
    pub export: Option<Export>,
    /// Whether the memory exists.
    pub made: bool,
    /// The view of a sheet that exists.
    pub view: Option<View>,
}

/// A sheet that exists.
#[derive(Debug)]
pub struct Part {
    pub mem: MemId,
    /// The sheet's words.
    pub view: View,
    pub charge: Charge,
    /// Whether the memory's writer has mapped the memory. If so, the memory is sealed, and other
    /// clients may read it.
    pub acked: bool,
}

impl Making {
    /// Returns the length of a segment of host memory, which counts in the pool.
    pub fn host_bytes(&self) -> Option<u64> {
        self.segment_bytes.filter(|_| self.device.is_none())
    }

    /// Converts the finished order to a sheet.
    pub fn into_part(self) -> Part {
        Part {
            mem: self.mem,
            view: self.view.expect("a made sheet comes with its view"),
            charge: self.charge,
            acked: false,
        }
    }
}

/// The memory on order, and the ids of memory.
#[derive(Debug, Default)]
pub struct Orders {
    /// The highest id in use.
    last_id: u64,
    purposes: BTreeMap<MemId, Purpose>,
    /// Memory on order whose request was abandoned.
    abandoned: BTreeMap<MemId, Making>,
}

impl Orders {
    pub fn new_id(&mut self) -> MemId {
        self.last_id += 1;
        MemId(self.last_id)
    }

    /// Records that ids up to this one are in use.
    pub fn reserve_ids(&mut self, id: u64) {
        self.last_id = self.last_id.max(id);
    }

    /// Returns an unused id for memory that the core is about to order, and records the purpose of
    /// that memory.
    pub fn order(&mut self, purpose: Purpose) -> MemId {
        let mem = self.new_id();
        self.purposes.insert(mem, purpose);
        mem
    }

    /// Gives memory on order another purpose.
    pub fn reassign(&mut self, mem: MemId, purpose: Purpose) {
        self.purposes.insert(mem, purpose);
    }

    pub fn create(&mut self, effects: &mut Effects, order: Order) -> MemId {
        let Order { bytes, bytes_first, sheet, purpose, reserved } = order;
        let mem = self.order(purpose);
        // A lane makes a long segment even without pages, because the daemon itself allocates huge pages that the
        // administrator has reserved.
        let background = match sheet {
            None => bytes > PROMPT_SEGMENT_BYTES_MAX,
            Some(_) => bytes_first > PROMPT_BYTES_MAX,
        };
        effects.push(Effect::Create { mem, bytes, bytes_first, sheet, background, reserved, conn: purpose.conn() });
        mem
    }

    pub fn sheet(&mut self, effects: &mut Effects, order: Order, charge: Charge) -> Making {
        let mem = self.create(effects, order);
        Making { mem, charge, segment_bytes: None, device: None, export: None, made: false, view: None }
    }

    /// Ends an order, after the memory has been made or could not be made. Returns the memory's
    /// purpose.
    pub fn arrived(&mut self, mem: MemId) -> Purpose {
        self.purposes.remove(&mem).expect("memory arrives once, and only if ordered")
    }

    /// Removes the purpose of memory. Returns false if the memory is not on order.
    pub fn drop_purpose(&mut self, mem: MemId) -> bool {
        let purpose = self.purposes.get_mut(&mem);
        purpose.map(|purpose| *purpose = Purpose::Nobody).is_some()
    }

    /// Abandons memory on order for a request. The charge of the memory stays until the memory
    /// exists. Otherwise a client that orders and disconnects repeatedly could have an unlimited
    /// amount in progress at the same time. Returns the memory if it already exists.
    pub fn abandon(&mut self, effects: &mut Effects, making: Making) -> Option<Making> {
        if !self.drop_purpose(making.mem) {
            return Some(making);
        }
        effects.push(Effect::Cancel { mem: making.mem });
        self.abandoned.insert(making.mem, making);
        None
    }

    /// Returns the bytes of segments of host memory on order whose requests were abandoned.
    pub fn abandoned_bytes(&self) -> u64 {
        self.abandoned.values().filter_map(Making::host_bytes).sum()
    }

    /// Returns the memory on order whose requests were abandoned.
    pub fn abandoned(&self) -> Vec<MemId> {
        self.abandoned.keys().copied().collect()
    }

    /// Removes and returns abandoned memory that now exists or could not be made.
    pub fn take_abandoned(&mut self, mem: MemId) -> Option<Making> {
        self.abandoned.remove(&mem)
    }
}
