//! The side of this machine: connections to the daemon, the service for local clients, watched names, and documents for
//! clients.
//!
//! Each namespace has two clients. The first client publishes copies and documents, which end with
//! the gateway, because nothing would invalidate the copies of a killed gateway. The second client
//! publishes the values that other nodes put on this machine. These values belong to this machine,
//! and outlive the gateway as the values of every client do.

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
/// Time to wait for the end of an earlier gateway process that still serves the namespace.
const PREDECESSOR: Duration = Duration::from_secs(10);

/// An event of the clients or the daemon of this machine.
pub enum Event {
    /// A local client sent a request.
    Asked {
        /// Index of the namespace.
        space: usize,
        request: RemoteRequest,
        /// The call, with which the gateway responds.
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
    pub settings: SpaceSettings,
    /// The client that publishes copies and documents.
    pub client: Client,
    /// The client that publishes values that other nodes put on this machine.
    pub puts: Client,
    /// The names to which other nodes are subscribed.
    pub watch: Watch,
    service: service::Service,
}

impl Space {
    /// Connects both clients to the daemon, and starts to serve local clients.
    ///
    /// # Errors
    /// [`CannotStart`].
    pub fn open(settings: &Settings, at: usize, events: &EventSender<Event>) -> Result<Self, CannotStart> {
        let space = settings.spaces[at].clone();
        let connect = |label| {
            let mut builder = Client::builder().label(label).autostart(false);
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
        // The server of a killed gateway is listed as alive until the daemon notices its end.
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

    /// Stops the threads of the watch and of the service.
    pub fn close(&mut self) {
        self.watch.stop();
        self.service.stop();
    }
}
