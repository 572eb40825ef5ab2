//! Bindings to the CUDA driver for tensorlend's daemon and its clients.
//!
//! A machine without a GPU is the normal case. The first call of [`driver::Driver::get`] loads the
//! driver's library and resolves all functions that this crate ever calls. If anything is missing,
//! the call returns a [`driver::Unavailable`], on which an administrator can act. This crate does
//! not panic if a library, a function or a device is missing.
//!
//! A [`driver::Driver`] lists [`device::Device`]s. An [`allocation::Allocation`] is physical memory
//! of a device. It travels between processes as a descriptor, and a [`mapping::Mapping`] gives it
//! an address. Work on a device needs a [`context::Context`]: a [`stream::Stream`] of work, an
//! [`event::Event`] in it, and [`copy`]. [`pool`] and [`ipc`] are CUDA's two other ways of sharing
//! memory. [`mod@pointer`] identifies addresses.
//!
//! The wrappers add no locks, because any thread may call the driver's functions. The documentation
//! of a call says if it needs a *current* context. [`context::Context::enter`] makes a context
//! current. Addresses are plain numbers, as in the driver. Only the functions that read or write
//! through an address are `unsafe`.
//!
//! The driver does not survive a fork. In a forked child every call returns an error, and drops do
//! nothing.
//!
//! Source of all statements about the driver's behaviour: CUDA Driver API 13.0, in the section
//! named with each item. "Believed" marks a statement that the manual leaves open, and that only a
//! test on hardware can settle.

#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap, clippy::cast_lossless)
)]

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
