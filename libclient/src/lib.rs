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
//! * Models: [`Client::put_model`], [`Client::run_model`]: computed beside the data, by `tensorlend-runner`.
//! * Other machines: [`Client::get`] of `NODE/NAME`, [`Client::put_remote`], [`Client::nodes`]: by `tensorlend-gateway`, see [`remote`].
//! * Devices: with the feature `cuda`, `Client::create_on`, `Client::get_device`: tensors in a GPU's memory, by the same names.
//! * Tasks: with the feature `tokio`, an `AsyncClient` awaits names, an `AsyncSubscription` messages.
//! * Instruments on this client's memory: [`Client::statistics`], [`Client::start_allocation_log`],
//!   [`Client::outstanding`], [`ClientBuilder::memory_limit`], [`ClientBuilder::on_memory_pressure`].
//! * The whole namespace from outside, for tools: [`Client::observe`].
//!
//! What is promised, and what is not, stands in the project's README and SECURITY.md.
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod announce;
#[cfg(feature = "tokio")]
mod asynchronous;
mod borrowed;
mod bytes;
mod call;
mod cells;
mod client;
mod control;
mod copy;
mod copy_on_write;
mod dataset;
mod describe;
mod device;
mod dims;
mod draft;
mod element;
mod error;
mod extents;
#[cfg(feature = "ffi")]
mod ffi;
mod glob;
mod heap;
mod held;
mod history;
mod housekeeping;
mod instruments;
mod items;
mod layout_of;
mod lease;
mod lifetime;
mod list;
mod listing;
mod magazines;
mod members;
mod memory;
pub mod model;
mod names;
pub mod observe;
mod parking;
mod patience;
mod payload;
mod peers;
mod pin;
mod placement;
mod recent;
mod reclaim;
mod reconnect;
pub mod remote;
#[cfg(feature = "broken-for-tests")]
mod sabotage;
mod session;
mod shards;
mod sheets;
mod shelving;
mod stream;
mod strided;
mod subscription;
mod tensor;
mod value_draft;
mod wait;
mod waking;
mod watch;

#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncClient, AsyncSubscription};
pub use borrowed::Borrowed;
pub use call::{Call, Caller, CallerBuilder, Reply, Server, ServerBuilder};
pub use client::{Client, ClientBuilder, MemoryUse};
pub use control::default_sockets;
pub use copy_on_write::CopyOnWrite;
pub use dataset::DatasetDraft;
#[cfg(feature = "cuda")]
pub use device::{BorrowedSlice, BorrowedSliceMut, DeviceDraft, DeviceLease, DevicePin, LegacyExport, On, OnStream};
pub use draft::{Draft, TensorSpec};
pub use element::{AsTensor, Complex, Element, TensorView};
pub use error::{DeviceTrouble, Error, RemoteTrouble, Result, ValueKind};
pub use glob::Glob;
pub use held::Version;
pub use history::History;
pub use instruments::{Allocation, AllocationState, Outstanding, Pressure, Relief, Statistics, StatisticsScope};
pub use lease::{Dataset, Lease, Value};
pub use lifetime::Lifetime;
pub use list::Length;
pub use listing::{Collection, Info, InfoKind, Listing, Spilled, TensorInfo};
pub use model::{Model, ModelAnswer, ModelInfo, ModelOptions, ModelRequest, ModelStatistics, Step};
pub use pin::Pin;
pub use stream::{Sendable, Stream, StreamBuilder, TrySendError};
pub use subscription::{Message, Start, Subscription, SubscriptionBuilder};
pub use tensor::Tensor;
pub use tensorlend_layout::tensor::METADATA_MAX;
pub use tensorlend_layout::wire::{
    Allocator, DeviceOffer, DeviceUse, LimitKind, NamespaceUse, Policy, Refusal, Stat, UidUse,
};
pub use tensorlend_layout::{BadUuid, DType, Device, Uuid};
pub use value_draft::ValueDraft;
pub use watch::NameWatch;

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// So does the manual's.
#[cfg(doctest)]
#[doc = include_str!("../../docs/models.md")]
struct Models;
