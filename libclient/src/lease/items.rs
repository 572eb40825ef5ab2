//! Leases the items of a list.

use crate::error::Result;
use crate::lease::assemble;
use crate::lease::batch::{BATCH, lease_found};
use crate::lease::take::{At, Leasing, Route, lease};
use crate::lease::value::Value;
use crate::session::Session;
use std::ops::Range;
use std::sync::Arc;
use tensorlend_layout::directory::FoundName;
use tensorlend_layout::name::item_key;
use tensorlend_layout::number::EntryNo;
use tensorlend_layout::size;

/// Leases items of the list with this id. If the list is a queue, omits items that consumers have finished. If the list was
/// cleared in the meantime, leases only the items before the first missing one: later items may be missing for another
/// reason.
pub fn lease_items(
    session: &Arc<Session>,
    list: &str,
    id: u64,
    numbers: Range<u64>,
    exists: impl Fn() -> bool,
    values: &mut Vec<Value>,
) -> Result<()> {
    let (mut next, mut first_gone) = (EntryNo::default(), None);
    let mut from = numbers.start;
    while from < numbers.end {
        let end = numbers.end.min(from + BATCH as u64);
        session.fetch_entries(next, size::index(end - from));
        let found: Vec<_> = (from..end).map(|number| find_item(session, id, number, &mut next)).collect();
        let leased = lease_found(session, &found);
        for (number, value) in (from..end).zip(leased) {
            let value = match value {
                Some(value) => Some(value),
                None => item(session, list, id, number)?,
            };
            if value.is_none() {
                first_gone.get_or_insert(values.len());
            }
            values.extend(value);
        }
        if let Some(length) = first_gone
            && !exists()
        {
            values.truncate(length);
            return Ok(());
        }
        from = end;
    }
    Ok(())
}

/// Finds an item in the directory. An item's entry usually follows the previous item's entry, because the daemon
/// takes the lowest free entry.
#[inline]
fn find_item(session: &Session, id: u64, number: u64, next: &mut EntryNo) -> Option<FoundName> {
    let key = item_key(id, number);
    let guess = session.directory.names.get(next.index()).and_then(|entry| {
        // The entry contains its key. If the key matches, the entry's hash is the hash of the key.
        let owner_word = entry.probe(entry.hash.peek(), &key, &session.directory.long_names)?;
        Some(FoundName { entry: *next, owner_word })
    });
    let found =
        guess.filter(|f| f.owner_word.is_live()).or_else(|| session.find(&key).filter(|f| f.owner_word.is_live()))?;
    *next = found.entry + 1;
    Some(found)
}

/// Returns one item of the list with this id. Returns `None` if the item does not exist any more.
pub fn item(session: &Arc<Session>, list: &str, id: u64, number: u64) -> Result<Option<Value>> {
    let key = item_key(id, number);
    loop {
        let Some(found) = session.find(&key).filter(|f| f.owner_word.is_live()) else { return Ok(None) };
        let owner_word = Route::owner_word(&session.directory.names[found.entry.index()].owner_word, found.owner_word);
        match lease(session, found.owner_word.owner(), owner_word, At::Cell(found.owner_word.cell()), list)? {
            Leasing::Held(leased) => return assemble::value(session, leased, list).map(Some),
            Leasing::Absent => return Ok(None),
            Leasing::Moved => {}
        }
    }
}
