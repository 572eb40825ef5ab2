//! The entry of a name: its key, its owner and its lifetime.

use crate::describe::structure;
use crate::size;
use crate::sync::{Ordering, fence};
use crate::word::{OwnerKind, OwnerWord, Word};

/// Number of words of a name in its entry.
pub const ENTRY_NAME_WORDS: usize = if cfg!(loom) { 1 } else { 12 };
/// Number of words of a name in a long name's block.
pub const LONG_NAME_WORDS: usize = if cfg!(loom) { 1 } else { 20 };
/// Maximum length of a directory key in bytes: 96 in the entry and 160 in a block.
pub const KEY_BYTES_MAX: usize = (ENTRY_NAME_WORDS + LONG_NAME_WORDS) * 8;

structure! {
    /// A name and its owner. The name stays in its entry for its whole life.
    pub struct NameEntry [128] {
        /// kind 2 . version 22 . catalogue 16 . cell 24. A reader reads this word first, and again last. If this word
        /// is unchanged, the name in this entry is unchanged.
        0 owner_word: Word,
        /// Hash of the key.
        8 hash: Word,
        /// Length of the key 16 . block of its tail 48 (for keys above 96 bytes).
        16 key: Word,
        /// The lifetime of the name's present value, as [`crate::word::LifeWord`] packs it. 0: the value has no end of
        /// its own. The daemon stores a lifetime before the owner word that it belongs to, and ends one after it. An owner
        /// overwrites the name without a request only if this word is 0, or if the name keeps its lifetime.
        24 life: Word,
        /// The key's first 96 bytes, zero-filled.
        32 name: [Word; ENTRY_NAME_WORDS],
    }
}

structure! {
    /// The bytes of a long key from its 97th on, zero-filled.
    pub struct LongName [160] {
        /// Up to 160 bytes.
        0 bytes: [Word; LONG_NAME_WORDS],
    }
}

impl NameEntry {
    /// Compares the entry's key with `key`. Returns the owner word if the keys are equal and the
    /// owner word stayed the same.
    ///
    /// Reader R loads the owner word, then the key, then the owner word again. The daemon reuses
    /// entries, so the key belongs to the first owner word only if that word is unchanged.
    ///
    /// If the word changed and the key is equal, R compares the *same* entry again. Another client
    /// may have taken the name over, and a search that continued with the next place would miss the
    /// name. The loop ends, because R repeats it only after a store of the daemon.
    // Not inlined: a search compares about one key, and the compiler would prepare the comparison before each search.
    #[inline(never)]
    pub fn probe(&self, hash: u64, key: &[u8], long_names: &[LongName]) -> Option<OwnerWord> {
        loop {
            let owner_word = OwnerWord(self.owner_word.read());
            if self.hash.peek() != hash || !self.key_is(key, long_names) {
                return None;
            }
            if self.owner_word_after_key() == owner_word.0 {
                return Some(owner_word);
            }
        }
    }

    /// Returns the length of the key in bytes, or 0 for no key.
    #[inline]
    pub fn key_bytes(&self) -> usize {
        (self.key.peek() & 0xFFFF) as usize
    }

    /// Returns true if the entry has this key. Compares word by word.
    #[inline]
    fn key_is(&self, key: &[u8], long_names: &[LongName]) -> bool {
        let word = self.key.peek();
        if word & 0xFFFF != key.len() as u64 {
            return false;
        }
        match key.split_at_checked(ENTRY_NAME_WORDS * 8) {
            Some((name, tail)) if !tail.is_empty() => are_in(name, &self.name) && tail_is(tail, word >> 16, long_names),
            _ => are_in(key, &self.name),
        }
    }

    /// Copies the key of a live entry by `copy`, with the owner word for which the copy is valid. Returns `None` if the entry
    /// is not live. An entry whose owner word changes during the copy is read again: its name may be moving to another owner.
    pub fn live_key<K>(&self, copy: impl Fn(&Self) -> Option<K>) -> Option<(OwnerWord, K)> {
        loop {
            let owner_word = OwnerWord(self.owner_word.read());
            if !owner_word.is_live() {
                return None;
            }
            let key = copy(self);
            if self.owner_word_after_key() == owner_word.0 {
                return Some((owner_word, key?));
            }
        }
    }

    /// Returns the owner word, read again after the key.
    #[inline]
    pub fn owner_word_after_key(&self) -> u64 {
        // Acquire orders this load after the relaxed loads of the key. If one of those loads read a
        // later key, this load reads a later owner word.
        fence(Ordering::Acquire);
        self.owner_word.peek()
    }

    /// Daemon: removes the key from a tombstone, so that no look-up matches the tombstone any more.
    /// The daemon calls this before it gives the block of a long key to another name. Otherwise the
    /// tombstone would appear to have that name's key.
    pub fn clear_key(&self) {
        self.assert_dead();
        // Release orders the earlier store of the owner word before the store below. A reader that
        // loads the new key also finds the entry dead when it reads the owner word again.
        fence(Ordering::Release);
        self.key.put(0);
    }

    fn assert_dead(&self) {
        assert_eq!(
            OwnerWord(self.owner_word.peek()).kind(),
            OwnerKind::Tomb,
            "a key changes under a dead owner word only"
        );
    }

    /// Daemon: gives the entry to another key. The owner word is a `Tomb`. The daemon's next store
    /// makes it `Live` or `Reserved`, and publishes the key.
    ///
    /// `block` is the index in `long_names` of the block for the key's tail. It is ignored for a
    /// key that fits into the entry.
    ///
    /// A crash before the next store leaves the entry a tombstone, with a key that belongs to no
    /// name.
    pub fn set_key(&self, hash: u64, key: &[u8], block: u32, long_names: &[LongName]) {
        self.assert_dead();
        // Release orders the earlier store of the owner word before the stores below. A reader that
        // loads one of these also finds the entry dead when it reads the owner word again. The
        // Release store of the next owner word orders only the stores before that store.
        fence(Ordering::Release);
        let mut chunks = key.chunks(8);
        let mut fill = |words: &[Word]| words.iter().for_each(|w| w.put(chunks.next().map_or(0, key_word)));
        fill(&self.name);
        let long = key.len() > ENTRY_NAME_WORDS * 8;
        if long {
            fill(&long_names[block as usize].bytes);
        }
        debug_assert_eq!(self.life.peek(), 0, "a name that ended has no lifetime");
        self.key.put(key.len() as u64 | if long { u64::from(block) << 16 } else { 0 });
        self.hash.put(hash);
    }
}

/// Returns true if this block has the tail of a long key.
#[cold]
fn tail_is(tail: &[u8], block: u64, long_names: &[LongName]) -> bool {
    long_names.get(size::index(block)).is_some_and(|block| are_in(tail, &block.bytes))
}

/// Returns true if the words begin with these bytes, zero-filled to whole words.
#[inline]
fn are_in(bytes: &[u8], words: &[Word]) -> bool {
    let (eights, rest) = bytes.as_chunks();
    eights.iter().zip(words).all(|(eight, word)| u64::from_le_bytes(*eight) == word.peek())
        && (rest.is_empty() || words.get(eights.len()).is_some_and(|word| key_word(rest) == word.peek()))
}

/// Returns up to eight bytes of a key as a word: little endian, zero-filled.
#[inline]
pub fn key_word(bytes: &[u8]) -> u64 {
    // A loop over the bytes would be slower, because the processor would mispredict its end. If two
    // of the loads overlap, both put the same bytes at the same bits.
    debug_assert!(bytes.len() <= 8);
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let shift = (bytes.len() - 4) * 8;
        return u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << shift;
    }
    if bytes.is_empty() {
        return 0;
    }
    let byte = |at: usize| u64::from(bytes[at]) << (at * 8);
    byte(0) | byte(bytes.len() / 2) | byte(bytes.len() - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::key_word;

    #[test]
    fn a_word_has_the_bytes_of_its_key_and_zeros() {
        let bytes = [0x81, 2, 0x83, 4, 0x85, 6, 0x87, 8];
        for length in 0..=8 {
            let mut word = [0; 8];
            word[..length].copy_from_slice(&bytes[..length]);
            assert_eq!(key_word(&bytes[..length]).to_le_bytes(), word);
        }
    }
}
