//! The core of the daemon: a state machine that consumes events and produces effects. The core uses
//! no clock, descriptor, thread or system call. Its caller, the system layer (`crate::sys`),
//! performs the effects.
//!
//! A [`MemId`] names memory, and each event carries the time. The system layer passes views for the
//! access to shared words. So a simulation can run the core over ordinary memory, and the same
//! events give the same effects.

pub mod account;
mod bindings;
pub mod chores;
mod client;
mod clock;
mod collection;
mod context;
mod counters;
mod death;
pub(crate) mod device;
mod devices;
mod disconnected;
mod draining;
mod effect;
mod effects;
mod entries;
mod env;
mod event;
mod join;
pub mod label;
mod ledger;
mod length;
mod members;
mod names;
mod namespace;
mod namespaces;
mod opening;
mod orders;
mod orphans;
mod outcome;
pub mod owners;
mod parts;
mod pool;
mod pressure;
mod probes;
mod range;
mod recovery;
mod segment;
mod session;
pub mod settings;
mod share;
mod sheets;
mod shown;
mod spills;
mod stat;
mod stream;
#[cfg(test)]
mod tests;
mod values;
mod versions;
pub(crate) mod who;

pub use effect::{Effect, Lending, SheetPlan};
pub use event::{ConnId, Event, MemId, Unmade, Unwritten};
pub use length::{SLOTS_LOG2_MAX, sheet_bytes_min};
pub use pool::Borrower;
pub use session::Core;
