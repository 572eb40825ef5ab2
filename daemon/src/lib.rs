//! The daemon of tensorlend. It owns pooled shared memory and lends slots of it to client
//! processes.
//!
//! `core` is a state machine without clock, descriptor or thread. `sys` is the system layer, which
//! makes the system calls for the core. The program `tensorlendd` calls [`run`]. [`embedded()`]
//! runs the same daemon in a thread of this process, for tests and small programs.
#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap, clippy::cast_lossless)
)]

mod background;
mod code;
mod config;
#[allow(missing_docs, reason = "only the simulation uses it from outside")]
pub mod core;
mod embedded;
mod fd_store;
mod log;
mod options;
pub mod program;
mod service;
mod sys;

pub use config::{
    Bytes, Config, ConfigError, CudaConfig, EXAMPLE, HugePages, LimitsConfig, ModeChoice, NamespaceConfig, NumaChoice,
    PoolConfig, Source, SpillConfig, StoreAt, StreamsConfig, UidConfig, commented,
};
pub use embedded::{Embedded, EmbeddedError, embedded, embedded_with};
pub use service::{ask_to_reload, check, run};
pub use sys::reload::Load;
pub use sys::{DaemonError, memory_limit};
