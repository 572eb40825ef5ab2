//! The names that a renamed value had.
//!
//! A version consists of a name's owner word and of its cell's content. A value that returns to a former name by a rename
//! has the content that it had there before. So the name needs an owner word that it never had: the daemon must bind it.
use tensorlend_layout::number::CellNo;

/// Maximum number of former names that a client records for a value.
const HOMES_MAX: usize = 64;

/// A former name of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    pub hash: u64,
    pub cell: CellNo,
}

/// The way in which a renamed value comes to its next name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The name never had this value.
    First,
    /// The name may have had this value, so the daemon must bind it.
    Bound {
        /// A cell that must not serve the name: readers may know the value in this cell by the version of an announced name,
        /// which has no owner word.
        barred: Option<CellNo>,
    },
}

/// The former names of a value, each with the first cell that had the value there. Only that cell may have been announced.
#[derive(Debug, Default)]
pub struct Homes(Vec<Home>);

impl Homes {
    /// Records that the value leaves a name, and returns how it may come to the name with the hash `to`.
    pub fn leave(&mut self, from: Home, to: u64) -> Arrival {
        if self.0.len() < HOMES_MAX && self.cell(from.hash).is_none() {
            self.0.push(from);
        }
        match self.cell(to) {
            None if self.0.len() < HOMES_MAX => Arrival::First,
            barred => Arrival::Bound { barred },
        }
    }

    fn cell(&self, hash: u64) -> Option<CellNo> {
        self.0.iter().find(|home| home.hash == hash).map(|home| home.cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(hash: u64) -> Home {
        Home { hash, cell: CellNo::new(hash as u32 + 100) }
    }

    #[test]
    fn a_value_that_returns_needs_another_owner_word() {
        let mut homes = Homes::default();
        assert_eq!(homes.leave(home(1), 2), Arrival::First);
        assert_eq!(homes.leave(home(2), 3), Arrival::First);
        assert_eq!(homes.leave(home(3), 1), Arrival::Bound { barred: Some(CellNo::new(101)) });
        // The name has another cell now. The first one stays barred.
        assert_eq!(
            homes.leave(Home { hash: 1, cell: CellNo::new(7) }, 2),
            Arrival::Bound { barred: Some(CellNo::new(102)) }
        );
        assert_eq!(
            homes.leave(Home { hash: 2, cell: CellNo::new(8) }, 1),
            Arrival::Bound { barred: Some(CellNo::new(101)) }
        );
    }

    #[test]
    fn names_that_are_not_recorded_are_bound() {
        let mut homes = Homes::default();
        for hash in 0..HOMES_MAX as u64 - 1 {
            assert_eq!(homes.leave(home(hash), hash + 1), Arrival::First);
        }
        for hash in HOMES_MAX as u64 - 1..1000 {
            assert_eq!(homes.leave(home(hash), hash + 1), Arrival::Bound { barred: None });
        }
        assert_eq!(homes.leave(home(1000), 0), Arrival::Bound { barred: Some(CellNo::new(100)) });
        assert_eq!(homes.0.len(), HOMES_MAX);
    }
}
