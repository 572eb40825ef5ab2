//! How long a name lives.

use super::NameTable;
use crate::error::{Error, Result};
use std::time::Duration;
use tensorlend_layout::word::LifeWord;
use tensorlend_os::clock::boottime_ns;

/// How long a name lives if nobody overwrites it. The default: until it is deleted.
///
/// Whatever is published under the name before its end has a lifetime of its own: [`crate::Client::put`] makes it live on.
/// The daemon ends names, a moment after their time; leases that stand then stand on.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// It ends after so long; `None`: no clock ends it.
    pub ttl: Option<Duration>,
    /// It ends with its producer's session, however that ends.
    pub ephemeral: bool,
}

impl Lifetime {
    /// Gone with its producer.
    pub const EPHEMERAL: Self = Self { ttl: None, ephemeral: true };

    /// Gone after this time.
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

    /// Whether only a deletion ends it.
    pub(crate) fn is_forever(self) -> bool {
        self == Self::default()
    }

    /// As the daemon is asked.
    pub(crate) fn ttl_ns(self) -> Result<Option<u64>> {
        match self.ttl {
            Some(Duration::ZERO) => {
                Err(Error::Argument("a time to live of 0: give one of a nanosecond at least".into()))
            }
            ttl => Ok(ttl.map(|ttl| u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX))),
        }
    }
}

impl NameTable {
    /// What is left of a name's life; forever if there is no such name in the directory.
    pub fn lifetime_of(&self, key: &[u8]) -> Lifetime {
        let hash = self.directory.hash(key);
        loop {
            let Some(found) = self.find_live(hash, key) else { return Lifetime::default() };
            let entry = &self.directory.names[found.entry as usize];
            let life = LifeWord(entry.life.read());
            if entry.home.peek() == found.home.0 {
                // One that is over and not ended yet still ends.
                let left = |deadline: u64| Duration::from_nanos(deadline.saturating_sub(boottime_ns()).max(1));
                return Lifetime { ttl: life.deadline_ns().map(left), ephemeral: life.is_ephemeral() };
            }
        }
    }
}
