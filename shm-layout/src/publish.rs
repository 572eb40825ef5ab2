//! Replacing a name's value.

use crate::sync::fence_after_swap;
use crate::word::{Cell, Word};

/// Owner: stores `new` in its cell, if the name still belongs to this cell.
///
/// `None`: the name has moved, and the cell is unchanged. `Some(before)`: the cell contains `new`,
/// and the caller retires the value `before`. The swap is the linearization point of the put. If the
/// name moves between the check and the swap, the put counts as the last one before the move. No
/// reader can read the value then, because every reader checks the owner word again.
///
/// A crash before the swap leaves the old value in the cell. A crash after the swap leaves the new
/// value, and the daemon frees the old slot with the client's memory.
#[inline]
pub fn overwrite(owner_word: &Word, granted: u64, cell: &Word, new: Cell) -> Option<Cell> {
    if owner_word.read() != granted {
        return None;
    }
    crate::crash_point!("overwrite: owner word looked at");
    let before = cell.swap(new.0);
    crate::crash_point!("overwrite: cell exchanged");
    // SeqCst: any reader that starts after this put has ended finds the new value, on any
    // processor. This thread reads the parked words after the fence.
    fence_after_swap();
    Some(Cell(before))
}
