//! `tensorlend web`: what a broker does, over HTTP: metrics, JSON, and a dashboard.
//!
//! A process of its own. It joins each namespace as a client, reads what lies in the directory and in the members' sheets
//! ([`tensorlend::observe`]), once a second however many look at it, and asks the daemon for its figures twice a second. The
//! daemon itself serves no HTTP. It takes no lease, but for a preview, and publishes nothing.
//!
//! Everything that clients name (tensors, streams, labels) is text from strangers: it leaves this process in JSON only, and
//! the page shows it as text. Only `GET` and `HEAD` are answered.

mod body;
mod error;
mod events;
mod guard;
mod history;
mod json;
mod listen;
mod live;
mod map;
mod metrics;
#[cfg(feature = "otel")]
mod otlp;
mod page;
mod picture;
mod preview;
mod pulse;
mod query;
mod routes;
mod sampler;
mod server;
mod token;
mod view;

pub use error::Error;
pub use listen::Listen;
#[cfg(feature = "otel")]
pub use otlp::{Endpoint, Otlp};
pub use server::Server;
pub use token::Token;

use std::sync::Arc;
use std::time::Duration;
use tensorlend::Client;

/// What a server shows, and where.
pub struct Options {
    /// Where it listens; at least one.
    pub listen: Vec<Listen>,
    /// What whoever is not on this machine has to say. With one, it is asked of all but Unix sockets.
    pub token: Option<Token>,
    /// Whether elements of tensors may be shown.
    pub previews: bool,
    /// Time between two looks.
    pub interval: Duration,
    /// The namespaces to show, each as a way to join it: it is gone again when the daemon has lost the session.
    pub namespaces: Vec<Connect>,
    /// Where the figures are sent to.
    #[cfg(feature = "otel")]
    pub otlp: Option<Otlp>,
}

/// Joins a namespace.
pub type Connect = Arc<dyn Fn() -> tensorlend::Result<Client> + Send + Sync>;
