//! Streams: the producer's end and the subscriber's end.

pub mod borrowed;
pub mod history;
pub mod message;
pub mod open;
mod origin;
pub mod producer;
pub mod ring;
pub mod sender;
pub mod subscribe;
pub mod subscriber;
mod writer;

pub use open::StreamBuilder;
pub(crate) use origin::Source;
pub use origin::StreamPosition;
pub use producer::{Stream, TrySendError};
pub use sender::{Loan, Sender};
