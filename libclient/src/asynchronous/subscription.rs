//! A subscription whose messages are futures.

use super::blocking;
use super::listener::{Listener, Woken};
use crate::error::{Error, Result};
use crate::stream::message::Message;
use crate::stream::subscribe::SubscriptionBuilder;
use crate::stream::subscriber::Subscription;
use crate::wait::NAP_MAX;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, ready};
use tensorlend_os::clock::duration_ns;
use tokio::time::{Instant, Sleep, sleep_until};

/// A subscription for tokio tasks: use [`AsyncSubscription::recv`], or any combinator over [`futures_core::Stream`].
/// As a `Stream` it ends when the tensors' stream has ended. If polled again, it continues when a producer has opened
/// the stream again.
///
/// The subscription uses no thread: the task sleeps on the subscription's descriptor. It also polls every 100 ms, because a
/// killed producer does not write to the descriptor. The subscription must stay in the runtime in which it was opened. This
/// runtime needs its I/O and time drivers (`enable_all`).
///
/// The awaiting task leases a message in place. In three cases it asks the daemon, which blocks its thread for some
/// microseconds. The cases are the first message from memory that this client has not mapped yet, a stream that was
/// opened again, and the drop of the subscription.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use futures_util::{StreamExt, TryStreamExt};
/// use tensorlend::{DType, Start};
///
/// let camera = client.stream("camera").open()?;
/// let frames = client.subscription("camera").start_at(Start::Oldest).open_async().await?;
/// for _ in 0..3 {
///     camera.send(client.create(DType::U8, [4, 4])?)?;
/// }
/// drop(camera);
/// let numbers: Vec<u64> = frames.map_ok(|message| message.sequence()).try_collect().await?;
/// assert_eq!(numbers, [0, 1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncSubscription {
    subscription: Subscription,
    listener: Listener,
    /// True if the other end of the listener's descriptor is closed, so that the listener reports nothing more.
    hung_up: bool,
    /// The time of the next poll without an event.
    next_poll: Pin<Box<Sleep>>,
}

impl AsyncSubscription {
    fn new(subscription: Subscription) -> Result<Self> {
        let Some(wake) = subscription.wake() else {
            return Err(Error::Argument("open the subscription as pollable to await its messages".to_owned()));
        };
        let listener = Listener::new(wake)?;
        Ok(Self { subscription, listener, hung_up: false, next_poll: Box::pin(sleep_until(poll_time())) })
    }

    /// Waits for the next message. The program may drop the future at any time (by [`tokio::time::timeout`], or in a
    /// branch of a select) without losing a message. The future has either returned the message or not taken it.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use std::time::Duration;
    ///
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscription("camera").open_async().await?;
    /// assert!(tokio::time::timeout(Duration::from_millis(10), frames.recv()).await.is_err());
    /// camera.send(client.create(tensorlend::DType::U8, [480, 640, 3])?)?;
    /// assert_eq!(frames.recv().await?.tensor()?.shape(), [480, 640, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Subscription::try_recv`].
    ///
    /// # Panics
    /// Panics outside a tokio runtime with I/O and time drivers.
    pub async fn recv(&mut self) -> Result<Message> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Polls for the next message, for hand-written futures: see [`AsyncSubscription::recv`].
    ///
    /// # Errors
    /// The errors of [`Subscription::try_recv`].
    ///
    /// # Panics
    /// Panics outside a tokio runtime with I/O and time drivers.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Message>> {
        // Even a task that always finds a message must yield from time to time.
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        loop {
            if let Some(got) = self.subscription.try_recv().transpose() {
                budget.made_progress();
                return Poll::Ready(got);
            }
            ready!(self.poll_news(cx))?;
        }
    }

    /// Returns `Ready` when a message may have arrived. The caller must have called `try_recv` without finding a
    /// message: only then does the producer send a byte.
    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(wake) = self.subscription.wake().filter(|wake| !self.listener.is_for(wake)) {
            self.listener = Listener::new(wake)?;
            self.hung_up = false;
        }
        if !self.hung_up
            && let Poll::Ready(woken) = self.listener.poll_woken(cx)
        {
            self.hung_up = matches!(woken?, Woken::HungUp);
            return Poll::Ready(Ok(()));
        }
        ready!(self.next_poll.as_mut().poll(cx));
        self.next_poll.as_mut().reset(poll_time());
        Poll::Ready(Ok(()))
    }

    /// Takes the next message, if it is there. Never waits.
    ///
    /// # Errors
    /// The errors of [`Subscription::try_recv`].
    pub fn try_recv(&mut self) -> Result<Option<Message>> {
        self.subscription.try_recv()
    }

    /// Returns the number of messages lost so far, like [`Subscription::lost`].
    pub fn lost(&self) -> u64 {
        self.subscription.lost()
    }

    /// Returns the number of the next message, like [`Subscription::position`].
    pub fn position(&self) -> u64 {
        self.subscription.position()
    }

    /// Returns the stream's name.
    pub fn name(&self) -> &str {
        self.subscription.name()
    }

    /// Returns the blocking subscription, at the same position.
    pub fn into_sync(self) -> Subscription {
        self.subscription
    }
}

impl futures_core::Stream for AsyncSubscription {
    type Item = Result<Message>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match ready!(self.get_mut().poll_recv(cx)) {
            Err(Error::StreamEnded(_)) => None,
            other => Some(other),
        })
    }
}

/// Returns the next time to poll without an event. It is the same for all subscriptions of a process, so that a
/// hundred idle subscriptions do not wake the process a hundred times.
fn poll_time() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    let origin = *ORIGIN.get_or_init(Instant::now);
    let period = duration_ns(NAP_MAX);
    let passed = duration_ns(Instant::now().saturating_duration_since(origin));
    origin + std::time::Duration::from_nanos((passed / period + 1) * period)
}

impl Subscription {
    /// Turns a [pollable](SubscriptionBuilder::pollable) subscription into one for tokio tasks.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscription("camera").pollable().open()?.into_async()?;
    /// camera.send(client.create(tensorlend::DType::U8, [4, 4])?)?;
    /// assert_eq!(frames.recv().await?.sequence(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the subscription is not pollable; [`Error::System`] if the reactor does not accept its
    /// descriptor.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with I/O and time drivers.
    pub fn into_async(self) -> Result<AsyncSubscription> {
        AsyncSubscription::new(self)
    }
}

impl SubscriptionBuilder {
    /// Subscribes, for tokio tasks. Asks the daemon on one of the runtime's threads for blocking calls, and also
    /// [waits](SubscriptionBuilder::wait) there for a stream that is not open yet. Dropping the future does not end
    /// that wait.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let missing = client.subscription("camera").open_async().await;
    /// assert!(missing.unwrap_err().is_not_found());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`SubscriptionBuilder::open`] and [`Subscription::into_async`].
    ///
    /// # Panics
    /// Panics outside a tokio runtime with I/O and time drivers.
    pub async fn open_async(self) -> Result<AsyncSubscription> {
        blocking("subscribe", move || self.pollable().open()).await?.into_async()
    }
}
