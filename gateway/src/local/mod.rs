//! The broker's side: connections, the service that clients ask, names that are watched, what is published for clients.
//!
//! Each namespace has two clients. What the first publishes (copies, documents) ends with the gateway, so that nothing lies about that nobody
//! keeps good: a gateway that was killed leaves no copy behind. What the second publishes are values that others have put
//! here: they are this machine's from then on, and outlive the gateway as every client's values do.

pub mod documents;
mod service;
mod watch;

pub use service::answer;
pub use watch::Watch;

use crate::error::CannotStart;
use crate::runtime::EventSender;
use crate::settings::{Settings, SpaceSettings};
use std::time::{Duration, Instant};
use tensorlend::remote::{RemoteRequest, SERVICE};
use tensorlend::{Call, Client, Version};

/// What copies are published by.
pub const LABEL: &str = "tensorlend-gateway";
/// What others' puts are published by.
pub const LABEL_PUTS: &str = "tensorlend-gateway put";
/// How long a predecessor has to be gone.
const PREDECESSOR: Duration = Duration::from_secs(10);

/// What happens on this machine.
pub enum Event {
    /// A client of this machine asks.
    Asked {
        /// Index of the namespace.
        space: usize,
        /// The request.
        request: RemoteRequest,
        /// The call to answer.
        call: Call,
    },
    /// Watched names have other values.
    Changed {
        /// Index of the namespace.
        space: usize,
        /// The names and their versions; `None` for a name without a value.
        names: Vec<(String, Option<Version>)>,
    },
    /// The daemon has ended the gateway's session for good.
    Ended,
}

/// A namespace, as the gateway sees it.
pub struct Space {
    /// What is done with it.
    pub settings: SpaceSettings,
    /// For copies and documents.
    pub client: Client,
    /// For values that others put.
    pub puts: Client,
    /// Names of which others are promised a word.
    pub watch: Watch,
    service: service::Service,
}

impl Space {
    /// Connects, and serves.
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
        // One that was killed is gone as soon as the daemon has heard of it.
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

    /// Ends its threads.
    pub fn close(&mut self) {
        self.watch.stop();
        self.service.stop();
    }
}
