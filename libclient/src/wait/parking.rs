//! This client's parked word, which all of its threads share.

use std::sync::Mutex;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::raw::Sheet;
use tensorlend_layout::wake;
use tensorlend_os::mutex::lock;

/// The number of waiting threads for each bit of the parked word.
pub struct Parking {
    table: Sheet<LeaseTable>,
    waiting: Mutex<[u32; 64]>,
}

impl Parking {
    pub fn new(table: Sheet<LeaseTable>) -> Self {
        Self { table, waiting: Mutex::new([0; 64]) }
    }

    /// Declares that a thread waits for `mask`, until the caller drops the guard. The caller must sample the bells
    /// before this call, and check the awaited condition again after it.
    pub fn park(&self, mask: u64) -> Parked<'_> {
        self.change(mask, true);
        Parked { parking: self, mask }
    }

    fn change(&self, mask: u64, add: bool) {
        let mut waiting = lock(&self.waiting);
        for (bit, count) in waiting.iter_mut().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1) {
            *count = if add { *count + 1 } else { *count - 1 };
            debug_assert!(bit < 64);
        }
        let word = waiting.iter().enumerate().fold(0u64, |word, (bit, &n)| word | u64::from(n > 0) << bit);
        // Store the word under the lock. Otherwise a thread that stops waiting could clear the bit of a thread that
        // begins to wait.
        wake::declare(&self.table.parked, word);
    }
}

/// A guard for a parked thread.
pub struct Parked<'p> {
    parking: &'p Parking,
    mask: u64,
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.parking.change(self.mask, false);
    }
}
