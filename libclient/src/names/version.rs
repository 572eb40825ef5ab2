//! Versions of values.

use tensorlend_layout::number::{CellNo, ClientNo};
use tensorlend_layout::word::OwnerWord;

/// Identifies a value of a name. If two versions of a name are equal, no client wrote a value in between. Versions have
/// no order.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::Version;
///
/// let first = client.put("numbers", &[1u8])?;
/// let second = client.put("numbers", &[1u8])?;
/// assert!(first != second && second != Version::NONE);
/// assert_eq!(client.get("numbers")?.version(), second);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Eq)]
pub struct Version {
    /// The owner word that led to the value. While the name is only announced, a substitute for the owner word.
    pub(crate) owner_word: u64,
    pub(crate) cell: u64,
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        let is_announced = |version: &Self| OwnerWord(version.owner_word).version() == 0 && version.owner_word != 0;
        // The comparison ignores whether the daemon has registered the name in the directory: the value is the same.
        let same_cell = || {
            let (a, b) = (OwnerWord(self.owner_word), OwnerWord(other.owner_word));
            (a.owner(), a.cell()) == (b.owner(), b.cell())
        };
        self.cell == other.cell
            && (self.owner_word == other.owner_word || ((is_announced(self) || is_announced(other)) && same_cell()))
    }
}

impl std::hash::Hash for Version {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // Hash only the part of the owner word that equal versions have in common.
        self.cell.hash(state);
    }
}

impl Version {
    /// Returns a substitute for the owner word of an announced name. It differs from every owner word that the daemon
    /// stores.
    pub(crate) fn announced(owner: ClientNo, cell: CellNo) -> u64 {
        u64::from(owner) << 24 | u64::from(cell)
    }

    /// A version that no value has: with it, [`crate::Client::wait_newer`] accepts any value.
    pub const NONE: Self = Self { owner_word: 0, cell: 0 };

    /// Returns two words that identify the version in every process while the namespace exists. A program can send
    /// them to another process.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let version = client.put("numbers", &[1u8])?;
    /// assert_eq!(tensorlend::Version::from_words(version.words()), version);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn words(self) -> [u64; 2] {
        [self.owner_word, self.cell]
    }

    /// Returns the version with these [`Version::words`].
    pub const fn from_words([owner_word, cell]: [u64; 2]) -> Self {
        Self { owner_word, cell }
    }
}
