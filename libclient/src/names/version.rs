//! Versions: which value of a name was seen.

use tensorlend_layout::word::Home;

/// Which value of a name was seen: equal means that the name was not written in between. It has no order.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
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
    /// The home word that led to the value, or what stands for one while the name is announced only.
    pub(crate) home: u64,
    pub(crate) cell: u64,
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        let is_announced = |version: &Self| Home(version.home).version() == 0 && version.home != 0;
        // A value stays the same when the daemon takes its name into the directory.
        let same_cell = || {
            let (a, b) = (Home(self.home), Home(other.home));
            (a.catalogue(), a.cell()) == (b.catalogue(), b.cell())
        };
        self.cell == other.cell
            && (self.home == other.home || ((is_announced(self) || is_announced(other)) && same_cell()))
    }
}

impl std::hash::Hash for Version {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // What equal versions have in common.
        self.cell.hash(state);
    }
}

impl Version {
    /// Stands for the home of a name that is announced: no version, and so no home word that the daemon stores.
    pub(crate) fn announced(catalogue: u16, cell: u32) -> u64 {
        u64::from(catalogue) << 24 | u64::from(cell)
    }

    /// What [`crate::Client::wait_newer`] takes for "any value at all".
    pub const NONE: Self = Self { home: 0, cell: 0 };

    /// Two words that mean the same version in every process, as long as the namespace exists: to send it along.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let version = client.put("numbers", &[1u8])?;
    /// assert_eq!(tensorlend::Version::from_words(version.words()), version);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn words(self) -> [u64; 2] {
        [self.home, self.cell]
    }

    /// The version that had these [`Version::words`].
    pub const fn from_words([home, cell]: [u64; 2]) -> Self {
        Self { home, cell }
    }
}
