//! The floor of a cache line that one core writes and another reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::duo::Duo;
use crate::end::{PingPong, Side, Volley, spin_until};
use crate::{BaselineError, Cores, Meter};

/// A word that is alone on two cache lines, because the prefetcher fetches lines in pairs.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Line(pub(super) AtomicU64);

/// The two words of a ping-pong, each with one writer.
#[derive(Default)]
struct Lines {
    first: Line,
    second: Line,
}

struct End {
    lines: Arc<Lines>,
    side: Side,
    sent: u64,
    received: u64,
}

impl PingPong for End {
    #[inline]
    fn send(&mut self) -> Result<(), BaselineError> {
        self.sent += 1;
        let line = if self.side == Side::First { &self.lines.first } else { &self.lines.second };
        line.0.store(self.sent, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn receive(&mut self) -> Result<(), BaselineError> {
        self.received += 1;
        let line = if self.side == Side::First { &self.lines.second } else { &self.lines.first };
        spin_until(|| Ok((line.0.load(Ordering::Acquire) >= self.received).then_some(())))
    }
}

/// Measures the transfer of a cache line one way. This is half of the time from a core's store
/// until it sees the other core's response.
///
/// # Errors
///
/// [`BaselineError`] if the threads cannot be started on these cores.
pub fn cacheline(cores: Cores) -> Result<Box<dyn Meter>, BaselineError> {
    let lines = Arc::new(Lines::default());
    let end = |side| {
        let lines = lines.clone();
        move || Ok(Volley::one_way(End { lines, side, sent: 0, received: 0 }))
    };
    Ok(Box::new(Duo::start(cores, end(Side::First), end(Side::Second))?))
}
