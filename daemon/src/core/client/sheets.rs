//! The sheets that the daemon lent to a client: its catalogue, in parts, and its lease table.

use crate::core::event::MemId;
use crate::core::orders::Part;
use std::mem::offset_of;
use tensorlend_layout::announce::reported_name;
use tensorlend_layout::catalogue::{Catalogue, CellRecord, CellsPart, cell_place, cells_count, cells_first};
use tensorlend_layout::number::CellNo;
use tensorlend_layout::raw::View;
use tensorlend_layout::size;
use tensorlend_layout::word::Word;

const RECORD_WORDS: usize = size_of::<CellRecord>() / size_of::<Word>();
/// Index of the word with the length of a record's name. The name follows its length.
const NAME_AT: usize = offset_of!(CellRecord, name_bytes) / size_of::<Word>();
/// Maximum number of cells whose records the daemon copies together, and maximum number of records that it copies for them.
const TOGETHER: (usize, usize) = (16, 40);

fn part_number(parts: usize) -> u8 {
    parts.try_into().expect("a client has at most CELL_PARTS parts")
}

#[derive(Debug)]
pub struct Sheets {
    /// The first part of the catalogue. `acked` is true if the client has mapped its first sheets.
    catalogue: Part,
    /// The lease table. `None` once the leases of the ended client no longer count.
    leases: Option<Part>,
    /// The parts 1, 2, ... of the client's cells.
    cells: Vec<Part>,
}

impl Sheets {
    /// Returns the sheets of a client with these parts of cells after the first.
    pub fn new(catalogue: Part, leases: Option<Part>, cells: Vec<Part>) -> Self {
        Self { catalogue, leases, cells }
    }

    /// Returns a word of the first part of the catalogue, as `read` reads it.
    pub fn catalogue_word(&self, offset: usize, read: fn(&View, usize) -> Option<u64>) -> u64 {
        read(&self.catalogue.view, offset).expect("the daemon made it long enough")
    }

    /// Copies words of the first part of the catalogue.
    pub fn catalogue_words(&self, offset: usize, into: &mut [u64]) {
        assert!(self.catalogue.view.words(offset, into), "the daemon made it long enough");
    }

    /// Returns the sheet of the lease table. Returns `None` once the client's leases no longer
    /// count.
    pub fn leases(&self) -> Option<&Part> {
        self.leases.as_ref()
    }

    /// Removes and returns the lease table. From now on the client's leases do not count.
    pub fn take_leases(&mut self) -> Option<Part> {
        self.leases.take()
    }

    pub fn part(&self, part: u8) -> Option<&Part> {
        match part {
            0 => Some(&self.catalogue),
            part => self.cells.get(usize::from(part) - 1),
        }
    }

    /// Returns the number of parts of the cells after the first.
    pub fn further_parts(&self) -> u8 {
        part_number(self.cells.len())
    }

    pub fn add_cells(&mut self, part: Part) {
        self.cells.push(part);
    }

    /// Removes all but the first `parts` further parts of the cells. Returns the removed parts.
    pub fn drop_cells_after(&mut self, parts: u8) -> Vec<Part> {
        let from = usize::from(parts).min(self.cells.len());
        self.cells.split_off(from)
    }

    /// Returns the number of cells that the client may use: the cells of the parts that it has
    /// mapped.
    pub fn granted(&self) -> u32 {
        let part = part_number(self.cells.iter().take_while(|part| part.acked).count());
        size::count(cells_first(part) + cells_count(part))
    }

    /// Returns the view of the part with a cell, and the offset of the cell's record, if the client may use the cell. A part
    /// counts as soon as the daemon has lent it, because the client uses the part before the daemon receives the
    /// acknowledgement.
    pub fn cell(&self, cell: CellNo) -> Option<(&View, usize)> {
        let (part, at) = cell_place(cell);
        let first = if part == 0 { offset_of!(Catalogue, cells) } else { size_of::<CellsPart>() };
        (at < cells_count(part)).then_some((&self.part(part)?.view, first + at * size_of::<CellRecord>()))
    }

    /// Returns the names in the records of these cells, as their client reports them. `None` for a name of more than 64 bytes,
    /// because the record has no room for it. Copies the records of cells with near numbers with one system call.
    pub fn names(&self, cells: &[CellNo]) -> Vec<Option<Vec<u8>>> {
        let (mut names, mut records) = (Vec::with_capacity(cells.len()), Vec::new());
        for cells in cells.chunks(TOGETHER.0) {
            let (Some(&first), Some(&last)) = (cells.iter().min(), cells.iter().max()) else { continue };
            let count = last.index() - first.index() + 1;
            if count <= TOGETHER.1 && cell_place(first).0 == cell_place(last).0 {
                self.copy_records(first, count, &mut records);
                names.extend(cells.iter().map(|cell| name_in(records.get(cell.index() - first.index())?)));
            } else {
                names.extend(cells.iter().map(|&cell| {
                    self.copy_records(cell, 1, &mut records);
                    name_in(records.first()?)
                }));
            }
        }
        names
    }

    /// Copies the records of `count` cells from `first` on, which are in one part. Copies none if the part does not have them.
    fn copy_records(&self, first: CellNo, count: usize, into: &mut Vec<[u64; RECORD_WORDS]>) {
        into.resize(count, [0; RECORD_WORDS]);
        if !self.cell(first).is_some_and(|(view, at)| view.words(at, into.as_flattened_mut())) {
            into.clear();
        }
    }

    /// Returns true if the client has mapped its first sheets.
    pub fn are_mapped(&self) -> bool {
        self.catalogue.acked
    }

    /// Acknowledges the first sheets. Returns the memory to seal.
    pub fn acknowledge_first(&mut self) -> Vec<MemId> {
        std::iter::once(&mut self.catalogue).chain(&mut self.leases).map(acknowledge).collect()
    }

    /// Acknowledges a further part of the cells, if it exists. Returns the memory to seal.
    pub fn acknowledge_cells(&mut self, part: u8) -> Option<MemId> {
        self.cells.get_mut(usize::from(part) - 1).map(acknowledge)
    }

    /// Acknowledges all sheets. Returns the memory to seal.
    pub fn acknowledge_all(&mut self) -> Vec<MemId> {
        let mut seal = self.acknowledge_first();
        seal.extend(self.cells.iter_mut().map(acknowledge));
        seal
    }

    /// Acknowledges the further parts of the cells for which the client owes an acknowledgement. Returns the memory to seal.
    pub fn acknowledge_owed_cells(&mut self) -> Vec<MemId> {
        self.cells.iter_mut().filter(|part| !part.acked).map(acknowledge).collect()
    }

    /// Returns the memory of the catalogue.
    pub fn memories(&self) -> impl Iterator<Item = MemId> + '_ {
        std::iter::once(self.catalogue.mem).chain(self.cells.iter().map(|part| part.mem))
    }

    /// Returns all sheets, for their release.
    pub fn into_parts(self) -> impl Iterator<Item = Part> {
        std::iter::once(self.catalogue).chain(self.cells).chain(self.leases)
    }
}

fn name_in(record: &[u64; RECORD_WORDS]) -> Option<Vec<u8>> {
    let [bytes, name @ ..] = &record[NAME_AT..] else { return None };
    reported_name(*bytes, name.iter().copied()).map(String::into_bytes)
}

fn acknowledge(part: &mut Part) -> MemId {
    part.acked = true;
    part.mem
}
