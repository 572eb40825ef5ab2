//! The core over ordinary memory: a shell of a page, and clients that speak in bare messages.

mod accounts;
mod announcing;
mod audiences;
mod chores;
mod death;
mod devices;
mod devices_restart;
mod hostile;
mod lending;
mod lifetimes;
mod naming;
mod random;
mod reload;
mod reserve;
mod restart;
mod sessions;
mod spill;
mod streams;
mod values;
pub mod world;
