//! The recovery of a previous daemon's state by a new daemon.

mod device;
pub mod restore;
