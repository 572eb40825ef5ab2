//! Copies of what other nodes publish.

pub mod cache;
pub mod listings;
pub mod lists;
pub mod names;
pub mod streams;
