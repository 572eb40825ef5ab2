//! Changes of an entry's owner together with the lifetime of its name.
//!
//! | word | writer | readers |
//! |---|---|---|
//! | `owner_word` | the daemon | all members, with Acquire |
//! | `life` | the daemon | the owner, with Acquire, before it overwrites its value: see [`publish::is_lasting`] |
//! | `change`, `change_lives`, `change_after` | the daemon | the next daemon; `change`: also owners that rename |
//!
//! A daemon that is killed leaves one of these states:
//! 1. `change` is 0. Nothing was changed, or all was.
//! 2. `change` has the version of the present owner word: the owner is still the former one. `life` has the former or the new
//!    lifetime.
//! 3. `change_after` is the present owner word: the owner is the new one, and `life` as before.
//!
//! In the last two states the next daemon stores the lifetime of the present owner again. An older build does not know these
//! words. If it changes the entry after such a kill, the owner word or the lifetime is another one, and the record has no effect.

use super::{Directory, ListEntry};
use crate::number::EntryNo;
use crate::publish;
use crate::word::{LifeWord, OwnerWord, VERSION_MASK, low32};

/// An entry whose owner word the daemon is changing. Fields, highest first: 0 (2 bits), the version of the owner word before
/// the change (22), 0 (7), 1 (1), entry (32). 0: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangeWord(pub u64);

impl ChangeWord {
    /// Returns the word for an entry with this owner word.
    pub const fn new(entry: EntryNo, before: OwnerWord) -> Self {
        Self((before.version() as u64) << 40 | 1 << 32 | entry.get() as u64)
    }

    /// Returns the entry. `None`: the daemon changes none.
    pub const fn entry(self) -> Option<EntryNo> {
        if self.0 >> 32 & 1 == 1 { Some(EntryNo::new(low32(self.0))) } else { None }
    }

    /// Returns the version of the owner word before the change.
    pub const fn version(self) -> u32 {
        (self.0 >> 40) as u32 & VERSION_MASK
    }
}

impl Directory {
    /// Returns whether the daemon is changing the owner word and the lifetime of an entry. A caller that has read a lifetime
    /// with Acquire before, and reads the owner word after, knows from `false` that the lifetime belongs to that owner word, or
    /// that the owner word has changed.
    pub fn is_changing(&self, entry: EntryNo) -> bool {
        ChangeWord(self.head().change.read()).entry() == Some(entry)
    }

    /// Daemon: changes the owner of an entry by `change`, which stores the owner word `after`, and the lifetime from the first
    /// of `lives` to the second.
    pub fn change_owner<R>(
        &self,
        entry: EntryNo,
        after: OwnerWord,
        lives: [LifeWord; 2],
        change: impl FnOnce() -> R,
    ) -> R {
        let (head, name) = (self.head(), &self.names[entry.index()]);
        if lives == [LifeWord::FOREVER; 2] {
            return change();
        }
        head.change_lives.iter().zip(lives).for_each(|(word, life)| word.set(life.0));
        head.change_after.set(after.0);
        head.change.set(ChangeWord::new(entry, OwnerWord(name.owner_word.peek())).0);
        crate::crash_point!("daemon: change recorded");
        let done = publish::change_owner(&name.life, lives[1], change);
        head.change.set(0);
        done
    }

    /// Daemon: stores every word again that a version after [`crate::versions::LAYOUT_OLDEST`] has
    /// added. A daemon calls this when it takes over a directory, because an older daemon may have
    /// changed the directory. The older daemon leaves these words as they were.
    pub fn renew_added(&self) {
        self.settle_lives();
        for list in &*self.lists {
            list.set_end(list.end.peek());
        }
        for word in &self.head().wanted_segments {
            word.set(0);
        }
    }

    /// Daemon: completes the lifetimes that the former daemon was changing when it ended.
    pub fn settle_lives(&self) {
        let head = self.head();
        let change = ChangeWord(head.change.peek());
        let [before, after] = [0, 1].map(|at| head.change_lives[at].peek());
        if let Some(name) = change.entry().and_then(|entry| self.names.get(entry.index()))
            && [before, after].contains(&name.life.peek())
        {
            let owner_word = OwnerWord(name.owner_word.peek());
            if owner_word.version() == change.version() {
                name.life.set(before);
            } else if owner_word.0 == head.change_after.peek() {
                name.life.set(after);
            }
        }
        head.change.set(0);
        for (_, name) in self.entries() {
            // An older build that was killed after it stored a tomb left the lifetime behind.
            if name.life.peek() != 0 && !OwnerWord(name.owner_word.peek()).is_live() {
                name.life.set(LifeWord::FOREVER.0);
            }
        }
    }
}

impl ListEntry {
    /// Daemon: stores the number of items ever appended.
    pub fn set_end(&self, end: u64) {
        #[cfg(feature = "next-layout-for-tests")]
        self.not_end.set(!end);
        self.end.set(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Geometry;
    use crate::number::{CellNo, ClientNo};
    use crate::raw::View;

    use std::panic::{AssertUnwindSafe, catch_unwind};

    const FOREVER: LifeWord = LifeWord::FOREVER;
    const EPHEMERAL: LifeWord = LifeWord::new(0, true);
    const TIMED: LifeWord = LifeWord::new(5, false);

    fn directory() -> Directory {
        let geometry = Geometry { members: 2, names: 8, lists: 1, streams: 1, segments: 1 };
        let view = View::anonymous(geometry.bytes() as usize);
        geometry.initialise(view.at(0).unwrap(), 7, 1);
        let d = Directory::new(&view).unwrap();
        d.head().names_end.set(8);
        d
    }

    /// Changes the owner from client 1 to client 2, and is killed before the owner word, after it, or not at all.
    fn change(lives: [LifeWord; 2], killed: Option<bool>) -> LifeWord {
        let d = directory();
        let name = &d.names[3];
        let owner = |catalogue| OwnerWord(name.owner_word.peek()).then_live(catalogue, CellNo::new(0)).0;
        name.owner_word.set(owner(ClientNo::new(1)));
        name.life.set(lives[0].0);
        let after = OwnerWord(owner(ClientNo::new(2)));
        let step = |stores: bool| {
            if stores {
                name.owner_word.set(owner(ClientNo::new(2)));
            }
            assert!(killed.is_none(), "killed");
        };
        let done = catch_unwind(AssertUnwindSafe(|| {
            d.change_owner(EntryNo::new(3), after, lives, || step(killed != Some(false)));
        }));
        assert_eq!(done.is_ok(), killed.is_none());
        d.settle_lives();
        assert_eq!(d.head().change.peek(), 0);
        let life = LifeWord(name.life.peek());
        d.settle_lives();
        assert_eq!(LifeWord(name.life.peek()), life, "it is settled");
        life
    }

    #[test]
    fn a_kill_leaves_the_lifetime_of_the_owner() {
        for lives in [FOREVER, EPHEMERAL, TIMED].map(|a| [FOREVER, EPHEMERAL, TIMED].map(|b| [a, b])).as_flattened() {
            assert_eq!(change(*lives, Some(false)), lives[0], "{lives:?}, killed before the owner word");
            assert_eq!(change(*lives, Some(true)), lives[1], "{lives:?}, killed after it");
            assert_eq!(change(*lives, None), lives[1], "{lives:?}");
        }
    }

    #[test]
    fn a_record_has_no_effect_after_a_build_that_does_not_know_it() {
        let d = directory();
        let name = &d.names[3];
        let owner = |catalogue| OwnerWord(name.owner_word.peek()).then_live(catalogue, CellNo::new(0));
        name.owner_word.set(owner(ClientNo::new(1)).0);
        let after = owner(ClientNo::new(2));
        let kill = || {
            let killed =
                AssertUnwindSafe(|| d.change_owner(EntryNo::new(3), after, [FOREVER, EPHEMERAL], || panic!("killed")));
            assert!(catch_unwind(killed).is_err());
        };
        kill();
        // The older build gives the name another lifetime, without another owner.
        name.life.set(TIMED.0);
        d.settle_lives();
        assert_eq!(LifeWord(name.life.peek()), TIMED);
        name.life.set(FOREVER.0);
        kill();
        // The older build gives the name to another owner, for ever.
        name.life.set(FOREVER.0);
        name.owner_word.set(owner(ClientNo::new(3)).0);
        d.settle_lives();
        assert_eq!(LifeWord(name.life.peek()), FOREVER);
    }

    #[test]
    fn a_free_entry_has_no_lifetime_after_a_restart() {
        let d = directory();
        d.names[3].life.set(TIMED.0);
        d.settle_lives();
        assert_eq!(d.names[3].life.peek(), 0);
    }
}
