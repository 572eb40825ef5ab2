//! The library for C: `libtensorlend.so`, `libtensorlend.a` and `tensorlend.h`, made by `scripts/capi`.
//!
//! The interface consists of opaque handles, a status for each call that can fail, and a message
//! for each call that failed. Each file contains one noun of the interface. `bindings/c/header`
//! generates the header from these files. So the comments of `pub` items address readers of the header, and names are
//! those of C. Four rules separate the two languages:
//!
//! * No panic crosses into C, because every body runs inside `status::guard` or `status::look`. The macros `call`, `look` and
//!   `free` of `arguments.rs` see to it.
//! * No exception enters Rust, because [`std::panic::catch_unwind`] ends the process when a foreign
//!   exception reaches it.
//! * C never guesses how to free memory. Each kind of handle has its own `_free`. Every other
//!   pointer is borrowed from a handle, and is valid as long as that handle.
//! * A call takes a handle over by the address of the caller's variable, and sets the variable to
//!   NULL. If the call did not take the handle over, the variable still holds it. So a program may
//!   free all of its variables at its end.
//!
//! Rust cannot check the arguments of a C program. The header requires the following contract, on which the conversions of
//! `arguments.rs` rely. Each other `SAFETY` comment states the rules on which it relies:
//!
//! 1. *Handles.* A pointer to a handle is NULL, or a pointer that this library made and the program
//!    has not freed. Only one thread at a time uses a draft, an item of a queue, a subscription, a
//!    caller, a server, a request or a model. A thread frees a handle only when no other thread
//!    uses it.
//! 2. *Variables.* A pointer to a variable is NULL, or points to a variable of its type that no other thread accesses during the
//!    call.
//! 3. *Strings.* A string is NULL, or ends with a zero byte, and no thread changes it during the call.
//! 4. *Lengths.* A pointer with a length is NULL with a length of 0, or points to memory of that length, aligned for its type.
//!    During the call, no other thread changes memory that the call reads, or accesses memory that it writes.
//! 5. *DLPack.* A `DLManagedTensorVersioned` is NULL, or meets the `DLPack` specification, and its owner does not change it
//!    during the call.
//! 6. *Callbacks.* A callback is a function of its type that returns. It may be called with its
//!    context on any thread, on several at a time, for the time that its comment states.
//! 7. *Streams.* A stream is NULL, or a stream of this process in the primary context of the device
//!    with which it is used. It exists until every draft and lease on which it was recorded has
//!    ended.
//!
//! NULL for a required argument is an error, never a crash.
#![warn(missing_docs)]
#![allow(unsafe_code, reason = "arguments of C cannot be checked; the contract is above")]
#![allow(non_camel_case_types, reason = "names are those of C")]
// The header states the contract once for all functions.
#![allow(clippy::missing_safety_doc, clippy::upper_case_acronyms, clippy::enum_variant_names)]

mod arguments;
mod caller;
mod client;
mod device;
mod dlpack;
mod draft;
mod dtype;
mod fault;
mod history;
mod instruments;
mod lease;
mod leases;
mod list;
mod listing;
mod model;
mod names;
mod options;
mod process;
mod queue;
mod remote;
mod server;
mod stat;
mod status;
mod stream;
mod subscription;
mod version;

/// Compile-time check of the header's rules about threads.
const _: fn() = || {
    fn by_all<T: Send + Sync>() {}
    fn by_one_at_a_time<T: Send>() {}
    by_all::<tensorlend::Client>();
    by_all::<tensorlend::Queue>();
    by_all::<tensorlend::Stream>();
    by_all::<tensorlend::History>();
    by_one_at_a_time::<tensorlend::QueueItem>();
    by_one_at_a_time::<tensorlend::Subscription>();
    by_one_at_a_time::<tensorlend::Caller>();
    by_one_at_a_time::<tensorlend::Server>();
    by_one_at_a_time::<tensorlend_model::Model>();
};
