//! One epoch of a client: its sheets, its segments, and its state.

use super::account::Charge;
use super::device::OnDevice;
use super::env::{FormerWriter, Making, Part};
use super::event::ConnId;
use super::event::MemId;
use super::settings::Role;
use survey::Survey;

pub mod survey;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tensorlend_layout::catalogue::{Catalogue, CellRecord, SlotRecord, cell_place, cells_count, cells_first};
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::word::{Cell, Member, SLOTS_MAX};

/// The condition that a draining client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draining {
    /// The end of the client's process, which the shell reports.
    Process(ConnId),
    /// The end of all write access to the client's lease table. The client was one of the daemon's predecessor and has not come
    /// back.
    Leases {
        /// Pause before the next probe.
        pause_ns: u64,
    },
    /// The quarantine, in which the driver ends the work of the client's process.
    Quarantine {
        /// End of the quarantine.
        until_ns: u64,
    },
}

/// The state of a client.
#[derive(Debug)]
pub enum ClientState {
    /// Connected.
    Live(ConnId),
    /// A client of the daemon's predecessor that has not come back yet, and continues with the memory that it has mapped.
    Disconnected {
        /// Pause before the next probe of its lease table.
        pause_ns: u64,
    },
    /// Disconnected; the client may still write its memory.
    Ended {
        /// Memory that is not known to be quiescent.
        loud: VecDeque<MemId>,
        /// Pause before the next probe.
        pause_ns: u64,
    },
    /// Disconnected, and no process can write its memory: the daemon acts for it.
    Frozen {
        /// Whether some of its memory is in use by leases alone.
        lease_held: bool,
        /// Pause before the next scan of those leases.
        pause_ns: u64,
        /// Time of the next survey of its memory.
        due_ns: Option<u64>,
        /// The survey in progress.
        survey: Option<Box<Survey>>,
    },
}

/// The location of a segment's bytes.
#[derive(Debug, Default)]
pub enum Residence {
    /// In memory.
    #[default]
    Memory,
    /// In memory; a worker is writing them to a file.
    Leaving {
        /// Whether the segment has been lent since the write began.
        lent: bool,
    },
    /// In a file.
    File {
        /// The reason why the last read of the file failed.
        failed: Option<String>,
    },
    /// In a file; a worker is reading them into memory.
    Returning {
        /// The ordered memory.
        making: Making,
    },
    /// Lost: the only copy was memory of the daemon's predecessor, and was lost with it. The owner had released the segment for
    /// spill. The owner lives and has not freed the slots yet.
    Lost,
}

impl Residence {
    /// Returns true if the bytes count in the pool.
    pub fn is_in_memory(&self) -> bool {
        matches!(self, Self::Memory | Self::Leaving { .. })
    }
}

/// A segment lent to a client.
#[derive(Debug)]
pub struct Segment {
    /// The memory of the tensor bytes, or the file that holds them.
    pub mem: MemId,
    /// The number of bytes.
    pub bytes: u64,
    /// The charge for the bytes.
    pub charge: Charge,
    /// log2 of the number of its slots.
    pub slots_log2: u8,
    /// The records of its slots. Their `acked` also holds for the segment.
    pub slots: Part,
    /// The segment's index in the directory's table.
    pub entry: u32,
    /// The location of the bytes.
    pub residence: Residence,
    /// Time at which the living owner released the segment for spill. From then on the owner frees slots and writes none.
    pub released_ns: Option<u64>,
    /// Time of the last attempt to spill the segment.
    pub tried_ns: Option<u64>,
    /// The device of the segment's bytes, if they are on one. If the daemon has only the driver's descriptor, the kernel cannot
    /// probe the memory.
    pub device: Option<OnDevice>,
}

impl Segment {
    /// Returns true if no copy of the segment's bytes exists.
    pub fn is_lost(&self) -> bool {
        matches!(self.residence, Residence::Lost)
    }
}

/// A turn that absorbed announcements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Absorbing {
    /// The number of the turn.
    pub turn: u64,
    /// The number of announcements that it absorbed.
    pub count: u64,
}

/// A claim in shared memory: its client is publishing the name for the first time.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The hash of the name.
    pub hash: u64,
    /// The time when the daemon saw the claim first.
    pub first_ns: u64,
    /// The time when the daemon saw the claim last.
    pub last_ns: u64,
}

/// A client.
#[derive(Debug)]
pub struct Client {
    pub uid: u32,
    pub pid: u32,
    pub label: String,
    pub role: Role,
    pub state: ClientState,
    pub member: Member,
    /// The owners whose memory this daemon has shown to the client; `None` if a predecessor may have shown it more.
    pub shown: Option<BTreeSet<u16>>,
    /// Whether the client may announce names.
    pub announcer: bool,
    /// Number of new names that this daemon granted to the client's requests.
    pub names_asked: usize,
    /// Number of its announcements in the directory.
    pub absorbed: u64,
    /// `acked`: the client has mapped its sheets.
    pub catalogue: Part,
    /// `None` after the session: the leases of an ended client do not count.
    pub leases: Option<Part>,
    /// Parts 1, 2, ... of its cells.
    pub cells: Vec<Part>,
    /// The client's segments, by first slot number.
    pub segments: BTreeMap<u32, Segment>,
    /// Cells that lost their names, and whose notices the client has not fetched yet.
    pub notices: BTreeSet<u32>,
    /// If the client owes an acknowledgement: the time of the lending that it must acknowledge.
    pub lent_ns: u64,
    /// The last turn that absorbed some of the client's announcements.
    pub absorbed_in: Absorbing,
    /// Number of names that the client had announced at `marked_ns`. When the directory has all of them, the daemon reads the
    /// number again.
    pub mark: u64,
    /// Time of the step that read `mark`.
    pub marked_ns: u64,
    /// The directory has all names that the client announced before the step of this time.
    pub absorbed_until_ns: u64,
    /// The claim that a request waits for.
    pub claimed: Option<Claim>,
    /// Whether the directory lists the client among those that may sleep.
    pub waits: bool,
    /// Whether the daemon learns of the end of the client's process.
    pub watched: bool,
    /// The condition for which the daemon waits after the client's end, if the client may have device memory mapped. Its leases
    /// count until then.
    pub draining: Option<Draining>,
    /// Whether device memory of this client was lost with the daemon's predecessor. The client may continue if it reports that
    /// it has none of that memory mapped.
    pub has_lost: bool,
}

impl Client {
    /// Returns the client's session, for memory that the client returns; `number` is the client's.
    pub fn former_writer(&self, number: u16) -> FormerWriter {
        FormerWriter { uid: self.uid, client: number, pid: self.pid }
    }

    /// Returns the client's connection while it is connected.
    pub fn conn(&self) -> Option<ConnId> {
        match self.state {
            ClientState::Live(conn) => Some(conn),
            _ => None,
        }
    }

    /// Returns true if the client is connected or may come back.
    pub fn is_live(&self) -> bool {
        matches!(self.state, ClientState::Live(_) | ClientState::Disconnected { .. })
    }

    /// Returns true if the client was a client of the predecessor and has not come back.
    pub fn is_disconnected(&self) -> bool {
        matches!(self.state, ClientState::Disconnected { .. })
    }

    /// Returns true if the client may publish.
    pub fn publishes(&self) -> bool {
        self.is_live() && self.role == Role::Writer
    }

    /// Returns true if the client's claims and announcements count.
    pub fn announces(&self) -> bool {
        self.publishes() && self.announcer
    }

    /// Returns true if the client reports announcements that are not in the directory yet.
    pub fn has_announced(&self) -> bool {
        self.announces() && self.words().ring_head.read() != self.absorbed
    }

    /// Returns true if the client is gone and its memory is quiescent.
    pub fn is_frozen(&self) -> bool {
        matches!(self.state, ClientState::Frozen { .. })
    }

    /// Returns the first part of the client's catalogue.
    pub fn words(&self) -> &Catalogue {
        self.catalogue.view.at(0).expect("the daemon made it long enough")
    }

    /// Returns the client's lease table while its leases count.
    pub fn lease_table(&self) -> Option<&LeaseTable> {
        self.leases.as_ref().map(|part| part.view.at(0).expect("the daemon made it long enough"))
    }

    /// Returns the number of cells that the client may use: those of the parts that it has mapped.
    pub fn granted(&self) -> u32 {
        let part = self.cells.iter().take_while(|part| part.acked).count() as u8;
        (cells_first(part) + cells_count(part)) as u32
    }

    /// Returns a cell's record if the client may use the cell. A part counts from the moment of its lending, because the client
    /// uses it before the daemon has received the acknowledgement.
    pub fn cell(&self, cell: u32) -> Option<&CellRecord> {
        let (part, at) = cell_place(cell);
        match part {
            0 => self.words().cells.get(at),
            part => {
                let view = &self.cells.get(usize::from(part) - 1)?.view;
                view.array(4096, cells_count(part))?.get(at)
            }
        }
    }

    /// Returns the value of a cell as the client reports it: an allegation.
    pub fn value(&self, cell: u32) -> Option<Cell> {
        self.cell(cell).map(|record| Cell(record.cell.read()))
    }

    /// Returns the segment of a slot, and its first slot number.
    pub fn segment_of(&self, slot: u32) -> Option<(u32, &Segment)> {
        let (&base, segment) = self.segments.range(..=slot).next_back()?;
        (slot - base < 1 << segment.slots_log2).then_some((base, segment))
    }

    /// Returns a slot's record as the client reports it, and the segment's first slot number: an allegation.
    pub fn slot(&self, slot: u32) -> Option<(u32, [u64; 16])> {
        let (base, segment) = self.segment_of(slot)?;
        let records: &[SlotRecord] = segment.slots.view.array(4096, 1 << segment.slots_log2)?;
        Some((base, records[(slot - base) as usize].copy()))
    }

    /// Returns the first free aligned range of 2^`log2` slot numbers.
    pub fn free_range(&self, log2: u8) -> Option<u32> {
        let slots = 1u32 << log2;
        let mut base = 0u32;
        for (&taken, segment) in &self.segments {
            if base + slots <= taken {
                break;
            }
            base = base.max((taken + (1 << segment.slots_log2)).next_multiple_of(slots));
        }
        // The last slot number means "no slot".
        (base + slots <= SLOTS_MAX).then_some(base)
    }

    /// Returns all memory that the client may have been able to write and that the kernel can probe.
    pub fn memories(&self) -> impl Iterator<Item = MemId> + '_ {
        let cells = self.cells.iter().map(|part| part.mem);
        let in_memory = self.segments.values().filter(|s| s.device.is_none() && s.residence.is_in_memory());
        let segments = in_memory.map(|s| s.mem);
        let slots = self.segments.values().map(|s| s.slots.mem);
        std::iter::once(self.catalogue.mem).chain(cells).chain(segments).chain(slots)
    }
}
