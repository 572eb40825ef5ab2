//! A stand-in for `libcuda.so.1`, for tests on machines without a GPU.
//!
//! The exported functions have the names and the ABI of the CUDA 13.0 driver. Device memory is memfd memory, mapped at
//! its "device pointer": what is shared between processes is shared as on a card, and the few kernels that it knows run
//! on the host. Work of streams is really asynchronous: a thread per stream takes it in order. `README.md` says what a
//! test can steer and ask.
//!
//! From bottom to top: `settings` and `control` (what the processes of one fake machine share), `pages`, `backing` and
//! `regions` (memory), `stream` and `event` (time), and above them one file per group of driver functions, each of them
//! written with the macro of `call`.
#![allow(unsafe_code)]
#![allow(non_snake_case)]

#[macro_use]
mod call;

mod args;
mod attributes;
mod backing;
mod code;
mod context;
mod control;
mod copy;
mod device;
mod errors;
mod event;
mod event_calls;
mod fill;
mod handles;
mod host;
mod ipc;
mod kernels;
mod launch;
mod linger;
mod memory;
mod module;
mod pages;
mod pointer;
mod pool;
mod pool_calls;
mod process;
mod regions;
mod settings;
mod stream;
mod stream_calls;
mod symbols;
mod vmm;
