//! What several names hold, as it was at one moment.
//!
//! A lease keeps a value as it is, and so leases taken one after the other keep values that may never have been there
//! together. So each name is looked at again when all leases are held. If every name still holds what is leased, each held it
//! from its lease to that look: so all of them did at the moment between the last lease and the first look. Where one has
//! moved on, it is leased anew and all are looked at again.

use std::collections::BTreeMap;

use tensorlend::{Client, Error, Value};

use crate::failure::Failure;

/// So often all names are looked at, before whoever keeps publishing is named.
const ROUNDS: usize = 64;

/// Leases on what all names held together.
pub struct Snapshot {
    values: BTreeMap<String, Value>,
}

impl Snapshot {
    /// Leases what matches any of the globs. A word without a glob's characters is a name that must exist.
    pub fn take(client: &Client, words: &[String]) -> Result<Self, Failure> {
        let mut values = BTreeMap::new();
        let mut wanted = Vec::new();
        for word in words {
            if word.contains(['*', '?', '[', '{', '\\']) {
                for info in client.list(word)? {
                    values.insert(info.name, None);
                }
            } else {
                wanted.push(word.as_str());
                values.insert(word.clone(), None);
            }
        }
        let mut moved = values.keys().cloned().collect::<Vec<_>>();
        for _ in 0..ROUNDS {
            for name in &moved {
                match client.get_value(name) {
                    Ok(value) => values.insert(name.clone(), Some(value)),
                    // It was listed, and has been deleted since.
                    Err(Error::NotFound(_)) if !wanted.contains(&name.as_str()) => values.remove(name),
                    Err(e) => return Err(Failure::from(e).context(format!("cannot save {name:?}"))),
                };
            }
            moved.clear();
            for (name, value) in &values {
                if client.version(name)? != value.as_ref().map(Value::version) {
                    moved.push(name.clone());
                }
            }
            if moved.is_empty() {
                let values = values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
                return Ok(Self { values });
            }
            for name in &moved {
                // Not to keep what was replaced.
                values.insert(name.clone(), None);
            }
        }
        Err(Failure::Limit(format!(
            "{} changed while the others were leased, {ROUNDS} times in a row: leave out what is published that often, or \
             stop its producer",
            moved.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
        )))
    }

    /// The values, in their names' order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }
}
