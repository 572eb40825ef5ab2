//! The places at which the daemon can be killed within a step: before each store that changes a shared word, and before
//! each effect.
//!
//! A daemon that is killed before a store leaves the words as they were then, and executes no effect of the step. So the
//! step runs to its end, and the later stores are undone. This is what an unwinding out of the store would leave, without
//! an unwinding through code that no other panic passes.

#[cfg(feature = "crash-points")]
use crate::Flaw;
use crate::sim::Sim;
use tensorlend_daemon::core::{Core, Effect};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::word::Word;

/// A count of the places that the daemon has passed, and the place at which it is killed.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(feature = "crash-points"), expect(dead_code, reason = "only builds with crash points count stores"))]
pub struct Cuts {
    pub passed: usize,
    pub at: Option<usize>,
}

/// Words of a directory that a flawed daemon stores at the wrong place within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// The record of a change of an owner and a lifetime.
    Change,
    Life,
    Owner,
    ListEnd,
    ListKey,
    ListId,
    Absorbed,
    StreamId,
    Range,
}

impl Words {
    /// Returns true if one of the words has this address.
    pub fn have(self, d: &Directory, at: usize) -> bool {
        let is = |word: &Word| core::ptr::from_ref(word).addr() == at;
        match self {
            Self::Change => is(&d.head().change),
            Self::Life => d.names.iter().any(|name| is(&name.life)),
            Self::Owner => d.names.iter().any(|name| is(&name.owner_word)),
            Self::ListEnd => d.lists.iter().any(|list| is(&list.end)),
            Self::ListKey => d.lists.iter().any(|list| is(&list.key_hash)),
            Self::ListId => d.lists.iter().any(|list| is(&list.id)),
            Self::Absorbed => d.members.iter().any(|member| is(&member.absorbed)),
            Self::StreamId => d.streams.iter().any(|stream| is(&stream.id)),
            Self::Range => d.segments.iter().any(|segment| is(&segment.range)),
        }
    }
}

impl Sim {
    /// Runs a step of the daemon. Returns the effects to execute, and whether the daemon is killed after them.
    pub fn cut(&mut self, step: impl FnOnce(&mut Core) -> Vec<Effect>) -> (Vec<Effect>, bool) {
        #[cfg(feature = "crash-points")]
        if let Some(cuts) = self.cuts {
            return self.counted(cuts, step);
        }
        (step(&mut self.core), false)
    }

    #[cfg(feature = "crash-points")]
    fn counted(&mut self, cuts: Cuts, step: impl FnOnce(&mut Core) -> Vec<Effect>) -> (Vec<Effect>, bool) {
        use tensorlend_layout::crash::{record_stores, take_stores};
        record_stores();
        let mut effects = step(&mut self.core);
        let stores = take_stores();
        let here = cuts.at.and_then(|at| at.checked_sub(cuts.passed));
        let here = here.filter(|&here| here < stores.len() + effects.len());
        self.cuts = Some(Cuts { passed: cuts.passed + stores.len() + effects.len(), ..cuts });
        let Some(here) = here else { return (effects, false) };
        if here < stores.len() {
            for (number, store) in stores.iter().enumerate().rev() {
                if self.is_undone(number >= here, store.at) {
                    self.word_at(store.at).put(store.before);
                }
            }
        }
        effects.truncate(here.saturating_sub(stores.len()));
        (effects, true)
    }

    /// Returns whether a store at this address is undone. `is_later`: whether it is behind the kill in the daemon's code.
    #[cfg(feature = "crash-points")]
    fn is_undone(&self, is_later: bool, at: usize) -> bool {
        let are_of = |words: Words| self.directories.values().any(|directory| words.have(directory, at));
        match self.plan.flaw {
            Some(Flaw::StoresEarly(words)) if are_of(words) => false,
            Some(Flaw::StoresLate(words)) if are_of(words) => true,
            _ => is_later,
        }
    }

    /// Returns the word of a sheet at this address.
    #[cfg(feature = "crash-points")]
    fn word_at(&self, at: usize) -> &Word {
        let found = self.memory.values().filter_map(|memory| memory.view.as_ref()).find_map(|view| {
            let words: &[Word] = view.array(0, view.bytes() / 8)?;
            words.get(at.checked_sub(words.as_ptr().addr())? / 8)
        });
        found.expect("the daemon stores into sheets only")
    }
}
