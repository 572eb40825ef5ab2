//! What several names hold, as it was at one moment.
//!
//! A lease keeps a value as it is, and so leases taken one after the other keep values that may never have been there
//! together. So each name is looked at again when all leases are held. If every name still holds what is leased, each held it
//! from its lease to that look: so all of them did at the moment between the last lease and the first look. Where one has
//! moved on, it is leased anew and all are looked at again.

use std::collections::BTreeMap;

use tensorlend::{Client, Error, Listing, Value};

use crate::failure::Failure;

/// So often all names are looked at, before whoever keeps publishing is named.
const ROUNDS: usize = 64;

/// A name that is to be leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub name: String,
    /// The user wrote this name: it must exist. A name that a glob matched may be deleted again.
    pub is_required: bool,
}

/// The names that words stand for, sorted. A word without a glob's characters is a name.
///
/// # Errors
/// [`Failure::NotFound`] for a glob that matches no name.
pub fn names_of(client: &Client, words: &[String]) -> Result<Vec<Wanted>, Failure> {
    let mut names = BTreeMap::new();
    for word in words {
        if word.contains(['*', '?', '[', '{', '\\']) {
            // Each value is brought back when it is written, and not before.
            let Listing { infos, unreadable, spilled } = client.overview(word)?;
            if infos.is_empty() && unreadable.is_empty() && spilled.is_empty() {
                return Err(Failure::NotFound(format!("no name matches {word:?}: see `tensorlend ls`")));
            }
            for name in infos.into_iter().map(|info| info.name).chain(spilled.into_iter().map(|spilled| spilled.name)) {
                names.entry(name).or_insert(false);
            }
            for (name, cause) in unreadable {
                // A broken client's: nobody can read it. Of any other, there may be room for it when the others are written.
                if let Error::Damaged { .. } = cause {
                    crate::output::note(&format!("left out: {}", crate::output::printable(&cause.to_string())));
                } else {
                    names.entry(name).or_insert(false);
                }
            }
        } else {
            names.insert(word.clone(), true);
        }
    }
    Ok(names.into_iter().map(|(name, is_required)| Wanted { name, is_required }).collect())
}

/// Leases on what all names held together.
pub struct Snapshot {
    values: BTreeMap<String, Value>,
}

impl Snapshot {
    /// Leases what the names hold. A name that is not required and does not exist is left out.
    pub fn take(client: &Client, wanted: &[Wanted]) -> Result<Self, Failure> {
        let mut values: BTreeMap<&str, Option<Value>> = wanted.iter().map(|it| (it.name.as_str(), None)).collect();
        let mut moved: Vec<&Wanted> = wanted.iter().collect();
        for _ in 0..ROUNDS {
            for it in &moved {
                match client.get_value(&it.name) {
                    Ok(value) => values.insert(&it.name, Some(value)),
                    // It was listed, and has been deleted since.
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
                // Not to keep what was replaced.
                values.insert(&it.name, None);
            }
        }
        Err(Failure::Limit(format!(
            "{} changed while the others were leased, {ROUNDS} times in a row: leave out what is published that often, or \
             stop its producer",
            moved.iter().map(|it| format!("{:?}", it.name)).collect::<Vec<_>>().join(", ")
        )))
    }

    /// The values, in their names' order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }
}
