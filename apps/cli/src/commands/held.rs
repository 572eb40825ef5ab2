//! One observation of a whole namespace, and the names whose values a process has leased in it.

use std::collections::HashSet;

use tensorlend::Client;
use tensorlend::observe::{ASKED_MAX, Observation, Origin};

use crate::failure::Failure;
use crate::output;

/// Maximum number of observations until all clients' tables are mapped. Each observation maps at
/// most a few hundred tables.
const LOOKS_MAX: usize = 64;

/// Observes the whole namespace. Prints a note if it has more than one observation contains.
pub fn complete_observation(client: &Client) -> Result<Observation, Failure> {
    let mut observer = client.observer();
    let mut seen = observer.observe()?;
    for _ in 1..LOOKS_MAX {
        // Requests are left if data cannot be read now, such as the ring of a stream with no free place for a
        // subscriber.
        if !seen.incomplete || seen.asked < ASKED_MAX {
            break;
        }
        seen = observer.observe()?;
    }
    if seen.truncated || seen.incomplete && seen.asked >= ASKED_MAX {
        output::note("the namespace has more than one sample contains: some names, values or leases are missing");
    } else if seen.incomplete {
        output::note("a part of the namespace cannot be read now, such as a stream that has all its subscribers");
    }
    Ok(seen)
}

/// Returns the names whose current value this process has leased.
pub fn names_held_by(client: &Client, pid: u32) -> Result<HashSet<String>, Failure> {
    let seen = complete_observation(client)?;
    if !seen.clients.iter().any(|client| client.pid == pid) {
        let namespace = &seen.namespace;
        let what =
            format!("no client of namespace {namespace} is process {pid}: see `tensorlend top --once --tab clients`");
        return Err(Failure::NotFound(what));
    }
    Ok(held(&seen, pid))
}

fn held(seen: &Observation, pid: u32) -> HashSet<String> {
    let leases = seen.leases.iter().filter(|lease| lease.pid == pid);
    let values = leases.filter_map(|lease| seen.values.get(lease.value?));
    // Several names may share one value, but a lease is listed under only one of them.
    let places: HashSet<_> = values.map(|value| (value.owner, value.slot, value.generation)).collect();
    let is_held = seen.values.iter().filter(|value| places.contains(&(value.owner, value.slot, value.generation)));
    is_held
        .filter_map(|value| match &value.origin {
            Origin::Name(name) => Some(name.clone()),
            _ => None,
        })
        .collect()
}
