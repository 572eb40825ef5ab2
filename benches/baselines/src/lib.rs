//! The measurements with which tensorlend is compared: floors of the machine, and other libraries.
//!
//! - [`floors`]: the hardware floor of each part of an exchange.
//! - [`Duel`]: two processes on two cores that play a [`Game`]: tensorlend's own, and iceoryx2's with the feature
//!   `iceoryx2`.
//! - `Session`, with the feature `ipc`: the cost of passing a tensor to another process without
//!   tensorlend. Each `Kind` is a real exchange between two processes, as a performance-minded user
//!   of the usual crates would write it. Some kinds send serde messages (bincode or postcard) or
//!   raw bytes over an ipc-channel or a Unix socket. One kind sends ipc-channel's shared memory.
//!   One kind copies into and out of a segment of the shared_memory crate.
//! - [`Meter`] and [`Stat`]: timing in batches, and summaries of the samples.
//!
//! # The three metrics of a session
//!
//! In each exchange the producer writes every byte of the tensor, and the consumer reads every byte. So all contenders
//! move the same bytes. The parties read four instants from one clock that all processes of the machine share
//! ([`now_ns`]):
//!
//! - `t0`: the producer begins to write the tensor;
//! - `t1`: the call that handed the tensor over has returned, and the producer may continue;
//! - `t2`: the consumer has read every byte of the tensor;
//! - `t3`: the producer has seen the consumer's acknowledgement.
//!
//! | metric | is | measures |
//! |---|---|---|
//! | put | `t1 - t0` | how long the producer is busy, the writes of the tensor included |
//! | get | `t2 - t1`, at least 0 | how long until the consumer has read the tensor, its detection of the tensor included |
//! | round trip | `t3 - t0` | put + get + acknowledgement |
//!
//! Get is 0 when the consumer had the tensor before the producer's call returned. So the parts
//! never overlap, and a message that streams through a full socket counts once, in put.
//!
//! All bytes of an exchange have a value that depends on its number. The consumer compares every byte with this value,
//! and the producer checks the result after `t2`. One untimed exchange before the others carries a checksum of bytes that
//! differ. The untimed exchange also warms memory that is reused, so the copy contender's page faults are in no metric.
//! The serializers allocate memory for each message, and so have page faults each time, as in programs that use them.
//!
//! # Guarantees
//!
//! Every wait has a timeout. The end of a process is an error. No process leaves a name in /dev/shm. The space for a
//! segment is reserved before any process touches it, so that a full /dev/shm is [`BaselineError::TooSmall`], not
//! SIGBUS.
//!
//! # Example
//!
//! The consumer runs the same program, which calls [`serve`] with the arguments that it was given:
//!
//! ```no_run
//! use std::process::{Child, Command};
//! use tensorlend_baselines::serve;
//!
//! let args: Vec<String> = std::env::args().skip(1).collect();
//! if args.first().is_some_and(|first| first == "peer") {
//!     return serve(&args[1..]).map_err(Into::into);
//! }
//! let program = std::env::current_exe()?;
//! # #[cfg(feature = "ipc")] {
//! use tensorlend_baselines::{Kind, measure};
//! let timings = measure(Kind::Copy, 1 << 20, 100, &mut |args: &[String]| -> std::io::Result<Child> {
//!     Command::new(&program).arg("peer").args(args).spawn()
//! })?;
//! println!("median round trip: {} ns", timings.round_trip_median_ns());
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod asleep;
mod clock;
mod cores;
mod duel;
mod duo;
mod end;
mod error;
pub mod floors;
#[cfg(feature = "ipc")]
mod ipc;
mod meter;
mod payload;
mod stat;
mod within;

pub use clock::now_ns;
pub use cores::{Cores, pin, unpin};
pub use duel::{Duel, Game, Launch};
pub use error::BaselineError;
#[cfg(feature = "ipc")]
pub use ipc::{Kind, Lap, Session, Timings, timeout};
pub use meter::{Meter, prepared, repeated};
pub use payload::{read_all, write_all};
pub use stat::Stat;

/// The function by which [`Session::start`] and [`measure`] start the consumer. The consumer must
/// be a direct child of this process, without a shell. It runs [`serve`] with exactly these
/// arguments.
pub type Spawn<'a> = dyn FnMut(&[String]) -> std::io::Result<std::process::Child> + 'a;

/// Runs `rounds` exchanges of `bytes` bytes from this process to a consumer that `spawn` starts, and ends the consumer.
///
/// To interleave several contenders, hold a [`Session`] of each instead.
///
/// # Errors
///
/// Any [`BaselineError`]. In any case, the consumer has ended and no file is left in /dev/shm.
#[cfg(feature = "ipc")]
pub fn measure(kind: Kind, bytes: usize, rounds: usize, spawn: &mut Spawn) -> Result<Timings, BaselineError> {
    let mut session = Session::start(kind, bytes, timeout(bytes), spawn)?;
    session.run(rounds)
}

/// Runs a consumer. Takes part in the exchange that `args` names, until the producer ends the
/// exchange.
///
/// # Errors
///
/// [`BaselineError::Arguments`] if `args` does not come from [`measure`] or [`Session::start`].
/// [`BaselineError::ProducerGone`] if the producer ended during an exchange. Otherwise the error
/// that ended the exchange.
pub fn serve(args: &[String]) -> Result<(), BaselineError> {
    match args.split_first() {
        Some((role, rest)) if role == duel::ROLE => duel::serve(rest),
        _ => serve_contender(args),
    }
}

#[cfg(feature = "ipc")]
use ipc::serve as serve_contender;

#[cfg(not(feature = "ipc"))]
fn serve_contender(_: &[String]) -> Result<(), BaselineError> {
    Err(BaselineError::NotBuilt { feature: "ipc" })
}
