//! Leases the values of many names.

use crate::error::{Result, check_name};
use crate::lease::batch::{BATCH, lease_found};
use crate::lease::value::Value;
use crate::session::Session;

/// Leases the values that the names hold now, many together. Calls `single` for each name that the usual steps do not
/// lease, and returns its result for this name.
pub fn lease_names(
    session: &Session,
    names: &[impl AsRef<str>],
    single: impl Fn(&str) -> Result<Value>,
) -> Vec<Result<Value>> {
    if session.check().is_err() {
        return names.iter().map(|name| single(name.as_ref())).collect();
    }
    let mut values = Vec::with_capacity(names.len());
    for names in names.chunks(BATCH) {
        // An invalid name may be the key of a list's item, which this call must not find. No entry has an empty key.
        let keys = names.iter().map(|name| Some(name.as_ref()).filter(|name| check_name(name).is_ok()));
        let keys: Vec<&[u8]> = keys.map(|name| name.unwrap_or_default().as_bytes()).collect();
        let leased = lease_found(session, &session.find_many(&keys));
        for (name, value) in names.iter().zip(leased) {
            values.push(value.map_or_else(|| single(name.as_ref()), Ok));
        }
    }
    values
}
