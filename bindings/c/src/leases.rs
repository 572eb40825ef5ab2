//! Several leases at once: values of names, items of a list, or the kept values of a name.

use super::arguments::{Out, free, look};
use super::lease::tensorlend_lease;
use std::ptr::null;
use std::sync::Arc;
use tensorlend::Value;

/// An ordered list of leases. `tensorlend_leases_free` ends all of them.
pub struct tensorlend_leases {
    all: Vec<Arc<tensorlend_lease>>,
}

impl Out<tensorlend_leases> {
    /// Fills the variable with leases on values, each with its name.
    pub(super) fn lend_all<'n>(self, values: impl Iterator<Item = (Value, &'n str)>) {
        self.fill(tensorlend_leases { all: values.map(|(value, name)| tensorlend_lease::of(value, name)).collect() });
    }
}

/// Number of leases; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_leases_count(leases: *const tensorlend_leases) -> u64 {
    look!(0, |leases: handle| Some(leases.all.len() as u64))
}

/// Returns a lease by its number, borrowed from the handle; NULL beyond the end.
/// `tensorlend_lease_clone` creates a handle that the caller owns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_leases_at(
    leases: *const tensorlend_leases,
    number: u64,
) -> *const tensorlend_lease {
    look!(null(), |leases: handle| leases.all.get(usize::try_from(number).ok()?).map(Arc::as_ptr))
}

/// Ends all leases that were not cloned, and frees the handle. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_leases_free(leases: *mut tensorlend_leases) {
    free!(leases);
}
