//! This client's own memory: slots, from a heap of segments that the daemon lends.

pub mod extents;
pub mod heap;
pub mod magazines;
mod memory;
pub mod placement;
pub mod recent;
pub mod reclaim;
pub mod shelving;
