//! Random work in two kinds of memory at once, by a seed: in host memory, and in one that the caller selects.

use crate::chaos::is_others_work;
use crate::filled::Random;
use crate::location::{Lease, Location};
use std::time::{Duration, Instant};
use tensorlend::{Client, Error, Policy, Start};

/// Number of names that all of these processes share.
const NAMES: u64 = 12;

/// Returns every name that may be left.
pub fn names() -> impl Iterator<Item = String> {
    (0..NAMES).map(|number| format!("everywhere/{number}"))
}

fn whole(lease: &Lease) -> Result<(), Error> {
    // `value` fails if the tensor is torn.
    lease.value().map(|_| ())
}

/// Works until `until`, or for ever.
///
/// # Panics
/// On a torn tensor, and on unexpected errors.
pub fn work(client: &Client, location: Location, seed: u64, until: Option<Instant>) -> u64 {
    let mut random = Random(seed);
    let mut held = Vec::new();
    let mut done = 0;
    while until.is_none_or(|until| Instant::now() < until) {
        done += 1;
        // The tensor's length follows from its value.
        let value = seed << 32 | done;
        match act(client, location, &mut random, value, &mut held) {
            Ok(()) | Err(Error::Kind { .. }) => {}
            Err(e) if is_others_work(&e) => {}
            Err(e) => panic!("nobody may meet this: {e}"),
        }
        if held.len() > 20 {
            held.iter().try_for_each(whole).expect("what is held can be read");
            held.clear();
        }
    }
    done
}

fn act(
    client: &Client,
    location: Location,
    random: &mut Random,
    value: u64,
    held: &mut Vec<Lease>,
) -> Result<(), Error> {
    let name = |random: &mut Random| format!("everywhere/{}", random.below(NAMES));
    let text = name(random);
    let location = if random.below(3) == 0 { Location::Host } else { location };
    let bytes = if random.below(30) == 0 { 8 + random.below(6 << 20) } else { 8 + random.below(5000) };
    match random.below(16) {
        0..5 => {
            location.put(client, &text, value, bytes)?;
        }
        5..8 => {
            let lease = Lease::of(client.get_value(&text)?);
            whole(&lease)?;
            held.push(lease);
        }
        8 => {
            client.delete(&text)?;
        }
        9 => {
            client.rename(&text, &name(random))?;
        }
        10 => {
            let _dropped = location.filled(client, value, bytes)?;
        }
        11 => {
            location.filled(client, value, bytes)?.append(client, "everywhere")?;
            if client.length("everywhere") > 30 {
                client.clear("everywhere")?;
            }
        }
        12 => {
            let policy = if random.below(2) == 0 { Policy::Block } else { Policy::DropOldest };
            let stream = client.stream(&format!("everywhere/{}", random.below(3))).capacity(4).policy(policy).open()?;
            for _ in 0..random.below(12) {
                location.filled(client, value, 200)?.send(&stream, Duration::from_millis(1))?;
            }
        }
        13 => {
            let stream = format!("everywhere/{}", random.below(3));
            let mut frames = client.subscription(&stream).start_at(Start::Oldest).open()?;
            for _ in 0..random.below(12) {
                whole(&Lease::of(frames.recv_timeout(Duration::from_millis(1))?.into_value()))?;
            }
        }
        14 => {
            client.copy(&text, &name(random))?;
        }
        _ => {
            held.iter().try_for_each(whole)?;
            held.clear();
        }
    }
    Ok(())
}

/// Removes everything that such work may have left.
///
/// # Panics
/// If it cannot.
pub fn clear(client: &Client) {
    for name in names() {
        client.delete(&name).expect("it can be deleted");
    }
    client.clear("everywhere").expect("it can be cleared");
    for number in 0..3 {
        client.delete_stream(&format!("everywhere/{number}")).expect("it can be deleted");
    }
}
