//! Service to other nodes: their reads of this machine's objects, and their writes to this machine.

pub mod invalidation;
pub mod listings;
pub mod lists;
pub mod names;
pub mod offers;
pub mod puts;
pub mod retained;
pub mod stamps;
pub mod streams;
