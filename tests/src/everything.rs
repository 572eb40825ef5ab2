//! A process that uses every feature of a client, over and over, so that it passes every crash point.

#![allow(unsafe_code)]

use crate::filled::{self, filled, put};
use crate::{PATIENCE, eventually, witness};
use std::io::{PipeWriter, Read, pipe};
use std::path::Path;
use std::time::{Duration, Instant};
use tensorlend::{Client, DType, Error, Lease, Lifetime};

/// Number of rounds; one passes every crash point.
pub const ROUNDS: u32 = 12;

pub const JOBS: &str = "everything/jobs";
/// The queue for which a client waits.
const WAITED: &str = "everything/waited";
/// Number of names that it creates and deletes in one round.
const FRESH: u32 = 70;
/// Number of names that a visitor creates and deletes: more than there are announcers.
const VISITORS: u32 = 6;
/// A name of more than 64 bytes.
const LONG: &str = "everything/that can be said of something small that is lent to somebody else";
/// Number of names for which the catalogue grows three times.
const NAMES: u32 = 7000;
/// Bytes of a tensor that does not fit into the existing segments.
const LARGE: u64 = 3 << 20;

/// `SOCKET [many]`: with `many`, it creates so many names that tables and catalogue grow. It ends early, without an
/// error, when the daemon is gone.
///
/// # Panics
/// On a torn tensor, and on unexpected errors.
pub fn run(arguments: &[String]) -> Option<()> {
    let (socket, many) = match arguments {
        [socket] => (socket, false),
        [socket, many] if many == "many" => (socket, true),
        _ => return None,
    };
    let done = connect(Path::new(socket)).and_then(|client| {
        if many {
            // The pool cannot hold two of these values at once.
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
        (0..ROUNDS).try_for_each(|number| {
            round(&client, Path::new(socket), number)?;
            forks(&client)?;
            joins(&client, Path::new(socket), number)
        })
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

/// A client connects, publishes and disconnects.
fn joins(client: &Client, socket: &Path, number: u32) -> Result<(), Error> {
    let other = connect(socket)?;
    put(client, "everything/again", 1)?;
    look(&other, "everything/again")?;
    // Until slots are reclaimed, which scans the visitor's leases, since it was shown a segment.
    for count in 1..100 {
        put(client, "everything/again", count)?;
    }
    put(&other, "everything/visitor", u64::from(number) + 1)?;
    // So many names that the visitor may announce some.
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

/// A child reads under this process's lease until this process closes the pipe, or is killed.
fn forks(client: &Client) -> Result<(), Error> {
    put(client, "everything/again", 7)?;
    let lease = client.get("everything/again")?;
    let child = Child::reads(&lease, 7);
    drop(lease);
    for count in 1..100 {
        put(client, "everything/again", count)?;
    }
    assert_eq!(child.end(), 0, "a child reads whole tensors");
    Ok(())
}

struct Child {
    pid: libc::pid_t,
    resume: PipeWriter,
}

impl Child {
    /// Forks a child that waits for [`Child::end`], and then checks the value that it reads.
    fn reads(lease: &Lease, value: u64) -> Self {
        let (mut wait, resume) = pipe().expect("a process has descriptors for a pipe");
        // SAFETY: the child reads memory, makes system calls, and ends without destructors.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(resume);
            let _ = wait.read(&mut [0]);
            let whole = filled::value(lease).is_ok_and(|found| found == value);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!whole)) }
        }
        Self { pid, resume }
    }

    /// Returns the status with which the child ended.
    fn end(self) -> i32 {
        drop(self.resume);
        let mut status = 0;
        // SAFETY: waits for the child created by `reads`, and writes to a local variable.
        let waited = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert_eq!(waited, self.pid);
        status
    }
}

/// Number of children that [`children`] forks one after the other.
const CHILDREN: u64 = 3;

/// `SOCKET`: forks children, of which each is killed at the crash point that the environment names. The lease ends after each
/// child, and the next child reads the next value.
///
/// # Panics
/// If a child is not killed, or if its leases outlive it.
pub fn children(arguments: &[String]) -> Option<()> {
    let [socket] = arguments else { return None };
    let client = connect(Path::new(socket)).expect("the daemon runs");
    for value in 1..=CHILDREN {
        put(&client, "everything/again", value).expect("memory is free");
        let lease = client.get("everything/again").expect("it is published");
        let child = Child::reads(&lease, value);
        drop(lease);
        let status = child.end();
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "status {status}");
        eventually("the end of the child's leases", || client.instruments().leased().is_ok_and(|bytes| bytes == 0));
    }
    Some(())
}

/// Returns a draft, as soon as previously returned memory can be lent again.
fn patiently(client: &Client, bytes: u64) -> Result<tensorlend::Draft, Error> {
    let start = Instant::now();
    loop {
        match client.create(DType::U8, &[bytes]) {
            Err(e) if e.is_limit() && start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(2)),
            other => return other,
        }
    }
}

/// Reads a name that another client may delete.
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

/// Puts three items, two of them together, gives one back in both ways, and confirms all in all ways.
fn queue(client: &Client, value: u64) -> Result<(), Error> {
    let jobs = client.queue(JOBS)?;
    jobs.put(filled(client, value)?, PATIENCE)?;
    jobs.put_many([filled(client, value + 1)?, filled(client, value + 2)?], PATIENCE)?;
    jobs.get(PATIENCE)?.give_back()?;
    drop(jobs.get(PATIENCE)?);
    for _ in 0..2 {
        let job = jobs.get(PATIENCE)?;
        filled::value(job.value().tensor()?).unwrap_or_else(|torn| panic!("{JOBS}: {torn}"));
        job.done()?;
    }
    // The item that was returned twice, and the item that the last round left.
    let next = jobs.next(jobs.get(PATIENCE)?, Duration::ZERO);
    next.map(drop).or_else(unless_late)
}

fn unless_late(error: Error) -> Result<(), Error> {
    if error.is_timeout() { Ok(()) } else { Err(error) }
}

/// A client waits for an item, at first without effect.
fn waits(client: &Client, socket: &Path, value: u64) -> Result<(), Error> {
    let (waiting, queue) = (connect(socket)?.queue(WAITED)?, client.queue(WAITED)?);
    waiting.get(Duration::from_millis(1)).map(drop).or_else(unless_late)?;
    std::thread::scope(|scope| {
        // The daemon may be killed before the item is in the queue.
        let waiting = scope.spawn(|| waiting.get(Duration::from_secs(2))?.done());
        // The request should arrive before the item. In some rounds it does.
        std::thread::sleep(Duration::from_millis(2));
        queue.put(filled(client, value)?, PATIENCE)?;
        waiting.join().expect("it does not panic").map(drop).or_else(unless_late)
    })
}

fn round(client: &Client, socket: &Path, number: u32) -> Result<(), Error> {
    let value = |count: u32| (u64::from(number) << 16) + u64::from(count) + 1;
    // First publications, immediate replacements, and more until slots must be reclaimed.
    for count in 0..FRESH {
        let name = format!("everything/{count}");
        put(client, &name, value(count))?;
        put(client, &name, value(count) + 1000)?;
        look(client, &name)?;
    }
    // Names of other clients: read, and taken over.
    for name in witness::NAMES {
        look(client, name)?;
    }
    for name in witness::SHARED {
        put(client, name, value(0))?;
        look(client, name)?;
    }
    // Too long to be announced: the daemon binds it on request.
    put(client, LONG, value(0))?;
    client.delete(LONG)?;
    // A name of this client gets another name.
    put(client, "everything/old", value(1))?;
    client.rename("everything/old", "everything/new")?;
    // A name gets a lifetime and loses it again, twice, and ends with it.
    for _ in 0..2 {
        filled(client, value(2))?.publish_for("everything/lived", Lifetime::EPHEMERAL)?;
        put(client, "everything/lived", value(3))?;
        look(client, "everything/lived")?;
    }
    filled(client, value(2))?.publish_for("everything/lived", Lifetime::ttl(Duration::from_millis(1)))?;
    // A list takes the name of another list.
    for _ in 0..2 {
        client.append("everything/to", filled(client, value(4))?)?;
        client.append("everything/from", filled(client, value(5))?)?;
        client.rename_list("everything/from", "everything/to")?;
    }
    client.clear("everything/to")?;
    // Lists, and the daemon's report on the cells of a cleared list.
    for count in 0..3 {
        client.append("everything", filled(client, value(count))?)?;
    }
    for item in client.get_all("everything")? {
        item.as_tensor().map(|lease| filled::value(lease).unwrap_or_else(|torn| panic!("{torn}")));
    }
    client.clear("everything")?;
    client.append("everything", filled(client, value(9))?)?;
    queue(client, value(10))?;
    waits(client, socket, value(20))?;
    // This client's own stream, filled twice, and a subscription to another's. The sender comes first, so that the second
    // passage of each crash point of a send is the sender's.
    let stream = client.stream("everything").capacity(4).open()?;
    let mut sender = stream.sender(DType::U64, [filled::words(value(0))])?;
    let mut frames = client.subscribe("everything")?;
    for _ in 0..9 {
        let mut loan = sender.loan()?;
        loan.as_mut_slice::<u64>()?.fill(value(0));
        loan.send()?;
        if let Some(message) = frames.try_borrow()? {
            let words = message.tensor()?.as_slice::<u64>()?;
            assert!(words.iter().all(|word| *word == words[0]), "torn: {words:?}");
        }
    }
    let camera = sender.into_stream();
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
    // Memory that the daemon must lend, and that is returned.
    let drafts: Result<Vec<_>, _> = (0..4).map(|_| client.create(DType::U8, &[LARGE])).collect();
    drop(drafts?);
    // Deletes many at once, so that the daemon gets one report about all of them.
    for count in 0..FRESH {
        client.delete(&format!("everything/{count}"))?;
    }
    client.delete(witness::SHARED[0])?;
    Ok(())
}
