//! Senders: a producer's end for messages of one dtype and shape.

use crate::error::Result;
use crate::stream::producer::{Stream, TrySendError};
use crate::tensor::dims::{Dims, as_u64};
use crate::tensor::draft::Draft;
use crate::tensor::element::Element;
use crate::tensor::shape::IntoShape;
use crate::tensor::spec::TensorSpec;
use crate::wait::{Deadline, Timeout};
use std::ops::Deref;
use tensorlend_layout::DType;
use tensorlend_layout::stream::HeaderSummary;
use tensorlend_layout::tensor::Sealed;
use tensorlend_layout::word::SLOT_NONE;

/// A stream's producer for tensors of one dtype and shape. See [`Stream::sender`].
///
/// A sender serves one thread at a time. Several threads can share a [`Stream`] instead. After its first message, it keeps the
/// memory of the next one, so the daemon cannot spill the segment of that memory. Dropping it closes the stream, as dropping the [`Stream`] does.
#[derive(Debug)]
pub struct Sender {
    stream: Stream,
    bytes: u64,
    /// The next message. It always has this sender's dtype and shape: no program gets a mutable reference to it.
    draft: Draft,
    /// The prepared record of the draft's slot. `None`: the draft has no slot, or no prepared record.
    prepared: Option<Prepared>,
}

/// A record that is written, except its generation and timestamp.
#[derive(Debug)]
struct Prepared {
    /// The message's number. After that message the record is out of date.
    number: u64,
    /// The words of the message's entry, without a timestamp and without the bytes of a small tensor. `None`: the record is
    /// not written, because the tensor has more than four dimensions.
    entry: Option<HeaderSummary>,
}

/// The next message of a [`Sender`]: a [`Draft`] in shared memory. If the program drops it without sending, the sender keeps
/// the memory for the next loan, but neither content nor metadata nor timestamp.
#[derive(Debug)]
pub struct Loan<'s> {
    sender: &'s mut Sender,
}

impl Stream {
    /// Returns a sender of tensors of one dtype and shape. It sends a message in less time than [`Stream::send`]: it does not
    /// lock the stream, and after each message it makes and describes the next one. Send messages of other shapes, and
    /// datasets, with `sender.stream().send(…)` between two loans.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::DType;
    ///
    /// let mut camera = client.stream("camera").open()?.sender(DType::U8, [480, 640, 3])?;
    /// let mut frames = client.subscribe("camera")?;
    /// camera.stream().wait_subscribers(1, std::time::Duration::from_secs(10))?;
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
    /// [`crate::Error::Tensor`] for an invalid shape. The stream is then closed.
    pub fn sender(self, dtype: DType, shape: impl IntoShape) -> Result<Sender> {
        let spec = TensorSpec::try_new(dtype, shape)?;
        let bytes = spec.bytes()?;
        let Some(shape) = Dims::new(as_u64(&spec.shape)) else { unreachable!("checked with its bytes") };
        let draft = Draft::without_slot(&self.writer.session, dtype, shape);
        Ok(Sender { stream: self, bytes, draft, prepared: None })
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
    /// assert_eq!(loan.shape(), [2, 3]);
    /// assert_eq!(loan.send()?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`crate::Client::create`].
    #[inline]
    pub fn loan(&mut self) -> Result<Loan<'_>> {
        self.stream.writer.session.check()?;
        let next = self.stream.state_mut().1.next;
        // A loan that was not sent may have left its properties. They must not get into a record that is written below.
        self.draft.reset();
        match &self.prepared {
            Some(it) if it.number == next => {}
            _ => self.prepare(next)?,
        }
        Ok(Loan { sender: self })
    }

    /// Takes a slot for message `number`, unless the draft has one, and writes its record.
    #[cold]
    fn prepare(&mut self, number: u64) -> Result<()> {
        self.prepared = None;
        if !self.draft.has_slot() {
            self.draft.give_slot(self.stream.writer.session.take(self.bytes)?);
        }
        self.describe(number);
        Ok(())
    }

    /// Writes the record of the draft's slot, for message `number`.
    #[inline]
    fn describe(&mut self, number: u64) {
        self.prepared = Some(Prepared { number, entry: self.draft.prepare(number) });
    }

    /// Returns the stream, for its methods that share it: its state, waits, and other messages.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the stream, which stays open.
    pub fn into_stream(self) -> Stream {
        self.stream
    }

    /// Sends the draft, for which the stream has room, and prepares the next one. All work that can wait comes after the
    /// store of the ring's entry, because subscribers poll that entry.
    #[inline]
    fn push(&mut self) -> Result<u64> {
        let (writer, state) = self.stream.state_mut();
        let number = state.next;
        let entry = self.prepared.as_mut().and_then(|it| it.entry.as_mut());
        let sealed = entry.and_then(|entry| Some((self.draft.seal_prepared(entry)?, entry)));
        let (spent, replaced) = if let Some((value, entry)) = sealed {
            (self.draft.give_up_slot(), writer.send(state, value, entry))
        } else {
            self.prepared = None;
            let Sealed { value, summary } = self.draft.seal(number, SLOT_NONE)?;
            (self.draft.give_up_slot(), writer.send(state, value, &summary))
        };
        if let Some(taken) = writer.session.alloc().exchange(replaced, spent, self.bytes) {
            self.draft.reset();
            self.draft.give_slot(taken);
            self.describe(number + 1);
        }
        Ok(number)
    }
}

impl Loan<'_> {
    /// Sends the message. Returns its number. With [`crate::Policy::Block`], blocks while a subscriber is a whole ring behind.
    ///
    /// # Errors
    /// The errors of [`Stream::send`]. The content is then lost, and the sender keeps the memory for the next loan.
    #[inline]
    pub fn send(self) -> Result<u64> {
        self.send_until(&Deadline::new(None))
    }

    /// Sends like [`Loan::send`], but blocks for at most `timeout`. To try again with the same content, use
    /// [`Loan::try_send`].
    ///
    /// # Errors
    /// [`crate::Error::Timeout`] if the stream stayed full; otherwise the errors of [`Loan::send`].
    pub fn send_timeout(self, timeout: impl Into<Timeout>) -> Result<u64> {
        self.send_until(&Deadline::new(timeout))
    }

    /// Sends like [`Loan::send`], but never blocks. If the stream is full, the error returns the message.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::{DType, TrySendError};
    ///
    /// let mut camera = client.stream("camera").capacity(1).open()?.sender(DType::U8, [4, 4])?;
    /// let mut slow = client.subscribe("camera")?;
    /// camera.loan()?.send()?;
    /// match camera.loan()?.try_send() {
    ///     Ok(number) => println!("message {number}"),
    ///     Err(TrySendError::Full(frame)) => {
    ///         drop(slow.borrow()?);
    ///         frame.send()?;
    ///     }
    ///     Err(TrySendError::Failed(error)) => return Err(error.into()),
    /// }
    /// # assert_eq!(camera.stream().sent(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TrySendError::Full`] with the message; [`TrySendError::Failed`] with an error of [`Loan::send`].
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

    /// Returns all bytes for writing, like [`Draft::bytes_mut`].
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.sender.draft.bytes_mut()
    }

    /// Copies all bytes into the message, like [`Draft::copy_from`].
    ///
    /// # Errors
    /// [`crate::Error::Length`] if `bytes` is longer or shorter than the message.
    pub fn copy_from(&mut self, bytes: &[u8]) -> Result<()> {
        self.sender.draft.copy_from(bytes)
    }

    /// Returns the elements for writing, like [`Draft::as_mut_slice`].
    ///
    /// # Errors
    /// [`crate::Error::DType`] if the message has another element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.sender.draft.as_mut_slice()
    }

    /// Returns an array view for writing, like [`Draft::ndarray_mut`]. Feature `ndarray`.
    ///
    /// # Errors
    /// [`crate::Error::DType`] if the message has another element type.
    #[cfg(feature = "ndarray")]
    pub fn ndarray_mut<T: Element>(&mut self) -> Result<ndarray::ArrayViewMutD<'_, T>> {
        self.sender.draft.ndarray_mut()
    }

    /// Sets metadata that receivers get with the message, like [`Draft::set_metadata`]. The record is then written again, and
    /// receivers take a lease on the message. A timestamp has no such cost.
    ///
    /// # Errors
    /// [`crate::Error::Metadata`] for more than 64 KiB.
    pub fn set_metadata(&mut self, metadata: &[u8]) -> Result<&mut Self> {
        self.sender.draft.set_metadata(metadata)?;
        Ok(self)
    }

    /// Sets a timestamp that receivers get with the message, like [`Draft::set_timestamp`].
    pub fn set_timestamp(&mut self, nanoseconds: u64) -> &mut Self {
        self.sender.draft.set_timestamp(nanoseconds);
        self
    }
}

impl Deref for Loan<'_> {
    type Target = Draft;

    #[inline]
    fn deref(&self) -> &Draft {
        &self.sender.draft
    }
}
