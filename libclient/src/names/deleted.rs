//! The names that this client has deleted in their cells, and has not yet reported to the daemon.

use tensorlend_layout::number::CellNo;

/// The number of deleted names that the client reports to the daemon together: at least, and at most before it has
/// tried to report them.
pub const BATCH: (usize, usize) = (64, 256);
/// A client with many names waits until this part of its names is deleted.
const PART: usize = 16;

/// The deleted names, each with its cell. A cell is there once, since [`super::NameTable::tidy`] frees the cell of each.
#[derive(Debug, Default)]
pub struct Deleted {
    names: Vec<(String, CellNo)>,
    /// For each cell, the number of names up to its own. 0: the cell is not in `names`.
    at: Vec<usize>,
    /// The number of names at which the next report is due, if it is more than usual.
    due: usize,
}

impl Deleted {
    /// Adds a name of a cell. It replaces an earlier name of the cell, which another name or another client has taken over.
    pub fn note(&mut self, name: &str, cell: CellNo) {
        if self.at.len() <= cell.index() {
            self.at.resize(cell.index() + 1, 0);
        }
        let at = &mut self.at[cell.index()];
        if *at == 0 {
            self.names.push((name.to_owned(), cell));
            *at = self.names.len();
        } else if self.names[*at - 1].0 != name {
            name.clone_into(&mut self.names[*at - 1].0);
        }
    }

    /// Removes a cell that belongs to no name any more.
    pub fn forget(&mut self, cell: CellNo) {
        let at = self.at.get_mut(cell.index()).map_or(0, std::mem::take);
        if at != 0 {
            self.names.swap_remove(at - 1);
            if let Some(&(_, moved)) = self.names.get(at - 1) {
                self.at[moved.index()] = at;
            }
            self.due = self.due.min(2 * self.names.len());
        }
    }

    /// Removes and returns all names.
    pub fn take(&mut self) -> Vec<(String, CellNo)> {
        for (_, cell) in &self.names {
            self.at[cell.index()] = 0;
        }
        self.due = 0;
        std::mem::take(&mut self.names)
    }

    /// Puts the next report off until there are twice as many names, because the daemon did not respond.
    pub fn put_off(&mut self) {
        self.due = 2 * self.names.len();
    }

    /// Adds names that the client has taken and could not report: they are announced and not in the directory yet, or no daemon
    /// has carried the report out. They are due again when there are as many others.
    pub fn put_back(&mut self, names: impl IntoIterator<Item = (String, CellNo)>) {
        for (name, cell) in names {
            self.note(&name, cell);
            self.due += 2;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns whether a client with `bound` names should report the deleted ones.
    pub fn is_due(&self, bound: usize) -> bool {
        self.names.len() >= (bound / PART).clamp(BATCH.0, BATCH.1).max(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_there_once_with_its_last_name() {
        let mut deleted = Deleted::default();
        deleted.note("a", CellNo::new(7));
        deleted.note("a", CellNo::new(7));
        deleted.note("b", CellNo::new(70));
        deleted.note("c", CellNo::new(8));
        deleted.forget(CellNo::new(7));
        deleted.note("a", CellNo::new(7));
        deleted.forget(CellNo::new(9));
        assert_eq!(
            deleted.take(),
            [("c", 8), ("b", 70), ("a", 7)].map(|(name, cell)| (name.to_owned(), CellNo::new(cell)))
        );
        assert!(deleted.is_empty());
        deleted.note("c", CellNo::new(7));
        deleted.note("d", CellNo::new(7));
        assert_eq!(deleted.take(), [("d".to_owned(), CellNo::new(7))]);
        deleted.forget(CellNo::new(7));
        assert!(deleted.is_empty());
    }

    #[test]
    fn what_was_put_back_is_due_later() {
        let mut deleted = Deleted::default();
        let fill = |deleted: &mut Deleted, end: CellNo| {
            let first = deleted.names.len() as u32;
            (first..end.get()).for_each(|cell| deleted.note("x", CellNo::new(cell)));
        };
        fill(&mut deleted, CellNo::new(63));
        assert!(!deleted.is_due(0));
        fill(&mut deleted, CellNo::new(64));
        assert!(deleted.is_due(0) && deleted.is_due(1024) && !deleted.is_due(1040));
        let taken = deleted.take();
        deleted.put_back(taken);
        assert!(!deleted.is_due(0));
        fill(&mut deleted, CellNo::new(128));
        assert!(deleted.is_due(0));
        fill(&mut deleted, CellNo::new(256));
        assert!(deleted.is_due(1 << 20));
    }
}
