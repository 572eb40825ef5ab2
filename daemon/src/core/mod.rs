//! The broker as a state machine: events in, effects out. No clock, no descriptor, no thread and no system call: memory
//! is named by [`MemId`], time comes with each event, and shared words are reached through views that the shell hands
//! in. So a simulation can run it over ordinary memory, and the same events give the same effects.

pub mod account;
mod answer;
mod bindings;
mod building;
pub mod chores;
mod client;
mod context;
mod death;
mod departure;
pub(crate) mod device;
mod effect;
mod entries;
mod env;
mod event;
mod holders;
mod join;
mod kept;
pub mod label;
mod ledger;
mod length;
mod members;
mod names;
mod namespace;
mod opening;
mod outlived;
pub mod owners;
mod pool;
mod restore;
mod segment;
mod session;
pub mod settings;
mod share;
mod spill;
mod stat;
mod stream;
mod survey;
mod tables;
#[cfg(test)]
mod tests;

pub use effect::{Effect, Lending, SheetPlan};
pub use event::{ConnId, Event, MemId, Own, Received};
pub use length::{SLOTS_LOG2_MAX, sheet_bytes_min};
pub use session::Core;
