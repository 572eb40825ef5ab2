//! The fingerprint of a world, by which the search recognizes a state that it has explored.

use super::world::World;
use crate::sim::{Kind, Mem};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hasher};
use tensorlend_layout::catalogue::Catalogue;
use tensorlend_layout::header::Magic;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::word::Word;

/// Cells of a client, and entries of its lease table, that the small world uses at most.
const USED: usize = 64;

struct Text<'a>(&'a mut DefaultHasher);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl World {
    /// Returns a hash of all that the world's future depends on: the daemon's state, the words of all sheets, the clients,
    /// the fd store, the kernel's orders, the clock and the model.
    pub fn fingerprint(&self) -> u64 {
        let (sim, mut hasher) = (&self.sim, DefaultHasher::new());
        for memory in sim.memory.values() {
            write_words(&mut hasher, memory);
        }
        let mut text = Text(&mut hasher);
        let written = write!(text, "{:?} {:?} {:?} {:?}", sim.actors, sim.memory, sim.names, sim.life)
            .and_then(|()| write!(text, "{:?} {:?} {:?} {:?}", sim.orders, sim.awaited, sim.lent, sim.now_ns))
            .and_then(|()| write!(text, "{:?} {:?}", self.model, self.pending()));
        written.expect("a hasher takes everything");
        if !sim.life.is_gone {
            write!(text, "{:?}", sim.core).expect("a hasher takes everything");
        }
        hasher.finish()
    }
}

/// Adds the words of a sheet that are not 0.
fn write_words(hasher: &mut DefaultHasher, memory: &Mem) {
    let Some(view) = &memory.view else { return };
    let used = match memory.kind {
        Kind::Sheet(Magic::Catalogue) => std::mem::offset_of!(Catalogue, cells) + USED * 192,
        Kind::Sheet(Magic::Leases) => std::mem::offset_of!(LeaseTable, entries) + USED * 8,
        _ => view.bytes(),
    };
    let words: &[Word] = view.array(0, used.min(view.bytes()) / 8).unwrap_or_default();
    for (at, word) in words.iter().enumerate() {
        let value = word.peek();
        if value != 0 {
            hasher.write_u64(at as u64);
            hasher.write_u64(value);
        }
    }
}
