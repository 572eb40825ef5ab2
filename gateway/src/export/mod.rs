//! What others may read.

pub mod kept;
mod listings;
mod lists;
pub mod names;
pub mod outlet;
pub mod promises;
pub mod stamps;
pub mod streams;
