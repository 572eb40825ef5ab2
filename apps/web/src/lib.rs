//! `tensorlend web`: the daemon's state over HTTP, as metrics, JSON and a dashboard.
//!
//! The server runs in its own process. It joins each namespace as a client. Once a second it
//! samples the directory and the tables that the members share ([`tensorlend::observe`]),
//! independently of the number of viewers. Twice a second it requests the daemon's metrics. The
//! daemon itself serves no HTTP. The server takes leases only for previews, and publishes nothing.
//!
//! Names of tensors and streams, and labels of clients, are untrusted text. The server emits them
//! only in JSON, and the page shows them as text. The server accepts only `GET` and `HEAD`.

mod body;
mod elements;
mod error;
mod events;
mod guard;
mod history;
mod json;
mod listen;
mod live;
mod metrics;
mod page;
mod picture;
mod preview;
mod process;
mod pulse;
mod query;
mod routes;
mod sampler;
mod server;
mod services;
mod shm;
mod token;
mod view;

pub use error::Error;
pub use listen::{Listen, check_access};
pub use server::Server;
pub use token::Token;

use std::sync::Arc;
use std::time::Duration;
use tensorlend::Client;
use tensorlend::observe::Inspector;

pub struct Options {
    /// Addresses to listen on; at least one.
    pub listen: Vec<Listen>,
    /// The token that requests from other machines must carry. If a token is set, local TCP
    /// requests must carry it, too. Requests over Unix sockets need no token. Without a token, the
    /// server refuses addresses as [`check_access`] does.
    pub token: Option<Token>,
    /// Whether elements of tensors may be shown.
    pub previews: bool,
    /// Time between two samples.
    pub interval: Duration,
    /// The daemon's socket, for the page's title.
    pub socket: String,
    /// The namespaces to show; at least one.
    pub namespaces: Vec<Source>,
    /// Returns the source of a namespace that appears later. `None` to show only `namespaces`.
    pub later: Option<Later>,
}

/// The way in which the server observes a namespace. Each function opens a new connection. The
/// server calls the function again when the connection to the daemon is lost.
pub enum Source {
    /// As a client of the namespace.
    Join(Connect),
    /// As an observer of all namespaces, in which case the server sees no values.
    Observe { connect: Arc<dyn Fn() -> tensorlend::Result<Inspector> + Send + Sync>, namespace: String },
}

/// Returns the source of the namespace with this name.
pub type Later = Box<dyn Fn(&str) -> Source + Send>;

/// Opens a session in one namespace.
pub type Connect = Arc<dyn Fn() -> tensorlend::Result<Client> + Send + Sync>;
