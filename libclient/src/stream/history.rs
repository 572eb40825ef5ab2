//! Histories: names that keep their latest values.

use crate::client::Client;
use crate::error::{Error, Result, check_name};
use crate::lease::value::Value;
use crate::names::version::Version;
use crate::stream::Stream;
use crate::stream::message::Start;
use crate::tensor::sendable::Sendable;
use tensorlend_layout::wire::Policy;

/// A name whose latest values stay readable: the newest value under the name itself, and all values by
/// [`Client::versions`].
///
/// The values are messages of a stream of the same name with [`Policy::DropOldest`]. Subscribe to this stream to
/// receive every value.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// let history = client.keep("temperature", 4)?;
/// for degrees in 0..10u64 {
///     let mut draft = client.create(tensorlend::DType::U64, [1])?;
///     draft.as_mut_slice::<u64>()?[0] = degrees;
///     history.publish(draft)?;
/// }
/// assert_eq!(client.get("temperature")?.as_slice::<u64>()?, [9]);
/// assert_eq!(client.versions("temperature")?.len(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct History {
    stream: Stream,
}

impl History {
    /// Publishes the next value. Drops the oldest value if the history is full. Returns the new value's version. Never
    /// waits for readers.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let history = client.keep("pose", 2)?;
    /// for _ in 0..3 {
    ///     history.publish(client.create(tensorlend::DType::F64, [4, 4])?)?;
    /// }
    /// assert_eq!(client.versions("pose")?.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`crate::Draft::publish`]; [`crate::Error::Argument`] for a draft of another client;
    /// [`crate::Error::StreamEnded`] if the stream was deleted or belongs to another producer now.
    pub fn publish(&self, value: impl Sendable) -> Result<Version> {
        self.stream.send_named(value, self.stream.name())
    }
}

impl Client {
    /// Starts a history. From now on, it keeps the latest `versions` values of a name (rounded up to a power of two),
    /// with this client as their producer.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let history = client.keep("pose", 8)?;
    /// let version = history.publish(client.create(tensorlend::DType::F64, [4, 4])?)?;
    /// assert_eq!(client.get("pose")?.version(), version);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`crate::StreamBuilder::open`].
    pub fn keep(&self, name: &str, versions: u32) -> Result<History> {
        check_name(name)?;
        let stream = self.stream(name).capacity(versions).policy(Policy::DropOldest).open()?;
        Ok(History { stream })
    }

    /// Leases the values in a name's history, oldest first. Blocks for two round trips to the daemon.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let history = client.keep("step", 4)?;
    /// for step in 0..3u8 {
    ///     let mut draft = client.create(tensorlend::DType::U8, [1])?;
    ///     draft.bytes_mut()[0] = step;
    ///     history.publish(draft)?;
    /// }
    /// let kept = client.versions("step")?;
    /// let steps: Vec<_> = kept.iter().map(|value| value.as_tensor().unwrap().bytes()[0]).collect();
    /// assert_eq!(steps, [0, 1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::NoSuch`] if the name has no history; [`crate::Error::Cursors`] if 256 subscriptions are open
    /// already; [`crate::Error::Leases`] if the history has more values than this client can lease.
    pub fn versions(&self, name: &str) -> Result<Vec<Value>> {
        let mut kept = self.subscription(name).start_at(Start::Oldest).open()?;
        let mut values = Vec::new();
        loop {
            match kept.try_recv() {
                Ok(Some(message)) => values.push(message.into_value()),
                // The stream has ended: its producer closed it or ended, and this client has read all values.
                Ok(None) | Err(Error::StreamEnded(_)) => return Ok(values),
                Err(e) => return Err(e),
            }
        }
    }
}
