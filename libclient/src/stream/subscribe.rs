//! Options of a subscription: its first message, its wait for the stream, and its descriptor.

use crate::client::Client;
use crate::error::{Error, Result, check_name};
use crate::lease::wait::wait_entry;
use crate::stream::message::Start;
use crate::stream::origin::{Source, StreamPosition};
use crate::stream::subscriber::Subscription;
use crate::wait::{Deadline, Timeout};
use tensorlend_layout::name::stream_key;

/// Options of a subscription. See [`crate::Client::subscription`].
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use std::time::Duration;
/// use tensorlend::Start;
///
/// let producer = client.clone();
/// let thread = std::thread::spawn(move || {
///     let camera = producer.stream("camera").open()?;
///     camera.send(producer.create(tensorlend::DType::U8, [4, 4])?)
/// });
/// let mut frames = client.subscription("camera").start_at(Start::Oldest).wait(Duration::from_secs(10)).open()?;
/// assert_eq!(frames.recv()?.sequence(), 0);
/// # thread.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SubscriptionBuilder {
    client: Client,
    name: String,
    start: Start,
    wake: bool,
    wait: Option<Timeout>,
}

impl SubscriptionBuilder {
    pub(crate) fn new(client: Client, name: &str) -> Self {
        Self { client, name: name.to_owned(), start: Start::Newest, wake: false, wait: None }
    }

    /// Returns the position that a gateway has reached in a stream of another machine, from the last message that it sent on
    /// this machine. Only a gateway needs it.
    ///
    /// # Errors
    /// The errors of [`SubscriptionBuilder::open`].
    #[doc(hidden)]
    pub fn filled(self) -> Result<Option<StreamPosition>> {
        let local = Subscription::open(self.client.session(), &self.name, Start::Next, false, Source::Unknown)?;
        Ok(local.filled())
    }

    /// Sets the message with which the subscription begins. Default: [`Start::Newest`].
    pub fn start_at(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Gives the subscription a descriptor for poll and epoll ([`AsFd`](std::os::fd::AsFd)).
    ///
    /// Call [`Subscription::try_recv`] until it returns `None` before the first wait, and after each wait. The call
    /// that returns `None` asks the producer to make the descriptor readable. A killed producer does not do so, and
    /// neither does the producer of a stream that was deleted or opened again. So also poll at an interval, for example
    /// 100 ms. The descriptor changes when the stream is opened again. With the feature `tokio`, `AsyncSubscription`
    /// does all this.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use rustix::event::{PollFd, PollFlags, Timespec, poll};
    ///
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscription("camera").pollable().open()?;
    /// assert!(frames.try_recv()?.is_none());
    /// camera.send(client.create(tensorlend::DType::U8, [4, 4])?)?;
    ///
    /// let soon = Timespec { tv_sec: 10, tv_nsec: 0 };
    /// assert_eq!(poll(&mut [PollFd::new(&frames, PollFlags::IN)], Some(&soon))?, 1);
    /// assert!(frames.try_recv()?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A producer stops writing to the descriptor if one write takes more than 100 ms, or if writes repeatedly take
    /// milliseconds. The latter happens with tens of thousands of epoll watches on the descriptor. Then nothing wakes
    /// the poller.
    pub fn pollable(mut self) -> Self {
        self.wake = true;
        self
    }

    /// Waits until the stream is opened, for at most `timeout`. By default, the stream must exist.
    pub fn wait(mut self, timeout: impl Into<Timeout>) -> Self {
        self.wait = Some(timeout.into());
        self
    }

    /// Subscribes. Blocks for a round trip to the daemon, and for the stream if [`SubscriptionBuilder::wait`] is set.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let missing = client.subscription("camera").open();
    /// assert!(missing.unwrap_err().is_not_found());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::NoSuch`] if there is no such stream, or [`Error::Timeout`] if it was not opened in time.
    /// * [`Error::Cursors`] if 256 subscriptions are open already.
    /// * [`Error::Refused`] if the stream has the maximum number of subscribers.
    /// * [`Error::Remote`], only for a stream of another machine.
    pub fn open(self) -> Result<Subscription> {
        check_name(&self.name)?;
        let deadline = self.wait.map(Deadline::new);
        let (here, source) = self.client.stream_anywhere(&self.name, deadline)?;
        let session = self.client.session();
        if let Some(deadline) = deadline {
            wait_entry(session, &stream_key(here), deadline, || {
                format!("stream {here:?}: no process has opened it (see `tensorlend ls`)")
            })?;
        }
        match Subscription::open(session, here, self.start, self.wake, source) {
            Err(e) if e.is_not_found() => Err(Error::NoSuch { kind: "stream", name: self.name }),
            other => other,
        }
    }
}
