//! The items of a queue, one after the other.

use super::{Feed, Queue, QueueItem};
use crate::error::Result;
use crate::wait::{Deadline, Timeout};

/// The items of a queue, one after the other ([`Queue::items`](super::Queue::items)). Each [`QueueItems::next`] confirms the previous
/// item with the request that claims the next one.
///
/// Dropping it gives back the last item, which no call of [`QueueItems::next`] has confirmed. To end a loop after an item, call
/// [`QueueItems::done`].
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use std::time::Duration;
///
/// let jobs = client.queue("jobs")?;
/// for value in 0..3u8 {
///     jobs.put(client.create_from(&[value])?, None)?;
/// }
/// let mut items = jobs.items();
/// while let Some(job) = items.next(Duration::ZERO)? {
///     println!("{:?}", job.value().tensor()?.as_slice::<u8>()?);
/// }
/// assert_eq!((jobs.waiting()?, jobs.claimed()?), (0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct QueueItems {
    feed: Feed,
    current: Option<QueueItem>,
}

impl Queue {
    /// Returns the queue's items one after the other: see [`QueueItems`].
    pub fn items(&self) -> QueueItems {
        QueueItems { feed: self.feed(1), current: None }
    }
}

impl QueueItems {
    /// Sets the maximum number of items that one request claims, from 1, the default, to 64. A request then also confirms that
    /// many items.
    ///
    /// With more than 1, fewer requests take less time. In exchange, up to that many items that this consumer has finished are
    /// delivered again if its process ends, and no other consumer gets the items that this one has claimed and not received.
    pub fn prefetch(mut self, items: u8) -> Self {
        self.feed.set_prefetch(items);
        self
    }

    /// Confirms the previous item, and returns the next one. Waits while the queue is empty, with a timeout of 0 for one try.
    /// `None`: the queue was empty the whole time; all items are confirmed.
    ///
    /// # Errors
    /// As [`Queue::next`](super::Queue::next).
    pub fn next(&mut self, timeout: impl Into<Timeout>) -> Result<Option<&QueueItem>> {
        let done = self.current.take().map(|item| item.split().1);
        match self.feed.next(done, Deadline::new(timeout)) {
            Ok(item) => Ok(Some(self.current.insert(item))),
            Err(e) if e.is_timeout() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Confirms the last item, as [`QueueItem::done`] does. Returns false if there is none.
    ///
    /// # Errors
    /// As [`QueueItem::done`].
    pub fn done(&mut self) -> Result<bool> {
        self.current.take().map_or(Ok(false), QueueItem::done)
    }

    /// Gives the last item back, as [`QueueItem::give_back`] does.
    ///
    /// # Errors
    /// As [`QueueItem::give_back`].
    pub fn give_back(&mut self) -> Result<()> {
        self.current.take().map_or(Ok(()), QueueItem::give_back)
    }
}
