//! What a daemon takes over from the one before it.

mod device;
pub mod restore;
