//! The effects that the current step has ordered so far.

use super::effect::Effect;
use super::event::MemId;
use super::label::Label;

/// Maximum length of a sheet that the daemon's loop makes itself. Lanes make longer sheets.
pub const PROMPT_BYTES_MAX: u64 = 1 << 20;

/// Maximum length of a segment that the daemon's loop makes itself. A client waits for its first segment, and the way to a
/// lane and back takes longer than the work.
pub const PROMPT_SEGMENT_BYTES_MAX: u64 = 128 << 10;

/// The effects of the current step, in order.
#[derive(Debug, Default)]
pub struct Effects(Vec<Effect>);

impl Effects {
    pub fn push(&mut self, effect: Effect) {
        self.0.push(effect);
    }

    /// Stores memory in the fd store, so that the memory outlives the daemon.
    pub fn keep(&mut self, mem: MemId, label: Label) {
        self.push(Effect::Keep { mem, label });
    }

    /// Orders the allocation of a part of memory.
    pub fn allocate(&mut self, mem: MemId, at: u64, bytes: u64) {
        self.push(Effect::Allocate { mem, at, bytes });
    }

    /// Removes and returns the effects, at the end of a step.
    pub fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.0)
    }
}

impl Extend<Effect> for Effects {
    fn extend<I: IntoIterator<Item = Effect>>(&mut self, effects: I) {
        self.0.extend(effects);
    }
}
