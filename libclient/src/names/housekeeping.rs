//! This client's own cells: taken for a name, given back when no name leads to them any more.
//!
//! A cell comes back on one of two ways: the daemon says that it moved the name away (`notices`), or this client has
//! deleted the name and asks the daemon to forget it (`tidy`). One at a time, and never while an operation on the cell is
//! in flight.

use super::NameTable;
use crate::error::{Error, Result};
use crate::segment::mapping::records;
use std::collections::HashSet;
use tensorlend_layout::catalogue::{CellRecord, cell_place, cells_count};
use tensorlend_layout::directory::key_word;
use tensorlend_layout::header::Magic;
use tensorlend_layout::name::KeyKind;
use tensorlend_layout::wire::{Item, Reply, Request};
use tensorlend_layout::word::{Cell, Home, Word};
use tensorlend_os::memfd::Access;
use tensorlend_os::mutex::lock;

/// Deleted names that are tidied together.
pub const TIDY_BATCH: usize = 64;

impl NameTable {
    /// The record of one of this client's own cells.
    #[inline]
    pub fn own_cell(&self, cell: u32) -> Option<&CellRecord> {
        let (part, at) = cell_place(cell);
        if part == 0 {
            return self.catalogue.cells.get(at);
        }
        self.cell_parts.get(usize::from(part))?.get()?.get(at)
    }

    /// A fresh cell; grows the catalogue where none is left.
    pub fn fresh_cell(&self) -> Result<u32> {
        loop {
            if let Some(cell) = lock(&self.cells).take() {
                return Ok(cell);
            }
            let mut answer = self.control.ask(&Request::GrowCells, &[], "grow the catalogue", "")?;
            let Reply::Cells { part, .. } = answer.reply else { return answer.unexpected() };
            let fd = answer.descriptor()?;
            let count = cells_count(part);
            let records = records(&fd, Access::Write, Magic::Cells, count)?;
            let place = self.cell_parts.get(usize::from(part));
            if place.is_none_or(|place| place.set(records).is_err()) {
                return answer.unexpected();
            }
            self.descriptors.insert(Item::Cells { part }, fd);
            tensorlend_layout::crash_point!("cells: mapped");
            answer.acknowledge()?;
            lock(&self.cells).grow(part);
            tensorlend_layout::crash_point!("cells: taken over");
        }
    }

    /// A fresh cell that holds `value` and carries its key.
    pub fn fill_cell(&self, key: &[u8], value: Cell) -> Result<u32> {
        if lock(&self.cells).deleted.len() >= TIDY_BATCH {
            // What cannot be tidied now is tidied later.
            let _ = self.tidy();
        }
        let cell = self.fresh_cell()?;
        let record = self.own_cell(cell).expect("a fresh cell is mapped");
        // Release, against who compares the name of the cell's former life: he finds the word that led him changed.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        let put = |words: &[Word], bytes: &[u8]| {
            for (at, word) in words.iter().enumerate() {
                word.put(bytes.get(at * 8..).map_or(0, |rest| key_word(&rest[..rest.len().min(8)])));
            }
        };
        put(&record.name, key);
        record.hash.put(self.directory.hash(key));
        record.granted.put(0);
        record.name_bytes.put(key.len() as u64);
        record.cell.set(value.0);
        Ok(cell)
    }

    /// Frees a filled cell to which no home ever led.
    pub fn empty_cell(&self, cell: u32) {
        if let Some(record) = self.own_cell(cell) {
            record.cell.set(Cell::DELETED.0);
            record.name_bytes.set(0);
        }
        lock(&self.cells).give(cell);
    }

    /// Learns which names the daemon took from this client, and retires what their cells hold.
    pub fn notices(&self) -> Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        let word = self.directory.members[usize::from(self.me())].notices.read();
        if word == self.notices_seen.load(Relaxed) {
            return Ok(());
        }
        // Against `tidy`: a cell is given back by one of the two, once.
        let _one = lock(&self.housekeeping);
        self.drain_notices()?;
        self.notices_seen.store(word, Relaxed);
        Ok(())
    }

    /// Asks for all notices; by who keeps house.
    fn drain_notices(&self) -> Result<()> {
        loop {
            let reply = self.control.call(&Request::Notices, "ask for notices", "")?;
            let Reply::Notices { cells, more } = reply else {
                return Err(Error::Protocol { doing: "ask for notices" });
            };
            tensorlend_layout::crash_point!("notices: heard");
            // Their homes have moved. Who still is at one of these cells by a home that he read before is waited for.
            self.shards.wait_for_guards();
            let held: Vec<Cell> = cells.into_iter().filter_map(|cell| self.vacate(cell)).collect();
            for value in held {
                self.alloc.retire(value);
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// After the daemon was replaced: gives back cells to which no home leads. Its notices are gone with it, and what
    /// became of a request that it did not answer shows here.
    pub fn settle(&self) {
        // Nobody is binding a cell.
        let _binding = lock(&self.binding);
        let _one = lock(&self.housekeeping);
        let notices = &self.directory.members[usize::from(self.me())].notices;
        let kept = loop {
            // What this daemon knows to be taken it tells itself, once: a cell that was given back here without that would be
            // told of when it is another name's.
            let word = notices.read();
            if self.drain_notices().is_err() {
                return;
            }
            let mut kept: HashSet<u32> = self.pending_cells().into_iter().collect();
            for (_, entry) in self.directory.entries() {
                let home = Home(entry.home.read());
                // Those of lists and streams lead to no cell.
                if home.is_live() && home.catalogue() == self.me() && KeyKind::of(entry).leads_to_cell() {
                    kept.insert(home.cell());
                }
            }
            // Acquire (read), after the homes: a home that had moved before it was looked at has its notice counted.
            if notices.read() == word {
                break kept;
            }
        };
        let bound = lock(&self.cells).bound();
        self.shards.wait_for_guards();
        let held: Vec<Cell> =
            bound.into_iter().filter(|cell| !kept.contains(cell)).filter_map(|cell| self.vacate(cell)).collect();
        for value in held {
            self.alloc.retire(value);
        }
    }

    /// Empties a cell to which no home leads any more, and at which nobody is; returns the value that it held, to be
    /// retired.
    pub fn vacate(&self, cell: u32) -> Option<Cell> {
        let record = self.own_cell(cell)?;
        let mut cells = lock(&self.cells);
        if !cells.is_bound(cell) {
            return None;
        }
        let held = Cell(record.cell.swap(Cell::DELETED.0));
        record.name_bytes.set(0);
        cells.give(cell);
        held.is_value().then_some(held)
    }

    /// Tells the daemon which names were deleted in their cells, so that it forgets them and the cells can be used again.
    pub fn tidy(&self) -> Result<()> {
        let _one = lock(&self.housekeeping);
        let deleted = std::mem::take(&mut lock(&self.cells).deleted);
        // The cells that are chosen here are closed: who finds one later publishes in a fresh cell. So nothing is held up
        // while the daemon is asked.
        let mut names: Vec<(String, u32)> = Vec::new();
        for (name, cell) in deleted {
            // Asked first: what is absorbed in between is closed.
            if self.is_pending(name.as_bytes(), cell) {
                // Not in the directory yet: later.
                lock(&self.cells).deleted.push((name, cell));
            } else if self.close_cell(&name, cell) {
                names.push((name, cell));
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        // A thread that looked before the cell was closed may have put a value there since: then the name is in use again,
        // and the cell stays its own. Who looks from here on finds it closed or in use.
        tensorlend_layout::crash_point!("tidy: closed");
        self.shards.wait_for_guards();
        names.retain(|&(_, cell)| self.own_cell(cell).is_some_and(|record| record.cell.peek() == Cell::CLOSING.0));
        // A name has 255 bytes at most: so many fit into a packet.
        let mut rest = &names[..];
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(rest.len().min(128));
            if let Err(e) = self.control.call(&Request::Tidy { names: batch.to_vec() }, "tidy deleted names", "") {
                lock(&self.cells).deleted.extend_from_slice(rest);
                return Err(e);
            }
            tensorlend_layout::crash_point!("tidy: told");
            // No home leads to these cells: the daemon has buried it, or it had moved. Who found one before is waited for.
            self.shards.wait_for_guards();
            for (_, cell) in batch {
                self.vacate(*cell);
            }
            tensorlend_layout::crash_point!("tidy: cells emptied");
            rest = later;
        }
        Ok(())
    }

    /// Closes a cell if it still is the deleted value of this name, and the name still ours.
    fn close_cell(&self, name: &str, cell: u32) -> bool {
        let ours = self.find(name.as_bytes()).is_some_and(|found| {
            found.home.is_live() && found.home.catalogue() == self.me() && found.home.cell() == cell
        });
        let Some(record) = self.own_cell(cell).filter(|_| ours) else { return false };
        // Not a plain store: a thread of ours may put a value there in this moment, and it must not be lost.
        record.cell.replace(Cell::DELETED.0, Cell::CLOSING.0) || record.cell.peek() == Cell::CLOSING.0
    }
}
