//! Lend tensors between processes on one machine: no serialization, no copy.
//!
//! A daemon (`tensorlendd`) owns pooled shared memory and lends it to its clients. A producer writes a tensor in the
//! memory from which its readers will read it, and gives it a name. A reader leases the name and reads the tensor in
//! place. Neither side copies the tensor, makes a system call, takes a lock between processes, or wakes the daemon.
//!
//! [`Client`] is the entry point. These types carry the data:
//!
//! * [`Draft`]: a tensor that its producer fills. The producer publishes the draft under a name, sends it, or appends
//!   it to a list.
//! * [`Lease`]: the right to read one value, which does not change while the lease exists. Dropping the lease ends it.
//! * [`Dataset`]: several tensors, published and leased as one value.
//! * [`Value`]: a lease on a tensor or a dataset.
//!
//! ```
//! use tensorlend::{Client, DType};
//!
//! // Programs connect to a running daemon with Client::connect(); tests and small programs bring their own.
//! let daemon = tensorlend_daemon::embedded()?;
//! let producer = Client::builder().socket(daemon.socket()).connect()?;
//! let consumer = Client::builder().socket(daemon.socket()).connect()?; // in another process, usually
//!
//! let mut image = producer.create(DType::U8, [480, 640, 3])?;
//! image.bytes_mut().fill(255);                       // written where it will be read
//! image.publish("camera/front")?;
//!
//! let lease = consumer.get("camera/front")?;         // no copy: the producer's own pages
//! assert_eq!(lease.shape(), [480, 640, 3]);
//! assert!(lease.as_slice::<u8>()?.iter().all(|&p| p == 255));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features of the library
//! * Names: [`Client::put`], [`Client::get`], [`Client::wait_newer`]: each name holds its latest value.
//! * Streams: [`Client::stream`], [`Client::subscribe`]: every message, for every subscriber.
//! * Datasets: [`Client::dataset`]: several tensors that readers see together or not at all.
//! * Lists: [`Client::append`], [`Client::get_all`]: results that many producers collect.
//! * Queues: [`Client::queue`]: each item goes to one of several consumers. If that consumer dies, the item goes to
//!   another one.
//! * Requests: [`Client::serve`], [`Client::caller`]: a request to one of several servers, and its reply.
//! * Models: the crate `tensorlend-model`: inference on the same machine by `tensorlend-runner`.
//! * Other machines: [`Client::get`] of `NODE/NAME`, [`Client::remote`]: `tensorlend-gateway` transfers the values, see
//!   [`remote`].
//! * Devices: with the feature `cuda`, `Client::create_on` and `Client::get_device`: tensors in a GPU's memory, under
//!   the same kind of names.
//! * Tasks: with the feature `tokio`, an `AsyncClient` awaits names, and an `AsyncSubscription` awaits messages.
//! * Instruments on this client's memory: [`Client::instruments`], [`ClientBuilder::memory_limit`],
//!   [`ClientBuilder::on_memory_pressure`].
//! * An overview of the whole namespace, for tools: [`Client::observe`].
//!
//! # Shapes
//! A shape as a parameter is any [`IntoShape`]: `[480, 640, 3]`, `(height, width)`, `1000`, a slice or a vector of integers.
//! Methods return a shape as a `&[usize]`, so it indexes slices and can be a parameter again.
//!
//! # Arrays of other crates
//! * `ndarray`, with the feature of that name: [`Client::put`] and [`Client::create_from`] take its arrays, and `Tensor::ndarray`
//!   and `Draft::ndarray_mut` are views of shared memory, without a copy.
//! * `candle`: its tensors own their elements, so no candle tensor can be a view of a lease. One expression copies the
//!   elements: `candle_core::Tensor::from_slice(lease.as_slice::<f32>()?, lease.shape(), &Device::Cpu)?`. In the other
//!   direction, publish `Shaped::new(&tensor.flatten_all()?.to_vec1::<f32>()?, tensor.dims())?`, or write into a draft by
//!   [`Draft::as_mut_slice`]. No test compiles these expressions, which are for candle 0.11, because candle is not a
//!   dependency.
//! * Any other crate: use [`Tensor::as_slice`], [`Tensor::shape`] and [`Shaped`], or implement [`AsTensor`].
//!
//! # Waiting, and for how long
//! * A method that waits takes the longest time to wait as its last parameter, or before a closure. The parameter's type is
//!   `impl Into<`[`Timeout`]`>`: a [`Duration`](std::time::Duration), `None` for no end, or an
//!   [`Instant`](std::time::Instant). Examples are [`Client::wait_for`], [`Client::wait_length`], [`Stream::wait_room`] and
//!   [`Caller::call`].
//! * The ends of streams and services have three forms, like the channels of the standard library: `recv` waits without end,
//!   `recv_timeout` takes the time, and `try_recv` does not wait. [`Stream::send`] has the same three forms.
//! * After this time the methods return [`Error::Timeout`], which names the event and the time waited. The call had no
//!   effect and lost no data, unless the method's documentation says otherwise. [`NameWatch::wait`] returns an empty list
//!   instead.
//! * A method without a timeout waits at most for the daemon: [`ClientBuilder::request_timeout`], 30 seconds by default. For
//!   a name of another machine, the method also waits for the gateway: [`ClientBuilder::remote_timeout`], 60 seconds by
//!   default.
//! * Futures have no timeouts: wrap them in `tokio::time::timeout`.
//!
//! # Threads and processes
//! Several threads may use a [`Client`] at once, and its clones share one session. Drafts and leases can move between
//! threads. A session does not survive `fork`: calls in the child return [`Error::Forked`], and the child must
//! connect again.
//!
//! # Cargo features
//! `cuda` (device memory), `tokio` (async waits), `ndarray` (views and conversions). None of these features is on by
//! default.
//!
//! `docs/promises.md` lists the guarantees with their tests, and `SECURITY.md` lists the limits.
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc, missing_docs)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap, clippy::cast_lossless)
)]

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
mod notify;
pub mod observe;
mod peers;
mod queue;
pub mod remote;
mod reused;
#[cfg(feature = "broken-for-tests")]
mod sabotage;
mod segment;
mod session;
mod stream;
mod tensor;
mod wait;

#[cfg(feature = "cuda")]
pub use api::device::On;
pub use api::instruments::{Instruments, StatisticsScope};
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
pub use lease::dataset::{Dataset, DatasetIter};
pub use lease::device::member::DeviceMember;
#[cfg(feature = "cuda")]
pub use lease::device::{lease::DeviceLease, pin::DevicePin, tensor::DeviceTensor};
pub use lease::lease::Lease;
pub use lease::member::Member;
pub use lease::pin::Pin;
pub use lease::value::Value;
#[doc(hidden)]
pub use lease::waiter::Ticket;
pub use lease::watch::NameWatch;
pub use list::Length;
pub use listing::{Collection, Info, InfoKind, Listing, Spilled, TensorInfo};
pub use names::lifetime::Lifetime;
pub use names::version::Version;
#[doc(hidden)]
pub use notify::Notifications;
pub use queue::items::QueueItems;
#[doc(hidden)]
pub use queue::{Claim, Feed, Offer};
pub use queue::{Queue, QueueItem};
#[cfg(feature = "cuda")]
pub use segment::pinned::{PageLocks, page_locks};
#[doc(hidden)]
pub use segment::populate::lazily;
#[doc(hidden)]
pub use session::reconnect::{Connected, observe_connections};
pub use stream::borrowed::Borrowed;
pub use stream::history::History;
pub use stream::message::{Message, Start};
pub use stream::subscribe::SubscriptionBuilder;
pub use stream::subscriber::Subscription;
pub use stream::{Loan, Sender, Stream, StreamBuilder, TrySendError};
pub use tensor::Tensor;
pub use tensor::dataset::DatasetDraft;
#[cfg(feature = "cuda")]
pub use tensor::device::{
    draft::DeviceDraft,
    legacy::LegacyExport,
    slice::{BorrowedSlice, BorrowedSliceMut},
};
pub use tensor::draft::Draft;
pub use tensor::element::{AsTensor, Complex, Element, Shaped, TensorView};
pub use tensor::member_draft::MemberDraft;
pub use tensor::sendable::Sendable;
pub use tensor::shape::IntoShape;
pub use tensor::spec::TensorSpec;
pub use tensor::value_draft::ValueDraft;
pub use tensorlend_layout::tensor::METADATA_MAX;
pub use tensorlend_layout::versions::build;
pub use tensorlend_layout::wire::{
    Allocator, DeviceOffer, DeviceUse, FdStoreState, Health, Holder, LimitKind, NamespaceUse, Policy, Refusal,
    Refusals, RestartLoss, SpillFault, Stat, UidUse,
};
pub use tensorlend_layout::{BadUuid, DType, Device, Uuid};
#[doc(hidden)]
pub use wait::Deadline;
pub use wait::Timeout;

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
