//! Senders: a producer's end for messages of one dtype and shape.

use crate::error::Result;
use crate::stream::producer::{Stream, TrySendError};
use crate::tensor::dims::{Dims, as_u64};
use crate::tensor::draft::Draft;
use crate::tensor::sendable::seal;
use crate::tensor::shape::IntoShape;
use crate::tensor::spec::TensorSpec;
use crate::wait::{Deadline, Timeout};
use std::ops::{Deref, DerefMut};
use tensorlend_layout::DType;
use tensorlend_layout::stream::HeaderSummary;
use tensorlend_layout::word::Cell;

/// A stream's producer for tensors of one dtype and shape, on one thread at a time. See [`Stream::sender`].
///
/// Dropping it closes the stream, as dropping the [`Stream`] does.
#[derive(Debug)]
pub struct Sender {
    stream: Stream,
    dtype: DType,
    shape: Dims<u64>,
    bytes: u64,
    /// The next message. It has a slot, unless none was free when the previous message was sent.
    draft: Draft,
    prepared: Option<Prepared>,
}

/// What is written for the next message before the program fills it.
#[derive(Debug)]
struct Prepared {
    number: u64,
    value: Cell,
    /// The summary of the record, in which only the timestamp may change. `None`: the record is not written, because the
    /// tensor has more than four dimensions.
    summary: Option<HeaderSummary>,
}

/// The next message of a [`Sender`]: a [`Draft`] in shared memory. Dropping it without sending keeps its memory for the
/// next message.
#[derive(Debug)]
pub struct Loan<'s> {
    sender: &'s mut Sender,
}

impl Stream {
    /// Returns a sender of tensors of one dtype and shape. It sends a message in less time than [`Stream::send`]: it
    /// takes no lock, and makes and describes each message before the program asks for it.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::DType;
    ///
    /// let mut camera = client.stream("camera").open()?.sender(DType::U8, [480, 640, 3])?;
    /// let mut frames = client.subscribe("camera")?;
    /// for number in 0..3 {
    ///     let mut frame = camera.loan()?;
    ///     frame.bytes_mut().fill(number);
    ///     frame.set_timestamp(1_700_000_000_000_000_000);
    ///     frame.send()?;
    ///     assert_eq!(frames.borrow()?.tensor()?.bytes()[0], number);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Tensor`] for an invalid shape.
    pub fn sender(self, dtype: DType, shape: impl IntoShape) -> Result<Sender> {
        let spec = TensorSpec::try_new(dtype, shape)?;
        let bytes = spec.bytes()?;
        let Some(shape) = Dims::new(as_u64(&spec.shape)) else { unreachable!("checked with its bytes") };
        let draft = Draft::without_slot(&self.writer.session, dtype, shape.clone());
        Ok(Sender { stream: self, dtype, shape, bytes, draft, prepared: None })
    }
}

impl Sender {
    /// Returns the next message, for writing. Its bytes are uninitialized: they contain the data of a former tensor.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let mut numbers = client.stream("numbers").open()?.sender(tensorlend::DType::F32, [2, 3])?;
    /// let mut loan = numbers.loan()?;
    /// loan.as_mut_slice::<f32>()?.fill(0.5);
    /// assert_eq!((loan.shape(), loan.send()?), (&[2, 3][..], 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`crate::Client::create`].
    #[inline]
    pub fn loan(&mut self) -> Result<Loan<'_>> {
        self.stream.writer.session.check()?;
        let next = self.stream.state_mut().1.next;
        // An unsent loan may have left its properties. They must not get into a record that is written below.
        self.draft.reset();
        let session = &self.stream.writer.session;
        match &self.prepared {
            Some(it) if it.number == next && self.draft.is_slot(session, it.value) => {}
            _ => self.prepare(next)?,
        }
        Ok(Loan { sender: self })
    }

    /// Takes a slot for message `number`, unless the draft has one, and writes its record.
    #[cold]
    fn prepare(&mut self, number: u64) -> Result<()> {
        let session = &self.stream.writer.session;
        if !self.prepared.take().is_some_and(|it| self.draft.is_slot(session, it.value)) {
            // A program can swap a loan's draft for another one, of any shape and of any client.
            self.draft = Draft::without_slot(session, self.dtype, self.shape.clone());
            self.draft.give_slot(session.take(self.bytes)?);
        }
        self.prepared = Some(Prepared::new(&self.draft, number));
        Ok(())
    }

    /// Returns the stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the stream, which stays open.
    pub fn into_stream(self) -> Stream {
        self.stream
    }

    /// Sends the draft, for which the stream has room, and prepares the next one. What receivers do not wait for comes
    /// after the store of the entry.
    #[inline]
    fn push(&mut self) -> Result<u64> {
        let (writer, state) = self.stream.state_mut();
        if let Some(Prepared { number, value, summary: Some(mut summary) }) = self.prepared.take()
            && let Some(spent) = self.draft.seal_prepared(&writer.session, value, &mut summary)
        {
            tensorlend_layout::crash_point!("send: sealed");
            let replaced = writer.send(state, value, &summary);
            if let Some(taken) = writer.session.alloc().exchange(replaced, spent, self.bytes) {
                self.draft.reset();
                self.draft.give_slot(taken);
                self.prepared = Some(Prepared::new(&self.draft, number + 1));
            }
            return Ok(number);
        }
        let draft = Draft::without_slot(&writer.session, self.dtype, self.shape.clone());
        let mut draft = std::mem::replace(&mut self.draft, draft);
        let sealed = seal(&writer.session, &mut draft, state.next, &writer.name)?;
        tensorlend_layout::crash_point!("send: sealed");
        Ok(writer.push(state, sealed.value, &sealed.summary))
    }
}

impl Prepared {
    #[inline]
    fn new(draft: &Draft, number: u64) -> Self {
        let (value, summary) = draft.prepare(number);
        Self { number, value, summary }
    }
}

impl Loan<'_> {
    /// Sends the message. Returns its number. With [`crate::Policy::Block`], blocks while a subscriber is a whole ring behind.
    ///
    /// # Errors
    /// The errors of [`Stream::send`]. On an error, the method drops the message.
    #[inline]
    pub fn send(self) -> Result<u64> {
        self.send_until(&Deadline::new(None))
    }

    /// Sends like [`Loan::send`], but blocks for at most `timeout`.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`] if the stream stayed full; otherwise the errors of [`Stream::send`].
    pub fn send_timeout(self, timeout: impl Into<Timeout>) -> Result<u64> {
        self.send_until(&Deadline::new(timeout))
    }

    /// Sends like [`Loan::send`], but never blocks. If the stream is full, the error returns the message.
    ///
    /// # Errors
    /// [`TrySendError::Full`] with the message; [`TrySendError::Failed`] with an error of [`Stream::send`].
    #[inline]
    pub fn try_send(self) -> std::result::Result<u64, TrySendError<Self>> {
        let (writer, state) = self.sender.stream.state_mut();
        match writer.room(state) {
            Ok(true) => self.sender.push().map_err(TrySendError::Failed),
            Ok(false) => Err(TrySendError::Full(self)),
            Err(e) => Err(TrySendError::Failed(e)),
        }
    }

    #[inline]
    fn send_until(self, deadline: &Deadline) -> Result<u64> {
        let (writer, state) = self.sender.stream.state_mut();
        while !writer.room(state)? {
            let nap = writer.nap(deadline)?;
            writer.park(state).sleep(nap);
            writer.unpark(state);
        }
        self.sender.push()
    }
}

impl Deref for Loan<'_> {
    type Target = Draft;

    #[inline]
    fn deref(&self) -> &Draft {
        &self.sender.draft
    }
}

impl DerefMut for Loan<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Draft {
        &mut self.sender.draft
    }
}
