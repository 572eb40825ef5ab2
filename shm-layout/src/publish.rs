//! Replacing a name's value.

use crate::sync::{Ordering, fence};
use crate::word::{Cell, Word};

/// Owner: puts `new` into its cell, if the name still leads there. `None`: the name has moved, and the cell was not
/// touched. `Some(before)`: done; what stood there is to be retired. The swap is the moment of the put. If the name
/// moves between look and swap, the put counts as the last one before the move: nobody can read it, since every
/// reader looks at the home again.
///
/// Crash before the swap: the old value stands. After it: the new one; the old slot is freed with the client's memory.
#[inline]
pub fn overwrite(home: &Word, granted: u64, cell: &Word, new: Cell) -> Option<Cell> {
    if home.read() != granted {
        return None;
    }
    crate::crash_point!("overwrite: home looked at");
    let before = cell.swap(new.0);
    crate::crash_point!("overwrite: cell exchanged");
    // SeqCst: whoever reads after this put returned, on whatever processor, finds it; and the parked words read next
    // are read after it.
    fence(Ordering::SeqCst);
    Some(Cell(before))
}
