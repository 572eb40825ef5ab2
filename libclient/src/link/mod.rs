//! The part of a session that its leases keep alive.

pub mod epoch;
pub mod forks;
pub mod shards;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::segment::lendings::Lendings;
use shards::Shards;
use std::any::Any;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use tensorlend_layout::directory::{Directory, FoundName};
use tensorlend_layout::number::{ClientNo, EntryNo};
use tensorlend_layout::wire::Welcome;
use tensorlend_layout::word::{Absorbed, Member, MemberState, Word};
use tensorlend_os::fork;

/// Words of the name in the first cache line of an entry.
const FIRST_LINE_WORDS: usize = 4;

/// The part of a session that the session's leases keep alive. While the `Link` exists, the daemon knows this client,
/// and the client's leases protect their values. Leases keep the `Link` after the client has dropped the rest of the
/// session.
pub struct Link {
    pub control: Control,
    pub welcome: Welcome,
    /// The version of the layout that this client and its daemon support.
    layout: AtomicU32,
    pub directory: Directory,
    pub shards: Arc<Shards>,
    /// Device memory that the daemon lent to this session: its own and other clients'.
    pub lendings: Arc<Lendings>,
    /// The session, while parts of the session besides this link exist. Leases use the session to make drafts.
    pub session: OnceLock<Weak<dyn Any + Send + Sync>>,
    forks: u64,
}

impl Drop for Link {
    fn drop(&mut self) {
        // At this point this session has no mapped device memory. This report of the unmapped segments, before the
        // connection ends, lets the daemon free the memory without waiting for the end of the process.
        if !self.is_forked() {
            self.lendings.close(&self.control);
            // Shut the socket down: a forked child may have copies of it, which would keep the connection open.
            self.control.hang_up();
        }
    }
}

impl Link {
    /// Returns the link of a session that the daemon has accepted.
    pub fn new(control: Control, welcome: Welcome, layout: u32, directory: Directory, shards: Arc<Shards>) -> Self {
        let (lendings, session, layout) = (Arc::default(), OnceLock::new(), AtomicU32::new(layout));
        Self { control, welcome, layout, directory, shards, lendings, session, forks: fork::generation() }
    }

    /// Returns [`Error::Forked`] in a forked child, and otherwise success.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Returns whether this process is a child of the one that opened the session.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.forks != fork::generation()
    }

    /// Returns whether this process may read under the session's leases. A process may do so if it opened the session, or if
    /// it is a child that inherited the leases.
    #[inline]
    pub fn is_readable(&self) -> bool {
        fork::is_readable(self.forks)
    }

    /// Returns whether the daemon still respects this session's leases and cursors. Call this function after the reads that
    /// the lease must protect.
    #[inline(always)]
    pub fn is_member(&self) -> bool {
        // If the daemon was replaced, the mapped directory may no longer have a writer.
        !self.control.is_dead() && self.directory.members[self.me().index()].member.peek() == self.welcome.member
    }

    /// Returns whether a member's client has not ended. After its end, the member word stays open while its leases count, for
    /// its children or its work on a device. The daemon closes the word `absorbed` of each client that ends.
    #[inline]
    pub fn is_alive(&self, number: ClientNo) -> bool {
        let entry = &self.directory.members[number.index()];
        matches!(Member(entry.member.read()).state(), MemberState::Open | MemberState::Ending)
            && Absorbed(entry.absorbed.read()).state() != MemberState::Closed
    }

    /// Returns the version of the layout that this client and its daemon support. The daemon maintains no word of the
    /// directory that a later version has added.
    pub fn layout(&self) -> u32 {
        self.layout.load(Ordering::Relaxed)
    }

    /// Records the version of the layout that the new daemon supports.
    pub fn set_layout(&self, version: u32) {
        self.layout.store(version, Ordering::Relaxed);
    }

    #[inline]
    pub fn me(&self) -> ClientNo {
        self.welcome.client
    }

    #[inline]
    pub fn owner_word(&self, entry: EntryNo) -> Option<&Word> {
        self.directory.names.get(entry.index()).map(|e| &e.owner_word)
    }

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

    /// Loads the first lines of this many adjacent entries, for look-ups that expect their names there.
    pub fn fetch_entries(&self, first: EntryNo, count: usize) {
        for entry in self.directory.names.iter().skip(first.index()).take(count) {
            black_box(entry.owner_word.peek());
        }
    }

    /// Looks keys up like [`Link::find_live`]. Does each step for all keys before the next step, so that the processor
    /// fetches the lines of many look-ups at once.
    pub fn find_many(&self, keys: &[&[u8]]) -> Vec<Option<FoundName>> {
        let directory = &self.directory;
        let hashes: Vec<u64> = keys.iter().map(|key| directory.hash(key)).collect();
        let places: Vec<usize> = hashes.iter().map(|&hash| directory.first_place(hash)).collect();
        // The loops that only load are short, so that the processor executes many of their loads at once.
        for &place in &places {
            black_box(directory.places.get(place).map(Word::peek));
        }
        let entries = hashes
            .iter()
            .zip(&places)
            .map(|(&hash, &place)| directory.entry_at(place, hash).unwrap_or(EntryNo::new(0)));
        let entries: Vec<EntryNo> = entries.collect();
        for (&entry, key) in entries.iter().zip(keys) {
            if let Some(entry) = directory.names.get(entry.index()) {
                let last = entry.name[FIRST_LINE_WORDS - usize::from(key.len() <= FIRST_LINE_WORDS * 8)].peek();
                black_box((entry.owner_word.peek(), last));
            }
        }
        let find = |((key, &hash), &entry): ((&&[u8], &u64), &EntryNo)| {
            // The entry contains its key. So a wrong hint leads to no other name's value.
            let hinted = directory.names.get(entry.index()).and_then(|it| it.probe(hash, key, &directory.long_names));
            match hinted.filter(|owner_word| owner_word.is_live()) {
                Some(owner_word) => Some(FoundName { entry, owner_word }),
                None => self.find_live(hash, key),
            }
        };
        keys.iter().zip(&hashes).zip(&entries).map(find).collect()
    }
}
