//! A process that does everything that a client can do, over and over, so that every place of its code is passed.

use crate::filled::{self, filled, put};
use crate::{PATIENCE, witness};
use std::path::Path;
use std::time::{Duration, Instant};
use tensorlend::{Client, DType, Error};

/// Rounds after which it ends by itself: one passes every place.
pub const ROUNDS: u32 = 12;

/// Names that it makes and deletes in one round.
const FRESH: u32 = 70;
/// Names that a visitor makes and deletes: more than there are announcers.
const VISITORS: u32 = 6;
/// A name of more than 64 bytes.
const LONG: &str = "everything/that can be said of something small that is lent to somebody else";
/// Names for which the catalogue grows three times.
const NAMES: u32 = 7000;
/// Bytes of what does not fit into the segments that are there.
const LARGE: u64 = 3 << 20;

/// `SOCKET [many]`: with `many`, it makes so many names that tables and catalogue grow. It ends early, without a word, when
/// the daemon is gone.
///
/// # Panics
/// On a torn tensor, and on errors that nobody may meet.
pub fn run(arguments: &[String]) -> Option<()> {
    let (socket, many) = match arguments {
        [socket] => (socket, false),
        [socket, many] if many == "many" => (socket, true),
        _ => return None,
    };
    let done = connect(Path::new(socket)).and_then(|client| {
        if many {
            // Each needs more than the pool has beside the one before.
            for bytes in (50 << 20..90 << 20).step_by(10 << 20) {
                drop(patiently(&client, bytes)?);
            }
            for number in 0..NAMES {
                put(&client, &format!("many/{number}"), u64::from(number) + 1)?;
            }
            for number in 0..NAMES {
                client.delete(&format!("many/{number}"))?;
            }
        }
        (0..ROUNDS)
            .try_for_each(|number| round(&client, number).and_then(|()| joins(&client, Path::new(socket), number)))
    });
    match done {
        Ok(()) => {}
        Err(e) if e.is_disconnected() => {}
        Err(e) => panic!("nobody may meet this: {e}"),
    }
    Some(())
}

fn connect(socket: &Path) -> Result<Client, Error> {
    Client::builder().socket(socket).label("everything").connect()
}

/// Somebody comes, publishes and goes.
fn joins(client: &Client, socket: &Path, number: u32) -> Result<(), Error> {
    let other = connect(socket)?;
    put(client, "everything/again", 1)?;
    look(&other, "everything/again")?;
    // Until slots are reclaimed: then the visitor's leases are looked at, since it was shown a segment.
    for count in 1..100 {
        put(client, "everything/again", count)?;
    }
    put(&other, "everything/visitor", u64::from(number) + 1)?;
    // So many that the visitor may announce some.
    for count in 0..VISITORS {
        put(&other, &format!("everything/visitor/{number}/{count}"), 1)?;
    }
    for count in 0..VISITORS {
        other.delete(&format!("everything/visitor/{number}/{count}"))?;
    }
    let camera = other.stream("everything/visitor").capacity(2).open()?;
    camera.send(filled(&other, 3)?)?;
    drop(camera);
    other.delete_stream("everything/visitor")?;
    Ok(())
}

/// A draft, as soon as what was given back before can be lent again.
fn patiently(client: &Client, bytes: u64) -> Result<tensorlend::Draft, Error> {
    let start = Instant::now();
    loop {
        match client.create(DType::U8, &[bytes]) {
            Err(e) if e.is_limit() && start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(2)),
            other => return other,
        }
    }
}

/// Reads a name that somebody else may delete.
fn look(client: &Client, name: &str) -> Result<(), Error> {
    match client.get(name) {
        Ok(lease) => {
            filled::value(&lease).unwrap_or_else(|torn| panic!("{name}: {torn}"));
            Ok(())
        }
        Err(e) if e.is_not_found() => Ok(()),
        Err(e) => Err(e),
    }
}

fn round(client: &Client, number: u32) -> Result<(), Error> {
    let value = |count: u32| (u64::from(number) << 16) + u64::from(count) + 1;
    // First publications, overwritten at once, and again until slots have to be reclaimed.
    for count in 0..FRESH {
        let name = format!("everything/{count}");
        put(client, &name, value(count))?;
        put(client, &name, value(count) + 1000)?;
        look(client, &name)?;
    }
    // Somebody else's names: read, and taken over.
    for name in witness::NAMES {
        look(client, name)?;
    }
    for name in witness::SHARED {
        put(client, name, value(0))?;
        look(client, name)?;
    }
    // Too long to be announced: the daemon binds it.
    put(client, LONG, value(0))?;
    client.delete(LONG)?;
    // A name of our own under another one.
    put(client, "everything/old", value(1))?;
    client.rename("everything/old", "everything/new")?;
    // Lists, and what the daemon says of the cells of one that is cleared.
    for count in 0..3 {
        client.append("everything", filled(client, value(count))?)?;
    }
    for item in client.get_all("everything")? {
        item.as_tensor().map(|lease| filled::value(lease).unwrap_or_else(|torn| panic!("{torn}")));
    }
    client.clear("everything")?;
    client.append("everything", filled(client, value(9))?)?;
    // A stream of our own, full once over, and somebody else's.
    let camera = client.stream("everything").capacity(4).open()?;
    let mut frames = client.subscribe("everything")?;
    for count in 0..9 {
        camera.send(filled(client, value(count))?)?;
        if let Some(message) = frames.try_recv()? {
            filled::value(message.tensor()?).unwrap_or_else(|torn| panic!("{torn}"));
        }
    }
    drop((frames, camera));
    if let Ok(mut frames) = client.subscribe(witness::STREAM) {
        for _ in 0..3 {
            match frames.recv_timeout(Duration::from_millis(100)) {
                Ok(message) => {
                    filled::value(message.tensor()?).unwrap_or_else(|torn| panic!("{torn}"));
                }
                Err(Error::Timeout { .. } | Error::StreamEnded(_)) => break,
                Err(e) => return Err(e),
            }
        }
    }
    // Memory that has to be lent, and is given back.
    let drafts: Result<Vec<_>, _> = (0..4).map(|_| client.create(DType::U8, &[LARGE])).collect();
    drop(drafts?);
    // Deleted, so that the daemon is told of many at once.
    for count in 0..FRESH {
        client.delete(&format!("everything/{count}"))?;
    }
    client.delete(witness::SHARED[0])?;
    Ok(())
}
