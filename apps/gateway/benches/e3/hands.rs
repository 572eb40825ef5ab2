//! The work of one process: a client of the application, a producer, or the consumer.

use super::plain::Plain;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;
use tensorlend::{Client, Value};
use tensorlend_benches::datasets::{self, sum};
use tensorlend_benches::placement;
use tensorlend_benches::resp::Connection;
use tensorlend_benches::stats::{now_ns, timed};
use tensorlend_benches::worker::{Role, wait_until};

const LIST: &str = "datasets";
/// The node whose values the contenders fetch.
const THERE: &str = "n1";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Contender {
    /// A copy over plain TCP.
    Plain,
    Ours,
    Redis,
    /// Redis with client and server on the same core.
    RedisOneCore,
    /// Redis, with this many requests sent before the client reads the first reply.
    Pipelined(usize),
}

impl Contender {
    /// Returns the contenders that put and unpack arrays.
    pub fn of_exchange(redis: bool, alone: bool) -> Vec<Self> {
        let all = [Self::Plain, Self::Ours, Self::Redis, Self::RedisOneCore];
        let takes_part = |one: &Self| match one {
            Self::Redis => redis,
            Self::RedisOneCore => redis && alone,
            _ => true,
        };
        all.into_iter().filter(takes_part).collect()
    }

    /// Returns the contenders that fetch lists.
    pub fn of_lists(redis: bool) -> Vec<Self> {
        let all = [Self::Plain, Self::Ours, Self::Pipelined(1), Self::Pipelined(64), Self::Pipelined(4096)];
        all.into_iter().filter(|one| redis || !matches!(one, Self::Pipelined(_))).collect()
    }

    pub fn label(self) -> &'static str {
        match self {
            Self::Plain => "plain TCP (floor)",
            Self::Ours => "tensorlend",
            Self::Redis => "Redis",
            Self::RedisOneCore => "Redis, one core",
            Self::Pipelined(1) => "Redis, one by one",
            Self::Pipelined(64) => "Redis, 64 at once",
            Self::Pipelined(_) => "Redis, all at once",
        }
    }

    /// Returns true if the contender has lists. A plain copy has only bytes.
    pub fn has_list(self) -> bool {
        self != Self::Plain
    }
}

/// A task for a process.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub enum Order {
    /// Put and unpack an array. The reply is [`Times`].
    Exchange { contender: Contender, bytes: usize, calls: u32, start_ns: u64 },
    /// Append this number of datasets. The reply is `true`.
    Append { contender: Contender, datasets: usize, bytes: usize },
    /// Poll the list's length until it is `datasets`. The reply is `true`.
    Poll { contender: Contender, datasets: usize },
    /// Fetch all datasets of the list. The reply is [`Collected`].
    Collect { contender: Contender, datasets: usize, bytes: usize },
    /// Delete the list. The reply is `true`.
    Clear { contender: Contender },
}

/// Times of each put and of each unpack, in nanoseconds.
#[derive(Default, Serialize, Deserialize)]
pub struct Times {
    pub put: Vec<f64>,
    pub unpack: Vec<f64>,
}

/// Nanoseconds until the consumer has read every byte, and the sum over all values, which proves it.
#[derive(Serialize, Deserialize)]
pub struct Collected {
    pub ns: f64,
    pub sum: u64,
}

/// Addresses of the brokers and servers.
#[derive(Clone, Serialize, Deserialize)]
pub struct Places {
    /// Socket of the broker on the process's own host.
    pub broker: PathBuf,
    pub plain: SocketAddr,
    pub redis: Option<SocketAddr>,
    pub redis_one_core: Option<SocketAddr>,
}

struct Hands {
    number: usize,
    client: Client,
    plain: Plain,
    redis: Option<Connection<TcpStream>>,
    redis_one_core: Option<Connection<TcpStream>>,
    /// Destination of the arrays that are fetched over sockets.
    memory: Vec<f32>,
    appended: usize,
}

/// Connects to a server, and retries because a server that was just started does not listen yet.
fn patiently<T>(what: &str, mut open: impl FnMut() -> io::Result<T>) -> T {
    for _ in 0..500 {
        if let Ok(there) = open() {
            return there;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} did not come up within 5 s")
}

/// Runs the process's loop: receives orders and sends the replies.
pub fn work(mut role: Role) {
    let places: Places = serde_json::from_str(&role.args[0]).expect("plain values");
    let redis = |at: Option<SocketAddr>| at.map(|at| patiently("redis-server", || Connection::open_tcp(at)));
    let mut hands = Hands {
        number: role.args[1].parse().expect("a number"),
        client: Client::builder().socket(&places.broker).connect().expect("a client connects"),
        plain: patiently("the plain server", || Plain::open(places.plain)),
        redis: redis(places.redis),
        redis_one_core: redis(places.redis_one_core),
        memory: Vec::new(),
        appended: 0,
    };
    let cores = placement::cores();
    while let Some(order) = role.order::<Order>() {
        match order {
            Order::Exchange { contender, bytes, calls, start_ns } => {
                let one_core = contender == Contender::RedisOneCore;
                placement::pin(if one_core { &cores[..1] } else { &cores });
                wait_until(start_ns);
                role.answer(&hands.exchange(contender, bytes, calls));
            }
            Order::Append { contender, datasets, bytes } => {
                let arrays: Vec<Vec<f32>> = (0..4).map(|t| vec![t as f32 + 1.0; bytes / 4]).collect();
                (0..datasets).for_each(|_| hands.append(contender, &arrays));
                role.answer(&true);
            }
            Order::Poll { contender, datasets } => {
                while hands.length(contender) != datasets as u64 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                role.answer(&true);
            }
            Order::Collect { contender, datasets, bytes } => {
                // Allocate the memory before the timed part, as a consumer that fetches in a loop has done.
                hands.memory.resize(datasets * bytes, 0.0);
                role.answer(&hands.collect(contender, datasets, bytes / 4));
            }
            Order::Clear { contender } => {
                hands.clear(contender);
                role.answer(&true);
            }
        }
    }
}

impl Hands {
    fn exchange(&mut self, contender: Contender, bytes: usize, calls: u32) -> Times {
        let mut source = vec![1.0_f32; bytes / 4];
        let mut target = vec![0.0_f32; bytes / 4];
        let mut times = Times::default();
        for call in 0..calls {
            // Each put has a different value, so the check below detects a contender that returns an old one.
            source[0] = (call + 2) as f32;
            times.put.push(timed(1, || self.put(contender, &source)));
            times.unpack.push(timed(1, || self.unpack(contender, &mut target)));
            assert!(contender == Contender::Plain || target == source, "{contender:?} gave another tensor");
        }
        times
    }

    fn redis(&mut self, contender: Contender) -> &mut Connection<TcpStream> {
        let one_core = contender == Contender::RedisOneCore;
        let server = if one_core { &mut self.redis_one_core } else { &mut self.redis };
        server.as_mut().expect("asked only if there is one")
    }

    fn put(&mut self, contender: Contender, source: &[f32]) {
        let bytes = bytemuck::cast_slice(source);
        match contender {
            Contender::Plain => self.plain.put(bytes).expect("bytes are sent"),
            Contender::Ours => {
                self.client.remote().put(&format!("{THERE}/client/{}", self.number), source).expect("put_remote");
            }
            _ => {
                let key = format!("client/{}", self.number);
                self.redis(contender).set(&key, bytes).expect("SET");
            }
        }
    }

    fn unpack(&mut self, contender: Contender, target: &mut [f32]) {
        let bytes = bytemuck::cast_slice_mut(target);
        match contender {
            Contender::Plain => self.plain.get_into(bytes).expect("bytes come"),
            Contender::Ours => {
                self.client.get_into(&format!("{THERE}/client/{}", self.number), bytes).expect("get_into");
            }
            _ => {
                let key = format!("client/{}", self.number);
                self.redis(contender).get_into(&key, bytes).expect("GET");
            }
        }
    }

    /// Runs on the database's host.
    fn append(&mut self, contender: Contender, arrays: &[Vec<f32>]) {
        self.appended += 1;
        if contender == Contender::Ours {
            datasets::append(&self.client, LIST, arrays).expect("append");
            return;
        }
        let key = format!("{{{LIST}}}/{}/{}", self.number, self.appended);
        self.redis(contender).append(LIST, &key, arrays).expect("appended");
    }

    fn length(&mut self, contender: Contender) -> u64 {
        if contender == Contender::Ours {
            // Read the length from a listing: fetching the list would do the work that is timed later.
            let found = self.client.remote().names(&format!("{THERE}/{LIST}")).expect("a listing");
            return found.names.first().map_or(0, |list| list.size);
        }
        self.redis(contender).length(LIST).expect("a length")
    }

    fn collect(&mut self, contender: Contender, datasets: usize, elements: usize) -> Collected {
        let start = now_ns();
        let sum = match contender {
            Contender::Ours => self.collect_ours(datasets),
            Contender::Pipelined(batch) => self.collect_redis(datasets, elements, batch).expect("all datasets"),
            _ => {
                let mut memory = std::mem::take(&mut self.memory);
                self.plain.get_into(bytemuck::cast_slice_mut(&mut memory)).expect("bytes come");
                let sum = memory.chunks(elements).map(sum).fold(0, u64::wrapping_add);
                self.memory = memory;
                sum
            }
        };
        Collected { ns: (now_ns() - start) as f64, sum }
    }

    fn collect_ours(&self, datasets: usize) -> u64 {
        let list = format!("{THERE}/{LIST}");
        assert_eq!(self.client.remote().fetch_list(&list).expect("the list"), datasets as u64);
        // The number of leases of one client is limited, so the consumer leases at most 1024 items at once.
        let mut total = 0_u64;
        for first in (0..datasets as u64).step_by(1024) {
            let values: Vec<Value> = self.client.get_range(&list, first..first + 1024).expect("items");
            let tensors = values.iter().flat_map(|value| value.as_dataset().expect("a dataset").iter());
            let part = tensors.map(|(_, tensor)| sum(tensor.as_slice().expect("float32"))).fold(0, u64::wrapping_add);
            total = total.wrapping_add(part);
        }
        total
    }

    fn collect_redis(&mut self, datasets: usize, elements: usize, batch: usize) -> io::Result<u64> {
        let mut memory = std::mem::take(&mut self.memory);
        let redis = self.redis.as_mut().expect("asked only if there is one");
        let keys = redis.collect(LIST, &mut memory, elements, batch)?;
        assert_eq!(keys.len(), datasets);
        let sum = memory.chunks(elements).map(sum).fold(0, u64::wrapping_add);
        self.memory = memory;
        Ok(sum)
    }

    /// Runs on the database's host.
    fn clear(&mut self, contender: Contender) {
        if contender == Contender::Ours {
            assert!(self.client.clear(LIST).expect("clear"));
            return;
        }
        let redis = self.redis(contender);
        redis.send(&[b"FLUSHALL"]).and_then(|()| redis.line()).expect("FLUSHALL");
    }
}
