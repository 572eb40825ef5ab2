//! Several leases at once: a part of a list, the values that a name has kept.

use super::arguments::{Out, free};
use super::lease::tensorlend_lease;
use super::status::look;
use std::sync::Arc;
use tensorlend::Value;

/// Leases in an order. `tensorlend_leases_free` ends all of them.
pub struct tensorlend_leases {
    all: Vec<Arc<tensorlend_lease>>,
}

impl Out<tensorlend_leases> {
    /// Hands leases out.
    pub(super) fn lend_all(self, values: Vec<Value>) {
        self.fill(tensorlend_leases { all: values.into_iter().map(tensorlend_lease::of).collect() });
    }
}

/// How many there are; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_leases_count(leases: *const tensorlend_leases) -> u64 {
    // SAFETY: 1.
    look(0, || unsafe { leases.as_ref() }.map(|leases| leases.all.len() as u64))
}

/// One of them, borrowed; NULL if there are not so many. `tensorlend_lease_clone` makes one that stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_leases_at(
    leases: *const tensorlend_leases,
    number: u64,
) -> *const tensorlend_lease {
    look(std::ptr::null(), || {
        // SAFETY: 1.
        let leases = unsafe { leases.as_ref() }?;
        leases.all.get(usize::try_from(number).ok()?).map(Arc::as_ptr)
    })
}

/// Ends all of them that were not cloned; NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_leases_free(leases: *mut tensorlend_leases) {
    // SAFETY: 1.
    unsafe { free(leases) }
}
