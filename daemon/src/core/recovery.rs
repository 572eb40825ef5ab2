//! The recovery of a predecessor's state by a new daemon.

mod device;
pub mod restore;
