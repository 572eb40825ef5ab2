//! The places at which the daemon can be killed within a step: before each store that changes a shared word, and before
//! each effect.
//!
//! A daemon that is killed before a store leaves the words as they were then, and executes no effect of the step. So the
//! step runs to its end, and the later stores are undone. This is what an unwinding out of the store would leave, without
//! an unwinding through code that no other panic passes.

use crate::sim::Sim;
use tensorlend_daemon::core::{Core, Effect};
#[cfg(feature = "crash-points")]
use tensorlend_layout::word::Word;

/// A count of the places that the daemon has passed, and the place at which it is killed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cuts {
    pub passed: usize,
    pub at: Option<usize>,
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
        for store in stores.iter().skip(here).rev() {
            self.word_at(store.at).put(store.before);
        }
        effects.truncate(here.saturating_sub(stores.len()));
        (effects, true)
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
