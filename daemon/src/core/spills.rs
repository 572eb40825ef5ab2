//! The segments that are in files instead of memory.

use super::account::NamespaceId;
use super::event::{MemId, Unwritten};
use super::settings::Settings;
use std::collections::BTreeMap;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::wire::SpillFault;

/// The identity of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    pub namespace: NamespaceId,
    pub number: ClientNo,
    pub base: SlotNo,
}

/// A write of a segment to a file, performed by a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillWrite {
    /// The segment.
    pub whose: Whose,
    pub mem: MemId,
}

/// Time between two lines in the log while spilling keeps failing.
const FAULT_LOGGED_NS: u64 = 60_000_000_000;

/// Failed writes since the last one that succeeded.
#[derive(Debug)]
struct Fault {
    last: Unwritten,
    failures: u64,
    since_ns: u64,
}

/// The segments that are in files.
#[derive(Debug, Default)]
pub struct Spills {
    bytes: u64,
    uids: BTreeMap<u32, u64>,
    /// The write in progress. Only one write runs at a time.
    leaving: Option<SpillWrite>,
    /// Number of files that could not be written or read.
    pub failures: u64,
    /// Whether the pool has been above the high water mark and has not fallen to the low water mark since.
    draining: bool,
    /// Time before which no segment becomes spillable because of the fill level, unless the core calls
    /// [`Spills::note_spillable`].
    scan_ns: u64,
    /// Earliest time of the next write because of the fill level, after a failed write.
    pause_ns: u64,
    /// Time before which a refused request waits, and does not look for a segment to spill.
    look_ns: u64,
    /// The failure of spilling, until a write succeeds.
    fault: Option<Fault>,
    /// Times of the last failed write, and of the last line in the log about a failure.
    failed_ns: u64,
    logged_ns: u64,
}

impl Spills {
    /// Returns the bytes of segments that exist only in files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a segment that is in a file.
    pub fn add(&mut self, uid: u32, bytes: u64) {
        self.bytes += bytes;
        *self.uids.entry(uid).or_default() += bytes;
    }

    /// Records that a segment may have become spillable.
    pub fn note_spillable(&mut self) {
        self.scan_ns = 0;
    }

    pub fn remove(&mut self, uid: u32, bytes: u64) {
        self.note_spillable();
        self.bytes -= bytes;
        let own = self.uids.get_mut(&uid).expect("it was added");
        *own -= bytes;
        if *own == 0 {
            self.uids.remove(&uid);
        }
    }

    /// Checks that each user's bytes in files are those of the user's segments (`in_files`), and that the segment
    /// that is being written (`leaving`) is the one of the write in progress. A segment may be freed during its write.
    ///
    /// # Panics
    /// Panics if they are not.
    pub fn check(&self, in_files: &BTreeMap<u32, u64>, leaving: &[SpillWrite]) {
        assert_eq!(&self.uids, in_files, "bytes in files, by uid");
        assert_eq!(self.bytes, in_files.values().sum::<u64>(), "bytes in files");
        assert!(leaving.iter().all(|it| self.leaving == Some(*it)), "{leaving:?} leave during {:?}", self.leaving);
    }

    pub fn begin(&mut self, write: SpillWrite) {
        self.leaving = Some(write);
    }

    /// Ends the write in progress, and returns it.
    pub fn end(&mut self) -> SpillWrite {
        self.leaving.take().expect("the daemon ordered the write of this segment")
    }

    /// Returns true if a worker is writing a segment to a file.
    pub fn is_spilling(&self) -> bool {
        self.leaving.is_some()
    }

    /// Returns the bytes of these uids' segments that exist only in files.
    fn bytes_of(&self, is_one: impl Fn(u32) -> bool) -> u64 {
        self.uids.iter().filter(|&(&uid, _)| is_one(uid)).map(|(_, bytes)| bytes).sum()
    }

    /// Returns true if the limits of spilling leave room for a segment of this uid.
    pub fn has_room_for(&self, settings: &Settings, uid: u32, bytes: u64) -> bool {
        let Some(limits) = &settings.spill else { return false };
        let owners = &settings.owners;
        let owner = owners.of(uid);
        let own = self.bytes_of(|uid| owners.of(uid) == owner);
        let fits = |used: u64, most: u64| used.checked_add(bytes).is_some_and(|sum| sum <= most);
        fits(self.bytes(), limits.bytes_max) && fits(own, limits.uid_bytes_max)
    }

    /// Compares the pool's fill level with the high and the low water mark. Returns true if the
    /// daemon must spill segments.
    pub fn drain(&mut self, above_high: bool, above_low: bool) -> bool {
        self.draining = above_high || self.draining && above_low;
        self.draining
    }

    /// Returns true if there may be a segment to spill because of the fill level.
    pub fn may_scan(&self, now_ns: u64) -> bool {
        now_ns >= self.scan_ns.max(self.pause_ns)
    }

    /// Records that no segment becomes spillable because of the fill level before this time without a further
    /// event.
    pub fn scan_at(&mut self, at: u64) {
        self.scan_ns = at;
    }

    /// Returns true if a refused request should look for a segment to spill now.
    pub fn may_look(&self, now_ns: u64) -> bool {
        now_ns >= self.look_ns
    }

    /// Records that no segment could be spilled for a request, and the time of the next attempt. So many waiting
    /// requests cost one attempt in this time.
    pub fn look_at(&mut self, at: u64) {
        self.look_ns = at;
    }

    /// Records a failed write at `now_ns`. The daemon writes the next file because of the fill level at `pause_ns` or later.
    pub fn failed(&mut self, reason: &Unwritten, now_ns: u64, pause_ns: u64) {
        self.failures += 1;
        (self.pause_ns, self.failed_ns) = (pause_ns, now_ns);
        let begins = self.fault.is_none();
        let fault =
            self.fault.get_or_insert_with(|| Fault { last: Unwritten::default(), failures: 0, since_ns: now_ns });
        fault.failures += 1;
        fault.last = reason.clone();
        if begins || now_ns >= self.logged_ns + FAULT_LOGGED_NS {
            self.logged_ns = now_ns;
            let (failures, reason) = (fault.failures, reason.in_full());
            tracing::warn!(failures, "the daemon cannot spill tensors to disk, and will refuse memory: {reason}");
        }
    }

    /// Records a write that succeeded.
    pub fn succeeded(&mut self) {
        if let Some(Fault { failures, .. }) = self.fault.take() {
            tracing::info!(failures, "spilling works again, after {failures} failed writes");
        }
    }

    /// Returns the failure of spilling, if the last write has failed. The reason names the folder only `in_full`.
    pub fn fault(&self, in_full: bool) -> Option<SpillFault> {
        self.fault.as_ref().map(|Fault { last, failures, since_ns }| {
            let reason = if in_full { last.in_full() } else { last.reason.clone() };
            SpillFault { reason, failures: *failures, since_ns: *since_ns }
        })
    }

    /// Returns the failure of spilling, if the last write failed at this time or later: see [`Spills::fault`].
    pub fn failed_since(&self, since_ns: u64, in_full: bool) -> Option<SpillFault> {
        if self.failed_ns >= since_ns { self.fault(in_full) } else { None }
    }
}
