//! This process's end of a connection, which threads use one after the other.

use crate::errors::{ResultExt, closed, raise};
use crate::event_loop;
use crate::wait::Awaited;
use pyo3::prelude::*;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;
use tensorlend::Error;
use tensorlend_os::fork;
use tensorlend_os::mutex::lock;

/// Interval at which a waiting thread checks whether another thread has finished its use of an end.
const TURN: Duration = Duration::from_millis(1);

/// Returns an error in a forked child, where a lock that another thread held at the fork is never
/// released.
pub fn ours(forks: u64) -> PyResult<()> {
    if forks == fork::generation() { Ok(()) } else { Err(raise(Error::Forked)) }
}

/// An end that is open until `close`.
pub struct End<T> {
    open: Mutex<Option<T>>,
    /// The text of errors after `close`.
    closed: &'static str,
    forks: u64,
}

impl<T: Send> End<T> {
    /// Takes an open end of this process.
    pub fn new(end: T, closed: &'static str) -> Self {
        Self { open: Mutex::new(Some(end)), closed, forks: fork::generation() }
    }

    /// Returns an error in a forked child.
    pub fn ours(&self) -> PyResult<()> {
        ours(self.forks)
    }

    fn ask<R>(&self, held: &mut Option<T>, ask: impl FnOnce(&mut T) -> Result<R, Error>) -> Result<R, Error> {
        held.as_mut().ok_or_else(|| closed(self.closed)).and_then(ask)
    }

    /// Calls `ask` as soon as no other thread uses the end. Such a thread may wait for a message.
    pub fn wait<R>(&self, ask: impl FnOnce(&mut T) -> Result<R, Error>) -> Result<R, Error> {
        self.ask(&mut lock(&self.open), ask)
    }

    /// Calls `ask` as `wait` does, without the interpreter's lock.
    pub fn with<R: Send>(&self, py: Python<'_>, ask: impl FnOnce(&mut T) -> Result<R, Error> + Send) -> PyResult<R> {
        self.ours()?;
        py.detach(|| self.wait(ask)).or_raise()
    }

    /// Calls `ask`, or returns `None` if another thread uses the end. The other thread then gets the message that
    /// arrives.
    pub fn try_with<R>(&self, ask: impl FnOnce(&mut T) -> Result<R, Error>) -> Result<Option<R>, Error> {
        match self.open.try_lock() {
            Ok(mut held) => self.ask(&mut held, ask).map(Some),
            Err(TryLockError::Poisoned(left)) => self.ask(&mut left.into_inner(), ask).map(Some),
            Err(TryLockError::WouldBlock) => Ok(None),
        }
    }

    /// Calls `ask` as `try_with` does, unless this is a forked child.
    pub fn look<R>(&self, ask: impl FnOnce(&mut T) -> Result<R, Error>) -> PyResult<Option<R>> {
        self.ours()?;
        self.try_with(ask).or_raise()
    }

    /// Returns whether `has_news` finds something. Returns an error if nothing will come.
    pub fn news(&self, awaited: &Awaited, has_news: impl FnOnce(&mut T) -> Result<bool, Error>) -> PyResult<bool> {
        self.ours()?;
        awaited.check()?;
        Ok(self.try_with(has_news).or_raise()?.unwrap_or(false))
    }

    /// Calls `ask`, which is quick. Releases the interpreter's lock only if another thread uses the end.
    pub fn quickly<R: Send>(
        &self,
        py: Python<'_>,
        ask: impl Fn(&mut T) -> Result<R, Error> + Send + Sync,
    ) -> PyResult<R> {
        match self.look(&ask)? {
            Some(found) => Ok(found),
            None => self.with(py, &ask),
        }
    }

    /// Calls `ask`, which waits for one slice of time. If another thread uses the end, sleeps briefly instead, and returns the
    /// error of a timeout.
    pub fn turn<R>(
        &self,
        slice: Duration,
        what: impl FnOnce() -> String,
        ask: impl FnOnce(&mut T) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let found = self.try_with(ask)?;
        found.ok_or_else(|| {
            let waited = slice.min(TURN);
            std::thread::sleep(waited);
            Error::Timeout { what: what(), waited }
        })
    }

    /// Closes the end, and ends the waits of event loops.
    pub fn close(&self, py: Python<'_>) {
        if self.ours().is_ok() {
            py.detach(|| drop(lock(&self.open).take()));
            event_loop::poll_all(py);
        }
    }
}
