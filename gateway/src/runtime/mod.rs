//! Threads and events: a mailbox for the state, and workers for long tasks.

mod mailbox;
mod workers;

pub use mailbox::{EventSender, Mailbox, State};
pub use workers::Workers;
