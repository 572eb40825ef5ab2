//! Lend tensors between processes on one machine: no serialization, no copy.
//!
//! A broker daemon (`tensorlendd`) owns pooled shared memory and lends it out. A producer writes a tensor where its
//! readers will find it and gives it a name; a reader leases it and reads it in place. Between the two there is no copy,
//! no system call, no lock between processes, and no wake-up of the daemon.
//!
//! ```
//! use tensorlend::{Client, DType};
//!
//! // Programs connect to a running daemon with Client::connect(); tests and small programs bring their own.
//! let broker = tensorlend_daemon::embedded()?;
//! let producer = Client::builder().socket(broker.socket()).connect()?;
//! let consumer = Client::builder().socket(broker.socket()).connect()?; // in another process, usually
//!
//! let mut image = producer.create(DType::U8, &[480, 640, 3])?;
//! image.bytes_mut().fill(255);                       // written where it will be read
//! image.publish("camera/front")?;
//!
//! let lease = consumer.get("camera/front")?;         // no copy: the producer's own pages
//! assert_eq!(lease.shape(), [480, 640, 3]);
//! assert!(lease.as_slice::<u8>()?.iter().all(|&p| p == 255));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * Names: [`Client::put`], [`Client::get`], [`Client::wait_newer`]: the latest value of something.
//! * Streams: [`Client::stream`], [`Client::subscribe`]: every message, for every subscriber.
//! * Datasets: [`Client::dataset`]: several tensors, seen together or not at all.
//! * Lists: [`Client::append`], [`Client::get_all`]: what many producers collect.
//! * Calls: [`Client::serve`], [`Client::caller`]: a request for one of several servers, and its answer.
//! * Models: the crate `tensorlend-model` runs them by `tensorlend-runner`, where the data is.
//! * Other machines: [`Client::get`] of `NODE/NAME`, [`Client::put_remote`], [`Client::nodes`]: by `tensorlend-gateway`, see [`remote`].
//! * Devices: with the feature `cuda`, `Client::create_on`, `Client::get_device`: tensors in a GPU's memory, by the same names.
//! * Tasks: with the feature `tokio`, an `AsyncClient` awaits names, an `AsyncSubscription` messages.
//! * Instruments on this client's memory: [`Client::statistics`], [`Client::start_allocation_log`],
//!   [`Client::outstanding`], [`ClientBuilder::memory_limit`], [`ClientBuilder::on_memory_pressure`].
//! * The whole namespace from outside, for tools: [`Client::observe`].
//!
//! What is promised, and what is not, stands in the project's README and SECURITY.md.
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod alloc;
mod api;
#[cfg(feature = "tokio")]
mod asynchronous;
mod call;
mod client;
mod control;
mod error;
mod glob;
#[cfg(feature = "cuda")]
mod gpu;
mod instruments;
mod lease;
mod link;
mod list;
mod listing;
mod names;
pub mod observe;
mod peers;
pub mod remote;
#[cfg(feature = "broken-for-tests")]
mod sabotage;
mod segment;
mod session;
mod stream;
mod tensor;
mod wait;

#[cfg(feature = "cuda")]
pub use api::device::On;
pub use api::instruments::StatisticsScope;
pub use api::overview::MemoryUse;
#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncClient, AsyncSubscription};
pub use call::{Call, Caller, CallerBuilder, Reply, Server, ServerBuilder};
pub use client::{Client, ClientBuilder};
pub use control::default_sockets;
pub use error::{DeviceTrouble, Error, RemoteTrouble, Result, ValueKind, check_name};
pub use glob::Glob;
#[cfg(feature = "cuda")]
pub use gpu::stream::OnStream;
pub use instruments::{Allocation, AllocationState, Outstanding, Pressure, Relief, Statistics};
pub use lease::copy_on_write::CopyOnWrite;
#[cfg(feature = "cuda")]
pub use lease::device::{lease::DeviceLease, pin::DevicePin};
pub use lease::lease::{Dataset, Lease};
pub use lease::pin::Pin;
pub use lease::value::Value;
pub use lease::watch::NameWatch;
pub use list::Length;
pub use listing::{Collection, Info, InfoKind, Listing, Spilled, TensorInfo};
pub use names::lifetime::Lifetime;
pub use names::version::Version;
pub use stream::borrowed::Borrowed;
pub use stream::history::History;
pub use stream::subscriber::{Message, Start, Subscription, SubscriptionBuilder};
pub use stream::{Stream, StreamBuilder, TrySendError};
pub use tensor::Tensor;
pub use tensor::dataset::DatasetDraft;
#[cfg(feature = "cuda")]
pub use tensor::device::{
    draft::DeviceDraft,
    legacy::LegacyExport,
    slice::{BorrowedSlice, BorrowedSliceMut},
};
pub use tensor::draft::{Draft, TensorSpec};
pub use tensor::element::{AsTensor, Complex, Element, TensorView};
pub use tensor::sendable::Sendable;
pub use tensor::value_draft::ValueDraft;
pub use tensorlend_layout::tensor::METADATA_MAX;
pub use tensorlend_layout::wire::{
    Allocator, DeviceOffer, DeviceUse, LimitKind, NamespaceUse, Policy, Refusal, Stat, UidUse,
};
pub use tensorlend_layout::{BadUuid, DType, Device, Uuid};

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
