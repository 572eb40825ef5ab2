//! Threads and events: the mailbox for the state's events, workers for long tasks, and roles that threads take over.

mod mailbox;
mod role;
mod workers;

pub use mailbox::{EventSender, Mailbox, State};
pub use role::Role;
pub use workers::{Deferred, Workers};
