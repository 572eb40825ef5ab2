//! Lookups in the directory.

use super::Link;
use tensorlend_layout::directory::FoundName;

impl Link {
    /// Finds a key in the directory. Searches again if the daemon has replaced the table of names in the meantime.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<FoundName> {
        self.find_hashed(self.directory.hash(key), key)
    }

    /// Returns a name's entry, if the name has an owner.
    #[inline]
    pub fn find_live(&self, hash: u64, key: &[u8]) -> Option<FoundName> {
        self.find_hashed(hash, key).filter(|found| found.owner_word.is_live())
    }

    /// Finds a key like [`Link::find`], for a caller that has computed the key's hash.
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
