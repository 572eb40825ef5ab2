//! Queues: each item goes to one of several consumers.

mod claim;
mod offer;

use crate::client::Client;
use crate::error::{Error, Result, check_name};
use crate::lease::items::item as lease_item;
use crate::lease::value::Value;
use crate::tensor::sendable::{Sendable, seal};
use crate::wait::{Deadline, Timeout};
pub use claim::Claim;
use claim::{finish, give_back};
pub use offer::Offer;
use std::time::{Duration, Instant};
use tensorlend_layout::wire::{QueueReply, QueueRequest, Reply, Request};
use tensorlend_layout::word::PARKED_ANY;
use tensorlend_os::futex;

/// Time after which a waiting client asks the daemon again, even if the bell has not rung.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A queue: many producers, many consumers, and each item goes to one consumer ([`Client::queue`]).
///
/// The daemon grants each item to one consumer at a time. The consumer confirms the item with [`QueueItem::done`];
/// if its process ends before that, another consumer gets the item. Delivery is *at least once*: a consumer that is
/// killed after its work, but before `done`, leaves an item that is delivered again.
///
/// The items are those of the list with the queue's name, so that `tensorlend ls` shows the queue, and its values have
/// the limits, the spill and the recovery of all values. Items that their producers put outlive these producers.
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

/// An item that this consumer has claimed. No other consumer gets it until it is given back: by
/// [`QueueItem::give_back`], by dropping it, or by the end of this client's session.
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
    /// Returns the queue with this name. A queue exists once it has an item; its name is that of a list.
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
    /// Sets the number of waiting items at which [`Queue::put`] of this handle waits; 0, the default: none. Items that a
    /// consumer has claimed do not count.
    pub fn max_waiting(mut self, items: u64) -> Self {
        self.max = items;
        self
    }

    /// Returns the queue's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Appends a draft or a dataset; returns the item's number. Waits while the queue is full, then blocks for a round
    /// trip to the daemon. Wait with a timeout of 0 to try once.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the queue was full the whole time: nothing was appended, and the draft is freed. Otherwise
    /// as [`Client::append`].
    pub fn put(&self, item: impl Sendable, timeout: impl Into<Timeout>) -> Result<u64> {
        let timeout = timeout.into();
        self.offer(item)?.wait(timeout)
    }

    /// Seals an item for [`Offer::wait`]. For callers that wait in slices.
    ///
    /// # Errors
    /// As [`Queue::put`].
    #[doc(hidden)]
    pub fn offer(&self, item: impl Sendable) -> Result<Offer> {
        let session = self.client.session();
        let sealed = seal(session, item, 0, &self.name)?;
        Ok(Offer { queue: self.clone(), value: Some(sealed.value) })
    }

    /// Claims the first item that waits, and leases it. Waits while the queue is empty, with a timeout of 0 for one try.
    ///
    /// # Errors
    /// * [`Error::Timeout`] if the queue was empty the whole time.
    /// * [`Error::Refused`] without the right to write, or with 4096 claimed items.
    /// * [`Error::Damaged`] if a faulty client put the item, which is then removed.
    /// * [`Error::Leases`]: the item is given back.
    pub fn get(&self, timeout: impl Into<Timeout>) -> Result<QueueItem> {
        let deadline = Deadline::new(timeout);
        match self.claim()? {
            Some(claimed) => Ok(claimed),
            None => self.ask_until(deadline, || self.claim()),
        }
    }

    /// Returns the number of items that wait for a consumer. Blocks for a round trip to the daemon.
    ///
    /// # Errors
    /// [`Error::Disconnected`] and the like, without a daemon.
    pub fn waiting(&self) -> Result<u64> {
        Ok(self.sizes()?.0)
    }

    /// Returns the number of items that consumers have claimed and not finished. Blocks as [`Queue::waiting`].
    ///
    /// # Errors
    /// As [`Queue::waiting`].
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

    /// Claims and leases the first item that waits; `None`: no item waits.
    fn claim(&self) -> Result<Option<QueueItem>> {
        const DOING: &str = "take from queue";
        let session = self.client.session();
        loop {
            let granted = match self.request(QueueRequest::Claim { list: self.name.clone() }, DOING)? {
                Reply::Queue(QueueReply::Claimed(granted)) => granted,
                Reply::Queue(QueueReply::Empty) => return Ok(None),
                _ => return Err(Error::Protocol { doing: DOING }),
            };
            session.queue_claims().add(granted);
            tensorlend_layout::crash_point!("queue: claimed");
            match lease_item(session, &self.name, granted.item.list, granted.item.number) {
                Ok(Some(value)) => {
                    let claim = Claim { client: self.client.clone(), granted, finished: false };
                    tensorlend_layout::crash_point!("queue: leased");
                    return Ok(Some(QueueItem { value, claim }));
                }
                // Its owner ended before the value was written, or the queue was cleared: no consumer can read it.
                Ok(None) => {
                    finish(session, granted)?;
                }
                Err(e @ Error::Damaged { .. }) => {
                    finish(session, granted)?;
                    return Err(e);
                }
                Err(e) => {
                    give_back(session, granted)?;
                    return Err(e);
                }
            }
        }
    }

    /// Repeats a request whenever the namespace has changed, until it returns a value or the time is over.
    fn ask_until<T>(&self, deadline: Deadline, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let session = self.client.session();
        session.waiter().enlist(deadline)?;
        let bell = &session.directory.head().bell;
        loop {
            let sample = bell.read();
            // The daemon reads the parked word when it changes the queue, after it has answered this request.
            let _parked = session.waiter().park(PARKED_ANY);
            if let Some(value) = ask()? {
                return Ok(value);
            }
            let asked = Instant::now();
            while bell.read() == sample && asked.elapsed() < ASK_AGAIN {
                session.control.check_daemon("wait for a queue")?;
                let Some(nap) = deadline.nap() else {
                    return Err(deadline.error(format!("queue {:?} (see `tensorlend ls`)", self.name)));
                };
                futex::wait(bell, sample, nap);
            }
            if deadline.is_over() {
                return match ask()? {
                    Some(value) => Ok(value),
                    None => Err(deadline.error(format!("queue {:?} (see `tensorlend ls`)", self.name))),
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

    /// Confirms the item, which the daemon deletes. Returns false if the claim was over: the queue was cleared, or the
    /// daemon was replaced and gave the item to another consumer. After an error this client confirms the item with its
    /// next request, or when it reaches the next daemon.
    ///
    /// # Errors
    /// [`Error::Disconnected`] and the like, without a daemon: the item is delivered again if this client's session ends
    /// before its next request.
    pub fn done(self) -> Result<bool> {
        self.claim.done()
    }

    /// Gives the item back: it is the next one that a consumer gets.
    ///
    /// # Errors
    /// [`Error::Disconnected`] and the like, without a daemon. The claim ends all the same: with this client's next request,
    /// with the daemon, or with this client's session.
    pub fn give_back(self) -> Result<()> {
        self.claim.give_back()
    }

    /// Separates the value from the claim.
    #[doc(hidden)]
    pub fn split(self) -> (Value, Claim) {
        (self.value, self.claim)
    }
}
