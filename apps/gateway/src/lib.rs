//! `tensorlend-gateway`: tensors of other machines' daemons.
//!
//! A gateway is an ordinary client of the daemon, which itself has no network code. The gateway
//! *exports* names, lists and streams of its machine, and *imports* those of other machines. For
//! example, the value `sim/pressure` of node `node7` is named `node7/sim/pressure` on this machine.
//! A client that finds no such name in its own daemon's directory sends a request to the gateway
//! ([`tensorlend::remote`]), which fetches the value.
//!
//! ```text
//! client --lease-- daemon --lease-- gateway ==zenoh== gateway --lease-- daemon --lease-- client
//!                                   import/           export/
//! ```
//!
//! The modules from the bottom up. Each module uses only modules above it in this table.
//!
//! | module | contents |
//! |---|---|
//! | `wire/` | messages between gateways: descriptors, stamps, questions, bodies; encoded, decoded, checked |
//! | `key`, `name` | key expressions of the transport, and names of other nodes' tensors |
//! | `runtime/` | the mailbox of the hub's events, and worker threads |
//! | `transport/` | one trait, and zenoh |
//! | `value` | leased values as bytes to be sent, and drafts into which bytes are received |
//! | `nodes`, `budget`, `statistics`, `settings`, `error` | state machines and data that all parts use |
//! | `local/` | the daemon's side: clients, the service for clients, documents published for them |
//! | `context` | the services that all parts share |
//! | `transfer/` | values in flight to this node |
//! | `export/` | reads and writes of other nodes here: stamps, subscriptions, retained values, streams, puts |
//! | `import/` | copies of other nodes' values, lists, streams, listings |
//! | `hub` | the state: routes events to the parts; its head says how to add a kind of object |
//! | `gateway` | a gateway that runs in this process |
//! | `config`, `args`, `program` | the configuration file, the command line, and the program |
//!
//! # Versions without clocks
//!
//! Each gateway draws an [`Epoch`](wire::Epoch) when it starts, and counts the values that it has seen of each name. A
//! [`Stamp`](wire::Stamp), (epoch, counter), identifies a value. Stamps of two epochs cannot be compared, so a gateway
//! fetches a copy of another epoch again.
//!
//! # Invalidation
//!
//! A gateway that fetches a name subscribes to one invalidation message. At the first change of the
//! name, its gateway sends the message and ends the subscription. It sends nothing for later
//! changes until the other gateway fetches the name again. So a name that changes a thousand times
//! a second and is read once costs one message. A subscription also ends when the gateways lose the
//! connection. A gateway that loses the connection to another gateway marks copies from that
//! gateway as stale. It revalidates each of them when the other gateway is reachable again.
//!
//! # Streams
//!
//! The receiver of a stream grants the sender a window, and grants more room as it takes messages. So at most one
//! window is in flight. The receiver detects lost messages by gaps in the stream's own numbers.
//!
//! # No loops
//!
//! A gateway never exports a name that it has published itself. A request names the requesting node, and a value names
//! the node that first published it. A gateway drops and counts a message that returns to its origin. Zenoh chooses the
//! routes between nodes.

pub mod args;
pub mod budget;
pub mod config;
mod context;
mod error;
pub mod export;
mod gateway;
mod hub;
pub mod import;
pub mod key;
mod local;
pub mod name;
pub mod nodes;
#[cfg(feature = "zenoh")]
mod program;
mod runtime;
pub mod settings;
pub mod statistics;
mod transfer;
pub mod transport;
pub mod value;
pub mod wire;

pub use error::CannotStart;
pub use gateway::Gateway;

#[cfg(feature = "zenoh")]
pub use program::main;
