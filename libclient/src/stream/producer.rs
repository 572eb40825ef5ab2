//! The producer's end of a stream.

use crate::error::{Error, Result};
use crate::instruments::Silence;
use crate::names::version::Version;
use crate::session::Session;
use crate::session::streams::ClosedRing;
use crate::stream::origin::StreamPosition;
use crate::stream::writer::{State, Writer};
use crate::tensor::sendable::{Sendable, check_own, sealed};
use crate::wait::{Deadline, Timeout};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tensorlend_layout::stream::Closed;
use tensorlend_layout::tensor::{Origin, Sealed, SmallHead};
use tensorlend_layout::wire::Request;
use tensorlend_os::mutex::lock;

/// The producer's end of a stream. Messages are numbered from 0, and each is a tensor or a dataset. Several threads
/// may send through a shared reference.
///
/// Dropping it closes the stream. Subscribers receive the messages that it still holds, and then see its end.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use std::time::Duration;
///
/// let camera = client.stream("camera").capacity(4).open()?;
/// let mut frames = client.subscribe("camera")?;
/// camera.wait_subscribers(1, Duration::from_secs(10))?;
///
/// let mut frame = client.create(tensorlend::DType::U8, [480, 640, 3])?;
/// frame.bytes_mut().fill(128);
/// camera.send(frame)?;
/// let message = frames.recv()?;
/// assert_eq!(message.tensor()?.shape(), [480, 640, 3]);
///
/// assert_eq!((camera.name(), camera.capacity()), ("camera", 4));
/// assert_eq!((camera.sent(), camera.subscribers()), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// With [`crate::Policy::Block`], the slowest subscriber sets the pace. [`Stream::try_send`] and [`Stream::send_timeout`]
/// limit the wait. A killed subscriber blocks the stream until the daemon detects its end, usually at once.
pub struct Stream {
    pub(super) writer: Writer,
    state: Mutex<State>,
    closed: Closed,
}

/// A free ring slot for one message.
pub(crate) struct RingSlot<'s> {
    stream: &'s Stream,
    state: MutexGuard<'s, State>,
}

impl RingSlot<'_> {
    /// Sends a message. Returns its number.
    #[inline]
    pub(crate) fn fill(mut self, message: impl Sendable, origin: Option<Origin>) -> Result<u64> {
        self.stream.push(&mut self.state, message, origin)
    }
}

/// Seals a message for this stream, which is locked. Does not call the program's memory callback, which might use the
/// stream.
#[inline(always)]
fn seal_locked(session: &Arc<Session>, message: &mut impl Sendable, sequence: u64, what: &str) -> Result<Sealed> {
    let _locked = message.takes_memory(sealed::INSIDE).then(Silence::new);
    check_own(session, message, what)?;
    message.seal_entry(sequence, sealed::INSIDE)
}

impl Stream {
    /// Returns a stream that the daemon has just opened.
    pub(super) fn opened(writer: Writer) -> Self {
        Self { writer, state: Mutex::new(State::new()), closed: Closed::Ended { lost: 0 } }
    }

    /// Sends a message. Returns its number. With [`crate::Policy::Block`], blocks while a subscriber is a whole ring behind.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// assert_eq!(camera.send(client.create(tensorlend::DType::U8, [4, 4])?)?, 0);
    /// assert_eq!(camera.send(client.create(tensorlend::DType::U8, [4, 4])?)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::StreamFull`] if the stream is full and its policy is [`crate::Policy::Error`].
    /// * [`Error::StreamEnded`] if the stream was deleted, or another producer has opened it again.
    /// * [`Error::SessionEnded`] after the daemon has ended this session.
    /// * [`Error::Argument`] for a draft of another client.
    ///
    /// On an error, the method drops the message.
    #[inline]
    pub fn send(&self, message: impl Sendable) -> Result<u64> {
        self.send_until(message, Deadline::new(None))
    }

    /// Sends like [`Stream::send`], but blocks for at most `timeout`.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use std::time::Duration;
    /// use tensorlend::DType;
    ///
    /// let camera = client.stream("camera").capacity(1).open()?;
    /// let slow = client.subscribe("camera")?; // and takes nothing
    /// camera.send(client.create(DType::U8, [4, 4])?)?;
    /// let late = camera.send_timeout(client.create(DType::U8, [4, 4])?, Duration::from_millis(10));
    /// assert!(late.unwrap_err().is_timeout());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] if the stream stayed full; otherwise the errors of [`Stream::send`].
    pub fn send_timeout(&self, message: impl Sendable, timeout: impl Into<Timeout>) -> Result<u64> {
        self.send_until(message, Deadline::new(timeout))
    }

    /// Sends like [`Stream::send`], but never blocks. If the stream is full, the error returns the message.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::{DType, TrySendError};
    ///
    /// let camera = client.stream("camera").capacity(1).open()?;
    /// let mut slow = client.subscribe("camera")?;
    /// camera.send(client.create(DType::U8, [4, 4])?)?;
    /// match camera.try_send(client.create(DType::U8, [4, 4])?) {
    ///     Ok(number) => println!("message {number}"),
    ///     Err(TrySendError::Full(draft)) => {
    ///         slow.recv()?;
    ///         camera.send(draft)?;
    ///     }
    ///     Err(TrySendError::Failed(error)) => return Err(error.into()),
    /// }
    /// # assert_eq!(camera.sent(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TrySendError::Full`] with the message. A stream with [`crate::Policy::DropOldest`] is never full.
    /// [`TrySendError::Failed`] with an error of [`Stream::send`].
    pub fn try_send<M: Sendable>(&self, message: M) -> std::result::Result<u64, TrySendError<M>> {
        self.try_send_as(message, None)
    }

    /// Sends a message of another machine's stream, like [`Stream::try_send`]. Subscribers count the messages of that stream
    /// that they miss. Only a gateway needs it.
    ///
    /// # Errors
    /// The errors of [`Stream::try_send`].
    #[doc(hidden)]
    pub fn try_send_from<M: Sendable>(
        &self,
        message: M,
        origin: StreamPosition,
    ) -> std::result::Result<u64, TrySendError<M>> {
        self.try_send_as(message, Some(origin.into()))
    }

    /// Closes the stream of another machine, which has ended there. `lost` messages before its end did not reach this machine.
    /// Only a gateway needs it.
    #[doc(hidden)]
    pub fn end(mut self, lost: u64) {
        self.closed = Closed::Ended { lost };
    }

    /// Leaves the stream of another machine, which may continue there: subscribers wait for the next gateway. Only a gateway
    /// needs it.
    #[doc(hidden)]
    pub fn leave(mut self) {
        self.closed = Closed::Left;
    }

    fn try_send_as<M: Sendable>(
        &self,
        message: M,
        origin: Option<Origin>,
    ) -> std::result::Result<u64, TrySendError<M>> {
        if let Err(e) = message.ready(sealed::INSIDE) {
            return Err(TrySendError::Failed(e));
        }
        match self.place() {
            Ok(Some(place)) => place.fill(message, origin).map_err(TrySendError::Failed),
            Ok(None) => Err(TrySendError::Full(message)),
            Err(e) => Err(TrySendError::Failed(e)),
        }
    }

    /// Reserves a free ring slot, which other threads cannot take. Returns `None` if the stream is full.
    #[inline]
    pub(crate) fn place(&self) -> Result<Option<RingSlot<'_>>> {
        // Check the process before taking the lock. In a forked child, a thread that exists only in the parent may hold the
        // lock.
        self.writer.session.check()?;
        let mut state = lock(&self.state);
        Ok(self.writer.room(&mut state)?.then_some(RingSlot { stream: self, state }))
    }

    #[inline]
    pub(crate) fn send_until(&self, message: impl Sendable, deadline: Deadline) -> Result<u64> {
        message.ready(sealed::INSIDE)?;
        let mut state = self.with_room(deadline)?;
        self.push(&mut state, message, None)
    }

    /// Blocks until the stream has a free ring slot, which another thread may take first.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use std::time::Duration;
    ///
    /// let camera = client.stream("camera").capacity(1).open()?;
    /// let mut slow = client.subscribe("camera")?;
    /// camera.send(client.create(tensorlend::DType::U8, [4, 4])?)?;
    /// assert!(camera.wait_room(Duration::from_millis(1)).unwrap_err().is_timeout());
    /// slow.recv()?;
    /// camera.wait_room(Duration::from_millis(1))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::StreamFull`] at once if the stream is full and its policy is [`crate::Policy::Error`]; the
    /// other errors of [`Stream::send`].
    pub fn wait_room(&self, timeout: impl Into<Timeout>) -> Result<()> {
        self.with_room(Deadline::new(timeout)).map(|_| ())
    }

    #[inline]
    fn with_room(&self, deadline: Deadline) -> Result<MutexGuard<'_, State>> {
        self.writer.session.check()?;
        let mut state = lock(&self.state);
        while !self.writer.room(&mut state)? {
            let nap = self.writer.nap(&deadline)?;
            let asleep = self.writer.park(&mut state);
            // Other threads may send while this one sleeps.
            drop(state);
            asleep.sleep(nap);
            state = lock(&self.state);
            self.writer.unpark(&mut state);
        }
        Ok(state)
    }

    #[inline]
    fn push(&self, state: &mut State, mut message: impl Sendable, origin: Option<Origin>) -> Result<u64> {
        let mut sealed = seal_locked(&self.writer.session, &mut message, state.next, &self.writer.name)?;
        if let Some(origin) = origin {
            sealed.summary = origin.pack();
        }
        Ok(self.writer.push(state, sealed.value, &sealed.summary))
    }

    /// Wakes sleeping subscribers before a message is there: see [`crate::Call::soon`].
    pub(crate) fn wake_early(&self) {
        self.writer.wake(&mut lock(&self.state));
    }

    /// Sends a message that is also the latest value of a name.
    pub(crate) fn send_named(&self, mut message: impl Sendable, name: &str) -> Result<Version> {
        self.writer.session.check()?;
        message.ready(sealed::INSIDE)?;
        let mut state = lock(&self.state);
        let Sealed { value, summary: entry } = seal_locked(&self.writer.session, &mut message, state.next, name)?;
        let mut summary = entry;
        SmallHead::widen(&mut summary);
        // Add a holder for the ring. The name alone would not keep a value that is overwritten at once.
        self.writer.session.alloc().hold_again(value);
        match self.writer.session.names().publish(name, &Sealed { value, summary }.into()) {
            Ok(version) => {
                self.writer.push(&mut state, value, &entry);
                Ok(version)
            }
            Err(e) => {
                self.writer.session.alloc().take_back(value);
                Err(e)
            }
        }
    }

    /// Returns the ring and its state, without the lock that a shared reference needs.
    #[inline]
    pub(super) fn state_mut(&mut self) -> (&Writer, &mut State) {
        (&self.writer, self.state.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of messages sent so far. Returns 0 in the child of a fork.
    ///
    /// This is also the number of the next message.
    pub fn sent(&self) -> u64 {
        if self.writer.session.is_forked() {
            return 0;
        }
        lock(&self.state).next
    }

    /// Returns the maximum number of messages that the stream holds.
    pub fn capacity(&self) -> u32 {
        self.writer.capacity
    }

    /// Returns the present number of subscribers. Returns 0 in the child of a fork.
    ///
    /// Reads shared memory and never blocks. The number may change at any time.
    pub fn subscribers(&self) -> usize {
        if self.writer.session.is_forked() {
            return 0;
        }
        self.writer.listed().map_or(0, |entry| entry.subscribers.iter().filter(|w| w.read() != 0).count())
    }

    /// Blocks until the stream has at least `count` subscribers, so that they receive the first message.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use std::time::Duration;
    ///
    /// let camera = client.stream("camera").open()?;
    /// assert!(camera.wait_subscribers(1, Duration::from_millis(10)).unwrap_err().is_timeout());
    /// let frames = client.subscribe("camera")?;
    /// camera.wait_subscribers(1, Duration::from_secs(10))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::Forked`].
    pub fn wait_subscribers(&self, count: usize, timeout: impl Into<Timeout>) -> Result<()> {
        self.writer.session.check()?;
        let deadline = Deadline::new(timeout);
        while self.subscribers() < count {
            let nap = deadline.nap().ok_or_else(|| {
                deadline
                    .error(format!("{count} subscribers of {:?}: it has fewer (see `tensorlend ls`)", self.writer.name))
            })?;
            // A subscriber that joins rings no bell, so this loop polls. Joins are rare.
            std::thread::sleep(nap.min(Duration::from_millis(2)));
        }
        Ok(())
    }

    /// Returns the stream's name.
    pub fn name(&self) -> &str {
        &self.writer.name
    }
}

impl Drop for Stream {
    /// Closes the stream. Subscribers receive the remaining messages and then see the stream's end. The messages stay
    /// until the stream is deleted or opened again, or until the daemon ends the stream some time after the last
    /// subscriber has left (`streams.grace_ms`).
    fn drop(&mut self) {
        if self.writer.session.is_forked() {
            return;
        }
        self.writer.head.closed.set(self.closed.pack());
        tensorlend_layout::crash_point!("stream: closed");
        self.writer.wake(&mut lock(&self.state));
        // The messages stay in the ring for late subscribers. When this session ends, the daemon becomes their owner.
        let sent = lock(&self.state).next;
        let Writer { ref entries, index, id, entry, .. } = self.writer;
        let ring = ClosedRing { entries: entries.clone(), index, id, name: entry, sent };
        self.writer.session.streams().close(ring);
        self.writer.session.streams().release(&self.writer.name, Some(entry));
        // The request makes the daemon start the stream's grace period. A new daemon instead reads the word when this
        // client reconnects.
        if self.writer.session.control.reaches() {
            let request = Request::StreamClosed { stream: self.writer.index, id: self.writer.id };
            let _ = self.writer.session.control.call(&request, "close stream", &self.writer.name);
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("name", &self.writer.name)
            .field("capacity", &self.writer.capacity)
            .finish_non_exhaustive()
    }
}

/// The error of [`Stream::try_send`].
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::{DType, Policy, TrySendError};
///
/// let camera = client.stream("camera").capacity(1).policy(Policy::Error).open()?;
/// let slow = client.subscribe("camera")?;
/// camera.send(client.create(DType::U8, [4, 4])?)?;
/// let refused = camera.try_send(client.create(DType::U8, [4, 4])?);
/// assert!(matches!(refused, Err(TrySendError::Full(draft)) if draft.shape() == [4, 4]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum TrySendError<M> {
    /// The stream is full. The variant contains the message.
    Full(M),
    /// The message could not be sent and was dropped.
    Failed(Error),
}

impl<M> std::fmt::Display for TrySendError<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full(_) => f.write_str("the stream is full: send again later, or wait with send"),
            Self::Failed(e) => e.fmt(f),
        }
    }
}

impl<M: std::fmt::Debug> std::error::Error for TrySendError<M> {}

#[cfg(test)]
mod tests {
    use crate::{Client, DType, Policy, Start};

    #[test]
    fn a_message_of_a_blocking_stream_that_is_replaced_before_the_first_one_is_not_lost() {
        let daemon = tensorlend_daemon::embedded().unwrap();
        let connect = || Client::builder().socket(daemon.socket()).connect().unwrap();
        let (producer, subscriber) = (connect(), connect());
        let message = || producer.create(DType::U8, &[1]).unwrap();
        let stream = producer.stream("camera").capacity(1).policy(Policy::Block).open().unwrap();
        stream.send(message()).unwrap();
        // The producer has room for the next message, since it has no subscriber yet.
        let room = stream.place().unwrap().unwrap();
        let mut frames = subscriber.subscription("camera").start_at(Start::Oldest).open().unwrap();
        room.fill(message(), None).unwrap();
        let received = frames.try_recv().unwrap().unwrap();
        assert_eq!((received.sequence(), received.lost(), frames.lost()), (1, 0, 0));
        assert!(stream.try_send(message()).is_ok() && frames.try_recv().unwrap().is_some());
        assert_eq!(frames.lost(), 0);
    }
}
