//! The two ends of a ping-pong, whatever carries it.

use std::time::{Duration, Instant};

use crate::meter::each;
use crate::{BaselineError, now_ns};

/// Exchanges before the clock starts: the one who answers has just been woken.
const WARM_ROUNDS: u64 = 16;

/// Looks between two offers of the core to others, and checks of the limit.
const LOOKS: u32 = 4096;

/// The longest that a single answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one who begins.
    First,
    /// The one who answers.
    Second,
}

/// What plays a batch of exchanges at its end.
pub trait Player {
    /// Plays so many. One of the two ends adds samples, in nanoseconds.
    fn play(&mut self, side: Side, rounds: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError>;
}

/// An end that sends something and gets as much back.
pub trait PingPong {
    /// Sends.
    fn send(&mut self) -> Result<(), BaselineError>;
    /// Waits for what the other end sends.
    fn receive(&mut self) -> Result<(), BaselineError>;
}

/// Plays a ping-pong: a sample is the mean of a batch.
pub struct Volley<E> {
    end: E,
    /// Into how many parts a round trip is divided: 2 for one way.
    parts: f64,
}

impl<E: PingPong> Volley<E> {
    /// A sample is half a round trip.
    pub fn one_way(end: E) -> Self {
        Self { end, parts: 2.0 }
    }

    /// A sample is a round trip.
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

/// An end of an exchange whose receiver sleeps: the time of sending travels along, and is compared at the arrival.
pub trait Wake {
    /// At the first end: returns once the receiver sleeps.
    fn until_asleep(&mut self) -> Result<(), BaselineError>;
    /// At the first end: sends the time of day that `now` gives, read as late as can be.
    fn send(&mut self, now: fn() -> u64) -> Result<(), BaselineError>;
    /// At the second end: sleeps until something comes, and returns the time that came with it.
    fn receive(&mut self) -> Result<u64, BaselineError>;
    /// At the second end: says that it has come.
    fn acknowledge(&mut self) -> Result<(), BaselineError>;
    /// At the first end: waits for that.
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

/// Looks until there is something, as fast as can be; the core is offered to others after a while only.
#[inline]
pub fn spin_until<T>(mut look: impl FnMut() -> Result<Option<T>, BaselineError>) -> Result<T, BaselineError> {
    loop {
        for _ in 0..LOOKS {
            if let Some(found) = look()? {
                return Ok(found);
            }
            // Who looks less often takes the line less often from who is writing it: faster for every contender.
            std::hint::spin_loop();
        }
        if let Some(found) = patiently(&mut look)? {
            return Ok(found);
        }
    }
}

/// What comes after the first looks, out of the way of the fast path.
#[cold]
fn patiently<T>(look: &mut impl FnMut() -> Result<Option<T>, BaselineError>) -> Result<Option<T>, BaselineError> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        for _ in 0..LOOKS {
            if let Some(found) = look()? {
                return Ok(Some(found));
            }
        }
        std::thread::yield_now();
    }
    Err(BaselineError::Stalled { doing: "waiting for the other end", patience: PATIENCE })
}
