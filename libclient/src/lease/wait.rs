//! Waiting for names.

use crate::error::Result;
use crate::lease::raw::Peeked;
use crate::names::version::Version;
use crate::session::Session;
use crate::wait::{Deadline, spin};
use tensorlend_layout::word::{PARKED_ANY, parked_bit};
use tensorlend_os::futex;

impl Session {
    /// Sleeps until `done` says yes of the key's state, or time is up (false).
    pub fn wait_key(&self, key: &[u8], deadline: Deadline, done: impl Fn(&Peeked) -> bool) -> Result<bool> {
        self.check()?;
        if spin(|| Ok(done(&self.peek(key)?).then_some(())))?.is_some() {
            return Ok(true);
        }
        self.waiter().enlist()?;
        let bell = &self.directory.head().bell;
        loop {
            // Bells are sampled before the look that decides; the owner's only if there is one.
            let news = bell.read();
            let owner = self.peek(key)?.owner;
            let owned = match owner {
                Some(owner) => self.peers().with_bell(owner, |sheet| (sheet.clone(), sheet.bell.read()))?,
                None => None,
            };
            let parked = self.waiter().park(owner.map_or(0, parked_bit) | PARKED_ANY);
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
