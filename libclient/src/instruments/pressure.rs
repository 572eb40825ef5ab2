//! The callback on memory pressure.

use super::AllocationInstruments;
use crate::error::{Error, Result, check_name};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

thread_local! {
    /// True if this thread must not run a callback: it is inside one, or holds a lock that a callback might need.
    static SILENT: Cell<bool> = const { Cell::new(false) };
}

/// The callback's decision on an allocation that fails: see [`crate::ClientBuilder::on_memory_pressure`].
///
/// ```
/// use tensorlend::Relief;
///
/// let freed_something = false;
/// let answer = if freed_something { Relief::Retry } else { Relief::GiveUp };
/// assert_eq!(answer, Relief::GiveUp);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relief {
    /// Retry the allocation, because the callback freed something. The client calls the callback again after every
    /// failed attempt. So return this value only while another attempt may succeed.
    Retry,
    /// Let the allocation fail with [`Pressure::cause`].
    GiveUp,
}

/// The names that a callback may delete.
pub trait Names: Sync {
    /// Deletes a name. Returns false if the name held no value.
    fn delete(&self, name: &str) -> Result<bool>;
}

/// An allocation that is about to fail: the parameter of the callback of
/// [`crate::ClientBuilder::on_memory_pressure`].
pub struct Pressure<'s> {
    names: &'s dyn Names,
    bytes: u64,
    attempt: u32,
    cause: &'s Error,
}

impl Pressure<'_> {
    /// Returns the number of bytes that the allocation needs: whole cache lines, whole pages from one page up.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of failed attempts of this allocation. It is 1 when the client first calls the callback.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the error with which the allocation will fail: [`Error::MemoryLimit`] for this client's own limit,
    /// [`Error::Refused`] for a limit of the daemon.
    pub fn cause(&self) -> &Error {
        self.cause
    }

    /// Deletes the value of a name, like [`crate::Client::delete`]. Returns false if the name held no value. Use this
    /// method in the callback: a callback that owned the client would keep the client alive forever.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// use tensorlend::{Client, DType, Relief};
    ///
    /// let client = Client::builder()
    ///     .socket(daemon.socket())
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
    /// The errors of [`crate::Client::delete`].
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

/// The program's callback.
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

/// A guard that excludes callbacks. While it exists, no callback runs on this thread.
pub struct Silence {
    before: bool,
    /// Makes the guard not `Send`: the thread that created the guard must drop it.
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

impl AllocationInstruments {
    /// Calls the program's callback, if there is one. The caller must hold no lock, or hold a [`Silence`].
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
