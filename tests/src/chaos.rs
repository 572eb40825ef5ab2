//! A process that works until it is killed. A seed determines the operations and their order.

use crate::filled::{self, Random, filled, put};
use std::path::Path;
use std::time::Duration;
use tensorlend::{Client, DType, Error, Policy, Start};

/// Number of names that all of these processes share.
const NAMES: u64 = 24;

/// `SOCKET SEED`: works for ever. Prints `ready` when it is connected.
///
/// # Panics
/// On a torn tensor, and on unexpected errors.
pub fn run(arguments: &[String]) -> Option<()> {
    let [socket, seed] = arguments else { return None };
    let seed: u64 = seed.parse().ok()?;
    let client = Client::builder().socket(Path::new(socket)).label("chaos").connect().expect("the daemon is there");
    println!("ready");
    let mut random = Random(seed);
    let mut held = Vec::new();
    for count in 1.. {
        let value = seed << 24 | count;
        match act(&client, &mut random, value, &mut held) {
            Err(e) if !is_others_work(&e) => panic!("nobody may meet this: {e}"),
            _ => {}
        }
        if held.len() > 20 {
            held.clear();
        }
    }
    Some(())
}

/// Returns true for the errors of a process that shares objects with others: they delete, replace, open and close them.
pub fn is_others_work(error: &Error) -> bool {
    matches!(
        error,
        Error::NotFound(_)
            | Error::NoSuch { .. }
            | Error::Timeout { .. }
            | Error::StreamEnded(_)
            | Error::StreamFull(_)
            | Error::Refused { .. }
    )
}

/// Returns a name that one of them may have left, to delete it at the end.
pub fn name(number: u64) -> String {
    format!("chaos/{number}")
}

pub fn names() -> impl Iterator<Item = String> {
    (0..NAMES).map(name)
}

fn whole(lease: &tensorlend::Lease) {
    filled::value(lease).unwrap_or_else(|torn| panic!("{torn}"));
}

fn act(client: &Client, random: &mut Random, value: u64, held: &mut Vec<tensorlend::Lease>) -> Result<(), Error> {
    let text = name(random.below(NAMES));
    match random.below(16) {
        0..5 => {
            put(client, &text, value)?;
        }
        5..8 => {
            let lease = client.get(&text)?;
            whole(&lease);
            held.push(lease);
        }
        8 => {
            client.delete(&text)?;
        }
        9 => {
            client.rename(&text, &name(random.below(NAMES)))?;
        }
        10 => {
            // Never published: the daemon frees its memory after the process's death.
            let bytes = 1 + random.below(4 << 20);
            std::mem::forget(client.create(DType::U8, &[bytes])?);
            // If the process is not killed soon, this bounds the memory of forgotten drafts.
            if client.memory().slot_bytes > 32 << 20 {
                std::thread::sleep(Duration::from_millis(5));
                return Ok(());
            }
        }
        11 => {
            client.append("chaos", filled(client, value)?)?;
            if client.length("chaos") > 50 {
                client.clear("chaos")?;
            }
        }
        12 => {
            let policy = if random.below(2) == 0 { Policy::Block } else { Policy::DropOldest };
            let camera = client.stream(&format!("chaos/{}", random.below(4))).capacity(4).policy(policy).open()?;
            for _ in 0..random.below(20) {
                camera.send_timeout(filled(client, value)?, Duration::from_millis(2))?;
            }
        }
        13 => {
            let mut frames =
                client.subscription(&format!("chaos/{}", random.below(4))).start_at(Start::Oldest).open()?;
            for _ in 0..random.below(20) {
                whole(frames.recv_timeout(Duration::from_millis(2))?.tensor()?);
            }
        }
        14 => {
            let lease = client.wait_for(&text, Some(Duration::from_millis(2)))?;
            whole(&lease);
        }
        _ => held.clear(),
    }
    Ok(())
}
