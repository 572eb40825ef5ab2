//! A name that keeps its last values.

use crate::error::{Result, check_name};
use crate::held::Version;
use crate::lease::Value;
use crate::stream::{Sendable, Stream};
use crate::subscription::Start;
use crate::{Client, Policy};

/// A name whose last values stay readable: the newest under the name itself, all of them by [`Client::versions`].
///
/// They are a stream of the same name with [`Policy::DropOldest`]: whoever wants every value subscribes to it.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
/// let history = client.keep("temperature", 4)?;
/// for degrees in 0..10u64 {
///     let mut draft = client.create(tensorlend::DType::U64, &[1])?;
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
    /// Publishes the next value.
    ///
    /// # Errors
    /// As [`crate::Draft::publish`].
    pub fn publish(&self, value: impl Sendable) -> Result<Version> {
        self.stream.send_named(value, self.stream.name())
    }
}

impl Client {
    /// Keeps the last `versions` values of a name (rounded up to a power of two) from now on, with this client as their
    /// producer.
    ///
    /// # Errors
    /// As [`crate::StreamBuilder::open`].
    pub fn keep(&self, name: &str, versions: u32) -> Result<History> {
        check_name(name)?;
        let stream = self.stream(name).capacity(versions).policy(Policy::DropOldest).open()?;
        Ok(History { stream })
    }

    /// Leases on the values that a name has kept, oldest first. Takes two round trips to the daemon.
    ///
    /// # Errors
    /// [`crate::Error::NoSuch`] if the name keeps none.
    pub fn versions(&self, name: &str) -> Result<Vec<Value>> {
        let mut kept = self.subscription(name).from(Start::Oldest).open()?;
        let mut values = Vec::new();
        loop {
            match kept.try_recv() {
                Ok(Some(message)) => values.push(message.into_value()),
                // Ended: its producer is gone, and what it kept has been read.
                Ok(None) | Err(crate::Error::StreamEnded(_)) => return Ok(values),
                Err(e) => return Err(e),
            }
        }
    }
}
