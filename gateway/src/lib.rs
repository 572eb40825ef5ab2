//! `tensorlend-gateway`: tensors of other machines' brokers.
//!
//! A client like others: the daemon knows nothing of networks. A gateway *exports* names, lists and streams of its machine, and
//! *imports* those of others: a value of node `node7` that is named `sim/pressure` there is named `node7/sim/pressure` here.
//! Whoever wants it asks its own broker, finds no such name, and asks the gateway ([`tensorlend::remote`]), which fetches it.
//!
//! ```text
//! client --lease-- broker --lease-- gateway ==zenoh== gateway --lease-- broker --lease-- client
//!                                   import/           export/
//! ```
//!
//! | module | what |
//! |---|---|
//! | `wire/` | what two gateways say to each other: descriptors, stamps, requests; encoded, decoded, checked |
//! | `value` | leased values as bytes to be sent, and drafts into which bytes are received |
//! | `key` | key expressions: which node, what of it, whose name |
//! | `transport/` | how it gets there: one trait; zenoh, and a network in memory that loses, delays and parts as a test says |
//! | `export/` | what others may read: stamps, promises, leases that are being read, streams that are being sent |
//! | `import/` | what was read of others: cached values, transfers that are under way, streams that are being received |
//! | `nodes` | who is there |
//! | `hub` | the one that decides; its head says how another kind of thing plugs in |
//! | `post` | where events are posted, and who sees to them: whoever comes |
//! | `workers` | threads for what takes long |
//! | `local/` | the broker's side: connections, the service that clients ask, what is published for them |
//! | `config`, `settings` | the configuration file, and what it comes to |
//! | `args`, `program` | the command line, and the program around all this |
//!
//! # Versions without clocks
//!
//! Each gateway draws an [`Epoch`](wire::Epoch) when it starts, and counts the values that it has seen of each name. A
//! [`Stamp`](wire::Stamp), (epoch, counter), says which value a copy is of. Stamps of two epochs are not compared: a copy of
//! another epoch is fetched again.
//!
//! # Promises
//!
//! Who fetches a name is promised one word when the name has another value. The first change after it redeems the promise, and
//! nothing is said of later ones until the name is fetched again: what changes a thousand times a second, and is read once,
//! costs one message. A promise holds as long as both gateways see each other; a gateway that saw another vanish
//! marks its copies stale, and asks for each of them again when it is back.
//!
//! # Streams
//!
//! Who receives a stream says how much room it has, and says again what it has taken: so much is on the way, and no more. What is lost is seen by gaps
//! in the stream's own numbers, wherever it was lost.
//!
//! # No loops
//!
//! A name that a gateway has published is never exported, a request says from whom it comes, and a value says where it was first
//! published; what comes home is dropped and counted. What lies between two nodes is zenoh's to route.

#[cfg(feature = "zenoh")]
mod args;
pub mod config;
pub mod export;
pub mod hub;
pub mod import;
pub mod key;
pub mod local;
pub mod nodes;
pub mod post;
#[cfg(feature = "zenoh")]
mod program;
pub mod settings;
pub mod statistics;
pub mod transport;
pub mod value;
pub mod wire;
pub mod workers;

#[cfg(feature = "zenoh")]
pub use program::main;
