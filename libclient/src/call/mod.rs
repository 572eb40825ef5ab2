//! Call and serve: a request for one server of a service, and its answer.
//!
//! A *line* is what leads from one [`Caller`] to one [`Server`]: a stream of requests that the caller owns, and a stream of
//! answers that the server owns, of the same capacity. Both are streams as everybody's ([`crate::Client::stream`]), so that
//! requests and answers are written where they are read, and nobody writes what is another's:
//!
//! | name | kind | owner | what it says |
//! |---|---|---|---|
//! | `SERVICE/.server/S` | name, ephemeral | server | that server S is there |
//! | `SERVICE/.door/S` | list, of ephemeral items | callers append | the line that a caller has opened |
//! | `SERVICE/.line/S/C` | stream, blocks | caller | requests |
//! | `SERVICE/.line/S/C/answers` | stream | server | answers: number n answers request n |
//!
//! The first one's value is u32 of (pid, catalogue, cursor): where the server's load stands (`load.rs`), a word of its own by which callers
//! see which of several servers is idle (`servers.rs`).
//!
//! S and C are random numbers of 64 bits, in hexadecimal digits, of a server's and a line's one life. Since answers come in the
//! order of their requests, nothing has to be added to either of them; a server that is done with a later request first keeps
//! the answer until its turn. An answer that is an empty dataset is a failure, and its metadata the reason.
//!
//! | who is gone | what is left | who removes it |
//! |---|---|---|
//! | the caller | its requests, on each of its lines | the server, once it has seen that they ended |
//! | the server | its answers, its door | the caller, when it calls next or ends; the next server of the service |
//! | both | a line | the daemon, which ends streams that nobody uses (`streams.grace_ms`); the next server of the service |
//!
//! What a caller says at a door ends with the caller's session, and the door with the last of them.
//!
//! Whoever may write in a namespace may knock, and serve: members trust each other that far. What they write is checked as in all streams
//! and lists, and a crowd at the door keeps nobody from being answered who is inside.
//!
//! A caller that finds no answer to its opening of a line knocks again: so a knock that comes while a door is emptied, or at the
//! door of a server that is gone, costs time and nothing else.

mod answers;
mod caller;
mod line;
mod load;
mod server;
mod servers;
mod service;

pub use caller::{Caller, CallerBuilder};
pub use server::{Call, Reply, Server, ServerBuilder};
