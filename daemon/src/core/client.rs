//! One life of one client: its sheets, its segments, and how far its life has gone.

use super::account::Charge;
use super::device::OnDevice;
use super::env::{Making, Part};
use super::event::ConnId;
use super::event::MemId;
use super::settings::Role;
use survey::Survey;

pub mod survey;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tensorlend_layout::catalogue::{Catalogue, CellRecord, SlotRecord, cell_place, cells_count, cells_first};
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::word::{Cell, Member, SLOTS_MAX};

/// What a client that is about to depart waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The end of its process, of which the shell tells.
    Process(ConnId),
    /// That nobody can write its lease table any more: it was a client of the daemon before, and has not come back.
    Leases {
        /// How long to wait before the next look.
        pause_ns: u64,
    },
    /// The driver's end of what its process had under way.
    Quarantine {
        /// Until when.
        until_ns: u64,
    },
}

/// How far a client's life has gone.
#[derive(Debug)]
pub enum Life {
    /// Its connection stands.
    Live(ConnId),
    /// The daemon is another one since; it has not come back yet, and goes on with what it has mapped.
    Away {
        /// How long to wait before it is asked again whether anybody has its lease table.
        pause_ns: u64,
    },
    /// Its connection is gone; its memory may still be written.
    Ended {
        /// What is not known to be quiet.
        loud: VecDeque<MemId>,
        /// How long to wait before the next look.
        pause_ns: u64,
    },
    /// Nobody can write its memory any more: the daemon acts for it.
    Frozen {
        /// Whether leases alone keep some of its memory.
        lease_held: bool,
        /// How long to wait before the next look at those leases.
        pause_ns: u64,
        /// When its memory is looked through next.
        due_ns: Option<u64>,
        /// How far the look that is under way has come.
        survey: Option<Box<Survey>>,
    },
}

/// Where the bytes of a segment are.
#[derive(Debug, Default)]
pub enum Residence {
    /// In its memory.
    #[default]
    Memory,
    /// In its memory, and on their way into a file.
    Leaving {
        /// Whether somebody has been lent it since.
        lent: bool,
    },
    /// In a file.
    File {
        /// Why they could not be read when somebody wanted them.
        failed: Option<String>,
    },
    /// In a file, and on their way into this memory.
    Returning {
        /// The memory, on order.
        making: Making,
    },
    /// Nowhere: what the daemon before had of it has ended with that one. Its owner, who had let go of it, lives, and has yet to
    /// free its slots.
    Lost,
}

impl Residence {
    /// Whether they are in the pool.
    pub fn is_in_memory(&self) -> bool {
        matches!(self, Self::Memory | Self::Leaving { .. })
    }
}

/// A segment lent to a client.
#[derive(Debug)]
pub struct Segment {
    /// The tensor bytes; a file, if they are in one.
    pub mem: MemId,
    /// Their number.
    pub bytes: u64,
    /// What was charged for them.
    pub charge: Charge,
    /// log2 of its slot numbers.
    pub slots_log2: u8,
    /// Its slots' records. `acked` holds for the segment too.
    pub slots: Part,
    /// Its place in the directory's table.
    pub entry: u32,
    /// Whether its bytes are in that memory, or in a file.
    pub residence: Residence,
    /// Since when its owner, who lives, has let go of it: it frees the slots and writes none.
    pub released_ns: Option<u64>,
    /// When it was last tried to spill it.
    pub tried_ns: Option<u64>,
    /// If its bytes are on a device. Where there is a descriptor of the driver's only, the kernel tells nothing of it.
    pub device: Option<OnDevice>,
}

impl Segment {
    /// Whether its bytes are nowhere any more.
    pub fn is_lost(&self) -> bool {
        matches!(self.residence, Residence::Lost)
    }
}

/// A client.
#[derive(Debug)]
pub struct Client {
    pub uid: u32,
    pub pid: u32,
    pub label: String,
    pub role: Role,
    pub life: Life,
    pub member: Member,
    /// The owners of whom this daemon has shown it something; `None`: a daemon before may have shown it more.
    pub shown: Option<BTreeSet<u16>>,
    /// Whether it may announce names.
    pub announcer: bool,
    /// New names that it asked this daemon for and got.
    pub names_asked: usize,
    /// Announcements taken into the directory.
    pub absorbed: u64,
    /// `acked`: the client has mapped its sheets.
    pub catalogue: Part,
    /// Gone with the session: an ended client's leases do not count.
    pub leases: Option<Part>,
    /// Parts 1, 2, ... of its cells.
    pub cells: Vec<Part>,
    /// By first slot number.
    pub segments: BTreeMap<u32, Segment>,
    /// Cells that the daemon took and the client has not asked for.
    pub notices: BTreeSet<u32>,
    /// Since when it owes an acknowledgement, if it owes one.
    pub lent_ns: u64,
    /// Announcements taken in the last turn in which there were any: the turn, and how many.
    pub absorbed_in: (u64, u64),
    /// The claim that somebody waits for: its word, when it was seen first and when last.
    pub claimed: Option<(u64, u64, u64)>,
    /// Whether it is listed among those who may sleep.
    pub waits: bool,
    /// Whether the end of its process will be told.
    pub watched: bool,
    /// What it waits for that has ended and may have device memory mapped: its leases count until then.
    pub departing: Option<Departure>,
    /// Whether device memory of its has not outlived the daemon before: it may go on if it says that it has none of it.
    pub has_lost: bool,
}

impl Client {
    /// Its connection, while it lives.
    pub fn conn(&self) -> Option<ConnId> {
        match self.life {
            Life::Live(conn) => Some(conn),
            _ => None,
        }
    }

    /// Whether it takes part: its connection stands, or may come back.
    pub fn is_live(&self) -> bool {
        matches!(self.life, Life::Live(_) | Life::Away { .. })
    }

    /// Whether it has not come back since the daemon is another one.
    pub fn is_away(&self) -> bool {
        matches!(self.life, Life::Away { .. })
    }

    /// Whether it may publish.
    pub fn publishes(&self) -> bool {
        self.is_live() && self.role == Role::Writer
    }

    /// Whether its claims and announcements count.
    pub fn announces(&self) -> bool {
        self.publishes() && self.announcer
    }

    /// Whether something that it announced is not in the directory yet, as it says.
    pub fn has_announced(&self) -> bool {
        self.announces() && self.words().ring_head.read() != self.absorbed
    }

    /// Whether it is gone and quiet.
    pub fn is_frozen(&self) -> bool {
        matches!(self.life, Life::Frozen { .. })
    }

    /// The catalogue's first part.
    pub fn words(&self) -> &Catalogue {
        self.catalogue.view.at(0).expect("the daemon made it long enough")
    }

    /// Its lease table, while its leases count.
    pub fn lease_table(&self) -> Option<&LeaseTable> {
        self.leases.as_ref().map(|part| part.view.at(0).expect("the daemon made it long enough"))
    }

    /// Cells that the client may use: those of the parts that it has mapped.
    pub fn granted(&self) -> u32 {
        let part = self.cells.iter().take_while(|part| part.acked).count() as u8;
        (cells_first(part) + cells_count(part)) as u32
    }

    /// A cell's record, if the client may have it: a part counts from the moment that it was lent, for the client uses it
    /// before its acknowledgement has arrived.
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

    /// A cell's value, as its client says: an allegation.
    pub fn value(&self, cell: u32) -> Option<Cell> {
        self.cell(cell).map(|record| Cell(record.cell.read()))
    }

    /// The segment that holds a slot, and its first slot number.
    pub fn segment_of(&self, slot: u32) -> Option<(u32, &Segment)> {
        let (&base, segment) = self.segments.range(..=slot).next_back()?;
        (slot - base < 1 << segment.slots_log2).then_some((base, segment))
    }

    /// A slot's record, as its client says: an allegation.
    pub fn slot(&self, slot: u32) -> Option<(u32, [u64; 16])> {
        let (base, segment) = self.segment_of(slot)?;
        let records: &[SlotRecord] = segment.slots.view.array(4096, 1 << segment.slots_log2)?;
        Some((base, records[(slot - base) as usize].copy()))
    }

    /// The first free aligned range of 2^`log2` slot numbers.
    pub fn free_range(&self, log2: u8) -> Option<u32> {
        let slots = 1u32 << log2;
        let mut base = 0u32;
        for (&taken, segment) in &self.segments {
            if base + slots <= taken {
                break;
            }
            base = base.max((taken + (1 << segment.slots_log2)).next_multiple_of(slots));
        }
        // The last number of all means "no slot".
        (base + slots <= SLOTS_MAX).then_some(base)
    }

    /// All memory that it may have been able to write, as far as the kernel can be asked.
    pub fn memories(&self) -> impl Iterator<Item = MemId> + '_ {
        let cells = self.cells.iter().map(|part| part.mem);
        let in_memory = self.segments.values().filter(|s| s.device.is_none() && s.residence.is_in_memory());
        let segments = in_memory.map(|s| s.mem);
        let slots = self.segments.values().map(|s| s.slots.mem);
        std::iter::once(self.catalogue.mem).chain(cells).chain(segments).chain(slots)
    }
}
