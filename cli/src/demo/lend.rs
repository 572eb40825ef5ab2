//! Exchanges through tensorlend, with the same timestamps as the baselines.
//!
//! At t0 the producer begins. At t1 its call has returned. At t2 the consumer holds the tensor,
//! which is readable without a further call. At t3 the producer has the acknowledgement. put = t1 -
//! t0, get = t2 - t1 (or 0), and round trip = t3 - t0. The acknowledgement is a tensor of 16 bytes
//! that the consumer puts, at its usual cost.

use super::children::Peer;
use super::table::Method;
use super::{TIMEOUT, connect, socket_argument};
use std::error::Error;
use std::path::Path;
use tensorlend::{Client, DType, Version};
use tensorlend_os::clock::monotonic_ns;
use xxhash_rust::xxh3::xxh3_64;

/// The stamp of a message that stops the consumer.
const OVER: u64 = u64::MAX;

/// Measured times of one batch, in nanoseconds.
#[derive(Default)]
pub struct Samples {
    /// Time from the start until the producer's call returned.
    pub put: Vec<u64>,
    /// Time from that return until the consumer held the tensor.
    pub get: Vec<u64>,
    /// Time from the start until the producer had the acknowledgement.
    pub round_trip: Vec<u64>,
}

/// A producer and its consumer, for tensors of one size.
pub struct Lender {
    client: Client,
    consumer: Peer,
    payload: Vec<u8>,
    bytes: u64,
    method: Method,
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
    /// Starts the consumer, and passes one untimed tensor. This verifies the checksum and warms the
    /// memory of both sides.
    pub fn start(socket: Option<&Path>, bytes: u64, method: Method) -> Result<Self, Box<dyn Error>> {
        let socket = socket_argument(socket);
        let tag = format!("{}-{bytes}-{}", method.name(), std::process::id());
        let consumer = Peer::spawn(&["lend".to_owned(), socket.clone(), tag.clone()], false)?;
        let client = connect(&socket, "demo race")?;
        let mut payload = vec![0; usize::try_from(bytes)?];
        let mut state = bytes;
        for chunk in payload.chunks_mut(8) {
            // Fill with varying bytes, because a constant would hide a wrong offset.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        }
        let names = Names::new(&tag);
        let mut it = Self { client, consumer, payload, bytes, method, names, acknowledged: Version::NONE, round: 0 };
        it.lap(true)?;
        // Two more exchanges warm the three slots that alternate: the current value's, the next
        // value's, and a retired one.
        it.lap(false)?;
        it.lap(false)?;
        if method == Method::Lend {
            // From now on, the producer writes the tensor in place. Only the first exchange needed
            // the producer's own array.
            it.payload = Vec::new();
        }
        Ok(it)
    }

    /// Performs one exchange. Returns the times of its put, of its get and of the round trip.
    fn lap(&mut self, whole: bool) -> Result<[u64; 3], Box<dyn Error>> {
        self.round += 1;
        let stamp = self.round.to_le_bytes();
        let sum = if whole {
            self.payload[..8].copy_from_slice(&stamp);
            xxh3_64(&self.payload)
        } else {
            0
        };
        let (t0, t1);
        if self.method == Method::Lend {
            let begun = monotonic_ns();
            let mut draft = self.client.create(DType::U8, &[self.bytes])?;
            let created = monotonic_ns() - begun;
            // Copy the payload before the clock starts, because writing a tensor costs the same
            // with every method.
            if whole {
                draft.bytes_mut().copy_from_slice(&self.payload);
            }
            draft.bytes_mut()[..8].copy_from_slice(&stamp);
            draft.set_metadata(&sum.to_le_bytes())?;
            t0 = monotonic_ns() - created;
            draft.publish(&self.names.tensor)?;
            t1 = monotonic_ns();
        } else {
            self.payload[..8].copy_from_slice(&stamp);
            t0 = monotonic_ns();
            let mut draft = self.client.create(DType::U8, &[self.bytes])?;
            draft.bytes_mut().copy_from_slice(&self.payload);
            draft.set_metadata(&sum.to_le_bytes())?;
            draft.publish(&self.names.tensor)?;
            t1 = monotonic_ns();
        }
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
            let [put, get, round_trip] = self.lap(false)?;
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
        let t2 = monotonic_ns();
        seen = lease.version();
        let bytes = lease.bytes();
        let mut stamp = u64::from_le_bytes(bytes[..8].try_into()?);
        if stamp == OVER && lease.dtype() == DType::U64 {
            client.put(&names.answer, &[t2, OVER])?;
            return Ok(());
        }
        let sum = u64::from_le_bytes(lease.metadata().try_into()?);
        if sum != 0 && sum != xxh3_64(bytes) {
            stamp = 0;
        }
        // Drop the lease before the acknowledgement, so that the producer finds the slot free.
        drop(lease);
        client.put(&names.answer, &[t2, stamp])?;
    }
}
