//! What is in files instead of memory.

use super::account::NamespaceId;
use super::event::MemId;
use std::collections::BTreeMap;

/// Which segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    pub namespace: NamespaceId,
    pub catalogue: u16,
    pub base: u32,
}

/// What is in files.
#[derive(Debug, Default)]
pub struct Spills {
    bytes: u64,
    uids: BTreeMap<u32, u64>,
    /// The segment that is on its way into a file, and the memory that it is in: one at a time.
    leaving: Option<(Whose, MemId)>,
    /// Files that could not be written or read.
    pub failures: u64,
    /// Whether the pool was above its high mark and has not come to the low one since.
    draining: bool,
    /// Before this nothing has become free to be spilled for the marks, unless [`Spills::look_again`] says so.
    look_ns: u64,
    /// A file could not be written: none is for the marks before this.
    pause_ns: u64,
}

impl Spills {
    /// Bytes of segments that are in files only.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A segment is in a file.
    pub fn add(&mut self, uid: u32, bytes: u64) {
        self.bytes += bytes;
        *self.uids.entry(uid).or_default() += bytes;
    }

    /// There may be something that can be spilled.
    pub fn look_again(&mut self) {
        self.look_ns = 0;
    }

    pub fn remove(&mut self, uid: u32, bytes: u64) {
        self.look_again();
        self.bytes -= bytes;
        let own = self.uids.get_mut(&uid).expect("it was added");
        *own -= bytes;
        if *own == 0 {
            self.uids.remove(&uid);
        }
    }

    /// A segment is on its way into a file; its memory is `mem`.
    pub fn begin(&mut self, whose: Whose, mem: MemId) {
        self.leaving = Some((whose, mem));
    }

    /// The segment that was on its way, and its memory.
    pub fn end(&mut self) -> (Whose, MemId) {
        self.leaving.take().expect("a segment is spilled because somebody ordered it")
    }

    /// Returns true if a segment is on its way into a file.
    pub fn is_spilling(&self) -> bool {
        self.leaving.is_some()
    }

    /// Bytes of segments of these uids that are in files only.
    pub fn bytes_of(&self, is_one: impl Fn(u32) -> bool) -> u64 {
        self.uids.iter().filter(|&(&uid, _)| is_one(uid)).map(|(_, bytes)| bytes).sum()
    }

    /// Notes how full the pool is compared with the marks; returns true if segments must be spilled for them.
    pub fn drain(&mut self, above_high: bool, above_low: bool) -> bool {
        self.draining = above_high || self.draining && above_low;
        self.draining
    }

    /// Returns true if there may be something to spill for the marks.
    pub fn may_look(&self, now_ns: u64) -> bool {
        now_ns >= self.look_ns.max(self.pause_ns)
    }

    /// Nothing becomes free to be spilled for the marks before this, by itself.
    pub fn look_at(&mut self, at: u64) {
        self.look_ns = at;
    }

    /// A file could not be written: none is for the marks before this.
    pub fn pause_until(&mut self, at: u64) {
        self.failures += 1;
        self.pause_ns = at;
    }
}
