//! The subscriber's end of a stream.

use crate::client::Client;
use crate::error::{Error, Result, ValueKind, check_name};
use crate::lease::assemble;
use crate::lease::lease::{Dataset, Lease};
use crate::lease::take::lease;
use crate::lease::take::{At, Leasing, Route};
use crate::lease::value::Value;
use crate::lease::wait::wait_entry;
use crate::session::Session;
use crate::stream::borrowed::Near;
use crate::stream::ring::map_ring;
use crate::wait::Deadline;
use crate::wait::{Spin, spin};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tensorlend_layout::leases::{CURSORS, Cursor};
use tensorlend_layout::name::stream_key;
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::stream::{Found, Ring, RingEntry, StreamRing};
use tensorlend_layout::tensor::BadTensor;
use tensorlend_layout::wake;
use tensorlend_layout::wire::{Item, Policy, Reply, Request};
use tensorlend_layout::word::{Bell, Home, Member, MemberState, Word};
use tensorlend_os::futex;
use tensorlend_os::memfd::Access;

/// Turns of one look at a stream before its producer is taken for broken.
const TURNS_MAX: u32 = 10_000;

/// Where a subscription begins.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
/// use tensorlend::{DType, Start};
///
/// let camera = client.stream("camera").open()?;
/// for _ in 0..3 {
///     camera.send(client.create(DType::U8, &[4, 4])?)?;
/// }
/// let position = |start| client.subscription("camera").from(start).open().map(|frames| frames.position());
/// assert_eq!(position(Start::Oldest)?, 0);
/// assert_eq!(position(Start::Newest)?, 2);
/// assert_eq!(position(Start::Next)?, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// With the newest message that the stream holds, then all that follow.
    #[default]
    Newest,
    /// With the oldest message that the stream still holds.
    Oldest,
    /// With the first message that is sent from now on.
    Next,
}

/// A message of a stream: a lease on a tensor or a dataset.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
/// let camera = client.stream("camera").open()?;
/// let mut frames = client.subscribe("camera")?;
/// let mut frame = client.create(tensorlend::DType::U8, &[480, 640, 3])?;
/// frame.set_timestamp(1_700_000_000_000_000_000);
/// camera.send(frame)?;
///
/// let message = frames.recv()?;
/// assert_eq!((message.sequence(), message.lost()), (0, 0));
/// assert_eq!(message.timestamp(), 1_700_000_000_000_000_000);
/// assert_eq!(message.tensor()?.shape(), [480, 640, 3]);
/// assert!(message.dataset().is_err() && message.value().as_tensor().is_some());
/// drop(frames);
/// let kept = message.into_value(); // outlives the subscription
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Message {
    sequence: u64,
    lost: u64,
    value: Value,
}

impl Message {
    /// Its number in the stream, from 0 on.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// How many messages were lost between the one before and this: more than 0 only with
    /// [`crate::Policy::DropOldest`].
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// What was sent.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// What was sent, to keep.
    pub fn into_value(self) -> Value {
        self.value
    }

    /// The tensor that was sent.
    ///
    /// # Errors
    /// [`Error::Kind`] if it was a dataset.
    pub fn tensor(&self) -> Result<&Lease> {
        self.value.as_tensor().ok_or_else(|| Error::Kind {
            name: format!("message {}", self.sequence),
            found: ValueKind::Dataset,
            wanted: ValueKind::Tensor,
            remedy: "dataset",
        })
    }

    /// The dataset that was sent.
    ///
    /// # Errors
    /// [`Error::Kind`] if it was a tensor.
    pub fn dataset(&self) -> Result<&Dataset> {
        self.value.as_dataset().ok_or_else(|| Error::Kind {
            name: format!("message {}", self.sequence),
            found: ValueKind::Tensor,
            wanted: ValueKind::Dataset,
            remedy: "tensor",
        })
    }

    /// The producer's timestamp, in nanoseconds; 0 if none was set.
    pub fn timestamp(&self) -> u64 {
        match &self.value {
            Value::Tensor(lease) => lease.timestamp(),
            Value::Dataset(dataset) => dataset.timestamp(),
            #[cfg(feature = "cuda")]
            Value::Device(lease) => lease.timestamp(),
        }
    }
}

pub(crate) struct Attached {
    pub(crate) head: Sheet<StreamRing>,
    pub(crate) entries: Records<RingEntry>,
    stream: u32,
    id: u64,
    pub(crate) entry: u32,
    pub(crate) home: Home,
    /// Whether the producer replaces no message that this subscriber's cursor has not passed.
    pub(crate) waits: bool,
}

/// The subscriber's end of a stream. Every subscriber gets every message.
///
/// As an iterator it ends when the stream has ended. For epoll, its descriptor is readable when
/// [`Subscription::try_recv`] is worth calling; call it until it returns `None`.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
/// use tensorlend::{DType, Start};
///
/// let camera = client.stream("camera").open()?;
/// let frames = client.subscription("camera").from(Start::Oldest).open()?;
/// assert_eq!((frames.name(), frames.position(), frames.lost()), ("camera", 0, 0));
/// for _ in 0..3 {
///     camera.send(client.create(DType::U8, &[4, 4])?)?;
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
    cursor: u16,
    pub(crate) next: u64,
    lost: u64,
    lost_before: u64,
    spin: Arc<Spin>,
    /// Whether a message was received since (re)joining: only then is a gap a loss.
    joined: bool,
    wake: Option<Arc<OwnedFd>>,
}

impl Subscription {
    pub(crate) fn open(session: &Arc<Session>, name: &str, start: Start, wake: bool) -> Result<Self> {
        check_name(name)?;
        session.check()?;
        let cursor = session.streams().take_cursor().ok_or(Error::Cursors(CURSORS))?;
        let joined = Self::join(session, name, cursor, wake);
        let (at, wake) = joined.inspect_err(|e| {
            // Behind nobody, in case we are listed. Only if it is certain that we are not, the cursor can be used again.
            session.shards.table().cursors[usize::from(cursor)].next.set(u64::MAX);
            if e.is_certain() {
                session.streams().give_cursor(cursor);
            }
        })?;
        let mut it = Self {
            session: session.clone(),
            name: name.to_owned(),
            at,
            near: Near::default(),
            cursor,
            next: 0,
            lost: 0,
            lost_before: 0,
            spin: Arc::new(Spin::new()),
            joined: false,
            wake: wake.map(Arc::new),
        };
        it.begin(start);
        Ok(it)
    }

    fn join(session: &Arc<Session>, name: &str, cursor: u16, wake: bool) -> Result<(Attached, Option<OwnedFd>)> {
        // Behind everything until we know where we stand: a producer that sees us listed waits, and replaces nothing
        // that we may want.
        let words = &session.shards.table().cursors[usize::from(cursor)];
        words.next.set(0);
        words.lost.set(0);
        words.stream.set(0);
        words.parked.set(0);
        let pair = if wake {
            let pair = rustix::net::socketpair(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            );
            Some(pair.map_err(|e| Error::System { doing: "make a wake descriptor", cause: e.into() })?)
        } else {
            None
        };
        let request = Request::Subscribe { name: name.to_owned(), cursor, wake };
        let theirs: Vec<_> = pair.iter().map(|(_, theirs)| theirs.as_fd()).collect();
        let mut answer = session.control.ask(&request, &theirs, "subscribe to", name)?;
        let Reply::Stream { stream, id, entry, home, capacity, policy } = answer.reply else {
            return answer.unexpected();
        };
        let mapped = answer.descriptor().and_then(|fd| map_ring(&fd, capacity, Access::Read));
        answer.acknowledge()?;
        let (head, entries) = match mapped {
            Ok(mapped) => mapped,
            Err(e) => {
                let request = Request::Unsubscribe { stream, id, cursor };
                let left = session.control.call(&request, "unsubscribe from", name);
                return Err(if left.is_ok() { Error::Argument(e.to_string()) } else { e });
            }
        };
        // Before the fence with which the subscription begins.
        tensorlend_layout::crash_point!("subscribe: listed");
        words.stream.set(id);
        let waits = policy != Policy::DropOldest;
        let at = Attached { head, entries, stream, id, entry, home: Home(home), waits };
        tensorlend_layout::crash_point!("subscribe: in the stream");
        forget_wake(session, cursor);
        Ok((
            at,
            pair.map(|(ours, theirs)| {
                session.descriptors().insert(Item::Wake { stream, id, cursor }, theirs);
                ours
            }),
        ))
    }

    fn begin(&mut self, start: Start) {
        // Against the producer's fence between its send and its look at the list of subscribers: either it sees us
        // listed, or we see what it sent and replaced.
        wake::news_fence();
        let head = self.at.head.head.read();
        self.next = match start {
            Start::Newest => head.saturating_sub(1).max(self.at.head.tail.read()),
            Start::Oldest => self.at.head.tail.read(),
            Start::Next => head,
        };
        self.joined = false;
        self.words().next.set(self.next);
        self.unblock();
    }

    /// Our cursor has moved: wakes the producer if it waits for that.
    #[inline]
    fn unblock(&self) {
        // Against the producer's fence between parking and its look at this cursor.
        wake::news_fence();
        if self.at.head.producer_parked.read() != 0 {
            self.words().bell.ring();
            futex::wake_all(&self.words().bell);
        }
    }

    #[inline]
    fn words(&self) -> &Cursor {
        &self.session.shards.table().cursors[usize::from(self.cursor)]
    }

    #[inline]
    fn home_word(&self) -> Result<&Word> {
        self.session.home(self.at.entry).ok_or(Error::Protocol { doing: "follow a stream" })
    }

    /// The next message, if one is there.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscribe("camera")?;
    /// assert!(frames.try_recv()?.is_none());
    /// camera.send(client.create(tensorlend::DType::U8, &[4, 4])?)?;
    /// assert!(frames.try_recv()?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StreamEnded`] once the producer has closed the stream (or is gone) and nothing is left: the
    /// subscription goes on if the stream is opened again; [`Error::Damaged`] for one message of a broken producer;
    /// [`Error::Leases`] with 4096 leases held already, and the message is still there when some were dropped.
    #[inline]
    pub fn try_recv(&mut self) -> Result<Option<Message>> {
        self.session.check()?;
        let got = self.look()?;
        if got.is_none() && self.wake.is_some() {
            self.arm();
            // Armed before this look: what came in between is found now, what comes later sends a byte.
            return self.look();
        }
        Ok(got)
    }

    /// Drains the wake descriptor and asks for a byte with the next message.
    fn arm(&self) {
        if let Some(wake) = &self.wake {
            let mut byte = [0u8; 8];
            while let Ok((_, 1..)) = rustix::net::recv(wake, &mut byte, RecvFlags::DONTWAIT) {}
            wake::declare(&self.words().parked, 2);
        }
    }

    #[inline]
    pub(crate) fn look(&mut self) -> Result<Option<Message>> {
        // Each turn is somebody's progress, unless the producer's words contradict each other: then nothing comes of
        // however many.
        for _ in 0..TURNS_MAX {
            let ring = Ring { head: &self.at.head, entries: &self.at.entries };
            match ring.find(self.next) {
                Found::NotYet => {
                    if !self.follow()? {
                        return Ok(None);
                    }
                }
                Found::Lost(oldest) => {
                    if self.joined {
                        self.lost = self.lost.saturating_add(oldest - self.next);
                        self.words().lost.set(self.lost);
                    }
                    self.next = oldest;
                }
                Found::Message(value, brief) => {
                    let number = self.next;
                    let entry = ring.entry(number);
                    let home = Route::home(self.home_word()?, self.at.home);
                    let leasing = lease(
                        &self.session,
                        self.at.home.catalogue(),
                        home,
                        At::Entry(entry, value, brief),
                        &self.name,
                    );
                    match leasing {
                        // The entry was replaced while we looked (find will tell), or the stream has another home.
                        Ok(Leasing::Moved | Leasing::Absent) => {
                            if self.home_word()?.read() != self.at.home.0 {
                                self.rejoin()?;
                            }
                        }
                        Ok(Leasing::Held(leased)) => {
                            self.advance();
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

    #[inline]
    fn message(&mut self, sequence: u64, value: Value) -> Message {
        Message { sequence, lost: self.take_lost(), value }
    }

    /// A message is taken: how many were lost between it and the one before.
    #[inline]
    pub(crate) fn take_lost(&mut self) -> u64 {
        self.joined = true;
        self.lost - std::mem::replace(&mut self.lost_before, self.lost)
    }

    /// The message is taken: the producer may replace it in the ring (our lease keeps its slot).
    #[inline]
    pub(crate) fn advance(&mut self) {
        // A hostile producer may have counted to the end.
        self.next = self.next.saturating_add(1);
        tensorlend_layout::crash_point!("receive: cursor stands");
        self.words().next.set(self.next);
        self.unblock();
        tensorlend_layout::crash_point!("receive: cursor moved");
    }

    /// Nothing is left in this ring: is there another one, or no more to come? True: look again.
    #[inline]
    fn follow(&mut self) -> Result<bool> {
        if self.goes_on()? { Ok(false) } else { self.follow_on() }
    }

    /// Whether more may come: the stream is open, and its producer there.
    #[inline]
    pub(crate) fn goes_on(&self) -> Result<bool> {
        let member = self.session.directory.members[usize::from(self.at.home.catalogue())].member.read();
        Ok(self.home_word()?.read() == self.at.home.0
            && self.at.head.closed.read() == 0
            && matches!(Member(member).state(), MemberState::Open | MemberState::Ending))
    }

    #[cold]
    fn follow_on(&mut self) -> Result<bool> {
        if self.home_word()?.read() != self.at.home.0 {
            self.rejoin()?;
            return Ok(true);
        }
        let over = self.at.head.closed.read() != 0 || {
            let member = self.session.directory.members[usize::from(self.at.home.catalogue())].member.read();
            !matches!(Member(member).state(), MemberState::Open | MemberState::Ending)
        };
        if over {
            // What was sent before the close is there by now.
            let ring = Ring { head: &self.at.head, entries: &self.at.entries };
            if ring.find(self.next) != Found::NotYet {
                return Ok(true);
            }
            // Nothing more is read of its segments.
            self.near = Near::default();
            return Err(Error::StreamEnded(self.name.clone()));
        }
        Ok(false)
    }

    /// The stream's home moved: it was deleted, or another producer has it.
    fn rejoin(&mut self) -> Result<()> {
        self.near = Near::default();
        let live = self.session.find(&stream_key(&self.name)).is_some_and(|f| f.home.is_live());
        if !live {
            // Nothing is read any more: what the ring still holds can go.
            self.words().next.set(u64::MAX);
            return Err(Error::StreamEnded(self.name.clone()));
        }
        let joined = Self::join(&self.session, &self.name, self.cursor, self.wake.is_some());
        if joined.is_err() {
            // Behind nobody, in case we are listed.
            self.words().next.set(u64::MAX);
        }
        let (at, wake) = match joined {
            Err(e) if e.is_not_found() => return Err(Error::StreamEnded(self.name.clone())),
            other => other?,
        };
        self.at = at;
        if wake.is_some() {
            self.wake = wake.map(Arc::new);
        }
        self.begin(Start::Oldest);
        Ok(())
    }

    /// The next message; waits for it.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscribe("camera")?;
    /// let frame = client.create(tensorlend::DType::U8, &[4, 4])?;
    /// let thread = std::thread::spawn(move || camera.send(frame));
    /// assert_eq!(frames.recv()?.tensor()?.shape(), [4, 4]);
    /// # thread.join().unwrap()?;
    /// assert!(matches!(frames.recv(), Err(tensorlend::Error::StreamEnded(_)))); // the thread has dropped its end
    ///
    /// let camera = client.stream("camera").open()?; // opened again: the subscription goes on
    /// camera.send(client.create(tensorlend::DType::U8, &[2, 2])?)?;
    /// assert_eq!(frames.recv()?.tensor()?.shape(), [2, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Subscription::try_recv`].
    pub fn recv(&mut self) -> Result<Message> {
        self.recv_until(Deadline::new(None))
    }

    /// The next message; waits for `timeout` at most.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use std::time::Duration;
    ///
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscribe("camera")?;
    /// assert!(frames.recv_timeout(Duration::from_millis(10)).unwrap_err().is_timeout());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`Subscription::try_recv`].
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Message> {
        self.recv_until(Deadline::new(Some(timeout)))
    }

    pub(crate) fn recv_until(&mut self, deadline: Deadline) -> Result<Message> {
        self.session.check()?;
        let spinning = self.spin.clone();
        if let Some(message) = spinning.look(|| self.look())? {
            return Ok(message);
        }
        loop {
            let sample = wake::park(&self.at.head.bell, &self.words().parked, 1);
            let got = self.look();
            if let Ok(None) = got {
                let Some(nap) = deadline.nap() else {
                    self.words().parked.set(0);
                    return Err(deadline.error(format!("a message of stream {:?}", self.name)));
                };
                futex::wait(&self.at.head.bell, sample, nap);
            }
            self.words().parked.set(0);
            if let Some(message) = got? {
                return Ok(message);
            }
            // Rung, and nothing there: the producer has said that something comes.
            let is_soon = self.at.head.bell.read() != sample;
            let found = if is_soon { spin::soon(|| self.look())? } else { self.look()? };
            if let Some(message) = found {
                return Ok(message);
            }
        }
    }

    /// Messages lost since the subscription began: they were replaced before they were taken.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use tensorlend::{DType, Policy};
    ///
    /// let camera = client.stream("camera").capacity(2).policy(Policy::DropOldest).open()?;
    /// let mut frames = client.subscribe("camera")?;
    /// camera.send(client.create(DType::U8, &[4, 4])?)?;
    /// frames.recv()?;
    /// for _ in 0..5 {
    ///     camera.send(client.create(DType::U8, &[4, 4])?)?;
    /// }
    /// assert_eq!(frames.recv()?.lost(), 3);
    /// assert_eq!(frames.lost(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Number of the next message.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Messages that were sent and not taken: as many as the ring holds, at most, whatever its producer says.
    pub(crate) fn waiting(&self) -> u64 {
        self.at.head.head.read().saturating_sub(self.next).min(self.at.entries.len() as u64)
    }

    /// The stream's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Messages that the stream holds.
    pub fn capacity(&self) -> u32 {
        self.at.entries.len() as u32
    }

    /// Declares that this client sleeps on the stream's bell, which was sampled first.
    pub(crate) fn park(&self) -> u32 {
        wake::park(&self.at.head.bell, &self.words().parked, 1)
    }

    pub(crate) fn unpark(&self) {
        self.words().parked.set(0);
    }

    /// What is rung when a message comes.
    pub(crate) fn bell(&self) -> &Bell {
        &self.at.head.bell
    }

    /// The wake descriptor. Another one each time that the stream was opened anew.
    #[cfg(feature = "tokio")]
    pub(crate) fn wake(&self) -> Option<&Arc<OwnedFd>> {
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

/// A subscription has another wake descriptor from now on, or none.
fn forget_wake(session: &Session, cursor: u16) {
    session.descriptors().lock().retain(|item, _| !matches!(item, Item::Wake { cursor: its, .. } if *its == cursor));
}

impl AsFd for Subscription {
    /// # Panics
    /// If the subscription was opened without [`crate::SubscriptionBuilder::pollable`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_ref().expect("open the subscription as pollable to wait for it with epoll").as_fd()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.session.is_forked() {
            return;
        }
        // Behind nobody from here on, whatever the daemon's state.
        self.words().next.set(u64::MAX);
        self.words().parked.set(0);
        self.unblock();
        forget_wake(&self.session, self.cursor);
        let request = Request::Unsubscribe { stream: self.at.stream, id: self.at.id, cursor: self.cursor };
        // Else the next daemon may list it still, and it would say of one stream how far we are in another.
        if self.session.control.call(&request, "unsubscribe from", &self.name).is_ok() {
            self.session.streams().give_cursor(self.cursor);
        }
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription").field("name", &self.name).field("next", &self.next).finish_non_exhaustive()
    }
}

/// How to subscribe. See [`crate::Client::subscription`].
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
/// use std::time::Duration;
/// use tensorlend::Start;
///
/// let producer = client.clone();
/// let thread = std::thread::spawn(move || {
///     let camera = producer.stream("camera").open()?;
///     camera.send(producer.create(tensorlend::DType::U8, &[4, 4])?)
/// });
/// let mut frames = client.subscription("camera").from(Start::Oldest).wait(Duration::from_secs(10)).open()?;
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
    wait: Option<Duration>,
}

impl SubscriptionBuilder {
    pub(crate) fn new(client: Client, name: &str) -> Self {
        Self { client, name: name.to_owned(), start: Start::Newest, wake: false, wait: None }
    }

    /// Where to begin. Default: [`Start::Newest`].
    pub fn from(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Gives the subscription a descriptor for poll and epoll ([`AsFd`]).
    ///
    /// Call [`Subscription::try_recv`] until it returns `None` before the first wait, and after each: the call that
    /// returns `None` is what asks the producer to make the descriptor readable. Nobody does so for a producer that was
    /// killed, nor for a stream that was deleted or opened anew: look once more every now and then, say every 100 ms.
    /// The descriptor is another one once the stream was opened anew. With the feature `tokio`,
    /// `AsyncSubscription` does all this.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use rustix::event::{PollFd, PollFlags, Timespec, poll};
    ///
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscription("camera").pollable().open()?;
    /// assert!(frames.try_recv()?.is_none());
    /// camera.send(client.create(tensorlend::DType::U8, &[4, 4])?)?;
    ///
    /// let soon = Timespec { tv_sec: 10, tv_nsec: 0 };
    /// assert_eq!(poll(&mut [PollFd::new(&frames, PollFlags::IN)], Some(&soon))?, 1);
    /// assert!(frames.try_recv()?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A producer stops writing to the descriptor if that takes it milliseconds again and again, as it does with tens of thousands
    /// of epoll watches on it: then nothing wakes its poller.
    pub fn pollable(mut self) -> Self {
        self.wake = true;
        self
    }

    /// Waits for the stream to be opened, for `timeout` at most. Default: it must exist.
    pub fn wait(mut self, timeout: Duration) -> Self {
        self.wait = Some(timeout);
        self
    }

    /// Subscribes.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let missing = client.subscription("camera").open();
    /// assert!(missing.unwrap_err().is_not_found());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuch`] if there is no such stream, or [`Error::Timeout`] if it was not opened in time;
    /// [`Error::Cursors`] with 256 subscriptions open already; [`Error::Refused`] if the stream has as many subscribers as
    /// it can; [`Error::Remote`] only for a stream of another machine.
    pub fn open(self) -> Result<Subscription> {
        check_name(&self.name)?;
        let deadline = self.wait.map(|timeout| Deadline::new(Some(timeout)));
        let here = self.client.stream_anywhere(&self.name, deadline)?;
        let session = self.client.session();
        if let Some(deadline) = deadline {
            wait_entry(session, &stream_key(here), deadline, here)?;
        }
        match Subscription::open(session, here, self.start, self.wake) {
            Err(e) if e.is_not_found() => Err(Error::NoSuch { kind: "stream", name: self.name }),
            other => other,
        }
    }
}
