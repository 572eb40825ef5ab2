//! Slots that drafts hold, and their boxes.

use crate::reused::{Reuse, Spares};
use crate::segment::bytes::{Bytes, OwnRecord};
use std::thread::LocalKey;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::word::Cell;

/// A slot that a draft holds.
pub struct Taken {
    /// The slot's number and generation, as one word. A cell stores this word.
    pub value: Cell,
    /// The slot's offset in the segment.
    pub offset: u64,
    /// The slot's bytes: exactly as many as the caller requested.
    pub bytes: Bytes,
    pub record: OwnRecord,
}

thread_local! {
    static SPARES: Spares<Taken> = const { Spares::new(Vec::new()) };
}

impl Reuse for Taken {
    fn spares() -> &'static LocalKey<Spares<Self>> {
        &SPARES
    }
}

impl Taken {
    #[inline]
    pub fn slot(&self) -> SlotNo {
        self.value.slot()
    }

    #[inline]
    pub fn generation(&self) -> u64 {
        self.value.generation()
    }
}
