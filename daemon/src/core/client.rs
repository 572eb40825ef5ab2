//! One epoch of a client: its sheets, its segments, and its state.

use super::event::ConnId;
use super::event::MemId;
use super::orphans::FormerWriter;
use super::settings::Role;
use super::versions::Versions;
use super::who::Who;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::offset_of;
use tensorlend_layout::catalogue::{Catalogue, CellRecord, RING};
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::number::{CellNo, ClientNo, SlotNo};
use tensorlend_layout::raw::View;
use tensorlend_layout::size;
use tensorlend_layout::word::{Cell, Member, Word};

mod announcements;
mod segments;
mod sheets;
pub mod survey;

pub use announcements::{Absorbing, Announcements};
pub use segments::{ClientSegments, Residence, Segment};
pub use sheets::Sheets;
use survey::Survey;

/// Maximum number of announcements that the daemon copies with one system call.
const ANNOUNCEMENTS_PER_COPY: u64 = 64;

/// The event that a draining client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draining {
    /// The end of the client's process, which the system layer reports.
    Process(ConnId),
    /// The end of all write access to the client's lease table. The client belonged to the previous
    /// daemon and has not reconnected.
    Leases {
        /// Pause before the next probe.
        pause_ns: u64,
    },
    /// The end of the children that the client forked and that read under the client's leases.
    /// These children have the client's lease table mapped.
    Children {
        /// Pause before the next probe.
        pause_ns: u64,
    },
    /// No further event. The client's leases end in the next step.
    Over,
    /// The end of the quarantine, in which the driver ends the work of the client's process.
    Quarantine {
        /// End of the quarantine.
        until_ns: u64,
    },
}

#[derive(Debug)]
pub enum ClientState {
    /// Connected.
    Live(ConnId),
    /// The client belonged to the previous daemon and has not reconnected. It continues with the
    /// memory that it has mapped.
    Disconnected {
        /// Pause before the next probe of its lease table.
        pause_ns: u64,
    },
    /// The client has disconnected, but may still write its memory.
    Ended {
        /// Memory that may still have writers.
        loud: VecDeque<MemId>,
        /// Pause before the next probe.
        pause_ns: u64,
    },
    /// The client has disconnected, and no process can write its memory. The daemon acts for the
    /// client.
    Frozen {
        /// Whether only leases keep some of the client's memory in use.
        lease_held: bool,
        /// Pause before the next scan of those leases.
        pause_ns: u64,
        /// Time of the next survey of the client's memory.
        due_ns: Option<u64>,
        survey: Option<Box<Survey>>,
    },
}

#[derive(Debug)]
pub struct Client {
    pub uid: u32,
    pub pid: u32,
    /// The name of the command of the client's process, as the kernel reported it at the
    /// connection; empty: unknown.
    pub command: String,
    pub label: String,
    pub role: Role,
    /// The versions of the session. Those of this daemon until the client of a previous daemon has
    /// reconnected.
    pub versions: Versions,
    pub state: ClientState,
    pub member: Member,
    /// The owners whose memory this daemon has shown to the client, each with the owner's epoch at that time. `None`: a previous daemon may
    /// have shown the client memory of other owners too.
    pub shown: Option<BTreeMap<ClientNo, u32>>,
    /// The names that the client announces.
    pub announcements: Announcements,
    /// The sheets that the daemon lent to the client.
    pub sheets: Sheets,
    /// The client's segments, by first slot number.
    pub segments: ClientSegments,
    /// Cells that lost their names. The client has not fetched the notices about them yet.
    pub notices: BTreeSet<CellNo>,
    /// Time of the lending that the client must acknowledge. Valid only if the client owes an
    /// acknowledgement.
    pub lent_ns: u64,
    /// Whether the directory lists the client as one that may sleep.
    pub waits: bool,
    /// Whether the kernel notifies the daemon of the end of the client's process.
    pub watched: bool,
    /// The event that the daemon waits for after the client's end. Set if the client may have
    /// device memory mapped, or has forked children. The client's leases count until then.
    pub draining: Option<Draining>,
    /// Whether the daemon ends the session to end its leases, including those under which forked
    /// children read.
    pub is_revoked: bool,
    /// Whether device memory of this client was lost with the previous daemon. The client may
    /// continue if it reports that it has mapped none of that memory.
    pub has_lost: bool,
}

impl Client {
    /// Returns the identity of the client's session, for memory that the client returns. `number`
    /// is the client's number.
    pub fn former_writer(&self, number: ClientNo) -> FormerWriter {
        FormerWriter { uid: self.uid, client: number, pid: self.pid }
    }

    /// Returns the identity of the client for the log. `number` is the client's number.
    pub fn who(&self, number: ClientNo) -> Who<'_> {
        Who { client: Some(number), pid: self.pid, uid: self.uid, command: &self.command, label: &self.label }
    }

    /// Returns the client's connection. Returns `None` if the client is not connected.
    pub fn conn(&self) -> Option<ConnId> {
        match self.state {
            ClientState::Live(conn) => Some(conn),
            _ => None,
        }
    }

    /// Returns true if the client is connected or may reconnect.
    pub fn is_live(&self) -> bool {
        matches!(self.state, ClientState::Live(_) | ClientState::Disconnected { .. })
    }

    /// Returns true if the client belonged to the previous daemon and has not reconnected.
    pub fn is_disconnected(&self) -> bool {
        matches!(self.state, ClientState::Disconnected { .. })
    }

    /// Returns true if the client has disconnected and its leases still count, for its forked
    /// children.
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
        self.announces() && self.ring_head_once() != self.announcements.absorbed()
    }

    /// Returns true if the client has ended and its memory is quiescent.
    pub fn is_frozen(&self) -> bool {
        matches!(self.state, ClientState::Frozen { .. })
    }

    /// Returns the number of announcements that the client reports to have made.
    pub fn ring_head(&self) -> u64 {
        self.sheets.catalogue_word(offset_of!(Catalogue, ring_head), View::word)
    }

    /// Returns the number like [`Client::ring_head`], but possibly a mixture of two values if the client announces now.
    pub fn ring_head_once(&self) -> u64 {
        self.sheets.catalogue_word(offset_of!(Catalogue, ring_head), View::word_once)
    }

    /// Returns the number of announcements up to `head` that the directory does not have yet. 0 for a number that is larger than
    /// the ring: it is false, and the daemon ends the client when it absorbs the ring.
    pub fn waiting(&self, head: u64) -> u64 {
        let waiting = head.wrapping_sub(self.announcements.absorbed());
        if waiting > RING as u64 { 0 } else { waiting }
    }

    /// Returns the announcements from `first` to before `end`, as the client reports them.
    pub fn announcements(&self, first: u64, end: u64) -> impl Iterator<Item = u64> + use<'_> {
        let mut next = first;
        let copies = std::iter::from_fn(move || {
            let at = size::index(next) % RING;
            let count = end.wrapping_sub(next).min(ANNOUNCEMENTS_PER_COPY).min((RING - at) as u64);
            next = next.wrapping_add(count);
            let mut words = vec![0; size::index(count)];
            self.sheets.catalogue_words(offset_of!(Catalogue, ring) + at * size_of::<Word>(), &mut words);
            (count > 0).then_some(words)
        });
        copies.flatten()
    }

    /// Returns the hash of the name that the client reports to be publishing for the first time, or 0.
    pub fn claim(&self) -> u64 {
        self.sheets.catalogue_word(offset_of!(Catalogue, claim), View::word_once)
    }

    /// Returns the view of the client's lease table. Returns `None` once its leases no longer count.
    pub fn lease_table(&self) -> Option<&View> {
        self.sheets.leases().map(|part| &part.view)
    }

    /// Returns the word for which the client's threads sleep. 0: none sleeps.
    pub fn parked(&self) -> u64 {
        self.lease_table().and_then(|table| table.word_once(offset_of!(LeaseTable, parked))).unwrap_or(0)
    }

    /// Returns true if the client's leases count for forked children. The client reports this in
    /// its lease table.
    pub fn has_children(&self) -> bool {
        let inherited = self.lease_table().and_then(|table| table.word_once(offset_of!(LeaseTable, inherited)));
        !self.is_revoked && inherited.is_some_and(|word| word != 0)
    }

    /// Returns the value of a cell. The value is an allegation of the client.
    pub fn value(&self, cell: CellNo) -> Option<Cell> {
        let (view, record) = self.sheets.cell(cell)?;
        view.word(record + offset_of!(CellRecord, cell)).map(Cell)
    }

    /// Returns the segment of a slot, and the segment's first slot number.
    pub fn segment_of(&self, slot: SlotNo) -> Option<(SlotNo, &Segment)> {
        self.segments.containing(slot)
    }

    /// Returns true if a slot has a segment whose bytes still exist.
    pub fn has_bytes_of(&self, slot: SlotNo) -> bool {
        self.segment_of(slot).is_some_and(|(_, segment)| !segment.is_lost())
    }

    /// Returns the segment's first slot number and the slot's record. The record is an allegation
    /// of the client.
    pub fn slot(&self, slot: SlotNo) -> Option<(SlotNo, [u64; 16])> {
        self.segments.slot(slot)
    }

    /// Returns all memory that the client may have written and that the kernel can probe for
    /// writers.
    pub fn memories(&self) -> impl Iterator<Item = MemId> + '_ {
        self.sheets.memories().chain(self.segments.memories())
    }
}
