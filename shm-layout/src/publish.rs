//! Replacing a name's value.

use crate::sync::{Ordering, fence};
use crate::word::{Cell, Word};

/// Owner: stores `new` in its cell, if the name still belongs there. `None`: the name has moved, and the cell is
/// unchanged. `Some(before)`: done; the caller retires the previous value. The swap is the moment of the put. If the
/// name moves between check and swap, the put counts as the last one before the move: nobody can read it, since every
/// reader checks the home word again.
///
/// Crash before the swap: the old value stays. After it: the new one; the old slot is freed with the client's memory.
#[inline]
pub fn overwrite(home: &Word, granted: u64, cell: &Word, new: Cell) -> Option<Cell> {
    if home.read() != granted {
        return None;
    }
    crate::crash_point!("overwrite: home looked at");
    let before = cell.swap(new.0);
    crate::crash_point!("overwrite: cell exchanged");
    // SeqCst: any reader that starts after this put returned, on any processor, finds the new value; and the parked
    // words are read after it.
    fence(Ordering::SeqCst);
    Some(Cell(before))
}
