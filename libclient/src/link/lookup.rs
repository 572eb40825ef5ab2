//! The directory, looked into.

use super::Link;
use tensorlend_layout::directory::FoundName;

impl Link {
    /// Looks a key up in the directory until the answer stands.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<FoundName> {
        self.find_hashed(self.directory.hash(key), key)
    }

    /// A name's entry, if it has a home.
    #[inline]
    pub fn find_live(&self, hash: u64, key: &[u8]) -> Option<FoundName> {
        self.find_hashed(hash, key).filter(|found| found.home.is_live())
    }

    /// As [`Link::find`], the hash being known.
    #[inline]
    pub fn find_hashed(&self, hash: u64, key: &[u8]) -> Option<FoundName> {
        loop {
            if let Ok(found) = self.directory.find(hash, key) {
                return found;
            }
            std::hint::spin_loop();
        }
    }
}
