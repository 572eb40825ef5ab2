//! The producer and the consumer: each executes orders, and the producer measures the time.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensorlend::{Client, DType, DeviceLease, On, Stream, Subscription, Value, Version};
use tensorlend_benches::gpu::{Card, Pinned};
use tensorlend_benches::shm::{Mailbox, pause};
use tensorlend_benches::stats::now_ns;
use tensorlend_benches::worker::Role;
use tensorlend_cuda::{Access, Allocation, Mapping};

/// The method of the hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// Memory that both have mapped, and a word.
    Floor,
    Stream,
    Name,
    /// A name, published before the work is done: the consumer's stream waits.
    Early,
}

impl Way {
    pub const ALL: [Self; 4] = [Self::Floor, Self::Stream, Self::Name, Self::Early];

    pub fn label(self) -> &'static str {
        match self {
            Self::Floor => "mapped by both (floor)",
            Self::Stream => "tensorlend, stream",
            Self::Name => "tensorlend, name",
            Self::Early => "tensorlend, name, early",
        }
    }
}

#[derive(Serialize, Deserialize)]
pub enum Order {
    Ready { way: Way },
    Turns { way: Way, bytes: u64, rounds: u32 },
    HostCopies { bytes: u64, rounds: u32 },
    DeviceCopies { bytes: u64, rounds: u32 },
    Publish { socket: PathBuf, name: String, bytes: u64 },
    Lease { socket: PathBuf, name: String },
    Leave,
}

/// One round, by the clock that both processes share.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Turn {
    pub begin: f64,
    pub published: f64,
    pub got: f64,
    pub done: f64,
    pub seen: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Copied {
    pub from: String,
    pub to: String,
    pub how: String,
    pub ns: Vec<f64>,
}

// Words of the mailbox.
const TURN: usize = 0;
const ANSWER: usize = 1;
const GOT: usize = 2;
const DONE: usize = 3;

const NAME: &str = "handed over";

struct Peer {
    card: Card,
    stream: Arc<cudarc::driver::CudaStream>,
    client: Client,
    mailbox: Mailbox,
    floor: Mapping,
    /// The address of the device memory into which the consumer writes its result.
    out: u64,
    sent: Option<Stream>,
    taken: Option<Subscription>,
    seen: Version,
    turns: u64,
    /// Clients of other daemons.
    clients: BTreeMap<PathBuf, Client>,
}

pub fn work(mut role: Role) {
    let [socket, mailbox, fd, largest] = &role.args[..] else { panic!("four arguments") };
    let (fd, largest): (i32, u64) = (fd.parse().expect("a number"), largest.parse().expect("a number"));
    let card = Card::open().expect("there is a device");
    card.context().bind_to_thread().expect("the context lives");
    // SAFETY: inherited under this number, and never closed.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let allocation = Allocation::import(fd).expect("the floor's memory");
    let access = if role.name == "producer" { Access::ReadWrite } else { Access::Read };
    let mut peer = Peer {
        stream: card.stream(),
        client: connect(Path::new(socket)),
        mailbox: Mailbox::open(Path::new(mailbox)).expect("a mailbox"),
        floor: Mapping::map(&allocation, largest, &card.device, access).expect("it can be mapped"),
        out: card.allocate(largest),
        sent: None,
        taken: None,
        seen: Version::NONE,
        turns: 0,
        clients: BTreeMap::new(),
        card,
    };
    let producer = role.name == "producer";
    while let Some(order) = role.order::<Order>() {
        match order {
            Order::Ready { way } => role.answer(&peer.ready(way, producer)),
            Order::Turns { way, bytes, rounds } if producer => role.answer(&peer.produce(way, bytes, rounds)),
            Order::Turns { way, bytes, rounds } => role.answer(&peer.consume(way, bytes, rounds)),
            Order::HostCopies { bytes, rounds } => role.answer(&peer.host_copies(bytes, rounds)),
            Order::DeviceCopies { bytes, rounds } => role.answer(&peer.device_copies(bytes, rounds)),
            Order::Publish { socket, name, bytes } => role.answer(&peer.publish(&socket, &name, bytes)),
            Order::Lease { socket, name } => role.answer(&peer.lease(&socket, &name)),
            Order::Leave => {
                peer.clients.clear();
                role.answer(&());
            }
        }
    }
}

fn connect(socket: &Path) -> Client {
    Client::builder().socket(socket).connect().expect("a client connects")
}

fn now() -> f64 {
    now_ns() as f64
}

fn on_device(value: Value) -> DeviceLease {
    match value {
        Value::Device(lease) => lease,
        other => panic!("not on a device: {other:?}"),
    }
}

impl Peer {
    fn on(&self) -> On {
        On::from(self.card.device.uuid())
    }

    fn ready(&mut self, way: Way, producer: bool) {
        if way != Way::Stream {
            return;
        }
        if producer {
            self.sent.get_or_insert_with(|| self.client.stream("hand over").capacity(2).open().expect("a stream"));
        } else {
            self.taken.get_or_insert_with(|| self.client.subscribe("hand over").expect("a subscription"));
        }
    }

    /// Produces tensors whose elements contain the number of the turn.
    fn produce(&mut self, way: Way, bytes: u64, rounds: u32) -> Vec<Turn> {
        let elements = bytes / 4;
        let mut turns = Vec::new();
        for _ in 0..=rounds {
            self.turns += 1;
            let number = self.turns;
            let begin = now();
            if way == Way::Floor {
                self.card.fill(&self.stream, self.floor.ptr(), elements, number as u32);
                self.stream.synchronize().expect("the work goes well");
            } else {
                let draft = self.client.create_on_stream(self.on(), &self.stream, DType::U32, &[elements]);
                let draft = draft.expect("the device has room");
                self.card.fill(&self.stream, draft.ptr(), elements, number as u32);
                match way {
                    Way::Stream => {
                        self.sent.as_ref().expect("open").send(draft).expect("it is sent");
                    }
                    Way::Name => {
                        draft.publish(NAME).expect("it is published");
                    }
                    _ => {
                        draft.publish_early(NAME, &self.stream).expect("it is published");
                    }
                }
            }
            let published = now();
            self.mailbox.tell(TURN, number);
            self.mailbox.wait(ANSWER, number);
            let seen = now();
            let [got, done] =
                [GOT, DONE].map(|at| self.mailbox.word(at).load(std::sync::atomic::Ordering::Acquire) as f64);
            turns.push(Turn { begin, published, got, done, seen });
        }
        turns
    }

    fn consume(&mut self, way: Way, bytes: u64, rounds: u32) {
        let elements = bytes / 4;
        for _ in 0..=rounds {
            self.turns += 1;
            let number = self.turns;
            let lease = self.receive(way, number);
            let got = now_ns();
            if way == Way::Early {
                lease.as_ref().expect("one").wait(&self.stream).expect("the producer lives");
            }
            let from = lease.as_ref().map_or(self.floor.ptr(), |lease| lease.ptr());
            self.card.add(&self.stream, self.out, (from, from), elements);
            let sum = self.card.element(&self.stream, self.out + (elements - 1) * 4);
            let done = now_ns();
            assert_eq!(sum, 2 * number as u32, "what was handed over is not what was made: {way:?}, {bytes} bytes");
            drop(lease);
            self.mailbox.tell(GOT, got);
            self.mailbox.tell(DONE, done);
            self.mailbox.tell(ANSWER, number);
        }
    }

    /// Polls, as the floor does.
    fn receive(&mut self, way: Way, number: u64) -> Option<DeviceLease> {
        for turn in 1.. {
            match way {
                Way::Floor => {
                    self.mailbox.wait(TURN, number);
                    return None;
                }
                Way::Stream => {
                    let taken = self.taken.as_mut().expect("subscribed");
                    if let Some(message) = taken.try_recv().expect("the stream is there") {
                        return Some(on_device(message.into_value()));
                    }
                }
                Way::Name | Way::Early => {
                    if let Ok(lease) = self.client.get_device_early(NAME)
                        && lease.version() != self.seen
                    {
                        self.seen = lease.version();
                        return Some(lease);
                    }
                }
            }
            // Polling a name takes as long as polling a word many times.
            pause(if way == Way::Stream { turn } else { turn * 64 });
        }
        unreachable!("it polls until there is something")
    }

    fn timed(rounds: u32, mut copy: impl FnMut()) -> Vec<f64> {
        copy();
        let once = |_| {
            let begin = now();
            copy();
            now() - begin
        };
        (0..rounds).map(once).collect()
    }

    fn host_copies(&self, bytes: u64, rounds: u32) -> Vec<Copied> {
        let (card, stream, on) = (&self.card, &self.stream, self.on());
        let wait = || stream.synchronize().expect("a copy ends");
        let mut all = Vec::new();
        let mut note = |from: &str, to: &str, how: &str, ns| {
            all.push(Copied { from: from.into(), to: to.into(), how: how.into(), ns });
        };
        let mut plain = vec![1_u8; bytes as usize];
        let mut pinned = Pinned::new(card, bytes as usize);
        let mut slot = self.client.create(DType::U8, &[bytes]).expect("host memory");
        slot.bytes_mut().fill(1);
        let locked = slot.page_lock(on);
        let ours = if locked.is_ok() { "slot, page-locked" } else { "slot, could not be page-locked" };
        let mut draft = self.client.create_on(on, DType::U8, &[bytes]).expect("the device has room");

        let into = |from: &[u8]| {
            card.copy_in(stream, self.out, from);
            wait();
        };
        note("heap", "device", "driver", Self::timed(rounds, || into(&plain)));
        note("pinned by the driver", "device", "driver", Self::timed(rounds, || into(pinned.bytes())));
        note(ours, "device", "driver", Self::timed(rounds, || into(slot.bytes_mut())));
        let put = Self::timed(rounds, || draft.copy_from_bytes(&plain).expect("a copy"));
        note("heap", "draft", "tensorlend", put);

        let out = |to: &mut [u8]| {
            card.copy_out(stream, to, self.out);
            wait();
        };
        note("device", "heap", "driver", Self::timed(rounds, || out(&mut plain)));
        note("device", "pinned by the driver", "driver", Self::timed(rounds, || out(pinned.bytes())));
        note("device", ours, "driver", Self::timed(rounds, || out(slot.bytes_mut())));
        draft.publish("copies").expect("it is published");
        let lease = self.client.get_device("copies").expect("published above");
        let got = Self::timed(rounds, || lease.copy_to_bytes(&mut plain).expect("a copy"));
        note("lease", "heap", "tensorlend", got);
        all
    }

    /// Measures copies of another process's tensor, through the consumer's own mapping.
    fn device_copies(&self, bytes: u64, rounds: u32) -> Vec<Copied> {
        let (card, stream) = (&self.card, &self.stream);
        let lease = self.client.get_device("copies").expect("published by the producer");
        let own = card.allocate(bytes);
        let copy = |from: u64| {
            Self::timed(rounds, || {
                card.copy_on(stream, self.out, from, bytes);
                stream.synchronize().expect("a copy ends");
            })
        };
        let (plain, lent) = (copy(own), copy(lease.ptr()));
        card.free(own);
        let copied = |from: &str, how: &str, ns| Copied { from: from.into(), to: "device".into(), how: how.into(), ns };
        vec![copied("device", "driver, one process", plain), copied("lease, another process's", "driver", lent)]
    }

    /// Returns the nanoseconds of a draft of a whole segment, which is published, and of a second draft, which is
    /// dropped.
    fn publish(&mut self, socket: &Path, name: &str, bytes: u64) -> [f64; 2] {
        let on = self.on();
        let client = self.clients.entry(socket.to_owned()).or_insert_with(|| connect(socket));
        let begin = now();
        let draft = client.create_on_stream(on, &self.stream, DType::U8, &[bytes]).expect("the device has room");
        let created = now() - begin;
        self.card.fill(&self.stream, draft.ptr(), bytes / 4, 1);
        draft.publish(name).expect("it is published");
        // The first small draft requests a segment, in which the next one fits.
        let small = || client.create_on_stream(on, &self.stream, DType::U8, &[1024]).expect("the device has room");
        let _first = small();
        let begin = now();
        let _second = small();
        [created, now() - begin]
    }

    fn lease(&mut self, socket: &Path, name: &str) -> Vec<f64> {
        let client = self.clients.entry(socket.to_owned()).or_insert_with(|| connect(socket));
        let once = |_| {
            let begin = now();
            let lease = client.get_device(name).expect("published");
            let ns = now() - begin;
            drop(lease);
            ns
        };
        (0..11).map(once).collect()
    }
}
