//! A message that is read before the next one is looked for.

use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::lease::Dataset;
use crate::peers::PeerSegment;
use crate::shards::Place;
use crate::subscription::{Message, Subscription};
use crate::tensor::Tensor;
use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tensorlend_layout::leases;
use tensorlend_layout::stream::{Brief, Found, Ring};
use tensorlend_layout::tensor::SlotInfo;
use tensorlend_layout::word::Cell;

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
    place: Place,
    cell: Cell,
    /// Checked against the segment that the subscription keeps.
    brief: Brief,
    lost: u64,
    tensor: OnceCell<Box<Tensor>>,
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
                found: "tensor",
                wanted: "dataset",
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
            let segment = self.subscription.near.as_ref().expect("kept while it is borrowed");
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
            leases::release(session.shards.entry(self.place));
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
        if let Some((place, cell, brief)) = self.borrow_near() {
            let lost = self.take_lost();
            let plain = Plain { subscription: self, place, cell, brief, lost, tensor: OnceCell::new() };
            return Ok(Some(Borrowed { inner: Inner::Plain(plain) }));
        }
        self.borrow_whole()
    }

    fn borrow_whole(&mut self) -> Result<Option<Borrowed<'_>>> {
        let Some(message) = self.try_recv()? else { return Ok(None) };
        self.near = message.value().as_tensor().map(|lease| lease.held().segment().clone());
        Ok(Some(Borrowed { inner: Inner::Whole(message) }))
    }

    /// Leases the next message, if it lies in the segment of the one before and the stream's entry says all of it.
    /// Anything out of the ordinary is left to [`Subscription::try_recv`]. The steps are those of
    /// `Session::try_lease`, which has more to find first.
    #[inline]
    fn borrow_near(&mut self) -> Option<(Place, Cell, Brief)> {
        let near: &Arc<PeerSegment> = self.near.as_ref()?;
        let ring = Ring { head: &self.at.head, entries: &self.at.entries };
        let Found::Message(cell, brief) = ring.find(self.next) else { return None };
        let (session, catalogue) = (&self.session, self.at.home.catalogue());
        let member = &session.directory.members[usize::from(catalogue)];
        // It moves with every new life of the number, too.
        let geometry = member.geometry.read();
        // Process-private: it only says under which word the segment was found to be the right one.
        if near.geometry.load(Ordering::Relaxed) != geometry || !near.holds(cell.slot()) {
            return None;
        }
        let home = session.home(self.at.entry)?;
        let words = [(home, self.at.home.0), (&ring.entry(self.next).cell, cell.0)];
        let place = {
            let section = session.shards.section();
            session.hold(&section, (catalogue, cell), &words, geometry).ok()?
        };
        if !SlotInfo::check_brief(&brief, near.map.bytes() as u64) {
            leases::release(session.shards.entry(place));
            return None;
        }
        Some((place, cell, brief))
    }
}
