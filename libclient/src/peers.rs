//! Other clients' sheets, as this client has mapped them.
//!
//! What is cached here is geometry by the daemon's word: which catalogue number is whom, and which slots lie in which
//! segment. Each entry carries the member's life and geometry word under which it was fetched, and is used only
//! while those stand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorlend_layout::catalogue::{CELL_PARTS, Catalogue, CellRecord, SlotRecord, cell_place};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::word::{Member, MemberState, RangeWord, Word};
use tensorlend_os::map::Segment;

/// A segment of another client.
pub struct PeerSegment {
    /// First slot number.
    pub base: u32,
    /// Its slot records.
    pub records: Records<SlotRecord>,
    /// Its bytes, read-only.
    pub map: Arc<Segment>,
    /// The latest geometry word under which base and segment were found to belong together.
    pub geometry: AtomicU64,
    /// Its line in the directory's table of segments, as it was lent.
    pub line: Option<Line>,
    /// Which memfds these are: inodes of segment and slots. They name them as long as they are mapped.
    pub identity: (u64, u64),
}

/// A lending, as the directory's table of segments tells it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Line {
    at: usize,
    range: u64,
    since_ns: u64,
}

impl Line {
    /// The line of the segment of `catalogue` that begins at `base`.
    pub fn find(directory: &Directory, catalogue: u16, base: u32) -> Option<Self> {
        directory.segments.iter().enumerate().find_map(|(at, entry)| {
            let range = RangeWord(entry.range.read());
            let ours = range.is_lent() && range.catalogue() == catalogue && range.base() == base;
            ours.then(|| Self { at, range: range.0, since_ns: entry.since_ns.peek() })
        })
    }

    /// Whether the directory still says the same.
    fn stands(&self, directory: &Directory) -> bool {
        let entry = &directory.segments[self.at];
        entry.range.read() == self.range && entry.since_ns.peek() == self.since_ns
    }
}

/// A catalogue of another client (or of this one: a client reads its own tensors as it reads anybody's).
#[derive(Default)]
pub struct Peer {
    /// Epoch and sheet number of the life that is cached here.
    life: u64,
    catalogue: Option<Sheet<Catalogue>>,
    /// By part, as far as they were asked for.
    cells: Vec<Option<Records<CellRecord>>>,
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

    /// The segment that holds a slot, if it is mapped and known to be the right one under this geometry word, which was
    /// read before.
    #[inline]
    pub fn segment(&self, slot: u32, geometry: u64, directory: &Directory) -> Option<&PeerSegment> {
        let after = self.segments.partition_point(|s| s.base <= slot);
        let found = &self.segments[after.checked_sub(1)?];
        if slot - found.base >= found.records.len() as u32 {
            return None;
        }
        // Relaxed: process-private, and whatever it says is checked against the directory.
        if found.geometry.load(Ordering::Relaxed) != geometry {
            // Another range of this client has moved, or this one: the daemon clears a range before it moves the
            // geometry, so that a range that still is what it was is this segment's under the geometry read before.
            if !found.line.is_some_and(|line| line.stands(directory)) {
                return None;
            }
            found.geometry.store(geometry, Ordering::Relaxed);
        }
        Some(found)
    }

    pub fn set_catalogue(&mut self, catalogue: Sheet<Catalogue>) {
        self.catalogue = Some(catalogue);
    }

    pub fn set_leases(&mut self, leases: Sheet<LeaseTable>) {
        self.leases = Some(leases);
    }

    pub fn set_cells(&mut self, part: u8, cells: Records<CellRecord>) {
        if part < CELL_PARTS {
            let parts = self.cells.len().max(usize::from(part) + 1);
            self.cells.resize_with(parts, || None);
            self.cells[usize::from(part)] = Some(cells);
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
