//! A callback when memory runs short.

use super::Instruments;
use crate::error::{Error, Result, check_name};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

thread_local! {
    /// Whether this thread is where no callback may run: inside of one, or behind a lock that one might want.
    static SILENT: Cell<bool> = const { Cell::new(false) };
}

/// What to do about an allocation that fails: the answer of [`crate::ClientBuilder::on_memory_pressure`]'s callback.
///
/// ```
/// use tensorlend::Relief;
///
/// let freed_something = false;
/// let answer = if freed_something { Relief::Retry } else { Relief::GiveUp };
/// assert_eq!(answer, Relief::GiveUp);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relief {
    /// Something was freed: try again. Asked again after every attempt, so answer this only while there is hope.
    Retry,
    /// Let the allocation fail.
    GiveUp,
}

/// The names that a callback may delete.
pub trait Names: Sync {
    /// Deletes a name; false if there was none.
    fn delete(&self, name: &str) -> Result<bool>;
}

/// An allocation that is about to fail. See [`crate::ClientBuilder::on_memory_pressure`].
pub struct Pressure<'s> {
    names: &'s dyn Names,
    bytes: u64,
    attempt: u32,
    cause: &'s Error,
}

impl Pressure<'_> {
    /// Bytes that the allocation takes: whole cache lines, whole pages from one page on.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How often this allocation has failed by now: 1 at the first call.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// What the allocation will fail with: [`Error::MemoryLimit`] for this client's own limit, [`Error::Refused`] for
    /// one of the daemon's.
    pub fn cause(&self) -> &Error {
        self.cause
    }

    /// Deletes what a name holds; false if there was nothing. As [`crate::Client::delete`]: a callback that kept the
    /// client itself would keep it alive for ever.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// use tensorlend::{Client, DType, Relief};
    ///
    /// let client = Client::builder()
    ///     .socket(broker.socket())
    ///     .memory_limit(1 << 20)
    ///     .on_memory_pressure(|pressure| match pressure.delete("cache") {
    ///         Ok(true) => Relief::Retry,
    ///         _ => Relief::GiveUp,
    ///     })
    ///     .connect()?;
    /// client.create(DType::U8, &[1 << 20])?.publish("cache")?;
    /// let draft = client.create(DType::U8, &[1 << 20])?;
    /// assert!(!client.exists("cache")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`crate::Client::delete`].
    pub fn delete(&self, name: &str) -> Result<bool> {
        check_name(name)?;
        self.names.delete(name)
    }
}

impl std::fmt::Debug for Pressure<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pressure")
            .field("bytes", &self.bytes)
            .field("attempt", &self.attempt)
            .field("cause", self.cause)
            .finish_non_exhaustive()
    }
}

/// What the program wants to be asked.
#[derive(Clone)]
pub struct Callback(Arc<dyn Fn(&Pressure<'_>) -> Relief + Send + Sync>);

impl Callback {
    pub fn new(ask: impl Fn(&Pressure<'_>) -> Relief + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }
}

impl std::fmt::Debug for Callback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a callback")
    }
}

/// While it lives, no callback runs on this thread.
pub struct Silence {
    before: bool,
    /// It has to end on its own thread.
    _here: PhantomData<*const ()>,
}

impl Silence {
    pub fn new() -> Self {
        Self { before: SILENT.replace(true), _here: PhantomData }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        SILENT.set(self.before);
    }
}

impl Instruments {
    /// Asks the program, where there is somebody to ask. The caller holds no lock, or is in a [`Silence`].
    pub fn relief(&self, names: &dyn Names, bytes: u64, attempt: u32, cause: &Error) -> Relief {
        match &self.pressure {
            Some(callback) if !SILENT.get() => {
                let _here = Silence::new();
                callback.0(&Pressure { names, bytes, attempt, cause })
            }
            _ => Relief::GiveUp,
        }
    }
}
