//! Other clients' sheets, as this client has mapped them.
//!
//! What is cached here is geometry by the daemon's word: which catalogue number is whom, and which slots lie in which
//! segment. Each entry carries the member's life and geometry word under which it was fetched, and is used only
//! while those stand.

use std::sync::Arc;
use tensorlend_layout::catalogue::{CELL_PARTS, Catalogue, CellRecord, SlotRecord, cell_place};
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::word::{Member, MemberState, Word};
use tensorlend_os::map::Segment;

/// A segment of another client.
#[derive(Clone)]
pub struct PeerSegment {
    /// First slot number.
    pub base: u32,
    /// Its slot records.
    pub records: Records<SlotRecord>,
    /// Its bytes, read-only.
    pub map: Arc<Segment>,
    /// The geometry word under which base and segment belong together.
    pub geometry: u64,
    /// Which memfds these are: inodes of segment and slots. They name them as long as they are mapped.
    pub identity: (u64, u64),
}

/// A catalogue of another client (or of this one: a client reads its own tensors as it reads anybody's).
#[derive(Default)]
pub struct Peer {
    /// Epoch and sheet number of the life that is cached here.
    life: u64,
    catalogue: Option<Sheet<Catalogue>>,
    cells: [Option<Records<CellRecord>>; CELL_PARTS as usize],
    segments: Vec<PeerSegment>,
    leases: Option<Sheet<LeaseTable>>,
}

/// A member word without its state: which life it is.
pub fn life(member: u64) -> u64 {
    Member(member).with_state(MemberState::Vacant).0
}

impl Peer {
    pub fn of_life(life: u64) -> Self {
        Self { life, ..Self::default() }
    }

    pub fn is_life(&self, member: u64) -> bool {
        self.life == life(member)
    }

    /// The word of a cell; `None`: its part is not mapped.
    #[inline]
    pub fn cell(&self, cell: u32) -> Option<&Word> {
        let (part, at) = cell_place(cell);
        match (part, &self.catalogue) {
            (0, Some(catalogue)) => Some(&catalogue.cells[at].cell),
            (0, None) => None,
            _ => self.cells.get(usize::from(part))?.as_ref()?.get(at).map(|record| &record.cell),
        }
    }

    pub fn catalogue(&self) -> Option<&Sheet<Catalogue>> {
        self.catalogue.as_ref()
    }

    pub fn leases(&self) -> Option<&Sheet<LeaseTable>> {
        self.leases.as_ref()
    }

    /// The segment that holds a slot, if it is mapped and known to be the right one under this geometry word.
    #[inline]
    pub fn segment(&self, slot: u32, geometry: u64) -> Option<&PeerSegment> {
        let after = self.segments.partition_point(|s| s.base <= slot);
        let found = &self.segments[after.checked_sub(1)?];
        ((slot - found.base) < found.records.len() as u32 && found.geometry == geometry).then_some(found)
    }

    pub fn set_catalogue(&mut self, catalogue: Sheet<Catalogue>) {
        self.catalogue = Some(catalogue);
    }

    pub fn set_leases(&mut self, leases: Sheet<LeaseTable>) {
        self.leases = Some(leases);
    }

    pub fn set_cells(&mut self, part: u8, cells: Records<CellRecord>) {
        if let Some(place) = self.cells.get_mut(usize::from(part)) {
            *place = Some(cells);
        }
    }

    /// The mapped segment that begins at `base`, whatever geometry it was fetched under.
    pub fn known(&mut self, base: u32) -> Option<&mut PeerSegment> {
        self.segments.iter_mut().find(|s| s.base == base)
    }

    /// Adds a segment in place of everything that overlaps its range.
    pub fn add_segment(&mut self, segment: PeerSegment) {
        let (first, end) = (segment.base, segment.base + segment.records.len() as u32);
        self.segments.retain(|s| s.base >= end || s.base + s.records.len() as u32 <= first);
        let at = self.segments.partition_point(|s| s.base < first);
        self.segments.insert(at, segment);
    }

    /// Drops the mappings of segments that are no longer lent.
    pub fn keep_segments(&mut self, lent: impl Fn(u32) -> bool) {
        self.segments.retain(|s| lent(s.base));
    }
}
