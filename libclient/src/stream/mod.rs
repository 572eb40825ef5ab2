//! Streams: their producers' ends, their subscribers' ends.

pub mod borrowed;
pub mod history;
pub mod producer;
pub mod ring;
pub mod subscriber;

pub use producer::{Stream, StreamBuilder, TrySendError};
