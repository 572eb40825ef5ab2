//! Lifetimes of names.

use super::NameTable;
use crate::error::{Error, Result};
use std::time::Duration;
use tensorlend_layout::word::{LifeWord, OwnerWord};
use tensorlend_os::clock::{boottime_ns, duration_ns};

/// Maximum number of attempts to read a lifetime that the daemon is changing.
const CHANGING_ATTEMPTS: u32 = 10_000;

/// The lifetime of a name, unless a client overwrites the name. By default, a name lasts until a client deletes it.
///
/// Each publication sets a new lifetime: [`crate::Client::put`] makes a name permanent again. The daemon removes a name
/// shortly after the end of its lifetime. Leases on the name's value stay valid.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use std::time::Duration;
/// use tensorlend::Lifetime;
///
/// client.put_for("goal", &[1.0f32, 2.0], Lifetime::ttl(Duration::from_secs(600)))?;
/// client.put_for("robot/3/pose", &[0.5f32; 6], Lifetime::EPHEMERAL)?;
/// let both = Lifetime { ttl: Some(Duration::from_millis(500)), ..Lifetime::EPHEMERAL };
/// client.put_for("robot/3/heartbeat", &[1u8], both)?;
/// assert!(client.info("robot/3/pose")?.lifetime.ephemeral);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// The time after which the name ends. `None`: no time limit.
    pub ttl: Option<Duration>,
    /// True if the name ends with its producer's session, for whatever reason the session ends.
    pub ephemeral: bool,
}

impl Lifetime {
    /// The lifetime of a name that ends with its producer's session.
    pub const EPHEMERAL: Self = Self { ttl: None, ephemeral: true };

    /// Returns the lifetime of a name that ends after this time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tensorlend::Lifetime;
    ///
    /// assert!(!Lifetime::ttl(Duration::from_secs(1)).ephemeral);
    /// ```
    pub const fn ttl(ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ephemeral: false }
    }

    /// Returns whether only a deletion ends the name.
    pub(crate) fn is_forever(self) -> bool {
        self == Self::default()
    }

    /// Returns the time to live in nanoseconds, as the request carries it.
    pub(crate) fn ttl_ns(self) -> Result<Option<u64>> {
        match self.ttl {
            Some(Duration::ZERO) => {
                Err(Error::Argument("a time to live of 0: give one of a nanosecond at least".into()))
            }
            ttl => Ok(ttl.map(duration_ns)),
        }
    }
}

impl NameTable {
    /// Returns the rest of a name's lifetime. Returns an unlimited lifetime if the directory has no such name.
    pub fn lifetime_of(&self, key: &[u8]) -> Lifetime {
        loop {
            let Some(found) = self.find_live(self.directory.hash(key), key) else { return Lifetime::default() };
            if let Some(lifetime) = self.lifetime_with(key, found.owner_word.0) {
                return lifetime;
            }
        }
    }

    /// Returns the rest of the lifetime that a name has with this owner word, or its substitute. Returns `None` if the name has
    /// another owner word now.
    pub fn lifetime_with(&self, key: &[u8], owner_word: u64) -> Option<Lifetime> {
        let wanted = OwnerWord(owner_word);
        // A name without an owner word is announced, and has no lifetime. Its first owner word leads to the same cell.
        let is_announced = wanted.version() == 0;
        let cell_of = |word: OwnerWord| (word.owner(), word.cell());
        let mut attempts = 0;
        let life = loop {
            let Some(found) = self.find_live(self.directory.hash(key), key) else {
                return is_announced.then(Lifetime::default);
            };
            if found.owner_word != wanted && !(is_announced && cell_of(found.owner_word) == cell_of(wanted)) {
                return None;
            }
            let entry = &self.directory.names[found.entry.index()];
            let life = LifeWord(entry.life.read());
            // The daemon stores the next lifetime before the next owner word. A daemon that was killed in between, and then
            // replaced by an older build, leaves the entry marked.
            if life != LifeWord::FOREVER && self.directory.is_changing(found.entry) && attempts < CHANGING_ATTEMPTS {
                attempts += 1;
                std::thread::yield_now();
                continue;
            }
            if entry.owner_word.peek() != found.owner_word.0 {
                return None;
            }
            break life;
        };
        // If the time has passed and the daemon has not removed the name yet, the rest is 1 ns.
        let left = |deadline: u64| Duration::from_nanos(deadline.saturating_sub(boottime_ns()).max(1));
        Some(Lifetime { ttl: life.deadline_ns().map(left), ephemeral: life.is_ephemeral() })
    }
}
