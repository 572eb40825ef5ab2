//! Tests of the core over ordinary memory: a minimal shell, and clients that send bare messages.

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
mod observers;
mod payer;
mod queues;
mod random;
mod reload;
mod reserve;
mod restart;
mod rights;
mod sessions;
mod spill;
mod streams;
mod unsent;
mod values;
mod waiting_queues;
pub mod world;
