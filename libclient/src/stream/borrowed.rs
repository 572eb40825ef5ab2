//! A message that is read before the next one is looked for.

use crate::error::{Error, Result, ValueKind};
use crate::lease::lease::Dataset;
use crate::lease::raw::Held;
use crate::lease::take::hold;
use crate::lease::value::Value;
use crate::link::shards::Place;
use crate::segment::bytes::Bytes;
use crate::stream::subscriber::{Message, Subscription};
use crate::tensor::Tensor;
use std::cell::OnceCell;
use tensorlend_layout::leases;
use tensorlend_layout::stream::{Brief, Found, Ring};
use tensorlend_layout::tensor::SlotInfo;
use tensorlend_layout::word::{Cell, LeaseWord};

/// A message of a stream, borrowed: see [`Subscription::try_borrow`]. It is let go, and the next one can come, when this is
/// dropped.
#[derive(Debug)]
pub struct Borrowed<'s> {
    inner: Inner<'s>,
}

enum Inner<'s> {
    /// A tensor of which the stream's entry says all.
    Plain(Plain<'s>),
    /// Anything else, as [`Subscription::try_recv`] gives it.
    Whole(Message),
}

struct Plain<'s> {
    subscription: &'s mut Subscription,
    cell: Cell,
    /// Checked against the segment that the subscription keeps.
    brief: Brief,
    lost: u64,
    tensor: OnceCell<Box<Tensor>>,
}

/// Segments that a subscription keeps: as many as a stream's messages are likely to lie in. A client's first few are short.
const NEAR_MAX: usize = 4;

/// The segments in which the latest messages lay: mostly the next one does, too.
#[derive(Default)]
pub(crate) struct Near {
    /// Each holds its segment as a whole, as the daemon sees it, and none of its slots: so that it stays this producer's
    /// and this stream's when the producer dies and the stream is deleted. What keeps a single message is the cursor.
    segments: Vec<Held>,
    /// In which of them the latest message lies.
    latest: usize,
    /// Under which word of the producer's geometry they are the right ones.
    geometry: u64,
    /// On the message that is borrowed, if the producer may replace it meanwhile.
    lease: Option<Place>,
}

impl Near {
    /// Finds the segment of a slot.
    #[inline]
    fn find(&mut self, slot: u32) -> bool {
        let holds = |held: &Held| held.segment().holds(slot);
        if self.segments.get(self.latest).is_some_and(holds) {
            return true;
        }
        let found = self.segments.iter().position(holds);
        self.latest = found.unwrap_or(0);
        found.is_some()
    }

    /// The segment of the latest message.
    #[inline]
    fn latest(&self) -> &Held {
        &self.segments[self.latest]
    }

    /// Keeps one more.
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
    /// Its number in the stream, from 0 on.
    pub fn sequence(&self) -> u64 {
        match &self.inner {
            Inner::Plain(plain) => plain.subscription.next,
            Inner::Whole(message) => message.sequence(),
        }
    }

    /// As [`Message::lost`].
    pub fn lost(&self) -> u64 {
        match &self.inner {
            Inner::Plain(plain) => plain.lost,
            Inner::Whole(message) => message.lost(),
        }
    }

    /// The producer's timestamp, in nanoseconds; 0 if none was set.
    pub fn timestamp(&self) -> u64 {
        match &self.inner {
            Inner::Plain(plain) => plain.tensor().timestamp(),
            Inner::Whole(message) => message.timestamp(),
        }
    }

    /// As [`crate::Lease::validate`].
    pub fn validate(&self) -> bool {
        match &self.inner {
            Inner::Plain(plain) => plain.subscription.near.latest().validate(),
            Inner::Whole(message) => match message.value() {
                Value::Tensor(lease) => lease.validate(),
                Value::Dataset(dataset) => dataset.validate(),
                #[cfg(feature = "cuda")]
                Value::Device(lease) => lease.validate(),
            },
        }
    }

    /// The tensor that was sent.
    ///
    /// # Errors
    /// [`Error::Kind`] if it was a dataset.
    pub fn tensor(&self) -> Result<&Tensor> {
        match &self.inner {
            Inner::Plain(plain) => Ok(plain.tensor()),
            Inner::Whole(message) => message.tensor().map(|lease| &**lease),
        }
    }

    /// The dataset that was sent.
    ///
    /// # Errors
    /// [`Error::Kind`] if it was a tensor.
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
        self.tensor.get_or_init(|| {
            let info = SlotInfo::of_brief(&self.brief, self.cell.generation());
            let info = info.and_then(std::result::Result::ok).expect("it was checked when the lease was taken");
            // Kept while it is borrowed.
            let segment = self.subscription.near.latest().segment();
            let bytes = Bytes::new(&segment.map, info.data_offset, info.data_bytes).expect("it was checked");
            Box::new(Tensor::read(&info, bytes, None).expect("it was checked"))
        })
    }
}

impl Drop for Plain<'_> {
    #[inline]
    fn drop(&mut self) {
        let session = &self.subscription.session;
        if !session.is_forked() {
            if let Some(place) = self.subscription.near.lease.take() {
                leases::release(session.shards.entry(place));
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
    /// The next message, if one is there, to be read before the next call. As [`Subscription::try_recv`], in less than half
    /// the time: what such a message needs (the segment, the place in the stream) the subscription has already, and keeps
    /// meanwhile. The producer finds the message taken when it is let go, and not before.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscribe("camera")?;
    /// for number in 0..3 {
    ///     let mut frame = client.create(tensorlend::DType::U8, &[4, 4])?;
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
    /// As [`Subscription::try_recv`].
    #[inline]
    pub fn try_borrow(&mut self) -> Result<Option<Borrowed<'_>>> {
        self.session.check()?;
        if let Some((cell, brief)) = self.borrow_near() {
            let lost = self.take_lost();
            let plain = Plain { subscription: self, cell, brief, lost, tensor: OnceCell::new() };
            return Ok(Some(Borrowed { inner: Inner::Plain(plain) }));
        }
        self.borrow_whole()
    }

    fn borrow_whole(&mut self) -> Result<Option<Borrowed<'_>>> {
        let Some(message) = self.try_recv()? else { return Ok(None) };
        if let Some(lease) = message.value().as_tensor() {
            // While this message is leased, its segment is what it is.
            self.come_near(lease.held());
        }
        Ok(Some(Borrowed { inner: Inner::Whole(message) }))
    }

    fn come_near(&mut self, message: &Held) {
        let session = &self.session;
        let geometry = session.directory.members[usize::from(message.catalogue)].geometry.read();
        if self.near.geometry == geometry && self.near.find(message.cell.slot()) {
            return;
        }
        let segment = message.segment();
        let word = LeaseWord::of_segment(message.catalogue, segment.base);
        let guard = session.shards.epoch_guard();
        let Ok(place) = hold(session, &guard, message.catalogue, word, &[], geometry) else { return };
        drop(guard);
        let held = Held::new(segment.clone(), place, message.catalogue, message.cell, message.home);
        self.near.push(held, geometry);
    }

    /// The next message, if it lies in a segment of those before and the stream's entry says all of it. Anything out
    /// of the ordinary is left to [`Subscription::try_recv`].
    ///
    /// The producer of a stream that waits replaces no message before this subscriber's cursor has passed it: the cursor
    /// is the lease, from the first message on that was leased by the stream's home ([`Cursor::keeps`] says why, and
    /// what holds when the stream is deleted). Another stream's messages need a lease of their own.
    #[inline]
    fn borrow_near(&mut self) -> Option<(Cell, Brief)> {
        let near = &mut self.near;
        let ring = Ring { head: &self.at.head, entries: &self.at.entries };
        let Found::Message(cell, brief) = ring.find(self.next) else { return None };
        let (session, catalogue) = (&self.session, self.at.home.catalogue());
        // It moves with every new life of the number, too.
        let geometry = session.directory.members[usize::from(catalogue)].geometry.read();
        if near.geometry != geometry || !near.find(cell.slot()) {
            return None;
        }
        if !SlotInfo::check_brief(&brief, near.latest().segment().map.bytes() as u64) {
            return None;
        }
        if self.at.waits {
            // Ended by the daemon, its cursor says nothing any more.
            return (ring.stands(self.next, cell) && session.is_member()).then_some((cell, brief));
        }
        let home = session.home(self.at.entry)?;
        let words = [(home, self.at.home.0), (&ring.entry(self.next).cell, cell.0)];
        let guard = session.shards.epoch_guard();
        let place = hold(session, &guard, catalogue, cell.lease(catalogue), &words, geometry).ok()?;
        near.lease = Some(place);
        Some((cell, brief))
    }
}
