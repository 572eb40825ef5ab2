//! The segments that are in files instead of memory.

use super::account::NamespaceId;
use super::event::MemId;
use std::collections::BTreeMap;

/// The identity of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    pub namespace: NamespaceId,
    pub catalogue: u16,
    pub base: u32,
}

/// The segments that are in files.
#[derive(Debug, Default)]
pub struct Spills {
    bytes: u64,
    uids: BTreeMap<u32, u64>,
    /// The segment that a worker is writing to a file, and its memory: one at a time.
    leaving: Option<(Whose, MemId)>,
    /// Number of files that could not be written or read.
    pub failures: u64,
    /// Whether the pool was above its high mark and has not come down to the low one since.
    draining: bool,
    /// Time before which no segment becomes spillable for the marks, unless [`Spills::look_again`] is called.
    look_ns: u64,
    /// Earliest time at which the daemon writes a file for the marks, after a write failed.
    pause_ns: u64,
}

impl Spills {
    /// Returns the bytes of segments that are in files only.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a segment that is in a file.
    pub fn add(&mut self, uid: u32, bytes: u64) {
        self.bytes += bytes;
        *self.uids.entry(uid).or_default() += bytes;
    }

    /// Notes that a segment may have become spillable.
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

    /// Begins the write of a segment, whose memory is `mem`, to a file.
    pub fn begin(&mut self, whose: Whose, mem: MemId) {
        self.leaving = Some((whose, mem));
    }

    /// Ends the write in progress; returns the segment and its memory.
    pub fn end(&mut self) -> (Whose, MemId) {
        self.leaving.take().expect("the daemon ordered the write of this segment")
    }

    /// Returns true if a segment is being written to a file.
    pub fn is_spilling(&self) -> bool {
        self.leaving.is_some()
    }

    /// Returns the bytes of segments of these uids that are in files only.
    pub fn bytes_of(&self, is_one: impl Fn(u32) -> bool) -> u64 {
        self.uids.iter().filter(|&(&uid, _)| is_one(uid)).map(|(_, bytes)| bytes).sum()
    }

    /// Compares the pool's fill level with the marks; returns true if segments must be spilled.
    pub fn drain(&mut self, above_high: bool, above_low: bool) -> bool {
        self.draining = above_high || self.draining && above_low;
        self.draining
    }

    /// Returns true if there may be something to spill for the marks.
    pub fn may_look(&self, now_ns: u64) -> bool {
        now_ns >= self.look_ns.max(self.pause_ns)
    }

    /// Notes that no segment becomes spillable for the marks by itself before this time.
    pub fn look_at(&mut self, at: u64) {
        self.look_ns = at;
    }

    /// Notes that a write failed: the daemon writes the next file for the marks at this time or later.
    pub fn pause_until(&mut self, at: u64) {
        self.failures += 1;
        self.pause_ns = at;
    }
}
