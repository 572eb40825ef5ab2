//! A consistent snapshot of several names.
//!
//! Leases taken one after the other may hold values that never existed at the same time. So the snapshot first takes
//! all leases, and then checks each name. If every name still has its leased value, each name had this value from its
//! lease to its check. So all names had their leased values at the moment between the last lease and the first check.
//! Otherwise the snapshot leases the changed names again, and checks all names again.

use std::collections::BTreeMap;

use tensorlend::{Client, Error, Listing, Value};

use crate::failure::Failure;

/// Maximum number of checks of all names. Then the snapshot fails and reports the names that
/// change.
const ROUNDS: usize = 64;

/// A name to lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub name: String,
    /// Whether the name must exist. A name that only matched a glob may have been deleted since.
    pub is_required: bool,
}

/// Returns the names that the words name or match, sorted. A word without the special characters of
/// globs is a name. With `ignore_missing`, a name need not exist, and a glob need not match.
///
/// # Errors
/// [`Failure::NotFound`] for a glob that matches no name, without `ignore_missing`.
pub fn names_of(client: &Client, words: &[String], ignore_missing: bool) -> Result<Vec<Wanted>, Failure> {
    let mut names = BTreeMap::new();
    for word in words {
        if word.contains(['*', '?', '[', '{', '\\']) {
            // An overview does not read spilled values back. The snapshot reads each spilled value
            // back when it leases the value.
            let Listing { infos, unreadable, spilled, .. } = client.overview(word)?;
            if infos.is_empty() && unreadable.is_empty() && spilled.is_empty() {
                let what = format!("no name matches {word:?}");
                if !ignore_missing {
                    return Err(Failure::NotFound(format!("{what}: see `tensorlend ls`")));
                }
                crate::output::note(&what);
            }
            for name in infos.into_iter().map(|info| info.name).chain(spilled.into_iter().map(|spilled| spilled.name)) {
                names.entry(name).or_insert(false);
            }
            for (name, cause) in unreadable {
                // A damaged record stays unreadable, so omit the name. Other errors may be
                // temporary, for example a lack of memory, so keep the name.
                if let Error::Damaged { .. } = cause {
                    crate::output::note(&format!("left out: {}", crate::text::printable(&cause.to_string())));
                } else {
                    names.entry(name).or_insert(false);
                }
            }
        } else {
            names.insert(word.clone(), !ignore_missing);
        }
    }
    Ok(names.into_iter().map(|(name, is_required)| Wanted { name, is_required }).collect())
}

/// Leases on the values that all names had at one moment.
pub struct Snapshot {
    values: BTreeMap<String, Value>,
}

impl Snapshot {
    /// Leases the values of the names. Skips a name that is not required and does not exist.
    pub fn take(client: &Client, wanted: &[Wanted]) -> Result<Self, Failure> {
        let mut values: BTreeMap<&str, Option<Value>> = wanted.iter().map(|it| (it.name.as_str(), None)).collect();
        let mut moved: Vec<&Wanted> = wanted.iter().collect();
        for _ in 0..ROUNDS {
            for it in &moved {
                match client.get_value(&it.name) {
                    Ok(value) => values.insert(&it.name, Some(value)),
                    // The name was deleted after it was listed.
                    Err(Error::NotFound(_)) if !it.is_required => values.remove(it.name.as_str()),
                    Err(e) => return Err(Failure::from(e).context(format!("cannot save {:?}", it.name))),
                };
            }
            moved.clear();
            for it in wanted {
                let Some(value) = values.get(it.name.as_str()) else { continue };
                if client.version(&it.name)? != value.as_ref().map(Value::version) {
                    moved.push(it);
                }
            }
            if moved.is_empty() {
                let values = values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
                return Ok(Self { values });
            }
            for it in &moved {
                // Drop the lease on the replaced value before taking the next lease.
                values.insert(&it.name, None);
            }
        }
        Err(Failure::Limit(format!(
            "{} changed while the others were leased, {ROUNDS} times in a row: leave out these names, or stop their producer",
            moved.iter().map(|it| format!("{:?}", it.name)).collect::<Vec<_>>().join(", ")
        )))
    }

    /// Returns the values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }
}
