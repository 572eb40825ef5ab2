//! Messages of streams that subscribers receive, and the choice of the first message.

use crate::error::{Error, Result, ValueKind};
use crate::lease::dataset::Dataset;
use crate::lease::lease::Lease;
use crate::lease::value::Value;

/// The position at which a subscription begins.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::{DType, Start};
///
/// let camera = client.stream("camera").open()?;
/// for _ in 0..3 {
///     camera.send(client.create(DType::U8, [4, 4])?)?;
/// }
/// let position = |start| client.subscription("camera").start_at(start).open().map(|frames| frames.position());
/// assert_eq!(position(Start::Oldest)?, 0);
/// assert_eq!(position(Start::Newest)?, 2);
/// assert_eq!(position(Start::Next)?, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Start {
    /// The newest message that the stream holds, then all that follow.
    #[default]
    Newest,
    /// The oldest message that the stream still holds, then all that follow.
    Oldest,
    /// The first message that the producer sends after the subscription began.
    Next,
}

/// A message of a stream: a lease on a tensor or a dataset, with its number.
///
/// The producer may replace the message in its ring at any time. The lease keeps the value.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// let camera = client.stream("camera").open()?;
/// let mut frames = client.subscribe("camera")?;
/// let mut frame = client.create(tensorlend::DType::U8, [480, 640, 3])?;
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
    pub(super) sequence: u64,
    pub(super) lost: u64,
    pub(super) value: Value,
}

impl Message {
    /// Returns the message's number in the stream, counted from 0.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the number of messages lost between the previous message and this one. It is more than 0 only with
    /// [`crate::Policy::DropOldest`], or for a stream of another machine.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the message's value.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Turns the message into its value, which the program can keep.
    pub fn into_value(self) -> Value {
        self.value
    }

    /// Returns the message's tensor.
    ///
    /// # Errors
    /// [`Error::Kind`] if the message is a dataset.
    pub fn tensor(&self) -> Result<&Lease> {
        self.value.as_tensor().ok_or_else(|| self.not_a(ValueKind::Tensor))
    }

    /// Returns the message's dataset.
    ///
    /// # Errors
    /// [`Error::Kind`] if the message is a tensor.
    pub fn dataset(&self) -> Result<&Dataset> {
        self.value.as_dataset().ok_or_else(|| self.not_a(ValueKind::Dataset))
    }

    #[cold]
    fn not_a(&self, wanted: ValueKind) -> Error {
        self.value.not_a(wanted, &format!("message {}", self.sequence))
    }

    /// Returns the producer's timestamp in nanoseconds. Returns 0 if the producer set none.
    pub fn timestamp(&self) -> u64 {
        match &self.value {
            Value::Tensor(lease) => lease.timestamp(),
            Value::Dataset(dataset) => dataset.timestamp(),
            #[cfg(feature = "cuda")]
            Value::Device(lease) => lease.timestamp(),
        }
    }
}
