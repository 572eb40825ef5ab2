//! One epoch of a client: its sheets, its segments, and its state.

use super::event::ConnId;
use super::event::MemId;
use super::orphans::FormerWriter;
use super::settings::Role;
use super::who::Who;
use std::collections::{BTreeSet, VecDeque};
use tensorlend_layout::catalogue::Catalogue;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::word::{Cell, Member};

mod announcements;
mod segments;
mod sheets;
pub mod survey;

pub use announcements::{Absorbing, Announcements};
pub use segments::{ClientSegments, Residence, Segment};
pub use sheets::Sheets;
use survey::Survey;

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
    /// The end of the children that the client forked and that read under the client's leases. These children have the client's
    /// lease table mapped.
    Children {
        /// Pause before the next probe.
        pause_ns: u64,
    },
    /// Nothing more: the client's leases end in the next step.
    Over,
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
    /// Disconnected. The client may still write its memory.
    Ended {
        /// Memory that is not known to be quiescent.
        loud: VecDeque<MemId>,
        /// Pause before the next probe.
        pause_ns: u64,
    },
    /// Disconnected. No process can write the client's memory, and the daemon acts for the client.
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

/// A client.
#[derive(Debug)]
pub struct Client {
    pub uid: u32,
    pub pid: u32,
    /// The name of the command of its process, as the kernel reported it when the client connected; empty: unknown.
    pub command: String,
    pub label: String,
    pub role: Role,
    pub state: ClientState,
    pub member: Member,
    /// The owners whose memory this daemon has shown to the client. `None`: a predecessor may have shown the client memory of
    /// other owners, too.
    pub shown: Option<BTreeSet<u16>>,
    /// The names that the client announces.
    pub announcements: Announcements,
    /// The sheets that the daemon lent to the client.
    pub sheets: Sheets,
    /// The client's segments, by first slot number.
    pub segments: ClientSegments,
    /// Cells that lost their names, and whose notices the client has not fetched yet.
    pub notices: BTreeSet<u32>,
    /// The time of the lending that the client must acknowledge, if the client owes an acknowledgement.
    pub lent_ns: u64,
    /// Whether the directory lists the client among those that may sleep.
    pub waits: bool,
    /// Whether the daemon learns of the end of the client's process.
    pub watched: bool,
    /// The condition for which the daemon waits after the client's end, if the client may have device memory mapped, or has forked
    /// children. Its leases count until then.
    pub draining: Option<Draining>,
    /// Whether the daemon ends the session to end its leases, also those under which forked children read.
    pub is_revoked: bool,
    /// Whether device memory of this client was lost with the daemon's predecessor. The client may continue if the client reports
    /// that it has mapped none of that memory.
    pub has_lost: bool,
}

impl Client {
    /// Returns the client's session, for memory that the client returns. `number` is the client's.
    pub fn former_writer(&self, number: u16) -> FormerWriter {
        FormerWriter { uid: self.uid, client: number, pid: self.pid }
    }

    /// Returns the client for the log; `number` is the client's.
    pub fn who(&self, number: u16) -> Who<'_> {
        Who { client: Some(number), pid: self.pid, uid: self.uid, command: &self.command, label: &self.label }
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

    /// Returns true if the client has disconnected and its leases count for the children that it has forked.
    pub fn awaits_children(&self) -> bool {
        matches!(self.draining, Some(Draining::Children { .. }))
    }

    /// Returns true if the client may publish.
    pub fn publishes(&self) -> bool {
        self.is_live() && self.role == Role::Writer
    }

    /// Returns true if the client's claims and announcements count.
    pub fn announces(&self) -> bool {
        self.publishes() && self.announcements.is_announcer()
    }

    /// Returns true if the client reports announcements that are not in the directory yet.
    pub fn has_announced(&self) -> bool {
        self.announces() && self.words().ring_head.read() != self.announcements.absorbed()
    }

    /// Returns true if the client is gone and its memory is quiescent.
    pub fn is_frozen(&self) -> bool {
        matches!(self.state, ClientState::Frozen { .. })
    }

    /// Returns the first part of the client's catalogue.
    pub fn words(&self) -> &Catalogue {
        self.sheets.catalogue()
    }

    /// Returns the client's lease table while its leases count.
    pub fn lease_table(&self) -> Option<&LeaseTable> {
        self.sheets.lease_table()
    }

    /// Returns true if the client's leases count for forked children, which the client reports.
    pub fn has_children(&self) -> bool {
        !self.is_revoked && self.lease_table().is_some_and(|table| table.inherited.peek() != 0)
    }

    /// Returns the value of a cell. The value is an allegation of the client.
    pub fn value(&self, cell: u32) -> Option<Cell> {
        self.sheets.cell(cell).map(|record| Cell(record.cell.read()))
    }

    /// Returns the segment of a slot, and its first slot number.
    pub fn segment_of(&self, slot: u32) -> Option<(u32, &Segment)> {
        self.segments.containing(slot)
    }

    /// Returns a slot's record, which is an allegation of the client, and the segment's first slot number.
    pub fn slot(&self, slot: u32) -> Option<(u32, [u64; 16])> {
        self.segments.slot(slot)
    }

    /// Returns all memory that the client may have been able to write and that the kernel can probe.
    pub fn memories(&self) -> impl Iterator<Item = MemId> + '_ {
        self.sheets.memories().chain(self.segments.memories())
    }
}
