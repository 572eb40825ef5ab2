//! Observations of a namespace, for tools that display it, without cost to its clients.
//!
//! An observer reads the shared memory directly: the directory, the members' catalogues, lease tables and slot records, and
//! the streams' rings. It requests each sheet from the daemon once, at its first use. One observation makes at most
//! [`ASKED_MAX`] requests, and leaves the rest to the next one. The observer takes no lease, so it does not delay the reuse
//! of any memory. The parts of an observation may describe different moments. The observer checks everything that clients
//! wrote against the daemon's words. It omits contradictions and counts them.

mod ages;
mod collect;
mod display;
mod inspector;
mod meters;
mod names;
mod observation;
mod process;
mod sampler;
mod sheets;
mod slots;
mod streams;
#[cfg(test)]
mod tests;

#[doc(hidden)]
pub use display::{natural, stat_json};
pub use inspector::Inspector;
pub(crate) use inspector::own_stat;
pub use meters::{Meters, States};
pub use observation::{
    ClientSeen, ClientState, LeaseSeen, ListSeen, Location, Observation, Origin, SegmentSeen, SlotSeen, SlotState,
    StreamSeen, SubscriberSeen, ValueSeen,
};
#[doc(hidden)]
pub use process::is_process;
#[doc(hidden)]
pub use sampler::{Asker, Sampled, Sampler};
/// The number of a client in its namespace. A new client may reuse the number of an ended one, with a later epoch.
pub use tensorlend_layout::number::ClientNo;
/// The number of a subscriber's cursor: with the number of its client, it identifies a subscription.
pub use tensorlend_layout::number::CursorNo;
/// The number of a slot among those of its owner.
pub use tensorlend_layout::number::SlotNo;
/// The line of a stream in the directory, which another stream may reuse.
pub use tensorlend_layout::number::StreamLine;

use crate::client::Client;
use crate::error::Result;
use crate::session::Session;
use ages::Ages;
use process::Commands;
use sheets::Sheets;
use std::sync::Arc;

/// Maximum number of requests to the daemon in one observation.
pub const ASKED_MAX: usize = 512;
/// Maximum number of directory entries in one observation.
pub const ENTRIES_MAX: usize = 1 << 17;
/// Maximum number of stream messages in one observation.
pub const MESSAGES_MAX: usize = 1 << 16;
/// Maximum number of slots in one observation.
pub const SLOTS_MAX: usize = 1 << 18;
/// Maximum number of leases in one observation.
pub const LEASES_MAX: usize = 1 << 17;

/// Observes a namespace repeatedly. It keeps the mapped sheets, and the time since which it has seen each lease.
///
/// [`Client::observer`] creates it. Use one observer for a series of observations: the first observation maps the
/// sheets that the next ones read.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// client.put("numbers", &[0u8; 4096])?;
/// let lease = client.get("numbers")?;
///
/// let mut observer = client.observer();
/// let seen = observer.observe()?;
/// assert_eq!((seen.clients.len(), seen.values.len(), seen.leases.len()), (1, 1, 1));
/// assert_eq!(seen.leases[0].bytes, 4096);
/// # drop(lease);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Observer {
    session: Arc<Session>,
    sheets: Sheets,
    ages: Ages,
    commands: Commands,
}

impl Observer {
    /// Observes the whole namespace once. Reads the directory's names, the streams' rings and the members' lease
    /// tables. This takes 5 ms of this thread's time for 10,000 names, 100 clients and 1,000 leases. [`ENTRIES_MAX`]
    /// and similar constants limit the observation. [`Observation::truncated`] reports that there was more.
    ///
    /// # Errors
    /// The errors that every method of [`Client`] can return.
    pub fn observe(&mut self) -> Result<Observation> {
        self.session.check()?;
        collect::observe(self)
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observer").field("namespace", &self.session.welcome.namespace).finish_non_exhaustive()
    }
}

impl Client {
    /// Returns an observer of this client's namespace.
    pub fn observer(&self) -> Observer {
        Observer {
            session: self.session().clone(),
            sheets: Sheets::default(),
            ages: Ages::default(),
            commands: Commands::default(),
        }
    }

    /// Observes the namespace once: its clients, its lent memory, its values and leases. For repeated observations,
    /// keep a [`Client::observer`].
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[1.0f32, 2.0])?;
    /// let seen = client.observe()?;
    /// assert_eq!(seen.clients[0].pid, std::process::id());
    /// assert_eq!(seen.values[0].bytes, 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors that every method of [`Client`] can return.
    pub fn observe(&self) -> Result<Observation> {
        self.observer().observe()
    }
}
