//! The other members of the namespace.

mod members;
pub mod sheets;
