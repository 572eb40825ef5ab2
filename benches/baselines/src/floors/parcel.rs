//! The floor of bytes in shared memory that one core writes and another reads.
//!
//! Invariant of the unsafe code: only the end that has the baton uses the bytes. The first end has
//! the baton at the start. An end passes the baton by a store to its own word (Release), and gets
//! the baton when it sees the other end's store (Acquire).
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::line::Line;
use crate::duo::Duo;
use crate::end::{PingPong, Side, Volley, spin_until};
use crate::{BaselineError, Cores, Meter, payload};

struct Parcel {
    bytes: UnsafeCell<Vec<u8>>,
    /// Number of times that each end has passed the baton.
    first: Line,
    second: Line,
}

// SAFETY: the words are atomics. By the module's invariant, the bytes have one user at a time, and
// the words order the uses.
unsafe impl Sync for Parcel {}

struct End {
    parcel: Arc<Parcel>,
    side: Side,
    sent: u64,
    received: u64,
}

impl PingPong for End {
    fn send(&mut self) -> Result<(), BaselineError> {
        self.sent += 1;
        // SAFETY: this end has the baton. Either this is the first `send` of the first end, or
        // `receive` has seen the other end's store. Since then this end has not stored its own
        // word, because `Volley` calls `send` and `receive` in turn.
        payload::write_all(unsafe { &mut *self.parcel.bytes.get() }, self.sent);
        let word = if self.side == Side::First { &self.parcel.first } else { &self.parcel.second };
        word.0.store(self.sent, Ordering::Release);
        Ok(())
    }

    fn receive(&mut self) -> Result<(), BaselineError> {
        self.received += 1;
        let word = if self.side == Side::First { &self.parcel.second } else { &self.parcel.first };
        spin_until(|| Ok((word.0.load(Ordering::Acquire) >= self.received).then_some(())))?;
        // SAFETY: the other end has passed the baton to this end. It gets the baton back only when
        // it sees the store of this end's next `send`.
        payload::read_all(unsafe { &*self.parcel.bytes.get() }, self.received)
    }
}

/// Measures the transfer, one way, of `bytes` bytes that one core writes and the other reads. This
/// is the floor of a message whose payload is written and read in place.
///
/// # Errors
///
/// [`BaselineError`] if the threads cannot be started on these cores.
pub fn written_read(cores: Cores, bytes: usize) -> Result<Box<dyn Meter>, BaselineError> {
    let bytes = UnsafeCell::new(payload::make(bytes));
    let parcel = Arc::new(Parcel { bytes, first: Line::default(), second: Line::default() });
    let end = |side| {
        let parcel = parcel.clone();
        move || Ok(Volley::one_way(End { parcel, side, sent: 0, received: 0 }))
    };
    Ok(Box::new(Duo::start(cores, end(Side::First), end(Side::Second))?))
}
