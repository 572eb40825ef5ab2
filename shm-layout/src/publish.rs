//! Replacing a name's value.

use crate::sync::fence_after_swap;
use crate::word::{Cell, LifeWord, Word};

/// Owner: returns true if the value of a name has no lifetime, so that the owner may overwrite it by [`overwrite`]. Call this
/// before it.
///
/// Only the daemon ends a lifetime, and it does so after it has stored the owner word of the next owner or of none. The
/// Acquire load pairs with that store of the lifetime: an owner that finds no lifetime any more finds the later owner word,
/// too, and its overwrite fails.
#[inline]
pub fn is_lasting(life: &Word) -> bool {
    life.read() == LifeWord::FOREVER.0
}

/// Daemon: changes an entry's owner by `change`, and then the lifetime is `after`. The lifetime is 0 only while the value of
/// the present owner has none. So a new lifetime is stored before the owner word, and the end of a lifetime after it.
pub fn change_owner<R>(life: &Word, after: LifeWord, change: impl FnOnce() -> R) -> R {
    if after != LifeWord::FOREVER {
        life.set(after.0);
    }
    let done = change();
    if after == LifeWord::FOREVER {
        crate::crash_point!("daemon: lifetime about to end");
        life.set(LifeWord::FOREVER.0);
    }
    done
}

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
