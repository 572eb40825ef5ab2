//! The context of a namespace: its ledger and its directory, which all parts of the namespace use.

use super::effect::Effect;
use super::env::Env;
use super::event::MemId;
use super::ledger::Ledger;
use super::names::Full;
use tensorlend_layout::directory::{Directory, FoundName, MemberEntry};
use tensorlend_layout::name::KeyKind;
use tensorlend_layout::number::{ClientNo, EntryNo};
use tensorlend_layout::size;
use tensorlend_layout::wire::{LimitKind, Refusal};
use tensorlend_layout::word::{LifeWord, OwnerWord};

/// The data that all parts of a namespace use.
#[derive(Debug)]
pub struct Context {
    /// The limits of the namespace, and its charges.
    pub ledger: Ledger,
    /// The directory: the words that the namespace's clients share.
    pub directory: DirectoryWriter,
}

/// A directory with its only writer, and the changes of this step that the directory's clients must
/// learn.
pub struct DirectoryWriter {
    directory: Directory,
    mem: MemId,
    /// Bits of the parked words of the clients that this step's changes affect.
    news: u64,
    /// Whether this step reclaimed device memory.
    returned: bool,
}

impl Context {
    /// Returns the refusal for a name for which no entry was found. `full` is the reason.
    pub fn full(&self, full: Full) -> Refusal {
        let (ledger, limits) = (&self.ledger, self.ledger.limits());
        match full {
            Full::Collision => Refusal::Bad(format!(
                "too many names of this user in namespace {:?} collide with this one",
                ledger.name()
            )),
            Full::Names => ledger.limit(LimitKind::Names, "the number of names", "names_max", limits.names_max),
            Full::Memory(reason) => reason.refusal(0),
            Full::LongNames => {
                let blocks = size::count(self.directory.long_names.len()) - 1;
                let what = "the number of names longer than 96 bytes (an eighth of names_max, at least 255)";
                ledger.limit(LimitKind::LongNames, what, "names_max", blocks)
            }
        }
    }
}

impl DirectoryWriter {
    /// Returns the writer of a directory in this memory.
    pub fn new(directory: Directory, mem: MemId) -> Self {
        Self { directory, mem, news: 0, returned: false }
    }

    pub fn mem(&self) -> MemId {
        self.mem
    }

    pub fn entry(&self, number: ClientNo) -> &MemberEntry {
        &self.members[number.index()]
    }

    /// Returns the entry of a key in any state.
    pub fn find_key(&self, key: &[u8]) -> Option<FoundName> {
        self.find_hashed(self.hash(key), key)
    }

    /// Returns the entry of a key with this hash, in any state.
    pub fn find_hashed(&self, hash: u64, key: &[u8]) -> Option<FoundName> {
        self.find(hash, key).expect("only the daemon replaces tables, and not during a look-up")
    }

    /// Returns the entry of a live key.
    pub fn find_live(&self, key: &[u8]) -> Option<FoundName> {
        self.find_key(key).filter(|found| found.owner_word.is_live())
    }

    pub fn life(&self, entry: EntryNo) -> LifeWord {
        LifeWord(self.names[entry.index()].life.peek())
    }

    /// Returns the live keys of one kind, with their entries and owner words. `read` parses each
    /// key.
    pub fn live_keys<K>(&self, kind: KeyKind, read: impl Fn(Vec<u8>) -> Option<K>) -> Vec<(EntryNo, OwnerWord, K)> {
        self.entries()
            .filter(|(_, entry)| KeyKind::of(entry) == kind && OwnerWord(entry.owner_word.peek()).is_live())
            .filter_map(|(at, entry)| Some((at, OwnerWord(entry.owner_word.peek()), read(self.key(entry)?)?)))
            .collect()
    }

    /// Adds bytes to the bytes lent to a member, or subtracts them.
    pub fn count_bytes(&self, number: ClientNo, bytes: u64, add: bool) {
        for word in [&self.head().bytes_lent, &self.entry(number).bytes] {
            let before = word.peek();
            word.set(if add { before + bytes } else { before - bytes });
        }
    }

    /// Records a change that affects the clients that sleep on `mask`.
    pub fn announce(&mut self, mask: u64) {
        self.news |= mask;
    }

    /// Returns, as bits, the clients that changes since the last call affect.
    pub fn take_news(&mut self) -> u64 {
        std::mem::take(&mut self.news)
    }

    /// Records that this step reclaimed device memory.
    pub fn note_returned(&mut self) {
        self.returned = true;
    }

    /// Notifies the clients that have device memory mapped, if this step reclaimed device memory.
    pub fn ring_returned(&mut self, env: &mut Env) {
        if std::mem::take(&mut self.returned) {
            tensorlend_layout::crash_point!("device: range taken back, not rung");
            self.head().returned.ring();
            env.effects.push(Effect::WakeHolders { directory: self.mem });
        }
    }
}

impl std::ops::Deref for DirectoryWriter {
    type Target = Directory;

    fn deref(&self) -> &Directory {
        &self.directory
    }
}

impl std::fmt::Debug for DirectoryWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DirectoryWriter")
    }
}
