//! Replacing a name's value.

use crate::sync::{Ordering, fence};
use crate::word::{Cell, Word};

/// Owner: stores `new` in its cell, if the name still belongs to this cell. `None`: the name has moved, and the cell is
/// unchanged. `Some(before)`: done; the caller retires the previous value. The swap is the moment of the put. If the name moves
/// between check and swap, the put counts as the last one before the move: no reader can read it, since every reader checks the
/// owner word again.
///
/// A crash before the swap leaves the old value in the cell. A crash after the swap leaves the new value; the daemon frees the
/// old slot with the client's memory.
#[inline]
pub fn overwrite(owner_word: &Word, granted: u64, cell: &Word, new: Cell) -> Option<Cell> {
    if owner_word.read() != granted {
        return None;
    }
    crate::crash_point!("overwrite: owner word looked at");
    let before = cell.swap(new.0);
    crate::crash_point!("overwrite: cell exchanged");
    // SeqCst: any reader that starts after this put returned, on any processor, finds the new value. This thread reads the
    // parked words after the fence.
    fence(Ordering::SeqCst);
    Some(Cell(before))
}
