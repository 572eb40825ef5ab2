//! What was read of others.

pub mod budget;
pub mod cache;
pub mod inlet;
pub mod listings;
pub mod lists;
pub mod names;
mod puts;
pub mod streams;
pub mod transfer;
pub mod transfers;
