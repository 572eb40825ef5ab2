//! Waiting for names.

use crate::error::{Error, Result};
use crate::held::{Peeked, Version};
use crate::patience::Patience;
use crate::session::Session;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tensorlend_layout::wire::Request;
use tensorlend_layout::word::{PARKED_ANY, parked_bit};
use tensorlend_os::futex;

/// Longest sleep between two looks: a hostile member can keep a ring from arriving, and this bounds what it costs.
pub const NAP_MAX: Duration = Duration::from_millis(100);
/// Looks again and again for a short while, as long as that has paid in this process.
pub fn spin<T>(look: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    static NAMES_AND_LISTS: Patience = Patience::new();
    NAMES_AND_LISTS.look(look)
}

/// When a wait gives up.
#[derive(Clone, Copy)]
pub struct Deadline {
    /// None: never. Without one the clock is not read, which costs as much as the rest of a send.
    until: Option<(Instant, Duration)>,
}

impl Deadline {
    #[inline]
    pub fn new(timeout: Option<Duration>) -> Self {
        Self { until: timeout.map(|timeout| (Instant::now(), timeout)) }
    }

    /// How long to sleep next; `None`: time is up.
    pub fn nap(&self) -> Option<Duration> {
        let Some((start, timeout)) = self.until else { return Some(NAP_MAX) };
        let left = timeout.checked_sub(start.elapsed())?;
        (!left.is_zero()).then(|| left.min(NAP_MAX))
    }

    /// What is left; `None`: there is no end.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|(start, timeout)| timeout.saturating_sub(start.elapsed()))
    }

    /// The end of a part of this wait.
    pub fn at_most(&self, slice: Duration) -> Self {
        Self::new(Some(self.left().map_or(slice, |left| left.min(slice))))
    }

    pub fn error(&self, what: String) -> Error {
        Error::Timeout { what, waited: self.until.map_or(Duration::ZERO, |(_, timeout)| timeout) }
    }
}

impl Session {
    /// Tells the daemon, once, that this client may be parked: publishers look at its parked word from then on.
    pub fn enlist(&self) -> Result<()> {
        self.check()?;
        if !self.parking.is_listed() {
            self.control.call(&Request::Wait, "wait", "")?;
            self.parking.listed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Sleeps until `done` says yes of the key's state, or time is up (false).
    pub fn wait_key(&self, key: &[u8], deadline: Deadline, done: impl Fn(&Peeked) -> bool) -> Result<bool> {
        self.check()?;
        if spin(|| Ok(done(&self.peek(key)?).then_some(())))?.is_some() {
            return Ok(true);
        }
        self.enlist()?;
        let bell = &self.directory.head().bell;
        loop {
            // Bells are sampled before the look that decides; the owner's only if there is one.
            let news = bell.read();
            let owner = self.peek(key)?.owner;
            let owned = match owner {
                Some(owner) => self.with_bell(owner, |sheet| (sheet.clone(), sheet.bell.read()))?,
                None => None,
            };
            let parked = self.parking.park(owner.map_or(0, parked_bit) | PARKED_ANY);
            let now = self.peek(key)?;
            if done(&now) {
                return Ok(true);
            }
            if now.owner != owner {
                continue;
            }
            self.control.check_daemon("wait for a name")?;
            let Some(nap) = deadline.nap() else { return Ok(false) };
            match &owned {
                Some((sheet, sample)) => futex::wait_any(&[(&sheet.bell, *sample), (bell, news)], nap),
                None => futex::wait(bell, news, nap),
            }
            drop(parked);
        }
    }

    /// Waits for a value of `name` other than `seen`.
    pub fn wait_newer(&self, name: &str, seen: Version, deadline: Deadline) -> Result<()> {
        let newer = |now: &Peeked| now.exists && now.seen != Some(seen);
        if self.wait_key(name.as_bytes(), deadline, newer)? {
            return Ok(());
        }
        Err(deadline.error(format!("a new value of {name:?}")))
    }
}
