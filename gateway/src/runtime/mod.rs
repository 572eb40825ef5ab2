//! Threads and events: the mailbox for the state's events, and workers for long tasks.

mod mailbox;
mod workers;

pub use mailbox::{EventSender, Mailbox, State};
pub use workers::Workers;
