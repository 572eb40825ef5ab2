//! The CUDA driver as tensorlend's daemon and its clients use it.
//!
//! A machine without a GPU is the normal case: the driver's library is looked for when [`driver::Driver::get`] is first
//! called, all functions that this crate ever calls are resolved there and then, and whatever is missing becomes a
//! [`driver::Unavailable`] that an administrator can act on. Nothing here panics for want of a library, a function or a
//! device.
//!
//! From the largest to the smallest: a [`driver::Driver`] lists [`device::Device`]s; on a device lies an
//! [`allocation::Allocation`], physical memory that travels between processes as a descriptor; a [`mapping::Mapping`]
//! gives it an address. What runs on a device needs a [`context::Context`]: a [`stream::Stream`] of work, an
//! [`event::Event`] in it, and [`copy`]. [`pool`] and [`ipc`] are the two other ways of sharing memory that CUDA has;
//! [`mod@pointer`] tells what an address is.
//!
//! The wrappers add no locks: the driver's functions may be called from any thread. Where a call needs a *current*
//! context, its documentation says so, and [`context::Context::enter`] makes one current. Addresses are plain numbers,
//! as the driver has them: only the functions that read or write through one are `unsafe`.
//!
//! The driver does not survive a fork. In a forked child every call answers with an error, and what is dropped there is
//! left alone.
//!
//! Source of all that is said of the driver's behaviour: CUDA Driver API 13.0, the section named beside each item. What
//! the manual leaves open, and only hardware can settle, is marked "believed".

pub mod allocation;
mod api;
pub mod block;
pub mod capture;
pub mod context;
pub mod copy;
pub mod device;
pub mod driver;
pub mod error;
pub mod event;
pub mod ipc;
pub mod mapping;
pub mod pointer;
pub mod pool;
pub mod stream;

pub use allocation::Allocation;
pub use block::Block;
pub use context::Context;
pub use device::Device;
pub use driver::{Driver, Unavailable};
pub use error::{Error, Result};
pub use event::Event;
pub use mapping::{Access, Mapping};
pub use stream::{Stream, StreamRef};
pub use tensorlend_layout::Uuid;
