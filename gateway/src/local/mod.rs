//! The daemon's side: connections, the service for local clients, watched names, and documents for clients.
//!
//! Each namespace has two clients. Values of the first (copies, documents) end with the gateway, so that a killed gateway
//! leaves no copies, which nothing would invalidate any more. Values of the second are puts of other nodes: they belong to this
//! machine from then on, and outlive the gateway as every client's values do.

pub mod documents;
mod service;
mod values;
mod watch;

pub use service::answer;
pub use values::values;
pub use watch::Watch;

use crate::error::CannotStart;
use crate::runtime::EventSender;
use crate::settings::{Settings, SpaceSettings};
use std::time::{Duration, Instant};
use tensorlend::remote::{RemoteRequest, SERVICE};
use tensorlend::{Call, Client, Version};

/// Label of the client that publishes copies.
pub const LABEL: &str = "tensorlend-gateway";
/// Label of the client that publishes puts of other nodes.
pub const LABEL_PUTS: &str = "tensorlend-gateway put";
/// Timeout of the wait for a predecessor's end.
const PREDECESSOR: Duration = Duration::from_secs(10);

/// An event on this machine.
pub enum Event {
    /// A local client sent a request.
    Asked {
        /// Index of the namespace.
        space: usize,
        /// The request.
        request: RemoteRequest,
        /// The call to which the response belongs.
        call: Call,
    },
    /// Watched names changed.
    Changed {
        /// Index of the namespace.
        space: usize,
        /// The names and their versions; `None` for a name without a value.
        names: Vec<(String, Option<Version>)>,
    },
    /// The daemon has ended the gateway's session for good.
    Ended,
}

/// A namespace, with its connections.
pub struct Space {
    /// Its settings.
    pub settings: SpaceSettings,
    /// For copies and documents.
    pub client: Client,
    /// For values that other nodes put.
    pub puts: Client,
    /// Names to which other nodes subscribe.
    pub watch: Watch,
    service: service::Service,
}

impl Space {
    /// Connects, and starts to serve.
    ///
    /// # Errors
    /// [`CannotStart`].
    pub fn open(settings: &Settings, at: usize, events: &EventSender<Event>) -> Result<Self, CannotStart> {
        let space = settings.spaces[at].clone();
        let connect = |label| {
            let mut builder = Client::builder().label(label);
            if let Some(socket) = &settings.socket {
                builder = builder.socket(socket);
            }
            if let Some(local) = &space.local {
                builder = builder.namespace(local);
            }
            builder.connect()
        };
        let client = connect(LABEL)?;
        let start = Instant::now();
        // A killed predecessor disappears as soon as the daemon notices its end.
        while client.list(&format!("{SERVICE}/.server/*"))?.iter().any(|server| server.alive) {
            if start.elapsed() > PREDECESSOR {
                return Err(CannotStart::Double(client.namespace().to_owned()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let puts = connect(LABEL_PUTS)?;
        let watch = Watch::start(&client, at, events)?;
        let service = service::Service::start(&client, at, events)?;
        Ok(Self { settings: space, client, puts, watch, service })
    }

    /// Stops its threads.
    pub fn close(&mut self) {
        self.watch.stop();
        self.service.stop();
    }
}
