//! Streams: the producer's end and the subscriber's end.

pub mod borrowed;
pub mod history;
pub mod message;
pub mod open;
pub mod producer;
pub mod ring;
pub mod sender;
pub mod subscribe;
pub mod subscriber;
mod waiting;
mod writer;

pub use open::StreamBuilder;
pub use producer::{Stream, TrySendError};
pub use sender::{Loan, Sender};
