//! Options for opening a stream.

use crate::error::{Result, check_name};
use crate::session::Session;
use crate::stream::producer::Stream;
use crate::stream::ring::map_ring;
use crate::stream::writer::Writer;
use std::sync::Arc;
use tensorlend_layout::wire::{Policy, Reply, Request};
use tensorlend_layout::word::OwnerWord;
use tensorlend_os::memfd::Access;

/// Default capacity of a stream in messages.
pub const CAPACITY_DEFAULT: u32 = 8;

/// Options of a stream. See [`crate::Client::stream`].
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::Policy;
///
/// let camera = client.stream("camera").capacity(6).policy(Policy::DropOldest).open()?;
/// assert_eq!(camera.capacity(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StreamBuilder {
    session: Arc<Session>,
    name: String,
    capacity: u32,
    policy: Policy,
}

impl StreamBuilder {
    pub(crate) fn new(session: Arc<Session>, name: &str) -> Self {
        Self { session, name: name.to_owned(), capacity: CAPACITY_DEFAULT, policy: Policy::Block }
    }

    /// Sets the number of messages that the stream holds for subscribers that lag or join late. It is rounded up to a
    /// power of two, from 1 to 65,536. Default: 8. The memory of these messages stays in use.
    pub fn capacity(mut self, messages: u32) -> Self {
        self.capacity = messages;
        self
    }

    /// Sets the behaviour of a full stream, in which a subscriber has not taken the oldest message: wait, fail, or drop
    /// the oldest message. Default: [`Policy::Block`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Opens the stream, with message numbers from 0. Subscribers of a former stream of this name move to the new stream,
    /// if the former producer has closed it or ended. Blocks for a round trip to the daemon.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// # let other = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// assert!(other.stream("camera").open().is_err()); // one producer at a time
    /// assert!(client.stream("camera").open().is_err());
    /// drop(camera);
    /// let camera = other.stream("camera").open()?;
    /// assert_eq!((camera.name(), camera.sent()), ("camera", 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// * [`crate::Error::Name`] for an invalid name.
    /// * [`crate::Error::Refused`] if this or another client has the stream open, if the capacity is 0 or above 65,536, or
    ///   if this client has no right to write. Also if a limit of the daemon, the namespace or the user is reached.
    pub fn open(self) -> Result<Stream> {
        check_name(&self.name)?;
        self.session.check()?;
        self.session.streams().retire_closed();
        if self.session.streams().reserve(&self.name).is_err() {
            // The end of the session also ends the stream, and is the error to report then. After a restart of the daemon, this
            // request makes the client read the new directory.
            self.session.control.call(&Request::Ping, "open stream", &self.name)?;
            self.session.streams().reserve(&self.name)?;
        }
        let (session, name) = (self.session.clone(), self.name.clone());
        self.open_reserved().inspect_err(|_| session.streams().release(&name, None))
    }

    /// Opens the stream, whose name this client has reserved.
    fn open_reserved(self) -> Result<Stream> {
        let request = Request::StreamOpen { name: self.name.clone(), capacity: self.capacity, policy: self.policy };
        let mut answer = self.session.control.ask(&request, "open stream", &self.name)?;
        let Reply::Stream { stream, id, entry, owner_word, capacity, policy } = answer.reply else {
            return answer.unexpected();
        };
        let mapped = answer.descriptor().and_then(|fd| map_ring(&fd, capacity, Access::Write));
        tensorlend_layout::crash_point!("stream: ring mapped");
        answer.acknowledge()?;
        let (head, entries) = match mapped {
            Ok(mapped) => mapped,
            Err(e) => {
                // The stream is open, but this client could not map its ring: delete the stream.
                let request = Request::StreamDelete { name: self.name.clone() };
                let _ = self.session.control.call(&request, "delete stream", &self.name);
                return Err(e);
            }
        };
        // A former stream of this name, which this client had closed, has ended now.
        self.session.streams().retire_closed();
        let Self { session, name, .. } = self;
        let entry = (entry, OwnerWord(owner_word));
        session.streams().opened(&name, entry);
        Ok(Stream::opened(Writer { session, name, entry, head, entries, capacity, policy, index: stream, id }))
    }
}
