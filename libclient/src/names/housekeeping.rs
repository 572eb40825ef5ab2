//! Housekeeping of this client's own cells. The client takes a cell for a name, and frees the cell when no name
//! refers to it any more.
//!
//! The client frees a cell in one of three cases: the daemon reports that it took the name away (`notices`), the daemon
//! has responded to the report that this client has deleted the name (`report_deleted`), or a late response refuses the
//! name ([`crate::control`]). One thread at a time frees cells, and never
//! frees a cell while an operation on that cell is pending.

use super::NameTable;
use crate::error::{Error, Result};
use crate::segment::mapping::records;
use std::collections::HashSet;
use std::sync::PoisonError;
use tensorlend_layout::catalogue::cells_count;
use tensorlend_layout::directory::key_word;
use tensorlend_layout::header::Magic;
use tensorlend_layout::name::KeyKind;
use tensorlend_layout::number::CellNo;
use tensorlend_layout::tensor::Sealed;
use tensorlend_layout::wire::{PACKET_BYTES_MAX, Reply, Request};
use tensorlend_layout::word::{Cell, OwnerWord, Word};
use tensorlend_os::memfd::Access;
use tensorlend_os::mutex::lock;

/// Maximum number of deleted names in a request, and of their bytes. The daemon accepts as many names, and a packet has
/// room for as many bytes.
const TIDY_MAX: (usize, usize) = (256, PACKET_BYTES_MAX - 1024);
/// Maximum bytes of a name's length and its cell in a request.
const TIDY_NAME_BYTES: usize = 8;

const REPORTING: &str = "tidy deleted names";

impl NameTable {
    /// Returns a free cell. Grows the catalogue if none is left, not even one of a report of deleted names.
    pub fn fresh_cell(&self) -> Result<CellNo> {
        loop {
            if let Some(cell) = lock(&self.cells).take() {
                return Ok(cell);
            }
            self.hear_report()?;
            if let Some(cell) = lock(&self.cells).take() {
                return Ok(cell);
            }
            const DOING: &str = "get room for more names";
            // A client cannot return cells, so it requests none that it could not receive.
            drop(lock(&self.wakeup).try_clone().map_err(|_| Error::Descriptors { doing: DOING })?);
            let mut answer = self.control.ask(&Request::GrowCells, DOING, "")?;
            let Reply::Cells { part, .. } = answer.reply else { return answer.unexpected() };
            let fd = answer.descriptor()?;
            let records = match records(&fd, Access::Write, Magic::Cells, cells_count(part)) {
                Ok(records) => records,
                Err(error) => {
                    answer.keep_cells(fd);
                    return Err(error);
                }
            };
            let place = self.cell_parts.get(usize::from(part));
            if place.is_none_or(|place| place.set(records).is_err()) {
                return answer.unexpected();
            }
            tensorlend_layout::crash_point!("cells: mapped");
            answer.acknowledge()?;
            lock(&self.cells).grow(part);
            tensorlend_layout::crash_point!("cells: taken over");
        }
    }

    /// Returns a free cell, and stores `value` and its key in the cell.
    pub fn fill_cell(&self, key: &[u8], sealed: &Sealed) -> Result<CellNo> {
        let (is_due, free) = {
            let mut cells = lock(&self.cells);
            (cells.is_tidy_due(), cells.take())
        };
        if is_due {
            // A failure is harmless: a later call reports the deleted names.
            let _ = self.report_deleted();
        }
        self.free_late_cells();
        let cell = free.map_or_else(|| self.fresh_cell(), Ok)?;
        let record = self.own_cell(cell).expect("a fresh cell is mapped");
        record.forget_description();
        // Release, against a reader R that compares the name of the cell's former use. R checks again the word that
        // led to this cell, and finds that word changed. Also against a reader that copies the description of a former
        // value: that reader finds the description removed.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        let put = |words: &[Word], bytes: &[u8]| {
            for (at, word) in words.iter().enumerate() {
                word.put(bytes.get(at * 8..).map_or(0, |rest| key_word(&rest[..rest.len().min(8)])));
            }
        };
        put(&record.name, key);
        record.name_bytes.put(key.len() as u64);
        // No other thread knows the cell.
        record.describe_sealed(sealed, true);
        record.cell.set(sealed.value.0);
        Ok(cell)
    }

    /// Frees a filled cell to which no owner word ever referred.
    pub fn empty_cell(&self, cell: CellNo) {
        if let Some(record) = self.own_cell(cell) {
            record.cell.set(Cell::DELETED.0);
            record.name_bytes.set(0);
        }
        lock(&self.cells).give(cell);
    }

    /// Asks the daemon which names it took from this client, and retires the values in their cells.
    pub fn notices(&self) -> Result<()> {
        self.notices_from(1)
    }

    /// Calls [`NameTable::notices`] if the daemon took at least `count` names since the last call. Frees the cells that late
    /// responses have set free in any case.
    pub fn notices_from(&self, count: u64) -> Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        self.free_late_cells();
        let word = self.directory.members[self.me().index()].notices.read();
        if word.wrapping_sub(self.notices_seen.load(Relaxed)) < count {
            return Ok(());
        }
        // This lock excludes `tidy`, so that only one of the two functions frees a cell, and only once.
        let _one = lock(&self.housekeeping);
        self.drain_notices()?;
        self.notices_seen.store(word, Relaxed);
        Ok(())
    }

    /// Asks the daemon for all notices. The caller must hold the housekeeping lock.
    fn drain_notices(&self) -> Result<()> {
        loop {
            let reply = self.control.call(&Request::Notices, "ask for notices", "")?;
            let Reply::Notices { cells, more } = reply else {
                return Err(Error::Protocol { doing: "ask for notices" });
            };
            tensorlend_layout::crash_point!("notices: heard");
            self.free_cells(cells);
            if !more {
                return Ok(());
            }
        }
    }

    /// Frees the cells to which no owner word refers, after the daemon was replaced. The former daemon's notices are
    /// lost. The owner words also show the outcome of a request to which the former daemon did not respond.
    pub fn settle(&self) {
        // Under this lock, no other thread binds a cell.
        let _binding = lock(&self.binding);
        let _appending = self.appending.write().unwrap_or_else(PoisonError::into_inner);
        let _one = lock(&self.housekeeping);
        let notices = &self.directory.members[self.me().index()].notices;
        let used = loop {
            // The new daemon reports once which names it has taken. Get this report before freeing cells. Otherwise
            // the report of a freed cell would arrive when the cell belongs to another name.
            let word = notices.read();
            if self.drain_notices().is_err() {
                return;
            }
            let mut used: HashSet<CellNo> = self.pending_cells().into_iter().collect();
            for (_, entry) in self.directory.entries() {
                let owner_word = OwnerWord(entry.owner_word.read());
                // Entries of lists and streams refer to no cell.
                if owner_word.is_live() && owner_word.owner() == self.me() && KeyKind::of(entry).leads_to_cell() {
                    used.insert(owner_word.cell());
                }
            }
            // Acquire (read), after the owner words. If an owner word changed before this thread read it, the counter
            // includes its notice.
            if notices.read() == word {
                break used;
            }
        };
        let mut unused = lock(&self.cells).bound();
        unused.retain(|cell| !used.contains(cell));
        self.free_cells(unused);
    }

    /// Frees cells to which no owner word refers any more, and those that late responses have set free. Retires their
    /// values. The caller must hold the housekeeping lock.
    ///
    /// A cell may be in both groups. So all of them are freed together, before another name gets one of them.
    fn free_cells(&self, mut numbers: Vec<CellNo>) {
        // Before a cell is freed, so that no name stays listed with a cell that another name gets.
        lock(&self.cells).deleted.put_back(self.control.late().take_deleted());
        numbers.extend(self.control.late().take_cells());
        // Wait for threads that still use these cells because of a former owner word.
        self.shards.wait_for_guards();
        for value in self.vacate(numbers) {
            self.alloc.retire(value);
        }
        tensorlend_layout::crash_point!("tidy: cells emptied");
    }

    /// Frees the cells that late responses have set free, without a request. If another thread frees cells now, that thread or
    /// a later call frees them.
    fn free_late_cells(&self) {
        if self.control.late().has_cells()
            && let Ok(_one) = self.housekeeping.try_lock()
        {
            self.free_cells(Vec::new());
        }
    }

    /// Empties cells to which no owner word refers and which no thread uses. Returns their values, which the caller
    /// must retire.
    fn vacate(&self, numbers: Vec<CellNo>) -> Vec<Cell> {
        let mut cells = lock(&self.cells);
        let vacate = |number| {
            let record = self.own_cell(number).filter(|_| cells.is_bound(number))?;
            let held = Cell(record.cell.swap(Cell::DELETED.0));
            record.name_bytes.set(0);
            cells.give(number);
            held.is_value().then_some(held)
        };
        numbers.into_iter().filter_map(vacate).collect()
    }

    /// Returns whether this client has deleted names that the daemon has not forgotten.
    pub fn has_deleted(&self) -> bool {
        !lock(&self.cells).deleted.is_empty() || self.control.late().has_deleted()
    }

    /// Reports deleted names, and waits for the response. Then the daemon has forgotten the names, and this client can reuse
    /// their cells.
    pub fn tidy(&self) -> Result<()> {
        self.report_deleted()?;
        self.hear_report()?;
        if self.control.late().has_deleted() {
            // The daemon was replaced before it carried the report out.
            self.report_deleted()?;
            self.hear_report()?;
        }
        Ok(())
    }

    /// Waits for the response to a report of deleted names, if there is one, and frees the cells of the names.
    fn hear_report(&self) -> Result<()> {
        let _one = lock(&self.housekeeping);
        self.receive_report()
    }

    /// Does the work of [`NameTable::hear_report`]. The caller must hold the housekeeping lock.
    fn receive_report(&self) -> Result<()> {
        self.control.receive_late(REPORTING)?;
        if self.control.late().has_cells() {
            self.free_cells(Vec::new());
        }
        Ok(())
    }

    /// Reports deleted names to the daemon, and does not wait for the response, but for that to the report before. The session's
    /// next request receives the response, after which the daemon has forgotten the names. Then this client can reuse their cells.
    ///
    /// From the deletion to the next use of the cell, each word has one writer:
    ///
    /// * this client writes the cell: `DELETED`, then `CLOSING` by compare-and-swap before the request, then `DELETED` after the
    ///   response;
    /// * the daemon writes the owner word: live until it carries out the request, then a tombstone.
    ///
    /// A reader R that finds the owner word live reads `DELETED` or `CLOSING` from the cell. Both mean that the name has no value.
    pub fn report_deleted(&self) -> Result<()> {
        let _one = lock(&self.housekeeping);
        // First free the cells of the last report, and those of which the daemon gave notice in a late response. If a cell of
        // such a notice were reported, the response to the report would free it again, when another name may have it.
        let heard = self.receive_report();
        lock(&self.cells).deleted.put_back(self.control.late().take_deleted());
        if let Err(error) = heard {
            lock(&self.cells).deleted.put_off();
            return Err(error);
        }
        let mut names = self.close_deleted().into_iter().peekable();
        while names.peek().is_some() {
            let (mut batch, mut bytes) = (Vec::new(), 0);
            let mut fits = |(name, _): &(String, CellNo)| {
                bytes += name.len() + TIDY_NAME_BYTES;
                bytes <= TIDY_MAX.1
            };
            batch.extend(std::iter::from_fn(|| names.next_if(&mut fits)).take(TIDY_MAX.0));
            // After the response, no owner word refers to these cells: the daemon has removed each owner word, or it already
            // referred to another cell.
            if let Err(error) = self.control.tell(Request::Tidy { names: batch }, REPORTING) {
                lock(&self.cells).deleted.put_back(self.control.late().take_deleted().into_iter().chain(names));
                return Err(error);
            }
            tensorlend_layout::crash_point!("tidy: told");
        }
        Ok(())
    }

    /// Closes the cells of deleted names, and returns the names to report. The caller must hold the housekeeping lock.
    fn close_deleted(&self) -> Vec<(String, CellNo)> {
        let deleted = lock(&self.cells).deleted.take();
        // Each of these names was announced or bound before it was deleted.
        let some_wait = self.has_waiting();
        // Close the chosen cells. A thread that later finds a closed cell publishes in another cell. So no thread
        // waits for the response of the daemon.
        let (mut names, mut pending) = (Vec::with_capacity(deleted.len()), Vec::new());
        for (name, cell) in deleted {
            // Check this before closing the cell. In the other order, the daemon could enter the name into the
            // directory between the two checks, and would then forget it.
            if some_wait && self.is_pending(name.as_bytes(), cell) {
                // The name is not in the directory yet, so a later call reports it.
                pending.push((name, cell));
            } else if self.close_cell(&name, cell) {
                names.push((name, cell));
            }
        }
        lock(&self.cells).deleted.put_back(pending);
        if !names.is_empty() {
            // A thread that read a cell before the close may have stored a value since. Then the name is in use again and
            // keeps the cell. Other threads find the cell closed or in use from now on.
            tensorlend_layout::crash_point!("tidy: closed");
            self.shards.wait_for_guards();
            names.retain(|&(_, cell)| self.own_cell(cell).is_some_and(|record| record.cell.peek() == Cell::CLOSING.0));
        }
        names
    }

    /// Closes a cell if the cell still marks this name as deleted, and the name still belongs to this client.
    fn close_cell(&self, name: &str, cell: CellNo) -> bool {
        let ours = self.find(name.as_bytes()).is_some_and(|found| {
            found.owner_word.is_live() && found.owner_word.owner() == self.me() && found.owner_word.cell() == cell
        });
        let Some(record) = self.own_cell(cell).filter(|_| ours) else { return false };
        // Use compare-and-swap: a plain store could overwrite a value that another thread stores at this moment.
        record.cell.replace(Cell::DELETED.0, Cell::CLOSING.0) || record.cell.peek() == Cell::CLOSING.0
    }
}
