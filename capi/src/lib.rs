//! The library for C: `libtensorlend.so`, `libtensorlend.a` and `tensorlend.h`, made by `scripts/capi`.
//!
//! What C sees are opaque handles, a status for each call that can fail, and a message for each that did. One file here is
//! one noun there. The header is generated from these files: the comments at `pub` items are written for its readers, and
//! names are those of C. Three rules keep the two sides apart:
//!
//! * No panic crosses: every body runs inside [`status::guard`] or [`status::look`].
//! * Nothing is allocated that C has to guess how to free: a handle has a `_free` of its own, and whatever else is handed
//!   out is borrowed from a handle and goes with it.
//! * A handle that a call takes over is given by the address of the caller's variable, which is NULL afterwards. What was
//!   not taken over is still there, so that a program may free everything at its end, come what may.
//!
//! Rust cannot check what a C program hands in. What the header asks of it, and what every `SAFETY` comment here rests on:
//!
//! 1. A pointer to a handle is NULL, or one that this library made and nobody has freed. Drafts and subscriptions are used
//!    by one thread at a time; handles are freed once no other thread uses them.
//! 2. A pointer to a variable is NULL, or leads to one of its type that nobody else touches during the call.
//! 3. A string is NULL, or ends with a zero byte, and nobody changes it during the call.
//! 4. A pointer that comes with a length is NULL with a length of 0, or leads to that much, aligned for its type, and
//!    nobody changes what is only read, nor touches what is written, during the call.
//! 5. A `DLManagedTensorVersioned` is NULL, or as the `DLPack` specification wants it, and its owner leaves it alone during
//!    the call.
//! 6. A callback is a function of its type that returns, and may be called with its context on any thread, on several at a
//!    time, for as long as its comment says.
//!
//! NULL where something is needed is an error, never a crash.
#![allow(unsafe_code, reason = "what C hands in cannot be checked; the contract stands above")]
#![allow(non_camel_case_types, reason = "names are those of C")]
// Who reads these functions reads the header, where the contract stands once for all of them.
#![allow(clippy::missing_safety_doc, clippy::upper_case_acronyms, clippy::enum_variant_names)]

mod arguments;
mod client;
mod dlpack;
mod draft;
mod dtype;
mod history;
mod instruments;
mod lease;
mod leases;
mod list;
mod listing;
mod names;
mod options;
mod process;
mod stat;
mod status;
mod stream;
mod subscription;
mod version;

/// Only for their promises: what the header says of threads.
const _: fn() = || {
    fn by_all<T: Send + Sync>() {}
    fn by_one_at_a_time<T: Send>() {}
    by_all::<tensorlend::Client>();
    by_all::<tensorlend::Stream>();
    by_all::<tensorlend::History>();
    by_one_at_a_time::<tensorlend::Subscription>();
};
