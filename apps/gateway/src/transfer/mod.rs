//! Transfers of values to this node.

mod range;
mod transfers;

pub use transfers::{Event, Finished, Outcome, Request, Source, Transfers};
