//! Bytes that one core writes and another reads, in shared memory.
//!
//! Invariant of the unsafe code: only the end with the baton uses the parcel. An end gets the baton by seeing the other's word
//! (Acquire), gives it away by its own (Release), and touches the bytes only in between; the end that begins has it first.
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
    /// The number of times that the first end gave the parcel away; and the second.
    first: Line,
    second: Line,
}

// SAFETY: the words are atomics; the bytes have one user at a time, ordered by the words: see the invariant above.
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
        // SAFETY: this end has the baton: it begins, or has seen the other's word in `receive`, and has not stored its own since.
        // `Volley` calls the two in turn.
        payload::write_all(unsafe { &mut *self.parcel.bytes.get() }, self.sent);
        let word = if self.side == Side::First { &self.parcel.first } else { &self.parcel.second };
        word.0.store(self.sent, Ordering::Release);
        Ok(())
    }

    fn receive(&mut self) -> Result<(), BaselineError> {
        self.received += 1;
        let word = if self.side == Side::First { &self.parcel.second } else { &self.parcel.first };
        spin_until(|| Ok((word.0.load(Ordering::Acquire) >= self.received).then_some(())))?;
        // SAFETY: the other end has given the baton away, and takes it back only when it sees the word of this end's next `send`.
        payload::read_all(unsafe { &*self.parcel.bytes.get() }, self.received)
    }
}

/// Measures `bytes` written by one core and read by the other, one way: the floor of a message with a payload that is written and
/// read in place.
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
