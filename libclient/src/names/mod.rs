//! Names: published, found, ended.

pub mod announce;
pub mod cells;
pub mod housekeeping;
pub mod lifetime;
mod publish;
pub mod version;
