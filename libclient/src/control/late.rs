//! The resources that late responses set free, until their owners take them: see [`super::unanswered`].

use std::sync::Mutex;
use tensorlend_layout::number::{CellNo, CursorNo};
use tensorlend_os::mutex::lock;

/// The resources that late responses have set free. A thread that holds the connection may lock them.
#[derive(Default)]
pub struct Late {
    cells: Mutex<Vec<CellNo>>,
    /// Deleted names of reports that no daemon has carried out, with their cells.
    deleted: Mutex<Vec<(String, CellNo)>>,
    cursors: Mutex<Cursors>,
}

#[derive(Default)]
struct Cursors {
    /// Cursors that the daemon may list and that no subscription will use.
    given_up: Vec<CursorNo>,
    /// Cursors that were given up and that the daemon does not list.
    free: Vec<CursorNo>,
}

impl Late {
    /// Returns whether a late response has set cells free.
    pub fn has_cells(&self) -> bool {
        !lock(&self.cells).is_empty()
    }

    /// Records cells that a late response has set free.
    pub fn add_cells(&self, cells: impl IntoIterator<Item = CellNo>) {
        lock(&self.cells).extend(cells);
    }

    /// Takes the cells that late responses have set free. No owner word refers to them. The caller holds the lock under
    /// which the client frees cells, and frees these cells before it unlocks it.
    pub fn take_cells(&self) -> Vec<CellNo> {
        std::mem::take(&mut lock(&self.cells))
    }

    /// Records deleted names whose report no daemon has carried out.
    pub fn add_deleted(&self, names: Vec<(String, CellNo)>) {
        lock(&self.deleted).extend(names);
    }

    /// Returns whether there are deleted names whose report no daemon has carried out.
    pub fn has_deleted(&self) -> bool {
        !lock(&self.deleted).is_empty()
    }

    /// Takes the deleted names whose reports no daemon has carried out, so that the client reports them again.
    pub fn take_deleted(&self) -> Vec<(String, CellNo)> {
        std::mem::take(&mut lock(&self.deleted))
    }

    /// Gives a cursor up, unless the coming response shows that the client may use or free it ([`Late::reclaim`]). Call this
    /// before the request, because another thread may receive the response.
    pub fn give_up_cursor(&self, cursor: CursorNo) {
        lock(&self.cursors).given_up.push(cursor);
    }

    /// Takes a given up cursor back. Returns false if a late response has freed it already.
    pub fn reclaim(&self, cursor: CursorNo) -> bool {
        lock(&self.cursors).take_back(cursor)
    }

    /// Takes the cursors that late responses have set free.
    pub fn take_cursors(&self) -> Vec<CursorNo> {
        std::mem::take(&mut lock(&self.cursors).free)
    }

    pub fn is_given_up(&self, cursor: CursorNo) -> bool {
        lock(&self.cursors).given_up.contains(&cursor)
    }

    /// Runs a step unless a late response has freed the cursor already. The response frees it only before or after the step.
    pub fn while_given_up(&self, cursor: CursorNo, step: impl FnOnce()) {
        let cursors = lock(&self.cursors);
        if cursors.given_up.contains(&cursor) {
            step();
        }
    }

    /// Frees a cursor that was given up, because the daemon does not list it.
    pub fn free_cursor(&self, cursor: CursorNo) {
        let mut cursors = lock(&self.cursors);
        if cursors.take_back(cursor) {
            cursors.free.push(cursor);
        }
    }
}

impl Cursors {
    fn take_back(&mut self, cursor: CursorNo) -> bool {
        let at = self.given_up.iter().position(|&other| other == cursor);
        at.map(|at| self.given_up.swap_remove(at)).is_some()
    }
}
