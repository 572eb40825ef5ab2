//! Requests and replies: a request to one server of a service, and the server's reply.
//!
//! A *channel* connects one [`Caller`] with one [`Server`]: a stream of requests that the caller owns, and a stream of
//! replies that the server owns, of the same capacity. Both are ordinary streams ([`crate::Client::stream`]), so each
//! side writes messages in place, in memory that only it can write:
//!
//! | name | kind | owner | meaning |
//! |---|---|---|---|
//! | `SERVICE/.server/S` | name, ephemeral | server | server S exists |
//! | `SERVICE/.door/S` | list, of ephemeral items | callers append | a caller has opened a channel: a request to connect |
//! | `SERVICE/.line/S/C` | stream, blocks | caller | requests |
//! | `SERVICE/.line/S/C/answers` | stream | server | replies: number n answers request n |
//!
//! The value of `SERVICE/.server/S` is u32 of (pid, catalogue, cursor). It is the location of the server's load
//! (`load.rs`), a word that callers read to choose a server (`servers.rs`).
//!
//! S and C are random 64-bit numbers in hexadecimal digits, one for each opened server and channel. Replies arrive in
//! the order of their requests, so neither needs a number of its own. If the server finishes a later request first, it
//! delays that reply. A reply that is an empty dataset reports a failure, and its metadata is the reason.
//!
//! | process that is gone | what it leaves | who removes it |
//! |---|---|---|
//! | the caller | its requests, on each of its channels | the server, once it has seen their end |
//! | the server | its replies, its connect list | the caller, at its next request or its end; the next server of the service |
//! | both | a channel | the daemon, which ends unused streams (`streams.grace_ms`); the next server of the service |
//!
//! A connect request ends with the caller's session, and the connect list ends with its last connect request.
//!
//! Every member with the right to write may connect and serve: the members of a namespace trust each other to this
//! extent. The client checks their data as in all streams and lists. Many connect requests at once do not delay the
//! replies to connected callers.
//!
//! A caller repeats its connect request if no server accepts it. So a request that arrives while the list is cleared, or
//! for a server that has ended, only costs time.

mod answers;
mod caller;
mod caller_builder;
mod channel;
mod load;
mod polled;
mod server;
mod servers;
mod service;

pub use caller::Caller;
pub use caller_builder::CallerBuilder;
pub use server::{Call, Reply, Server, ServerBuilder};
