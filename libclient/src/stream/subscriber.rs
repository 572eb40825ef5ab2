//! The subscriber's end of a stream.

mod follow;

use crate::error::{Error, Result, check_name};
use crate::lease::assemble;
use crate::lease::take::lease;
use crate::lease::take::{At, Leasing, Route};
use crate::lease::value::Value;
use crate::session::Session;
use crate::stream::borrowed::Near;
use crate::stream::message::{Message, Start};
use crate::stream::origin::{Progress, Source};
use crate::stream::ring::map_ring;
use crate::wait::{Deadline, Spin, Timeout, spin};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use tensorlend_layout::leases::{CURSORS, Cursor};
use tensorlend_layout::number::{CursorNo, EntryNo, StreamLine};
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::stream::{Found, Ring, RingEntry, StreamRing};
use tensorlend_layout::tensor::{BadTensor, SmallHead};
use tensorlend_layout::wake;
use tensorlend_layout::wire::{PROTOCOL_WAKE_PAIRS, Policy, Reply, Request};
use tensorlend_layout::word::{Bell, OwnerWord, Word};
use tensorlend_os::memfd::Access;
use tensorlend_os::thread::ClosedApart;
use tensorlend_os::{futex, packet};

/// Maximum turns of one search of a ring. If a search takes more, the producer is treated as faulty.
const TURNS_MAX: u32 = 10_000;

pub(crate) struct Attached {
    pub(crate) head: Sheet<StreamRing>,
    pub(crate) entries: Records<RingEntry>,
    capacity: u32,
    stream: StreamLine,
    id: u64,
    pub(crate) entry: EntryNo,
    pub(crate) owner_word: OwnerWord,
    /// True if the producer waits, so that it replaces no message that this subscriber's cursor has not passed.
    pub(crate) waits: bool,
}

/// The subscriber's end of a stream. Every subscriber receives every message. With [`crate::Policy::DropOldest`], a
/// subscriber that lags loses messages, which [`Subscription::lost`] counts.
///
/// As an iterator it blocks for each message and ends when the stream has ended. With
/// [`crate::SubscriptionBuilder::pollable`] it has a descriptor for epoll, which is readable when [`Subscription::try_recv`]
/// may have a message. Then call that method until it returns `None`.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::{DType, Start};
///
/// let camera = client.stream("camera").open()?;
/// let frames = client.subscription("camera").start_at(Start::Oldest).open()?;
/// assert_eq!((frames.name(), frames.position(), frames.lost()), ("camera", 0, 0));
/// for _ in 0..3 {
///     camera.send(client.create(DType::U8, [4, 4])?)?;
/// }
/// drop(camera);
/// let numbers: Vec<u64> = frames.map(|message| Ok(message?.sequence())).collect::<tensorlend::Result<_>>()?;
/// assert_eq!(numbers, [0, 1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Subscription {
    pub(crate) session: Arc<Session>,
    name: String,
    pub(crate) at: Attached,
    pub(crate) near: Near,
    cursor: CursorNo,
    pub(crate) next: u64,
    /// Number of the first message, or `u64::MAX` in streams that were opened again.
    pub(super) first: u64,
    lost: u64,
    lost_before: u64,
    pub(super) progress: Progress,
    pub(super) spin: Spin,
    /// Another process may watch or fill a socket that it has.
    wake: Option<Arc<ClosedApart>>,
}

impl Subscription {
    /// Subscribes to the local stream of this name.
    pub(crate) fn open(session: &Arc<Session>, name: &str, start: Start, wake: bool, source: Source) -> Result<Self> {
        check_name(name)?;
        session.check()?;
        let cursor = session.streams().take_cursor().ok_or(Error::Cursors(CURSORS))?;
        let late = session.control.late();
        late.give_up_cursor(cursor);
        let joined = Self::join(session, name, cursor, wake);
        let (at, wake) = joined.inspect_err(|e| {
            // The daemon may have listed the cursor. u64::MAX blocks no producer. The cursor is reusable only if it is
            // certainly not listed. Otherwise a late response frees it. Another subscription may use a freed cursor already.
            late.while_given_up(cursor, || {
                session.shards.table().cursors[cursor.index()].next.set(u64::MAX);
            });
            if e.is_certain() {
                late.free_cursor(cursor);
            }
        })?;
        late.reclaim(cursor);
        let mut it = Self {
            session: session.clone(),
            name: name.to_owned(),
            at,
            near: Near::default(),
            cursor,
            next: 0,
            first: 0,
            lost: 0,
            lost_before: 0,
            progress: Progress::new(source != Source::Unknown),
            spin: Spin::new(),
            wake: wake.map(Arc::new),
        };
        it.begin(start);
        it.first = it.next;
        if it.at.head.closed.read() != 0 {
            // The messages lost before this end are of the time before this subscription.
            it.progress.end(it.at.id, 0);
        }
        if let Source::Gateway(position) = source {
            it.expect(position);
        }
        Ok(it)
    }

    fn join(
        session: &Arc<Session>,
        name: &str,
        cursor: CursorNo,
        wake: bool,
    ) -> Result<(Attached, Option<ClosedApart>)> {
        // Set cursor 0 until the position is known. A producer that sees the subscriber in its list then waits, and
        // replaces no message that the subscriber may want.
        let words = &session.shards.table().cursors[cursor.index()];
        words.next.set(0);
        words.lost.set(0);
        words.set_stream(0);
        words.parked.set(0);
        let request = if wake {
            session.control.needs_protocol(PROTOCOL_WAKE_PAIRS, "subscribe to", name)?;
            Request::SubscribePollable { name: name.to_owned(), cursor }
        } else {
            Request::Subscribe { name: name.to_owned(), cursor, wake: false }
        };
        let mut answer = session.control.ask(&request, "subscribe to", name)?;
        let Reply::Stream { stream, id, entry, owner_word, capacity, policy } = answer.reply else {
            return answer.unexpected();
        };
        let mapped = answer.descriptor().and_then(|fd| map_ring(&fd, capacity, Access::Read));
        let wake = if wake { answer.descriptor().map(|fd| Some(fd.into())) } else { Ok(None) };
        answer.acknowledge()?;
        let ((head, entries), wake) = match mapped.and_then(|mapped| Ok((mapped, wake?))) {
            Ok(mapped) => mapped,
            Err(e) => {
                let _ = session.control.unsubscribe(stream, id, cursor, "unsubscribe from");
                return Err(e);
            }
        };
        // Store the stream's id before the fence in `begin`.
        tensorlend_layout::crash_point!("subscribe: listed");
        words.set_stream(id);
        let waits = policy != Policy::DropOldest;
        let at = Attached { head, entries, capacity, stream, id, entry, owner_word: OwnerWord(owner_word), waits };
        tensorlend_layout::crash_point!("subscribe: in the stream");
        Ok((at, wake))
    }

    fn begin(&mut self, start: Start) {
        // Pairs with the producer P's fence between its send and its read of the subscribers' list. Either P sees this
        // subscriber R in the list, or R sees the messages that P sent and replaced.
        wake::news_fence();
        let head = self.at.head.head.read();
        self.next = match start {
            Start::Newest => head.saturating_sub(1).max(self.at.head.tail.read()),
            Start::Oldest => self.at.head.tail.read(),
            Start::Next => head,
        };
        self.words().next.set(self.next);
        self.unblock();
    }

    /// Wakes the producer if it waits for subscribers. The caller must have advanced the cursor before.
    #[inline]
    fn unblock(&self) {
        // Pairs with the producer's fence between parking and its read of this cursor.
        wake::news_fence();
        if self.at.head.producer_parked.read() != 0 {
            self.words().bell.ring();
            futex::wake_all(&self.words().bell);
        }
    }

    #[inline]
    pub(super) fn words(&self) -> &Cursor {
        &self.session.shards.table().cursors[self.cursor.index()]
    }

    /// Returns the id of the ring that the subscription reads. A stream that is opened again has another ring.
    pub(super) fn ring(&self) -> u64 {
        self.at.id
    }

    #[inline]
    fn owner_word(&self) -> Result<&Word> {
        self.session.owner_word(self.at.entry).ok_or(Error::Protocol { doing: "follow a stream" })
    }

    /// Receives the next message, if it is there. Never blocks.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscribe("camera")?;
    /// assert!(frames.try_recv()?.is_none());
    /// camera.send(client.create(tensorlend::DType::U8, [4, 4])?)?;
    /// assert!(frames.try_recv()?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::StreamEnded`] if the producer closed the stream or ended, and the subscription has received every
    ///   message.
    ///   The subscription continues if the stream is opened again.
    /// * [`Error::Remote`], only for a stream of another machine, if this machine's gateway has ended and no other has
    ///   continued within 10 s. The subscription continues with the next gateway.
    /// * [`Error::Damaged`] for one message of a faulty producer.
    /// * [`Error::Leases`] if this client already holds 4096 leases. Once the program has dropped some leases, it can
    ///   receive the same message.
    #[inline]
    pub fn try_recv(&mut self) -> Result<Option<Message>> {
        self.session.check()?;
        let got = self.poll()?;
        if got.is_none() && self.is_pollable() {
            self.arm();
            // The descriptor was armed before this check. So the check finds a message that arrived in between. For a later
            // message the producer sends a byte.
            return self.poll();
        }
        Ok(got)
    }

    /// Returns whether a poll without a message must arm the wake descriptor.
    #[inline]
    pub(crate) fn is_pollable(&self) -> bool {
        self.wake.is_some()
    }

    /// Drains the wake descriptor, and requests a byte with the next message.
    pub(crate) fn arm(&self) {
        if let Some(wake) = &self.wake {
            let mut byte = [0u8; 8];
            while let Ok(1..) = packet::take(wake, &mut byte) {}
            wake::declare(&self.words().parked, 2);
        }
    }

    #[inline]
    pub(crate) fn poll(&mut self) -> Result<Option<Message>> {
        // Each turn means that another process made progress, unless the producer's words contradict each other.
        for _ in 0..TURNS_MAX {
            let ring = Ring { head: &self.at.head, entries: &self.at.entries };
            match ring.find(self.next) {
                Found::NotYet => {
                    if !self.follow()? {
                        return Ok(None);
                    }
                }
                Found::Lost(oldest) => {
                    // A producer that had checked for room before the subscription replaces one message after it.
                    let early = u64::from(self.at.waits && self.next == self.first);
                    self.count(oldest - self.next - early);
                    self.progress.skip(oldest - self.next);
                    self.next = oldest;
                }
                Found::Message(value, mut summary) => {
                    SmallHead::widen(&mut summary);
                    let number = self.next;
                    let entry = ring.entry(number);
                    let owner_word = Route::owner_word(self.owner_word()?, self.at.owner_word);
                    let leasing = lease(
                        &self.session,
                        self.at.owner_word.owner(),
                        owner_word,
                        At::Entry(entry, value, summary),
                        &self.name,
                    );
                    match leasing {
                        // The producer replaced the entry during the check, as `find` will show, or the stream has
                        // another owner.
                        Ok(Leasing::Moved | Leasing::Absent) => {
                            if self.owner_word()?.read() != self.at.owner_word.0 && !self.rejoin()? {
                                return Ok(None);
                            }
                        }
                        Ok(Leasing::Held(leased)) => {
                            self.advance();
                            match self.progress.take(&summary) {
                                Some(0) => {}
                                Some(lost) => self.count(lost),
                                None => continue,
                            }
                            let value = assemble::value(&self.session, leased, &self.name)?;
                            return Ok(Some(self.message(number, value)));
                        }
                        Err(e @ Error::Damaged { .. }) => {
                            self.advance();
                            return Err(e);
                        }
                        Err(e) => return Err(e),
                    }
                }
            }
        }
        self.advance();
        Err(Error::Damaged { name: self.name.clone(), cause: BadTensor::Record })
    }

    #[cold]
    fn count(&mut self, lost: u64) {
        self.lost = self.lost.saturating_add(lost);
        self.words().lost.set(self.lost);
    }

    #[inline]
    fn message(&mut self, sequence: u64, value: Value) -> Message {
        Message { sequence, lost: self.take_lost(), value }
    }

    /// Records that a message was taken. Returns the number of messages lost before that message.
    #[inline]
    pub(crate) fn take_lost(&mut self) -> u64 {
        self.lost - std::mem::replace(&mut self.lost_before, self.lost)
    }

    /// Advances the cursor past a received message. Then the producer may replace it in the ring, but a lease keeps its
    /// slot.
    #[inline]
    pub(crate) fn advance(&mut self) {
        // A hostile producer may have stored the maximum number.
        self.next = self.next.saturating_add(1);
        tensorlend_layout::crash_point!("receive: cursor stands");
        self.words().next.set(self.next);
        self.unblock();
        tensorlend_layout::crash_point!("receive: cursor moved");
    }

    /// Handles an empty ring: the stream may have another ring, or may have ended. Returns true if the caller must check the
    /// ring again.
    #[inline]
    fn follow(&mut self) -> Result<bool> {
        if self.is_live()? { Ok(false) } else { self.follow_on() }
    }

    /// Returns whether more messages may come: the stream is open, and its producer is alive.
    #[inline]
    pub(crate) fn is_live(&self) -> Result<bool> {
        Ok(self.owner_word()?.read() == self.at.owner_word.0
            && self.at.head.closed.read() == 0
            && self.session.is_alive(self.at.owner_word.owner()))
    }

    /// Receives the next message. Blocks until a message arrives. The thread spins briefly and then sleeps on a
    /// futex.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscribe("camera")?;
    /// let frame = client.create(tensorlend::DType::U8, [4, 4])?;
    /// let thread = std::thread::spawn(move || camera.send(frame));
    /// assert_eq!(frames.recv()?.tensor()?.shape(), [4, 4]);
    /// # thread.join().unwrap()?;
    /// assert!(matches!(frames.recv(), Err(tensorlend::Error::StreamEnded(_)))); // the thread has dropped its end
    ///
    /// let camera = client.stream("camera").open()?; // opened again: the subscription goes on
    /// camera.send(client.create(tensorlend::DType::U8, [2, 2])?)?;
    /// assert_eq!(frames.recv()?.tensor()?.shape(), [2, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// If the previous message was long ago, receiving costs a wake-up of about 20 us. Messages that follow each other
    /// quickly cost no wake-up.
    ///
    /// # Errors
    /// The errors of [`Subscription::try_recv`].
    pub fn recv(&mut self) -> Result<Message> {
        self.recv_until(Deadline::new(None))
    }

    /// Receives the next message. Blocks for at most `timeout`.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use std::time::Duration;
    ///
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscribe("camera")?;
    /// assert!(frames.recv_timeout(Duration::from_millis(10)).unwrap_err().is_timeout());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] if no message arrived in time; otherwise the errors of [`Subscription::try_recv`].
    pub fn recv_timeout(&mut self, timeout: impl Into<Timeout>) -> Result<Message> {
        self.recv_until(Deadline::new(timeout))
    }

    pub(crate) fn recv_until(&mut self, deadline: Deadline) -> Result<Message> {
        self.session.check()?;
        if let Some(message) = self.poll()? {
            return Ok(message);
        }
        if self.spin_until_sent()
            && let Some(message) = self.poll()?
        {
            return Ok(message);
        }
        self.sleep(&deadline, Self::poll)
    }

    /// Polls for a short time whether the next message was sent.
    #[inline]
    pub(super) fn spin_until_sent(&self) -> bool {
        self.spin.until(|| self.is_sent())
    }

    /// Waits until `take` returns something: sleeps between calls.
    #[cold]
    pub(super) fn sleep<T>(
        &mut self,
        deadline: &Deadline,
        mut take: impl FnMut(&mut Self) -> Result<Option<T>>,
    ) -> Result<T> {
        loop {
            let ring = self.ring();
            let sample = self.park();
            let got = take(self);
            if let Ok(None) = got {
                let Some(nap) = deadline.nap() else {
                    self.unpark();
                    return Err(deadline.error(format!("a new message of stream {:?}", self.name())));
                };
                // If the subscription has joined another ring, the sample is of the former ring's bell, and nobody has declared
                // a sleep on the new one.
                if self.ring() == ring {
                    futex::wait(&self.at.head.bell, sample, nap);
                }
            }
            self.unpark();
            if let Some(taken) = got? {
                return Ok(taken);
            }
            // If the bell rang without a message, the producer has announced that one follows soon.
            let is_soon = self.at.head.bell.read() != sample;
            let found = if is_soon { spin::soon(|| take(self))? } else { take(self)? };
            if let Some(taken) = found {
                return Ok(taken);
            }
            if !is_soon {
                self.session.control.check_daemon("wait for a message")?;
            }
        }
    }

    /// Returns whether the next message's entry shows that the message was sent. Reads one cache line, and only hints: see
    /// [`Ring::is_sent`].
    #[inline]
    fn is_sent(&self) -> bool {
        Ring { head: &self.at.head, entries: &self.at.entries }.is_sent(self.next)
    }

    /// Declares that this client sleeps on the stream's bell; returns the bell's sample, taken before.
    pub(crate) fn park(&self) -> u32 {
        wake::park(&self.at.head.bell, &self.words().parked, 1)
    }

    pub(crate) fn unpark(&self) {
        self.words().parked.set(0);
    }

    /// Returns the bell that rings with each message.
    pub(crate) fn bell(&self) -> &Bell {
        &self.at.head.bell
    }

    /// Returns the number of messages lost since the subscription began: the producer replaced them before they were received,
    /// or the stream was opened again (not those of streams of this name that began and ended in between). For a stream of another machine, also messages that did not reach this machine.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::{DType, Policy};
    ///
    /// let camera = client.stream("camera").capacity(2).policy(Policy::DropOldest).open()?;
    /// let mut frames = client.subscribe("camera")?;
    /// camera.send(client.create(DType::U8, [4, 4])?)?;
    /// frames.recv()?;
    /// for _ in 0..5 {
    ///     camera.send(client.create(DType::U8, [4, 4])?)?;
    /// }
    /// assert_eq!(frames.recv()?.lost(), 3);
    /// assert_eq!(frames.lost(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// With [`Policy::Block`] and [`Policy::Error`] the number stays 0 for a stream of this machine that is not opened again.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the number of the next message.
    ///
    /// Messages before it were received or lost. The next message may not have been sent yet.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Returns the number of sent messages that this subscription has not received. It is at most the ring's capacity,
    /// whatever the producer has stored.
    pub(crate) fn waiting(&self) -> u64 {
        self.at.head.head.read().saturating_sub(self.next).min(self.at.entries.len() as u64)
    }

    /// Returns whether [`Subscription::try_recv`] would find something: a message, another producer, or the stream's end.
    /// Costs a few loads. It neither takes a message nor arms the descriptor.
    #[doc(hidden)]
    pub fn has_news(&self) -> Result<bool> {
        self.session.check()?;
        Ok(self.waiting() > 0 || !self.is_live()?)
    }

    /// Returns the stream's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the maximum number of messages that the stream holds.
    ///
    /// A subscriber that lags by more messages blocks its producer, or loses messages, depending on the stream's
    /// policy.
    pub fn capacity(&self) -> u32 {
        self.at.capacity
    }

    /// Returns the wake descriptor. It changes each time that the stream is opened again.
    #[cfg(feature = "tokio")]
    pub(crate) fn wake(&self) -> Option<&Arc<ClosedApart>> {
        self.wake.as_ref()
    }
}

impl Iterator for Subscription {
    type Item = Result<Message>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.recv() {
            Err(Error::StreamEnded(_)) => None,
            other => Some(other),
        }
    }
}

impl AsFd for Subscription {
    /// # Panics
    /// Panics if the subscription was opened without [`crate::SubscriptionBuilder::pollable`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_ref().expect("open the subscription as pollable to wait for it with epoll").as_fd()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.session.is_forked() {
            return;
        }
        self.forget_near();
        // From here on the cursor blocks no producer, even without a daemon.
        self.words().next.set(u64::MAX);
        self.words().parked.set(0);
        self.unblock();
        // Without a reply, do not reuse the cursor. The daemon may still list it, and a new subscription would report its
        // position to the producer of the old stream. The reply to the repeated request frees the cursor.
        self.session.control.late().give_up_cursor(self.cursor);
        let _ = self.session.control.unsubscribe(self.at.stream, self.at.id, self.cursor, "unsubscribe from");
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription").field("name", &self.name).field("next", &self.next).finish_non_exhaustive()
    }
}
