//! The fake driver as cudarc sees it, in several processes. Each test runs itself again, in other roles.
#![allow(unsafe_code)]

#[macro_use]
mod cu;
mod world;

mod crowd;
mod events;
mod ipc;
mod kernels;
mod memory;
mod pools;
mod settings;
mod streams;
mod vmm;
