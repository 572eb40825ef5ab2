//! Queues: each item goes to one of several consumers.

mod claim;
mod feed;
pub mod items;
mod offer;

use crate::client::Client;
use crate::error::{Error, Result, check_name};
use crate::lease::value::Value;
use crate::tensor::sendable::{Sendable, seal};
use crate::wait::{Deadline, Timeout};
pub use claim::Claim;
pub use feed::Feed;
pub use offer::Offer;
use std::ops::Range;
use std::time::{Duration, Instant};
use tensorlend_layout::wire::{APPEND_MAX, QueueReply, QueueRequest, Reply, Request};
use tensorlend_layout::word::PARKED_ANY;
use tensorlend_os::futex;

/// Time after which a waiting client asks the daemon again, even if the bell has not rung. So it also notices a daemon that does
/// not respond.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A queue: many producers, many consumers, and each item goes to one consumer ([`Client::queue`]).
///
/// The daemon grants each item to one consumer at a time. The consumer confirms the item with [`QueueItem::done`]. If
/// its process ends before that, another consumer gets the item. Delivery is *at least once*: if a consumer is killed
/// after its work, but before `done`, the daemon delivers the item again.
///
/// The items are those of the list with the queue's name. So `tensorlend ls` shows the queue, and limits, spill and
/// recovery apply to its values as to all values. Items outlive the producers that put them.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use std::time::Duration;
///
/// let jobs = client.queue("jobs")?.max_waiting(100);
/// jobs.put(client.create_from(&[1.0f32, 2.0])?, Duration::from_secs(10))?;
///
/// let job = jobs.get(Duration::from_secs(10))?; // in another process, usually
/// assert_eq!(job.value().tensor()?.as_slice::<f32>()?, [1.0, 2.0]);
/// assert!(job.done()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Queue {
    client: Client,
    name: String,
    max: u64,
}

/// An item that this consumer has claimed. No other consumer gets the item until it is given back: by
/// [`QueueItem::give_back`], by dropping this value, or by the end of this client's session.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// let jobs = client.queue("jobs")?;
/// jobs.put(client.create_from(&[7u8])?, None)?;
/// drop(jobs.get(None)?); // gives it back
/// assert_eq!(jobs.get(None)?.number(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct QueueItem {
    value: Value,
    claim: Claim,
}

impl Client {
    /// Returns the queue with this name. A queue exists when it has an item. Its name is that of a list.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// assert_eq!(client.queue("jobs")?.waiting()?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Name`]; [`Error::Argument`] for a name of another machine: a queue serves the processes of one machine.
    pub fn queue(&self, name: &str) -> Result<Queue> {
        check_name(name)?;
        self.session().check()?;
        if self.is_elsewhere(name)? {
            let why = format!("queue {name:?} is on another machine: a queue serves the processes of one machine");
            return Err(Error::Argument(why));
        }
        Ok(Queue { client: self.clone(), name: name.to_owned(), max: 0 })
    }
}

impl Queue {
    /// Sets the number of waiting items that [`Queue::put`] and [`Queue::put_many`] do not exceed. They wait for room. All
    /// producers share one maximum: while the queue has items, the daemon refuses a put with a different one. 0, the default,
    /// is the maximum that another producer gave; without one, there is none.
    /// Items that a consumer has claimed are not included.
    pub fn max_waiting(mut self, items: u64) -> Self {
        self.max = items;
        self
    }

    /// Returns the queue's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Appends a draft or a dataset. Returns the item's number. Waits while the queue is full, then blocks for a round
    /// trip to the daemon. A timeout of 0 tries once.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the queue was full the whole time. Then the item was not appended, and its memory is
    /// freed. Otherwise the errors of [`Client::append`].
    pub fn put(&self, item: impl Sendable, timeout: impl Into<Timeout>) -> Result<u64> {
        let timeout = timeout.into();
        self.offer(item)?.wait(timeout)
    }

    /// Appends drafts or datasets in one request: all of them or none, as adjacent items. Returns their numbers. Waits until the
    /// queue has room for all of them. A timeout of 0 tries once. Without items, returns an empty range.
    ///
    /// For small items, the request takes more time than the rest of [`Queue::put`]. So one `put_many` takes less time than a
    /// `put` for each item.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let jobs = client.queue("jobs")?;
    /// let drafts: Vec<_> = (0..3u8).map(|value| client.create_from(&[value])).collect::<Result<_, _>>()?;
    /// assert_eq!(jobs.put_many(drafts, None)?, 0..3);
    /// assert_eq!(jobs.waiting()?, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] if the queue had no room for all items at any time. Then none was appended, and their memory is freed.
    /// [`Error::Argument`] for more than 1,024 items, or more than [`Queue::max_waiting`]. Also [`Error::Refused`] for more items
    /// than the maximum that another producer gave. Otherwise the errors of [`Client::append`].
    pub fn put_many<T: Sendable>(
        &self,
        items: impl IntoIterator<Item = T>,
        timeout: impl Into<Timeout>,
    ) -> Result<Range<u64>> {
        let timeout = timeout.into();
        let mut offer = self.offer_many(items.into_iter().collect())?;
        let count = offer.values.len() as u64;
        if count == 0 {
            return Ok(0..0);
        }
        let first = offer.wait(timeout)?;
        Ok(first..first + count)
    }

    /// Seals an item for [`Offer::wait`]. Bindings that wait in short intervals use this method.
    ///
    /// # Errors
    /// The errors of [`Queue::put`].
    #[doc(hidden)]
    pub fn offer(&self, item: impl Sendable) -> Result<Offer> {
        self.offer_many(vec![item])
    }

    /// Seals items for [`Offer::wait`], which fails without items.
    ///
    /// # Errors
    /// The errors of [`Queue::put_many`].
    #[doc(hidden)]
    pub fn offer_many<T: Sendable>(&self, items: Vec<T>) -> Result<Offer> {
        let most = if self.max > 0 { self.max.min(APPEND_MAX as u64) } else { APPEND_MAX as u64 };
        if items.len() as u64 > most {
            let why = format!(
                "one call puts 1 to {most} items into queue {:?}, not {}: put them in parts",
                self.name,
                items.len()
            );
            return Err(Error::Argument(why));
        }
        let session = self.client.session();
        // If an item cannot be sealed, dropping the offer frees the items before it.
        let mut offer = Offer { queue: self.clone(), values: Vec::with_capacity(items.len()) };
        for mut item in items {
            offer.values.push(seal(session, &mut item, 0, &self.name)?);
        }
        Ok(offer)
    }

    /// Claims the first item that waits, and leases it. Waits while the queue is empty, with a timeout of 0 for one try. Each
    /// item wakes one consumer. A consumer that waits asks again every second, and each time is the last of those that wait.
    ///
    /// # Errors
    /// * [`Error::Timeout`] if the queue was empty the whole time.
    /// * [`Error::Refused`] if this client has no right to write, or has already claimed 4096 items.
    /// * [`Error::Damaged`] if a faulty client put the item. The client then removes the item.
    /// * [`Error::Leases`] if this client has no free lease. The item is given back.
    pub fn get(&self, timeout: impl Into<Timeout>) -> Result<QueueItem> {
        Feed::new(self.clone(), 1).next(None, Deadline::new(timeout))
    }

    /// Confirms an item of any queue, as [`QueueItem::done`] does, and claims the first item that waits, as [`Queue::get`] does:
    /// in one request, so that it takes half the time of these two. The confirmation counts before any wait for the next item,
    /// and whatever the result. To know whether the claim still existed, call [`QueueItem::done`].
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
    /// let mut job = jobs.get(None)?;
    /// loop {
    ///     println!("{:?}", job.value().tensor()?.as_slice::<u8>()?);
    ///     job = match jobs.next(job, Duration::ZERO) {
    ///         Err(e) if e.is_timeout() => break,
    ///         next => next?,
    ///     };
    /// }
    /// assert_eq!((jobs.waiting()?, jobs.claimed()?), (0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Queue::get`]: the item is confirmed. After an error of [`QueueItem::done`] this client confirms it with its next
    /// request, or when it reaches the next daemon.
    pub fn next(&self, done: QueueItem, timeout: impl Into<Timeout>) -> Result<QueueItem> {
        Feed::new(self.clone(), 1).next(Some(done.split().1), Deadline::new(timeout))
    }

    /// Returns a [`Feed`] that claims up to `prefetch` items at a time. For bindings.
    #[doc(hidden)]
    pub fn feed(&self, prefetch: u8) -> Feed {
        Feed::new(self.clone(), prefetch)
    }

    /// Returns the number of items that wait for a consumer. Blocks for a round trip to the daemon.
    ///
    /// # Errors
    /// [`Error::Disconnected`] or another error of the connection, if no daemon responds.
    pub fn waiting(&self) -> Result<u64> {
        Ok(self.sizes()?.0)
    }

    /// Returns the number of items that consumers have claimed and not finished. Blocks for a round trip to the
    /// daemon.
    ///
    /// # Errors
    /// The errors of [`Queue::waiting`].
    pub fn claimed(&self) -> Result<u64> {
        Ok(self.sizes()?.1)
    }

    fn sizes(&self) -> Result<(u64, u64)> {
        let doing = "count the items of queue";
        match self.request(QueueRequest::Size { list: self.name.clone() }, doing)? {
            Reply::Queue(QueueReply::Size { waiting, claimed }) => Ok((waiting, claimed)),
            _ => Err(Error::Protocol { doing }),
        }
    }

    fn request(&self, request: QueueRequest, doing: &'static str) -> Result<Reply> {
        let session = self.client.session();
        session.check()?;
        session.control.call(&Request::Queue(request), doing, &self.name)
    }

    /// Returns the error of a wait that took the whole time.
    fn timed_out(&self, deadline: Deadline) -> Error {
        deadline.error(format!("queue {:?} (see `tensorlend ls`)", self.name))
    }

    /// Repeats a request whenever the namespace has changed, until the request returns a value or the time is over.
    fn ask_until<T>(&self, deadline: Deadline, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let session = self.client.session();
        session.waiter().enlist(deadline)?;
        let bell = &session.directory.head().bell;
        loop {
            let sample = bell.read();
            // The daemon reads the parked word when it changes the queue after its reply to this request.
            let _parked = session.waiter().park(PARKED_ANY);
            if let Some(value) = ask()? {
                return Ok(value);
            }
            let asked = Instant::now();
            while bell.read() == sample && asked.elapsed() < ASK_AGAIN {
                session.control.check_daemon("wait for a queue")?;
                let Some(nap) = deadline.nap() else {
                    return Err(self.timed_out(deadline));
                };
                futex::wait(bell, sample, nap);
            }
            if deadline.is_over() {
                return match ask()? {
                    Some(value) => Ok(value),
                    None => Err(self.timed_out(deadline)),
                };
            }
        }
    }
}

impl QueueItem {
    /// Returns the leased value.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Returns the item's number, counted from the first item of the queue.
    pub fn number(&self) -> u64 {
        self.claim.granted.item.number
    }

    /// Confirms the item, which the daemon then deletes. Returns false if the claim was over: the queue was cleared, or
    /// the daemon was replaced and gave the item to another consumer. After an error this client confirms the item with
    /// its next request, or when it reaches the next daemon.
    ///
    /// # Errors
    /// [`Error::Disconnected`] or another error of the connection, if no daemon responds. If this client's session then
    /// ends before its next request, the daemon delivers the item again.
    pub fn done(self) -> Result<bool> {
        self.claim.done()
    }

    /// Gives the item back. It is the next item that a consumer gets.
    ///
    /// # Errors
    /// [`Error::Disconnected`] or another error of the connection, if no daemon responds. The claim ends nevertheless:
    /// with this client's next request, with the daemon, or with this client's session.
    pub fn give_back(self) -> Result<()> {
        self.claim.give_back()
    }

    /// Separates the value from the claim.
    #[doc(hidden)]
    pub fn split(self) -> (Value, Claim) {
        (self.value, self.claim)
    }
}
