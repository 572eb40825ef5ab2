//! Leases: the right to read a value, and the steps that acquire this right.

pub mod assemble;
pub mod batch;
pub mod by_name;
mod companion;
pub mod copies;
pub mod copy_on_write;
pub mod dataset;
pub mod device;
pub mod group;
pub mod items;
#[expect(clippy::module_inception, reason = "a lease")]
pub mod lease;
pub mod many;
pub mod member;
pub mod pin;
pub mod rename;
pub mod take;
pub mod value;
pub mod wait;
pub mod waiter;
pub mod watch;
