//! Copies of values, lists and streams of other nodes.

pub mod cache;
pub mod listings;
pub mod lists;
pub mod names;
pub mod streams;
