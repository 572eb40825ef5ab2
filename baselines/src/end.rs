//! The two ends of a ping-pong over any carrier.

use std::time::{Duration, Instant};

use crate::meter::each;
use crate::{BaselineError, now_ns};

/// Exchanges before the clock starts: the responding end has just woken.
const WARM_ROUNDS: u64 = 16;

/// Polls between two yields of the core, and checks of the limit.
const LOOKS: u32 = 4096;

/// Timeout of a single response.
const TIMEOUT: Duration = Duration::from_secs(30);

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The end that begins.
    First,
    /// The end that responds.
    Second,
}

/// A player of a batch of exchanges at its end.
pub trait Player {
    /// Plays `rounds` exchanges. One of the two ends adds samples, in nanoseconds.
    fn play(&mut self, side: Side, rounds: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError>;
}

/// An end that sends something and gets as much back.
pub trait PingPong {
    /// Sends.
    fn send(&mut self) -> Result<(), BaselineError>;
    /// Waits for the message of the other end.
    fn receive(&mut self) -> Result<(), BaselineError>;
}

/// Plays a ping-pong: a sample is the mean of a batch.
pub struct Volley<E> {
    end: E,
    /// The divisor of a round trip: 2 for one way.
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

/// An end of an exchange with a sleeping receiver: the message carries its time of sending, and the receiver compares it at the
/// arrival.
pub trait Wake {
    /// Returns once the receiver sleeps. At the first end.
    fn until_asleep(&mut self) -> Result<(), BaselineError>;
    /// Sends the time of day that `now` gives, read as late as possible. At the first end.
    fn send(&mut self, now: fn() -> u64) -> Result<(), BaselineError>;
    /// Sleeps until a message comes, and returns the time in it. At the second end.
    fn receive(&mut self) -> Result<u64, BaselineError>;
    /// Reports the arrival. At the second end.
    fn acknowledge(&mut self) -> Result<(), BaselineError>;
    /// Waits for that report. At the first end.
    fn acknowledged(&mut self) -> Result<(), BaselineError>;
}

/// Plays wake-ups: each is a sample.
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

/// Polls until there is a result, as fast as possible; yields the core only after a while.
#[inline]
pub fn spin_until<T>(mut look: impl FnMut() -> Result<Option<T>, BaselineError>) -> Result<T, BaselineError> {
    loop {
        for _ in 0..LOOKS {
            if let Some(found) = look()? {
                return Ok(found);
            }
            // Rarer polls take the line less often from its writer: faster for every contender.
            std::hint::spin_loop();
        }
        if let Some(found) = patiently(&mut look)? {
            return Ok(found);
        }
    }
}

/// Continues after the first polls, off the fast path.
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
