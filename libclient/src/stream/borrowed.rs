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
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::size;
use tensorlend_layout::stream::{Found, HeaderSummary, Ring};
use tensorlend_layout::tensor::{ALIGN, SMALL_WORDS, SlotInfo, SmallHead};
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
    /// The tensor of the borrowed message. Messages of one stream usually differ only in their places and timestamps, so the
    /// next message gets this tensor too.
    tensor: Option<Tensor>,
    /// The tensor's description.
    kind: Kind,
    /// The bytes of a small tensor.
    small: Box<Small>,
    /// The lease entry on the borrowed message, if the producer may replace the message in the meantime.
    lease: Option<LeaseEntry>,
}

/// The properties that tensors of one kind have in common. The client has checked them.
enum Kind {
    /// The summary of a message. No summary is like zeros.
    Summary(HeaderSummary),
    /// The head of a message whose entry had its bytes.
    Small(SmallHead),
}

/// The bytes of a small tensor, with the alignment of all tensors.
#[derive(Default)]
#[repr(align(64))]
struct Small([u64; SMALL_WORDS]);

impl Default for Near {
    fn default() -> Self {
        let kind = Kind::Summary(HeaderSummary::default());
        Self { segments: Vec::new(), latest: 0, geometry: 0, tensor: None, kind, small: Box::default(), lease: None }
    }
}

impl Near {
    /// Shows the tensor of a small message, whose entry has these words. Returns false if they are invalid.
    #[inline(always)]
    fn show_small(&mut self, head: SmallHead, words: &HeaderSummary) -> bool {
        let [_, bytes @ .., timestamp] = *words;
        if !matches!(&self.kind, Kind::Small(known) if known.is_like(head)) && !self.learn_small(head) {
            return false;
        }
        self.small.0 = bytes;
        let Some(tensor) = &mut self.tensor else { return false };
        let Some(bytes) = Bytes::of_copy(&self.small.0, tensor.memory.len()) else { return false };
        tensor.renew(bytes, timestamp);
        true
    }

    /// Shows the tensor of a message in the segment `latest`, which has this summary. Returns false if it is invalid.
    #[inline(always)]
    fn show(&mut self, summary: &HeaderSummary, inherited: bool) -> bool {
        let [_, data_offset, data_bytes, .., timestamp] = *summary;
        let bytes = Bytes::new(&self.latest().segment().map, data_offset, data_bytes);
        // With the range and the alignment, a summary like a checked one is checked.
        let Some(bytes) = bytes.filter(|_| data_offset.is_multiple_of(ALIGN)) else { return false };
        if !matches!(&self.kind, Kind::Summary(known) if SlotInfo::is_like(summary, known))
            && !self.learn(summary, bytes)
        {
            return false;
        }
        let Some(tensor) = &mut self.tensor else { return false };
        tensor.renew(if inherited { bytes } else { bytes.not_inherited() }, timestamp);
        true
    }

    #[cold]
    fn learn_small(&mut self, head: SmallHead) -> bool {
        let Some(summary) = head.checked_summary() else { return false };
        let bytes = Bytes::of_copy(&self.small.0, size::index(summary[2]));
        let is_known = bytes.is_some_and(|bytes| self.learn(&summary, bytes));
        if is_known {
            self.kind = Kind::Small(head);
        }
        is_known
    }

    #[cold]
    fn learn(&mut self, summary: &HeaderSummary, bytes: Bytes) -> bool {
        self.kind = Kind::Summary(HeaderSummary::default());
        let info = SlotInfo::of_summary(summary, 0).and_then(std::result::Result::ok);
        let info = info.filter(|_| SlotInfo::check_summary(summary, u64::MAX));
        self.tensor = info.and_then(|info| Tensor::read(&info, bytes, None).ok());
        if self.tensor.is_some() {
            self.kind = Kind::Summary(*summary);
        }
        self.tensor.is_some()
    }

    /// Finds the segment of a slot, and stores its index as that of the latest message's segment.
    #[inline(always)]
    fn find(&mut self, slot: SlotNo) -> bool {
        self.segments.get(self.latest).is_some_and(|held| held.segment().holds(slot)) || self.find_other(slot)
    }

    #[inline(never)]
    fn find_other(&mut self, slot: SlotNo) -> bool {
        let holds = |held: &Held| held.segment().holds(slot);
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
                if matches!(near.kind, Kind::Small(_)) {
                    return !session.is_forked();
                }
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
    fn tensor(&self) -> &Tensor {
        self.subscription.near.tensor.as_ref().expect("a borrowed message has a tensor")
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
    /// replace the message after the program has dropped it. A tensor of up to 32 bytes takes least: it arrives in one cache
    /// line, under any policy.
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
            Found::Message(cell, words) if self.borrow_entry(cell, &words) => {
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
            Taken::Near { lost } => Inner::Plain(Plain { subscription: self, lost }),
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

    /// Borrows the next message, whose entry has these words, without reading its record. Returns false if that is not
    /// possible.
    #[inline(always)]
    fn borrow_entry(&mut self, cell: Cell, words: &HeaderSummary) -> bool {
        let Some(head) = SmallHead::of_entry(words) else { return self.borrow_near(cell, words) };
        // A copy needs no lease. It is valid if the words belonged to the message until they were read, and the stream still
        // had this producer.
        self.near.show_small(head, words)
            && Ring { head: &self.at.head, entries: &self.at.entries }.still_has(self.next, cell)
            && self.session.owner_word(self.at.entry).is_some_and(|word| word.read() == self.at.owner_word.0)
            && self.session.is_member()
    }

    /// Borrows the next message, if it lies in a known segment and the stream's entry describes it completely. Returns false
    /// in all other cases, which are left to [`Subscription::try_recv`].
    ///
    /// With a policy that waits, the producer P replaces no message before the cursor of the subscriber R has passed
    /// it. So R's cursor acts as the lease, beginning with the first message that R leased through the stream's owner
    /// word. [`Cursor::keeps`] gives the reason, and the case of a deleted stream. With the other policy, a message
    /// needs a lease of its own.
    #[inline(always)]
    fn borrow_near(&mut self, cell: Cell, summary: &HeaderSummary) -> bool {
        let near = &mut self.near;
        let ring = Ring { head: &self.at.head, entries: &self.at.entries };
        // The geometry word also changes with every new owner of the client number.
        let geometry = self.session.directory.members[self.at.owner_word.owner().index()].geometry.read();
        if near.geometry != geometry || !near.find(cell.slot()) {
            return false;
        }
        // The cursor protects the message, unless it gets a lease of its own. The cursor moves on even while a forked child
        // reads the message.
        if !near.show(summary, !self.at.waits) {
            return false;
        }
        if self.at.waits {
            // After the daemon has ended this session, its cursor protects nothing.
            return ring.still_has(self.next, cell) && self.session.is_member();
        }
        self.lease_near(cell, geometry)
    }

    /// Takes a lease on the message that [`Near`] describes.
    #[cold]
    fn lease_near(&mut self, cell: Cell, geometry: u64) -> bool {
        let (session, near) = (&self.session, &mut self.near);
        let ring = Ring { head: &self.at.head, entries: &self.at.entries };
        let Some(owner_word) = session.owner_word(self.at.entry) else { return false };
        near.release(session);
        let number = self.at.owner_word.owner();
        let words = [(owner_word, self.at.owner_word.0), (&ring.entry(self.next).cell, cell.0)];
        let guard = session.shards.epoch_guard();
        near.lease = hold(session, &guard, number, cell.lease(number), &words, geometry).ok();
        near.lease.is_some()
    }
}
