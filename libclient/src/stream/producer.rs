//! The producer's end of a stream.

use crate::error::{Error, Result};
use crate::instruments::Silence;
use crate::names::version::Version;
use crate::session::Session;
use crate::session::streams::ClosedRing;
use crate::tensor::draft::Sealed;
use crate::tensor::sendable::{Sendable, seal, sealed};
use crate::wait::{Deadline, NAP_MAX, Timeout, Waking};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tensorlend_layout::directory::StreamEntry;
use tensorlend_layout::leases::{CURSORS, Cursor, LeaseTable};
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::stream::{Ring, RingEntry, StreamRing};
use tensorlend_layout::wake;
use tensorlend_layout::wire::{Policy, Request};
use tensorlend_layout::word::{SubscriberWord, Word};
use tensorlend_os::futex;
use tensorlend_os::mutex::lock;

struct Subscriber {
    word: SubscriberWord,
    table: Sheet<LeaseTable>,
    wake: Option<Waking>,
}

impl Subscriber {
    fn cursor(&self) -> &Cursor {
        &self.table.cursors[usize::from(self.word.cursor()) % CURSORS]
    }

    /// Returns a copy that keeps the cursor mapped while a thread sleeps on this subscriber's bell.
    fn to_watch(&self) -> Self {
        Self { word: self.word, table: self.table.clone(), wake: None }
    }
}

struct State {
    /// The number of the next message.
    next: u64,
    /// The version of the cached list of subscribers.
    version: u64,
    subscribers: Vec<Subscriber>,
    /// The number of a message that every subscriber had reached at the last check.
    slowest: u64,
}

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
/// With [`Policy::Block`], the slowest subscriber sets the pace. [`Stream::try_send`] and [`Stream::send_timeout`]
/// limit the wait. A killed subscriber blocks the stream until the daemon detects its end, usually at once.
pub struct Stream {
    session: Arc<Session>,
    name: String,
    head: Sheet<StreamRing>,
    entries: Records<RingEntry>,
    policy: Policy,
    /// The stream's index in the directory's table of streams, and its id there.
    index: u32,
    id: u64,
    state: Mutex<State>,
}

/// The ring of a stream that the daemon has opened, and the stream's row in the directory's table of streams.
pub(super) struct Opened {
    pub head: Sheet<StreamRing>,
    pub entries: Records<RingEntry>,
    /// The index of the stream's row.
    pub index: u32,
    pub id: u64,
}

/// A free ring slot for one message.
pub(crate) struct RingSlot<'s> {
    stream: &'s Stream,
    state: MutexGuard<'s, State>,
}

impl RingSlot<'_> {
    /// Sends a message. Returns its number.
    #[inline]
    pub(crate) fn fill(mut self, message: impl Sendable) -> Result<u64> {
        self.stream.push(&mut self.state, message)
    }
}

/// Seals like [`seal`], while the stream is locked. Does not call the program's memory callback, which might use the
/// stream.
#[inline]
fn seal_locked(session: &Arc<Session>, message: impl Sendable, sequence: u64, what: &str) -> Result<Sealed> {
    let _locked = message.takes_memory(sealed::INSIDE).then(Silence::new);
    seal(session, message, sequence, what)
}

impl Stream {
    /// Returns a stream that the daemon has just opened.
    pub(super) fn opened(session: Arc<Session>, name: String, policy: Policy, opened: Opened) -> Self {
        let Opened { head, entries, index, id } = opened;
        let state = Mutex::new(State { next: 0, version: u64::MAX, subscribers: Vec::new(), slowest: 0 });
        Self { session, name, head, entries, policy, index, id, state }
    }

    /// Sends a message. Returns its number. With [`Policy::Block`], blocks while a subscriber is a whole ring behind.
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
    /// * [`Error::StreamFull`] if the stream is full and its policy is [`Policy::Error`].
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
    /// [`TrySendError::Full`] with the message. A stream with [`Policy::DropOldest`] is never full.
    /// [`TrySendError::Failed`] with an error of [`Stream::send`].
    pub fn try_send<M: Sendable>(&self, message: M) -> std::result::Result<u64, TrySendError<M>> {
        if let Err(e) = message.ready(sealed::INSIDE) {
            return Err(TrySendError::Failed(e));
        }
        match self.place() {
            Ok(Some(place)) => place.fill(message).map_err(TrySendError::Failed),
            Ok(None) => Err(TrySendError::Full(message)),
            Err(e) => Err(TrySendError::Failed(e)),
        }
    }

    /// Reserves a free ring slot, which other threads cannot take. Returns `None` if the stream is full.
    #[inline]
    pub(crate) fn place(&self) -> Result<Option<RingSlot<'_>>> {
        // Check the process before taking the lock. In a forked child, a thread that exists only in the parent may hold the
        // lock.
        self.session.check()?;
        let mut state = lock(&self.state);
        Ok(self.room(&mut state)?.then_some(RingSlot { stream: self, state }))
    }

    #[inline]
    pub(crate) fn send_until(&self, message: impl Sendable, deadline: Deadline) -> Result<u64> {
        message.ready(sealed::INSIDE)?;
        let mut state = self.with_room(deadline)?;
        self.push(&mut state, message)
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
    /// [`Error::Timeout`]; [`Error::StreamFull`] at once if the stream is full and its policy is [`Policy::Error`]; the
    /// other errors of [`Stream::send`].
    pub fn wait_room(&self, timeout: impl Into<Timeout>) -> Result<()> {
        self.with_room(Deadline::new(timeout)).map(|_| ())
    }

    #[inline]
    fn with_room(&self, deadline: Deadline) -> Result<MutexGuard<'_, State>> {
        self.session.check()?;
        let mut state = lock(&self.state);
        while !self.room(&mut state)? {
            if self.policy == Policy::Error {
                return Err(Error::StreamFull(self.name.clone()));
            }
            let Some(nap) = deadline.nap() else {
                return Err(deadline
                    .error(format!("room in stream {:?}: its slowest subscriber is a whole ring behind", self.name)));
            };
            state = self.wait_for_room(state, nap);
        }
        Ok(state)
    }

    /// Returns the stream's entry in the directory, while the entry belongs to this stream.
    #[inline]
    fn listed(&self) -> Result<&StreamEntry> {
        let entry = self.session.directory.streams.get(self.index as usize);
        entry.filter(|entry| entry.id.read() == self.id).ok_or_else(|| Error::StreamEnded(self.name.clone()))
    }

    /// Returns whether the producer may replace the oldest message.
    #[inline]
    fn room(&self, state: &mut State) -> Result<bool> {
        self.session.check()?;
        // The session is over, and no process reads this ring any more. Check here, because a message without subscribers
        // sends no request and so would not detect the end of the session.
        if self.session.control.is_dead() {
            return Err(Error::SessionEnded);
        }
        let version = self.listed()?.subscribers_version.read();
        let capacity = self.entries.len() as u64;
        let Some(oldest) = state.next.checked_sub(capacity) else { return Ok(true) };
        if self.policy == Policy::DropOldest || (state.slowest > oldest && state.version == version) {
            return Ok(true);
        }
        if !self.refresh(state) {
            // The cursor of a listed subscriber is not mapped, so that subscriber may need the oldest message.
            return self.listed().map(|_| false);
        }
        state.slowest = state.subscribers.iter().map(|s| s.cursor().next.read()).min().unwrap_or(u64::MAX);
        Ok(state.slowest > oldest)
    }

    /// Sleeps until a slow subscriber may have advanced. Releases the lock in the meantime.
    fn wait_for_room<'s>(&'s self, state: MutexGuard<'s, State>, nap: Duration) -> MutexGuard<'s, State> {
        let behind: Vec<Subscriber> = state.subscribers.iter().take(128).map(Subscriber::to_watch).collect();
        let bells: Vec<_> = behind.iter().map(|s| &s.cursor().bell).map(|bell| (bell, bell.read())).collect();
        wake::declare(&self.head.producer_parked, 1);
        let oldest = state.next - self.entries.len() as u64;
        let full = state.subscribers.iter().any(|s| s.cursor().next.read() <= oldest);
        let same = self.listed().is_ok_and(|entry| entry.subscribers_version.read() == state.version);
        drop(state);
        if full && same {
            // A subscriber that leaves rings no bell, so sleep briefly and read the list again.
            futex::wait_any(&bells, nap.min(NAP_MAX / 4));
        } else if !same {
            // The daemon has probably ended. Without the daemon, the producer cannot map the cursors of new
            // subscribers.
            std::thread::sleep(nap.min(Duration::from_millis(1)));
        }
        let mut state = lock(&self.state);
        self.head.producer_parked.set(0);
        state.slowest = 0;
        state
    }

    #[inline]
    fn push(&self, state: &mut State, message: impl Sendable) -> Result<u64> {
        let sealed = seal_locked(&self.session, message, state.next, &self.name)?;
        tensorlend_layout::crash_point!("send: sealed");
        Ok(self.push_sealed(state, &sealed))
    }

    /// Sends a sealed slot. The ring takes over one of the slot's holders.
    #[inline]
    fn push_sealed(&self, state: &mut State, sealed: &Sealed) -> u64 {
        let number = state.next;
        let ring = Ring { head: &self.head, entries: &self.entries };
        let replaced = ring.send(number, sealed.value, &sealed.summary);
        state.next += 1;
        tensorlend_layout::crash_point!("send: counted");
        // The message is sent, and later steps cannot undo that.
        self.wake(state);
        if let Some(replaced) = replaced {
            self.session.alloc().retire(replaced);
        }
        number
    }

    /// Wakes sleeping subscribers before a message is there: see [`crate::Call::soon`].
    pub(crate) fn wake_early(&self) {
        self.wake(&mut lock(&self.state));
    }

    /// Wakes the subscribers that sleep.
    #[inline]
    fn wake(&self, state: &mut State) {
        wake::news_fence();
        self.refresh(state);
        let mut sleepers = false;
        for subscriber in &mut state.subscribers {
            match subscriber.cursor().parked.read() {
                1 => sleepers = true,
                2 if subscriber.wake.as_ref().is_some_and(|wake| !wake.wake()) => subscriber.wake = None,
                _ => {}
            }
        }
        if sleepers {
            self.head.bell.ring();
            futex::wake_all(&self.head.bell);
        }
    }

    /// Reads the subscribers' list again if it has changed. Returns false if some subscribers are unknown. Without the
    /// daemon the producer cannot map new ones. It then keeps the old list and reads the list again the next time.
    fn refresh(&self, state: &mut State) -> bool {
        let Ok(entry) = self.listed() else {
            // The stream was deleted, or another producer has opened it again. So this producer has no subscribers
            // any more.
            state.subscribers.clear();
            return false;
        };
        let version = entry.subscribers_version.read();
        if version == state.version {
            return true;
        }
        let words: Vec<u64> = entry.subscribers.iter().map(Word::read).filter(|&w| w != 0).collect();
        // If the entry still belongs to this stream, so did the list.
        if self.listed().is_err() {
            state.subscribers.clear();
            return false;
        }
        let mut fetched = Vec::with_capacity(words.len());
        for word in words.into_iter().map(SubscriberWord) {
            if let Some(at) = state.subscribers.iter().position(|s| s.word == word) {
                fetched.push(state.subscribers.swap_remove(at));
                continue;
            }
            let Ok(subscriber) = self.fetch(word) else {
                fetched.append(&mut state.subscribers);
                state.subscribers = fetched;
                return false;
            };
            fetched.extend(subscriber);
        }
        state.subscribers = fetched;
        state.version = version;
        state.slowest = 0;
        true
    }

    fn fetch(&self, word: SubscriberWord) -> Result<Option<Subscriber>> {
        let Some(table) = self.session.peers().lease_table(word.catalogue())? else { return Ok(None) };
        let wake = if word.has_wake() { self.fetch_wake(word)? } else { None };
        Ok(Some(Subscriber { word, table, wake }))
    }

    fn fetch_wake(&self, word: SubscriberWord) -> Result<Option<Waking>> {
        let toll = self.session.waiter().toll_of(word.catalogue());
        if lock(&toll).is_excessive() {
            return Ok(None);
        }
        let request =
            Request::WakeDescriptor { stream: self.index, catalogue: word.catalogue(), cursor: word.cursor() };
        let mut answer = self.session.control.ask(&request, &[], "fetch a wake descriptor", &self.name)?;
        if !answer.has_descriptors() {
            return Ok(None);
        }
        let wake = answer.descriptor()?;
        answer.acknowledge()?;
        Ok(Some(Waking::new(wake, toll)))
    }

    /// Sends a message that is also the latest value of a name.
    pub(crate) fn send_named(&self, message: impl Sendable, name: &str) -> Result<Version> {
        self.session.check()?;
        message.ready(sealed::INSIDE)?;
        let mut state = lock(&self.state);
        let sealed = seal_locked(&self.session, message, state.next, name)?;
        let value = sealed.value;
        // Add a holder for the ring. The name alone would not keep a value that is overwritten at once.
        self.session.alloc().hold_again(value);
        match self.session.names().publish_value(name, value) {
            Ok(version) => {
                self.push_sealed(&mut state, &sealed);
                Ok(version)
            }
            Err(e) => {
                self.session.alloc().take_back(value);
                Err(e)
            }
        }
    }

    /// Returns the number of messages sent so far. Returns 0 in the child of a fork.
    ///
    /// This is also the number of the next message.
    pub fn sent(&self) -> u64 {
        if self.session.is_forked() {
            return 0;
        }
        lock(&self.state).next
    }

    /// Returns the maximum number of messages that the stream holds.
    pub fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Returns the present number of subscribers. Returns 0 in the child of a fork.
    ///
    /// Reads shared memory and never blocks. The number may change at any time.
    pub fn subscribers(&self) -> usize {
        if self.session.is_forked() {
            return 0;
        }
        self.listed().map_or(0, |entry| entry.subscribers.iter().filter(|w| w.read() != 0).count())
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
        self.session.check()?;
        let deadline = Deadline::new(timeout);
        while self.subscribers() < count {
            let nap = deadline.nap().ok_or_else(|| {
                deadline.error(format!("{count} subscribers of {:?}: it has fewer (see `tensorlend ls`)", self.name))
            })?;
            // A subscriber that joins rings no bell, so this loop polls. Joins are rare.
            std::thread::sleep(nap.min(Duration::from_millis(2)));
        }
        Ok(())
    }

    /// Returns the stream's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Stream {
    /// Closes the stream. Subscribers receive the remaining messages and then see the stream's end. The messages stay
    /// until the stream is deleted or opened again, or until the daemon ends the stream some time after the last
    /// subscriber has left (`streams.grace_ms`).
    fn drop(&mut self) {
        if self.session.is_forked() {
            return;
        }
        self.head.closed.set(1);
        tensorlend_layout::crash_point!("stream: closed");
        self.wake(&mut lock(&self.state));
        // The messages stay in the ring for late subscribers. When this session ends, the daemon becomes their owner.
        let sent = lock(&self.state).next;
        let ring = ClosedRing { entries: self.entries.clone(), index: self.index, id: self.id, sent };
        self.session.streams().close(ring);
        // The request makes the daemon start the stream's grace period. A new daemon instead reads the word when this
        // client reconnects.
        if self.session.control.reaches() {
            let request = Request::StreamClosed { stream: self.index, id: self.id };
            let _ = self.session.control.call(&request, "close stream", &self.name);
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("name", &self.name)
            .field("capacity", &self.entries.len())
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
