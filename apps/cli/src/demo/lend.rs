//! Exchanges through tensorlend, with the same timestamps as the baselines.
//!
//! At t0 the producer begins to write the tensor. At t1 its call has returned. At t2 the consumer has
//! read every byte of the tensor. At t3 the producer has the acknowledgement. put = t1 - t0, get =
//! t2 - t1 (or 0), and round trip = t3 - t0. The acknowledgement is a tensor of 16 bytes that the
//! consumer puts, at its usual cost.

use super::children::Peer;
use super::table::Method;
use super::{TIMEOUT, connect, socket_argument};
use std::error::Error;
use std::path::Path;
use tensorlend::{Client, DType, Version};
use tensorlend_baselines::{read_all, write_all};
use tensorlend_os::clock::monotonic_ns;

/// The stamp of a message that stops the consumer.
const OVER: u64 = u64::MAX;

/// Measured times of one batch, in nanoseconds.
#[derive(Default)]
pub struct Samples {
    /// Time from the start until the producer's call returned.
    pub put: Vec<u64>,
    /// Time from that return until the consumer had read the tensor.
    pub get: Vec<u64>,
    /// Time from the start until the producer had the acknowledgement.
    pub round_trip: Vec<u64>,
}

/// A producer and its consumer, for tensors of one size.
pub struct Lender {
    client: Client,
    consumer: Peer,
    /// The array that the producer copies into each tensor, if the method copies.
    own: Option<Vec<u8>>,
    bytes: u64,
    names: Names,
    acknowledged: Version,
    round: u64,
}

struct Names {
    tensor: String,
    answer: String,
}

impl Names {
    fn new(tag: &str) -> Self {
        Self { tensor: format!("demo/race/{tag}"), answer: format!("demo/race/{tag}/answer") }
    }
}

impl Lender {
    /// Starts the consumer, and passes three untimed tensors. They warm the three slots that
    /// alternate: the current value's, the next value's, and a retired one.
    pub fn start(socket: Option<&Path>, bytes: u64, method: Method) -> Result<Self, Box<dyn Error>> {
        let socket = socket_argument(socket);
        let tag = format!("{}-{bytes}-{}", method.name(), std::process::id());
        let consumer = Peer::spawn(&["lend".to_owned(), socket.clone(), tag.clone()], false)?;
        let client = connect(&socket, "demo race")?;
        let own = if method == Method::Lend { None } else { Some(vec![0; usize::try_from(bytes)?]) };
        let names = Names::new(&tag);
        let mut it = Self { client, consumer, own, bytes, names, acknowledged: Version::NONE, round: 0 };
        for _ in 0..3 {
            it.lap()?;
        }
        Ok(it)
    }

    /// Performs one exchange. Returns the times of its put, of its get and of the round trip.
    fn lap(&mut self) -> Result<[u64; 3], Box<dyn Error>> {
        self.round += 1;
        let t0 = monotonic_ns();
        if let Some(own) = &mut self.own {
            write_all(own, self.round);
        }
        let mut draft = self.client.create(DType::U8, &[self.bytes])?;
        match &self.own {
            Some(own) => draft.bytes_mut().copy_from_slice(own),
            None => write_all(draft.bytes_mut(), self.round),
        }
        draft.set_metadata(&self.round.to_le_bytes())?;
        draft.publish(&self.names.tensor)?;
        let t1 = monotonic_ns();
        let answer = self.client.wait_newer(&self.names.answer, self.acknowledged, Some(TIMEOUT))?;
        let t3 = monotonic_ns();
        self.acknowledged = answer.version();
        let [t2, seen] = answer.as_slice::<u64>()? else {
            return Err("the consumer's acknowledgement is damaged".into());
        };
        if *seen != self.round {
            return Err(format!("the consumer saw exchange {seen}, not {}: its bytes were wrong", self.round).into());
        }
        Ok([t1 - t0, t2.saturating_sub(t1), t3 - t0])
    }

    /// Runs `rounds` timed exchanges, and adds their times to `samples`.
    pub fn run(&mut self, rounds: usize, samples: &mut Samples) -> Result<(), Box<dyn Error>> {
        for _ in 0..rounds {
            let [put, get, round_trip] = self.lap()?;
            samples.put.push(put);
            samples.get.push(get);
            samples.round_trip.push(round_trip);
        }
        Ok(())
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        // Stop the consumer, and delete the names.
        if !self.consumer.is_gone() {
            let _ = self.client.put(&self.names.tensor, &[OVER]);
            let _ = self.client.wait_newer(&self.names.answer, self.acknowledged, Some(TIMEOUT / 10));
        }
        let _ = self.client.delete(&self.names.tensor);
        let _ = self.client.delete(&self.names.answer);
    }
}

/// Runs the consumer in this process, until the producer stops it.
pub fn serve(args: &[String]) -> Result<(), Box<dyn Error>> {
    let [socket, tag] = args else { return Err("lend needs a socket and a tag".into()) };
    let client = connect(socket, "demo race consumer")?;
    let names = Names::new(tag);
    let mut seen = Version::NONE;
    loop {
        let lease = client.wait_newer(&names.tensor, seen, Some(TIMEOUT * 2))?;
        seen = lease.version();
        if lease.dtype() == DType::U64 {
            client.put(&names.answer, &[monotonic_ns(), OVER])?;
            return Ok(());
        }
        let number = u64::from_le_bytes(lease.metadata().try_into()?);
        let found = if read_all(lease.bytes(), number).is_ok() { number } else { 0 };
        let t2 = monotonic_ns();
        // Drop the lease before the acknowledgement, so that the producer finds the slot free.
        drop(lease);
        client.put(&names.answer, &[t2, found])?;
    }
}
