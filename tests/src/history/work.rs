//! The work of a process whose operations are logged.

use super::log::Log;
use super::{Answer, Call, Value};
use crate::filled::{self, Random};
use std::path::{Path, PathBuf};
use tensorlend::{Client, Error, Lease};

/// Number of names in one history: the first two are renamed to the others.
pub const NAMES: u8 = 4;

/// The objects of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objects {
    /// Names without lifetimes, each checked on its own.
    Names,
    /// Pairs of names with lifetimes: [`super::pairs`].
    Pairs,
    /// A queue: [`super::queue`].
    Queue,
}

impl Objects {
    const ALL: [Self; 3] = [Self::Names, Self::Pairs, Self::Queue];
}

/// The parameters of one process.
#[derive(Clone, Debug)]
pub struct Work {
    pub socket: PathBuf,
    /// The folder of the threads' logs.
    pub folder: PathBuf,
    /// Number of the history, which has its own names.
    pub round: u32,
    /// Number of the process, unique in a history.
    pub writer: u32,
    pub threads: u32,
    /// Number of calls per thread.
    pub calls: u32,
    pub objects: Objects,
}

pub fn name(round: u32, number: u8) -> String {
    format!("history {round}/{number}")
}

/// Returns the file of a thread's log.
pub fn notes(folder: &Path, writer: u32, thread: u32) -> PathBuf {
    folder.join(format!("{writer}-{thread}"))
}

impl Work {
    /// Returns the command line that [`Work::parse`] reads.
    pub fn arguments(&self) -> Vec<String> {
        let Self { socket, folder, round, writer, threads, calls, objects } = self;
        vec![
            socket.display().to_string(),
            folder.display().to_string(),
            round.to_string(),
            writer.to_string(),
            threads.to_string(),
            calls.to_string(),
            format!("{objects:?}"),
        ]
    }

    /// Parses the command line.
    pub fn parse(arguments: &[String]) -> Option<Self> {
        let [socket, folder, round, writer, threads, calls, objects] = arguments else { return None };
        Some(Self {
            socket: socket.into(),
            folder: folder.into(),
            round: round.parse().ok()?,
            writer: writer.parse().ok()?,
            threads: threads.parse().ok()?,
            calls: calls.parse().ok()?,
            objects: Objects::ALL.into_iter().find(|known| format!("{known:?}") == *objects)?,
        })
    }

    /// Connects, writes `ready` to `started`, and works.
    ///
    /// # Panics
    /// On a torn tensor, and on unexpected errors.
    pub fn run(&self, started: impl FnOnce()) {
        let connect = || Client::builder().socket(&self.socket).label("history").connect();
        // On an overloaded machine the daemon may disconnect a newcomer whose acknowledgement another client waits for:
        // tries again.
        let mut client = connect();
        for _ in 0..5 {
            if client.as_ref().is_err_and(Error::is_disconnected) {
                client = connect();
            }
        }
        let client = client.expect("the daemon is there");
        let logs: Vec<Log> = (0..self.threads)
            .map(|thread| Log::create(&notes(&self.folder, self.writer, thread)).expect("notes can be written"))
            .collect();
        started();
        std::thread::scope(|scope| {
            for (thread, mut log) in (0..).zip(logs) {
                let client = client.clone();
                scope.spawn(move || match self.objects {
                    Objects::Names => self.thread(&client, log, thread),
                    Objects::Pairs => super::pairs::work(self, &client, &mut log, thread),
                    Objects::Queue => super::queue::work(self, &client, &mut log, thread),
                });
            }
        });
    }

    /// Returns all names of the round, and `last` at the end.
    fn names(&self, last: &str) -> Vec<String> {
        (0..NAMES).map(|number| name(self.round, number)).chain([last.to_owned()]).collect()
    }

    fn thread(&self, client: &Client, mut log: Log, thread: u32) {
        let writer = self.writer * self.threads + thread;
        let mut random = Random(u64::from(self.round) << 32 | u64::from(writer));
        let mut held: Vec<(Lease, u64)> = Vec::new();
        for count in 0..self.calls {
            // In every other history all operations use the same name.
            let name = if self.round.is_multiple_of(2) { random.below(NAMES.into()) as u8 } else { 0 };
            let text = self::name(self.round, name);
            match random.below(20) {
                0..8 => {
                    let mut lease = None;
                    // Half of the calls lease the name together with the others.
                    let together = count.is_multiple_of(2).then(|| self.names(&text));
                    log.call(Call::Get(name), || match get(client, &text, together.as_deref()) {
                        Ok(found) => {
                            let value = whole(&found);
                            lease = Some((found, value));
                            Answer::Done(value)
                        }
                        Err(e) if e.is_not_found() => Answer::Done(0),
                        Err(e) => looked(&e),
                    });
                    held.extend(lease);
                    // Some leases are held while the name changes.
                    if held.len() > 3 {
                        let (lease, value) = held.swap_remove(random.below(3) as usize);
                        assert_eq!(whole(&lease), value, "{text} was written while it was leased");
                    }
                }
                8..14 => {
                    let value = Value::new(writer, count, name);
                    log.call(Call::Put(name, value), || match filled::put(client, &text, value.0) {
                        Ok(_) => Answer::Done(0),
                        Err(e) => asked(&e),
                    });
                }
                14..16 => {
                    log.call(Call::Delete(name), || match client.delete(&text) {
                        Ok(there) => Answer::Done(there.into()),
                        Err(e) => asked(&e),
                    });
                }
                16..18 => {
                    log.call(Call::Exists(name), || match client.exists(&text) {
                        Ok(there) => Answer::Done(there.into()),
                        Err(e) => looked(&e),
                    });
                }
                _ => {
                    let (from, to) = (name % 2, 2 + name / 2);
                    let (old, new) = (self::name(self.round, from), self::name(self.round, to));
                    log.call(Call::Rename(from, to), || match client.rename(&old, &new) {
                        Ok(()) => Answer::Done(0),
                        Err(e) if e.is_not_found() => Answer::Absent,
                        // A failed rename may have had half of its effect.
                        Err(e) => match asked(&e) {
                            Answer::Refused if e.is_limit() => Answer::Refused,
                            _ => Answer::Unknown,
                        },
                    });
                }
            }
        }
        for (lease, value) in held {
            assert_eq!(whole(&lease), value, "it was written while it was leased");
        }
    }
}

/// Leases the last of the names, or only `name`.
fn get(client: &Client, name: &str, together: Option<&[String]>) -> tensorlend::Result<Lease> {
    let Some(names) = together else { return client.get(name) };
    client.get_many(names).pop().expect("a result for each name")?.into_tensor()
}

/// Returns the value of a leased tensor.
///
/// # Panics
/// If it is torn.
pub fn whole(lease: &Lease) -> u64 {
    filled::value(lease).unwrap_or_else(|torn| panic!("{torn}"))
}

/// Returns the response for the error of a modifying call.
///
/// # Panics
/// On an error that no client may meet.
pub fn asked(error: &Error) -> Answer {
    match error {
        Error::Refused { .. } | Error::Disconnected { asked: false, .. } | Error::NoDaemon { .. } => Answer::Refused,
        Error::Disconnected { .. } | Error::SessionEnded | Error::Timeout { .. } => Answer::Unknown,
        other => panic!("nobody may meet this: {other}"),
    }
}

/// Returns the response for the error of a read-only call.
///
/// # Panics
/// On an error that no client may meet.
pub fn looked(error: &Error) -> Answer {
    match error {
        Error::Disconnected { .. } | Error::SessionEnded | Error::Timeout { .. } | Error::NoDaemon { .. } => {
            Answer::Refused
        }
        other => panic!("nobody may meet this: {other}"),
    }
}
