//! The two ends of a ping-pong over any carrier.

use std::time::{Duration, Instant};

use crate::meter::each;
use crate::{BaselineError, now_ns};

/// Number of exchanges before the clock starts. They are needed because the responding end has just
/// woken.
const WARM_ROUNDS: u64 = 16;

/// Number of polls before the core is yielded and [`TIMEOUT`] is checked.
const LOOKS: u32 = 4096;

/// Timeout of a single response.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The end that sends first.
    First,
    /// The end that responds.
    Second,
}

/// One end of an exchange, which plays batches.
pub trait Player {
    /// Plays `rounds` exchanges. One of the two ends adds samples, in nanoseconds.
    fn play(&mut self, side: Side, rounds: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError>;
}

/// An end of a ping-pong, in which each end sends a message of the same size.
pub trait PingPong {
    /// Sends a message to the other end.
    fn send(&mut self) -> Result<(), BaselineError>;
    /// Waits for the message of the other end.
    fn receive(&mut self) -> Result<(), BaselineError>;
}

/// A player of a ping-pong. A sample is the mean time of a batch.
pub struct Volley<E> {
    end: E,
    /// The divisor of the round-trip time. It is 2.0 if a sample is one way, and otherwise 1.0.
    parts: f64,
}

impl<E: PingPong> Volley<E> {
    /// Makes a player whose sample is half a round trip.
    pub fn one_way(end: E) -> Self {
        Self { end, parts: 2.0 }
    }

    /// Makes a player whose sample is a round trip.
    pub fn round_trip(end: E) -> Self {
        Self { end, parts: 1.0 }
    }
}

impl<E: PingPong> Player for Volley<E> {
    fn play(&mut self, side: Side, rounds: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError> {
        let end = &mut self.end;
        match side {
            Side::First => {
                for _ in 0..WARM_ROUNDS {
                    end.send()?;
                    end.receive()?;
                }
                let start = Instant::now();
                for _ in 0..rounds {
                    end.send()?;
                    end.receive()?;
                }
                samples_ns.push(each(start.elapsed(), rounds) / self.parts);
            }
            Side::Second => {
                for _ in 0..WARM_ROUNDS + rounds {
                    end.receive()?;
                    end.send()?;
                }
            }
        }
        Ok(())
    }
}

/// A player of a ping-pong, in which each exchange is a sample: half of its round trip. A sample includes half of a reading of the
/// clock, about 10 ns.
pub struct Each<E>(pub E);

impl<E: PingPong> Player for Each<E> {
    fn play(&mut self, side: Side, rounds: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError> {
        let end = &mut self.0;
        for round in 0..WARM_ROUNDS + rounds {
            match side {
                Side::First => {
                    let start = Instant::now();
                    end.send()?;
                    end.receive()?;
                    if round >= WARM_ROUNDS {
                        samples_ns.push(each(start.elapsed(), 2));
                    }
                }
                Side::Second => {
                    end.receive()?;
                    end.send()?;
                }
            }
        }
        Ok(())
    }
}

/// An end of an exchange with a sleeping receiver. The message contains the time of its sending.
/// The receiver compares this time with the time of its arrival.
pub trait Wake {
    /// Waits until the receiver sleeps. Called at the first end.
    fn until_asleep(&mut self) -> Result<(), BaselineError>;
    /// Sends the time from `now`. Calls `now` as late as possible. Called at the first end.
    fn send(&mut self, now: fn() -> u64) -> Result<(), BaselineError>;
    /// Sleeps until a message arrives, and returns the time that the message contains. Called at the second end.
    fn receive(&mut self) -> Result<u64, BaselineError>;
    /// Reports the arrival to the first end. Called at the second end.
    fn acknowledge(&mut self) -> Result<(), BaselineError>;
    /// Waits for the report of the arrival. Called at the first end.
    fn acknowledged(&mut self) -> Result<(), BaselineError>;
}

/// A player of wake-ups. Each wake-up is a sample.
pub struct Alarm<E>(pub E);

impl<E: Wake> Player for Alarm<E> {
    fn play(&mut self, side: Side, rounds: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError> {
        for _ in 0..rounds {
            match side {
                Side::First => {
                    self.0.until_asleep()?;
                    self.0.send(now_ns)?;
                    self.0.acknowledged()?;
                }
                Side::Second => {
                    let sent_ns = self.0.receive()?;
                    samples_ns.push(now_ns().saturating_sub(sent_ns) as f64);
                    self.0.acknowledge()?;
                }
            }
        }
        Ok(())
    }
}

/// Polls until there is a result. Yields the core only after every [`LOOKS`] polls.
#[inline]
pub fn spin_until<T>(mut look: impl FnMut() -> Result<Option<T>, BaselineError>) -> Result<T, BaselineError> {
    loop {
        for _ in 0..LOOKS {
            if let Some(found) = look()? {
                return Ok(found);
            }
            // The pause makes polls rarer. So they take the cache line less often from its writer,
            // which is faster for every contender.
            std::hint::spin_loop();
        }
        if let Some(found) = patiently(&mut look)? {
            return Ok(found);
        }
    }
}

/// Yields the core and checks the timeout. This is the slow path.
#[cold]
fn patiently<T>(look: &mut impl FnMut() -> Result<Option<T>, BaselineError>) -> Result<Option<T>, BaselineError> {
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        for _ in 0..LOOKS {
            if let Some(found) = look()? {
                return Ok(Some(found));
            }
        }
        std::thread::yield_now();
    }
    Err(BaselineError::Stalled { doing: "waiting for the other end", timeout: TIMEOUT })
}
