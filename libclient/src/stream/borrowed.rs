//! Borrowed messages: a subscriber reads a message in place, before it polls for the next one.

use crate::error::{Error, Result, ValueKind};
use crate::lease::dataset::Dataset;
use crate::lease::lease::Held;
use crate::lease::take::hold;
use crate::lease::value::Value;
use crate::link::shards::LeaseEntry;
use crate::segment::bytes::Bytes;
use crate::session::Session;
use crate::stream::message::Message;
use crate::stream::subscriber::Subscription;
use crate::tensor::Tensor;
use crate::wait::{Deadline, Timeout};
use std::cell::OnceCell;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::stream::{Found, HeaderSummary, Ring};
use tensorlend_layout::tensor::SlotInfo;
use tensorlend_layout::word::{Cell, LeaseWord};

/// A message of a stream, borrowed from its subscription: see [`Subscription::try_borrow`].
///
/// Dropping the value marks the message as taken. Then the subscription can poll for the next message. References
/// into the tensor cannot outlive the value. Use [`Subscription::try_recv`] for a message that the program keeps.
#[derive(Debug)]
pub struct Borrowed<'s> {
    inner: Inner<'s>,
}

enum Inner<'s> {
    /// A tensor that the ring's entry describes completely.
    Plain(Plain<'s>),
    /// Any other message, as [`Subscription::try_recv`] returns it. Boxed, so that a plain one is small to move.
    Whole(Box<Message>),
}

/// The message that [`Near`] describes.
struct Plain<'s> {
    subscription: &'s mut Subscription,
    lost: u64,
    tensor: OnceCell<Box<Tensor>>,
}

/// A message that is taken for the program, before the subscription is borrowed for it.
enum Taken {
    /// Its tensor is in a segment that the subscription keeps.
    Near { lost: u64 },
    /// It has a lease of its own.
    Whole(Box<Message>),
}

/// The next message, as its entry shows it.
enum Next {
    Message(Taken),
    NotYet,
    /// The message is lost, or needs a lease of its own.
    Other,
}

/// Number of segments that a subscription keeps. A stream's messages usually use at most this many. A client's first
/// segments are short.
const NEAR_MAX: usize = 4;

/// The segments of recent messages. The next message is usually in one of them.
pub(crate) struct Near {
    /// The leases on the segments. For the daemon, each lease covers its segment as a whole. For the producer, it covers
    /// none of the slots. So the memory stays this producer's and this stream's when the producer dies and the stream is
    /// deleted. The cursor protects the single messages.
    segments: Vec<Held>,
    /// The index of the latest message's segment.
    latest: usize,
    /// The producer's geometry word for which the segments are valid.
    geometry: u64,
    /// The borrowed message, and its summary, checked against the segment `latest`.
    cell: Cell,
    summary: HeaderSummary,
    /// The lease entry on the borrowed message, if the producer may replace the message in the meantime.
    lease: Option<LeaseEntry>,
}

impl Default for Near {
    fn default() -> Self {
        let (cell, summary) = (Cell::EMPTY, HeaderSummary::default());
        Self { segments: Vec::new(), latest: 0, geometry: 0, cell, summary, lease: None }
    }
}

impl Near {
    /// Finds the segment of a slot, and stores its index as that of the latest message's segment.
    #[inline]
    fn find(&mut self, slot: SlotNo) -> bool {
        let holds = |held: &Held| held.segment().holds(slot);
        if self.segments.get(self.latest).is_some_and(holds) {
            return true;
        }
        let found = self.segments.iter().position(holds);
        self.latest = found.unwrap_or(0);
        found.is_some()
    }

    /// Releases the lease of a message that the program has forgotten without dropping it.
    fn release(&mut self, session: &Session) {
        if let Some(forgotten) = self.lease.take() {
            session.shards.release(forgotten);
        }
    }

    /// Returns the segment of the latest message.
    #[inline]
    fn latest(&self) -> &Held {
        &self.segments[self.latest]
    }

    /// Adds a segment.
    fn push(&mut self, held: Held, geometry: u64) {
        if self.geometry != geometry {
            self.segments.clear();
        } else if self.segments.len() == NEAR_MAX {
            self.segments.remove(0);
        }
        self.segments.push(held);
        (self.latest, self.geometry) = (self.segments.len() - 1, geometry);
    }
}

impl Borrowed<'_> {
    /// Returns the message's number in the stream, counted from 0.
    pub fn sequence(&self) -> u64 {
        match &self.inner {
            Inner::Plain(plain) => plain.subscription.next,
            Inner::Whole(message) => message.sequence(),
        }
    }

    /// Returns the number of messages lost before this one, like [`Message::lost`].
    ///
    /// The sum over all messages is [`Subscription::lost`].
    pub fn lost(&self) -> u64 {
        match &self.inner {
            Inner::Plain(plain) => plain.lost,
            Inner::Whole(message) => message.lost(),
        }
    }

    /// Returns the producer's timestamp in nanoseconds. Returns 0 if the producer set none.
    pub fn timestamp(&self) -> u64 {
        match &self.inner {
            Inner::Plain(plain) => plain.tensor().timestamp(),
            Inner::Whole(message) => message.timestamp(),
        }
    }

    /// Validates the lease like [`crate::Lease::validate`].
    pub fn validate(&self) -> bool {
        match &self.inner {
            Inner::Plain(plain) => {
                let Subscription { session, near, .. } = &*plain.subscription;
                let counts = near.lease.map_or(!session.is_forked(), |entry| session.shards.counts_here(entry));
                counts && near.latest().validate()
            }
            Inner::Whole(message) => match message.value() {
                Value::Tensor(lease) => lease.validate(),
                Value::Dataset(dataset) => dataset.validate(),
                #[cfg(feature = "cuda")]
                Value::Device(lease) => lease.validate(),
            },
        }
    }

    /// Returns the message's tensor.
    ///
    /// # Errors
    /// [`Error::Kind`] if the message is a dataset.
    pub fn tensor(&self) -> Result<&Tensor> {
        match &self.inner {
            Inner::Plain(plain) => Ok(plain.tensor()),
            Inner::Whole(message) => message.tensor().map(|lease| &**lease),
        }
    }

    /// Returns the message's dataset.
    ///
    /// # Errors
    /// [`Error::Kind`] if the message is a tensor.
    pub fn dataset(&self) -> Result<&Dataset> {
        match &self.inner {
            Inner::Plain(_) => Err(Error::Kind {
                name: format!("message {}", self.sequence()),
                found: ValueKind::Tensor,
                wanted: ValueKind::Dataset,
                remedy: "tensor",
            }),
            Inner::Whole(message) => message.dataset(),
        }
    }
}

impl Plain<'_> {
    /// Returns whether the message has a lease of its own. If not, the cursor protects the message. The cursor moves on even
    /// while a forked child reads the message.
    fn is_leased(&self) -> bool {
        self.subscription.near.lease.is_some()
    }

    fn tensor(&self) -> &Tensor {
        self.tensor.get_or_init(|| {
            let near = &self.subscription.near;
            let info = SlotInfo::of_summary(&near.summary, near.cell.generation());
            let info = info.and_then(std::result::Result::ok).expect("it was checked when the lease was taken");
            // The tensor is built at the first access, and kept while the program borrows the message.
            let segment = near.latest().segment();
            let bytes = Bytes::new(&segment.map, info.data_offset, info.data_bytes).expect("it was checked");
            let bytes = if self.is_leased() { bytes } else { bytes.not_inherited() };
            Box::new(Tensor::read(&info, bytes, None).expect("it was checked"))
        })
    }
}

impl Drop for Plain<'_> {
    #[inline]
    fn drop(&mut self) {
        let session = &self.subscription.session;
        if !session.is_forked() {
            if let Some(entry) = self.subscription.near.lease.take() {
                session.shards.release(entry);
            }
            self.subscription.advance();
        }
    }
}

impl std::fmt::Debug for Inner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Inner::Plain(plain) => plain.tensor().fmt(f),
            Inner::Whole(message) => message.fmt(f),
        }
    }
}

impl Subscription {
    /// Borrows the next message, if it is there. Drop the message before the next call. Never waits.
    ///
    /// Takes less than half the time of [`Subscription::try_recv`] for a tensor of up to four dimensions without metadata,
    /// if the stream's policy is not [`crate::Policy::DropOldest`]: such a message needs no lease of its own. The producer may
    /// replace the message after the program has dropped it.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscribe("camera")?;
    /// for number in 0..3 {
    ///     let mut frame = client.create(tensorlend::DType::U8, [4, 4])?;
    ///     frame.bytes_mut().fill(number);
    ///     camera.send(frame)?;
    ///     let message = frames.try_borrow()?.expect("sent above");
    ///     assert_eq!((message.sequence(), message.lost()), (number.into(), 0));
    ///     assert_eq!(message.tensor()?.bytes(), [number; 16]);
    /// }
    /// assert!(frames.try_borrow()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Subscription::try_recv`].
    #[inline(always)]
    pub fn try_borrow(&mut self) -> Result<Option<Borrowed<'_>>> {
        self.session.check()?;
        match self.next_near() {
            Next::Message(near) => Ok(Some(self.borrowed(near))),
            Next::NotYet if !self.is_pollable() && self.is_live()? => Ok(None),
            Next::NotYet | Next::Other => Ok(self.take_whole(Self::try_recv)?.map(|taken| self.borrowed(taken))),
        }
    }

    /// Borrows the next message. Blocks until a message arrives. The thread polls for up to 25 us and then sleeps on a futex,
    /// and a wake-up takes about 20 us. If messages are further apart and you can spend a core, poll with
    /// [`Subscription::try_borrow`].
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscribe("camera")?;
    /// let mut frame = client.create(tensorlend::DType::U8, [4, 4])?;
    /// frame.bytes_mut().fill(7);
    /// let thread = std::thread::spawn(move || camera.send(frame));
    /// assert_eq!(frames.borrow()?.tensor()?.bytes(), [7; 16]);
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Subscription::try_recv`].
    #[inline(always)]
    pub fn borrow(&mut self) -> Result<Borrowed<'_>> {
        self.borrow_until(|| Deadline::new(None))
    }

    /// Borrows the next message like [`Subscription::borrow`], but blocks for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no message arrived in time; otherwise the errors of [`Subscription::try_recv`].
    #[inline]
    pub fn borrow_timeout(&mut self, timeout: impl Into<Timeout>) -> Result<Borrowed<'_>> {
        self.borrow_until(|| Deadline::new(timeout))
    }

    /// Borrows the next message, and reads the clock for the deadline only if the message is not there.
    #[inline(always)]
    fn borrow_until(&mut self, deadline: impl FnOnce() -> Deadline) -> Result<Borrowed<'_>> {
        self.session.check()?;
        let mut next = self.next_near();
        if let Next::Message(taken) = next {
            return Ok(self.borrowed(taken));
        }
        let deadline = deadline();
        if matches!(next, Next::NotYet) && self.spin_until_sent() {
            next = self.next_near();
        }
        let taken = match next {
            Next::Message(taken) => taken,
            Next::NotYet | Next::Other => self.wait_whole(&deadline)?,
        };
        Ok(self.borrowed(taken))
    }

    #[cold]
    fn wait_whole(&mut self, deadline: &Deadline) -> Result<Taken> {
        match self.take_whole(Self::poll)? {
            Some(taken) => Ok(taken),
            None => self.sleep(deadline, |it| match it.next_near() {
                Next::Message(taken) => Ok(Some(taken)),
                Next::NotYet | Next::Other => it.take_whole(Self::poll),
            }),
        }
    }

    /// Takes the next message, if it is in a segment that the subscription keeps.
    #[inline(always)]
    fn next_near(&mut self) -> Next {
        match (Ring { head: &self.at.head, entries: &self.at.entries }).find(self.next) {
            Found::Message(cell, summary) if self.borrow_near(cell, &summary) => {
                Next::Message(Taken::Near { lost: self.take_lost() })
            }
            Found::NotYet => Next::NotYet,
            _ => Next::Other,
        }
    }

    /// Forgets the kept segments, because the subscription reads no more messages from them.
    pub(super) fn forget_near(&mut self) {
        self.near.release(&self.session);
        self.near = Near::default();
    }

    /// Takes the next message with a lease of its own.
    fn take_whole(&mut self, take: impl FnOnce(&mut Self) -> Result<Option<Message>>) -> Result<Option<Taken>> {
        let Some(message) = take(self)? else { return Ok(None) };
        if let Some(lease) = message.value().as_tensor() {
            // The lease on this message ensures that the slot's segment does not change.
            self.come_near(lease.held());
        }
        Ok(Some(Taken::Whole(Box::new(message))))
    }

    #[inline(always)]
    fn borrowed(&mut self, taken: Taken) -> Borrowed<'_> {
        let inner = match taken {
            Taken::Near { lost } => Inner::Plain(Plain { subscription: self, lost, tensor: OnceCell::new() }),
            Taken::Whole(message) => Inner::Whole(message),
        };
        Borrowed { inner }
    }

    fn come_near(&mut self, message: &Held) {
        let session = &self.session;
        let Some(owner_word) = session.owner_word(self.at.entry) else { return };
        let geometry = session.directory.members[message.owner.index()].geometry.read();
        if self.near.geometry == geometry && self.near.find(message.cell.slot()) {
            return;
        }
        let segment = message.segment();
        let word = LeaseWord::of_segment(message.owner, segment.base);
        let guard = session.shards.epoch_guard();
        // When daemon D surveys the segments of a dead producer, it may read this thread's lease table before this lease is
        // there, and after the message's lease has ended. So the owner word must show that D's fence comes after this lease.
        let words = [(owner_word, self.at.owner_word.0)];
        let Ok(entry) = hold(session, &guard, message.owner, word, &words, geometry) else { return };
        drop(guard);
        let held = Held::new(segment.clone(), entry, message.owner, message.cell, message.owner_word);
        self.near.push(held, geometry);
    }

    /// Borrows the next message, if it lies in a known segment and the stream's entry describes it completely. Returns false
    /// in all other cases, which are left to [`Subscription::try_recv`].
    ///
    /// With a policy that waits, the producer P replaces no message before the cursor of the subscriber R has passed
    /// it. So R's cursor acts as the lease, beginning with the first message that R leased through the stream's owner
    /// word. [`Cursor::keeps`] gives the reason, and the case of a deleted stream. With the other policy, a message
    /// needs a lease of its own.
    #[inline]
    fn borrow_near(&mut self, cell: Cell, summary: &HeaderSummary) -> bool {
        let near = &mut self.near;
        let ring = Ring { head: &self.at.head, entries: &self.at.entries };
        let (session, number) = (&self.session, self.at.owner_word.owner());
        // The geometry word also changes with every new owner of the client number.
        let geometry = session.directory.members[number.index()].geometry.read();
        if near.geometry != geometry || !near.find(cell.slot()) {
            return false;
        }
        if !SlotInfo::check_summary(summary, near.latest().segment().map.bytes() as u64) {
            return false;
        }
        (near.cell, near.summary) = (cell, *summary);
        if self.at.waits {
            // After the daemon has ended this session, its cursor protects nothing.
            return ring.stands(self.next, cell) && session.is_member();
        }
        let Some(owner_word) = session.owner_word(self.at.entry) else { return false };
        near.release(session);
        let words = [(owner_word, self.at.owner_word.0), (&ring.entry(self.next).cell, cell.0)];
        let guard = session.shards.epoch_guard();
        near.lease = hold(session, &guard, number, cell.lease(number), &words, geometry).ok();
        near.lease.is_some()
    }
}
