//! Processes that exchange messages and tensors through the gateways of two nodes, until they are killed. Each value
//! contains its number, so that every reader can check what it received.

pub mod soak;

use crate::filled::{self, filled, put};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tensorlend::{Client, Error, Policy, Start, Stream};

/// The variable with the number of a producer's start.
pub const STARTS: &str = "TENSORLEND_ACROSS_STARTS";

/// The streams of a node, and their policies.
pub const STREAMS: [(&str, Policy); 2] = [("across/block", Policy::Block), ("across/drop", Policy::DropOldest)];

/// Number of tensors of a node.
const TENSORS: u64 = 4;

/// Timeout of one attempt of an operation, after which the process tries again.
const ATTEMPT: Duration = Duration::from_millis(100);

/// Pause of a producer between two turns.
const TURN: Duration = Duration::from_millis(2);

/// Interval between two reports of a process.
const REPORT: Duration = Duration::from_millis(500);

/// Bits of a value that number it within its epoch. The epoch of a later producer is larger, so values only increase.
const NUMBER_BITS: u32 = 40;

/// Epochs of one producer process: one for each client that it connects.
const CLIENTS_MAX: u64 = 1 << 8;

/// Returns a value's epoch and its number.
fn parts(value: u64) -> (u64, u64) {
    (value >> NUMBER_BITS, value & ((1 << NUMBER_BITS) - 1))
}

/// The number of messages that a producer has sent in one epoch: at least `sent`, and `begun` with the message that it was
/// sending when it was killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Number of messages that were certainly sent.
    pub sent: u64,
    /// Number of messages that may have been sent.
    pub begun: u64,
}

/// The numbers of sent messages, in files that outlive their producers.
pub struct Ledger(PathBuf);

impl Ledger {
    pub fn new(folder: &Path, node: &str, stream: &str) -> Self {
        Self(folder.join(format!("{node}-{}", stream.replace('/', "-"))))
    }

    fn file(&self, epoch: u64) -> PathBuf {
        self.0.with_extension(epoch.to_string())
    }

    fn write(&self, epoch: u64, Sent { sent, begun }: Sent) {
        let bytes = [sent.to_ne_bytes(), begun.to_ne_bytes()].concat();
        // One write of 16 bytes at the start of the file replaces both numbers.
        let file = std::fs::File::options().create(true).write(true).truncate(false).open(self.file(epoch));
        file.and_then(|file| std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0))
            .expect("the ledger is written");
    }

    /// Returns the numbers of an epoch; zeros if nothing was sent in it.
    pub fn read(&self, epoch: u64) -> Sent {
        let bytes = std::fs::read(self.file(epoch)).unwrap_or_default();
        let number =
            |at: usize| bytes.get(at..at + 8).map_or(0, |it| u64::from_ne_bytes(it.try_into().expect("8 bytes")));
        Sent { sent: number(0), begun: number(8) }
    }

    /// Returns the epochs between two others.
    fn between(&self, first: u64, last: u64) -> impl Iterator<Item = u64> {
        let names = self.0.parent().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
        let stem = self.0.file_name().expect("a name").to_owned();
        names.filter_map(move |entry| {
            let path = entry.path();
            let epoch = path.extension()?.to_str()?.parse().ok()?;
            (path.file_stem()? == stem && first < epoch && epoch < last).then_some(epoch)
        })
    }
}

/// A message whose number or count of lost messages is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Messages are missing, and `lost` does not count them: at least `least` and at most `most` are missing.
    Uncounted {
        /// Minimum number of missing messages.
        least: u64,
        /// Maximum number of missing messages.
        most: u64,
        /// The count of the client.
        lost: u64,
    },
    /// The stream was opened again, and `lost` counts the missing messages of the new stream, but not all of the old one.
    /// The manual names this case: nobody knows the end of a stream that was opened again while its receiver was cut off.
    UnknownEnd {
        /// Minimum number of missing messages.
        least: u64,
        /// The count of the client.
        lost: u64,
    },
    /// The message was received before, or is older than a received one.
    Repeated {
        value: u64,
        /// The value of the newest message before it.
        newest: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uncounted { least, most, lost } if least == most => {
                write!(f, "gap {least} messages are missing, and lost counts {lost}")
            }
            Self::Uncounted { least, most, lost } => {
                write!(f, "gap {least} to {most} messages are missing, and lost counts {lost}")
            }
            Self::UnknownEnd { least, lost } => {
                write!(f, "end of a stream unknown: {least} messages are missing, and lost counts {lost}")
            }
            Self::Repeated { value, newest } => write!(f, "repeated {value:#x} came after {newest:#x}"),
        }
    }
}

/// The account of one subscription: received and lost messages must add up to the sent ones.
pub struct Account {
    ledger: Ledger,
    /// The value of the newest received message.
    newest: Option<u64>,
    pub received: u64,
    /// Number of messages that the client has counted as lost.
    pub lost: u64,
}

impl Account {
    /// Returns the account of a new subscription to the stream of a ledger.
    pub fn new(ledger: Ledger) -> Self {
        Self { ledger, newest: None, received: 0, lost: 0 }
    }

    /// Notes that a new subscription begins: with any message.
    pub fn begin(&mut self) {
        self.newest = None;
    }

    /// Enters a message and the number of messages that the client has lost before it.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn enter(&mut self, value: u64, lost: u64) -> Result<(), Fault> {
        self.received += 1;
        let Some(newest) = self.newest.replace(value.max(self.newest.unwrap_or(0))) else { return Ok(()) };
        self.lost += lost;
        if value <= newest {
            return Err(Fault::Repeated { value, newest });
        }
        let ((epoch, number), (before, last)) = (parts(value), parts(newest));
        let (mut least, mut most) = (number, number);
        if epoch == before {
            (least, most) = (number - last - 1, number - last - 1);
        } else {
            let ended = std::iter::once(before).chain(self.ledger.between(before, epoch));
            for of in ended {
                let Sent { sent, begun } = self.ledger.read(of);
                let received = if of == before { last + 1 } else { 0 };
                least += sent.saturating_sub(received);
                most += begun.saturating_sub(received);
            }
        }
        match lost {
            _ if (least..=most).contains(&lost) => Ok(()),
            _ if epoch != before && (number..least).contains(&lost) => Err(Fault::UnknownEnd { least, lost }),
            _ => Err(Fault::Uncounted { least, most, lost }),
        }
    }
}

/// Connects to the daemon at a socket, as soon as it is possible.
fn connect(socket: &Path, label: &str) -> Client {
    loop {
        match Client::builder().socket(socket).label(label).request_timeout(Duration::from_secs(1)).connect() {
            Ok(client) => return client,
            Err(_) => std::thread::sleep(ATTEMPT),
        }
    }
}

/// `produce SOCKET NODE FOLDER`, `subscribe SOCKET NODE STREAM FOLDER` or `read SOCKET NODE`: works until it is
/// killed. Prints a line for each fault, and regularly its counts.
///
/// # Panics
/// On errors that no fault of another process explains.
pub fn run(arguments: &[String]) -> Option<()> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["produce", socket, node, folder] => {
            let process = std::env::var(STARTS).ok()?.parse().ok()?;
            produce(Path::new(socket), node, process, Path::new(folder))
        }
        ["subscribe", socket, node, stream, folder] => {
            subscribe(Path::new(socket), node, stream, Account::new(Ledger::new(Path::new(folder), node, stream)))
        }
        ["read", socket, node] => read(Path::new(socket), node),
        _ => None,
    }
}

/// Sends messages and publishes tensors with increasing numbers. A client whose operation has an unknown result is replaced,
/// and a new epoch begins.
fn produce(socket: &Path, node: &str, process: u64, folder: &Path) -> ! {
    let ledgers = STREAMS.map(|(name, _)| Ledger::new(folder, node, name));
    for client in 0.. {
        assert!(client < CLIENTS_MAX, "a producer connects again and again");
        let epoch = process * CLIENTS_MAX + client;
        match produce_with(&connect(socket, "producer"), &ledgers, epoch) {
            Ok(never) => match never {},
            Err(error) => println!("replaced {error}"),
        }
    }
    unreachable!("the loop above has no end")
}

fn produce_with(client: &Client, ledgers: &[Ledger], epoch: u64) -> Result<std::convert::Infallible, Error> {
    let open = |(name, policy)| client.stream(name).capacity(16).policy(policy).open();
    let streams: Vec<Stream> = STREAMS.into_iter().map(open).collect::<Result<_, _>>()?;
    let mut sent = vec![0; streams.len()];
    for turn in 0.. {
        for ((stream, ledger), sent) in streams.iter().zip(ledgers).zip(&mut sent) {
            ledger.write(epoch, Sent { sent: *sent, begun: *sent + 1 });
            let message = filled(client, epoch << NUMBER_BITS | *sent)?;
            match stream.send_timeout(message, TURN) {
                Ok(_) => *sent += 1,
                // A slow subscriber holds up this stream only.
                Err(Error::Timeout { .. }) => {}
                Err(error) => return Err(error),
            }
            ledger.write(epoch, Sent { sent: *sent, begun: *sent });
        }
        put(client, &format!("across/{}", turn % TENSORS), epoch << NUMBER_BITS | turn)?;
        std::thread::sleep(TURN);
    }
    unreachable!("the loop above has no end")
}

/// Returns true if a subscription or a client continues after an error.
fn is_passing(error: &Error) -> bool {
    matches!(
        error,
        Error::Timeout { .. }
            | Error::StreamEnded(_)
            | Error::NotFound(_)
            | Error::NoSuch { .. }
            | Error::Remote { .. }
            | Error::Disconnected { .. }
            | Error::NotAnswering { .. }
            | Error::NoDaemon { .. }
    )
}

/// Receives the messages of a node's stream, and checks that none is missing without a count.
fn subscribe(socket: &Path, node: &str, stream: &str, mut account: Account) -> ! {
    let name = format!("{node}/{stream}");
    let (mut reported, mut heard) = (Instant::now(), Instant::now());
    loop {
        let client = connect(socket, "subscriber");
        let Ok(mut messages) = client.subscription(&name).start_at(Start::Oldest).wait(ATTEMPT).open() else {
            std::thread::sleep(ATTEMPT);
            continue;
        };
        account.begin();
        loop {
            if reported.elapsed() > REPORT {
                reported = Instant::now();
                println!("count {} {}", account.received, account.lost);
            }
            let message = match messages.recv_timeout(ATTEMPT) {
                Ok(message) => message,
                Err(Error::Timeout { .. }) => continue,
                Err(error) if is_passing(&error) => {
                    std::thread::sleep(ATTEMPT / 10);
                    continue;
                }
                Err(error) => break println!("replaced {error}"),
            };
            let silence = heard.elapsed().as_millis();
            heard = Instant::now();
            match message.tensor().map_err(|error| error.to_string()).and_then(filled::value) {
                Ok(value) => {
                    if let Err(fault) = account.enter(value, message.lost()) {
                        println!("{fault} (message {:?}, {silence} ms after the one before it)", parts(value));
                    }
                }
                Err(torn) => println!("wrong {torn}"),
            }
        }
    }
}

/// Reads the tensors of a node, and checks that each is as new as the one that this process read before.
fn read(socket: &Path, node: &str) -> ! {
    let mut newest = [0; TENSORS as usize];
    let (mut reported, mut reads) = (Instant::now(), 0_u64);
    loop {
        let client = connect(socket, "reader");
        for turn in 0.. {
            let at = (turn % TENSORS) as usize;
            if reported.elapsed() > REPORT {
                reported = Instant::now();
                println!("count {reads} 0");
            }
            let lease = match client.get(&format!("{node}/across/{at}")) {
                Ok(lease) => lease,
                Err(error) if is_passing(&error) => {
                    std::thread::sleep(ATTEMPT / 10);
                    continue;
                }
                Err(error) => {
                    println!("replaced {error}");
                    break;
                }
            };
            reads += 1;
            match filled::value(&lease) {
                Ok(value) if value < newest[at] => {
                    println!("older {:?} came after {:?} of tensor {at}", parts(value), parts(newest[at]));
                }
                Ok(value) => newest[at] = value,
                Err(torn) => println!("wrong {torn}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: u64 = 7 * CLIENTS_MAX;

    fn account(folder: &Path) -> Account {
        let ledger = || Ledger::new(folder, "a", STREAMS[0].0);
        ledger().write(EPOCH, Sent { sent: 10, begun: 11 });
        ledger().write(EPOCH + 1, Sent { sent: 5, begun: 5 });
        ledger().write(EPOCH + CLIENTS_MAX, Sent { sent: 100, begun: 100 });
        Ledger::new(folder, "a", STREAMS[1].0).write(EPOCH + 1, Sent { sent: 1000, begun: 1000 });
        let mut account = Account::new(ledger());
        account.begin();
        account
    }

    fn value(epoch: u64, number: u64) -> u64 {
        epoch << NUMBER_BITS | number
    }

    #[test]
    fn what_is_received_and_lost_adds_up() {
        let folder = tempfile::tempdir().unwrap();
        let mut account = account(folder.path());
        assert_eq!(account.enter(value(EPOCH, 3), 1), Ok(()));
        assert_eq!(account.enter(value(EPOCH, 4), 0), Ok(()));
        assert_eq!(account.enter(value(EPOCH, 7), 2), Ok(()));
        assert_eq!(account.enter(value(EPOCH, 9), 0), Err(Fault::Uncounted { least: 1, most: 1, lost: 0 }));
        assert_eq!(account.enter(value(EPOCH, 10), 1), Err(Fault::Uncounted { least: 0, most: 0, lost: 1 }));
        assert_eq!((account.received, account.lost), (5, 3));
    }

    #[test]
    fn the_end_of_an_epoch_is_accounted_for() {
        // Messages 8 and 9 are missing, perhaps message 10 that the killed producer had begun, all five of the next client,
        // and the first two of the next process.
        let (unknown, wrong) = (Some(true), Some(false));
        for (lost, fault) in [(1, wrong), (2, unknown), (8, unknown), (9, None), (10, None), (11, wrong)] {
            let folder = tempfile::tempdir().unwrap();
            let mut account = account(folder.path());
            account.enter(value(EPOCH, 7), 0).unwrap();
            let entered = account.enter(value(EPOCH + CLIENTS_MAX, 2), lost);
            let is_unknown = |fault: &Fault| matches!(fault, Fault::UnknownEnd { .. });
            assert_eq!(entered.as_ref().err().map(is_unknown), fault, "{lost}: {entered:?}");
        }
    }

    #[test]
    fn repeated_and_older_messages_are_faults() {
        let folder = tempfile::tempdir().unwrap();
        let mut account = account(folder.path());
        account.enter(value(EPOCH + 1, 3), 0).unwrap();
        for older in [value(EPOCH + 1, 3), value(EPOCH + 1, 2), value(EPOCH, 9)] {
            assert!(matches!(account.enter(older, 0), Err(Fault::Repeated { .. })));
        }
    }
}
