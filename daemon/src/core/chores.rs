//! Chores: work whose amount a client determines. The daemon removes the items of a deleted list,
//! surveys the memory of a disconnected client, and finds the values that only leases retain.
//!
//! The daemon does this work in slices, and serves requests between two slices. One step spends at
//! most [`UNITS`] on all namespaces together. The next slice follows after [`PAUSE_NS`].
//!
//! A chore begins after all changes that clients can see. The list has lost its name and its table
//! entry, or the client is closed. So a daemon that stops before its chores finish loses nothing.
//! The next daemon finds the items without a list, and the quiescent clients.

use super::account::NamespaceId;
use super::clock::{Clock, Timer};
use std::collections::{BTreeSet, VecDeque};
use tensorlend_layout::number::{ClientNo, EntryNo};

/// Maximum cost of one step in units. A unit is a fraction of a microsecond, and a step takes a few
/// milliseconds.
pub const UNITS: u32 = 4096;
/// Cost of removing a name.
pub const REMOVAL: u32 = 4;
/// Cost of reading a name and its value.
pub const READ: u32 = 2;
/// Cost of scanning a lease table.
pub const SCAN: u32 = 64;
/// Cost of freeing a segment, or of removing a stream.
pub const RELEASE: u32 = 16;
/// Number of names that a chore reads from the daemon's table at a time.
pub const ENTRIES_STEP: usize = 256;
/// Pause between two slices, in which the daemon serves requests.
pub const PAUSE_NS: u64 = 500_000;

/// A piece of work that is not finished.
#[derive(Debug)]
pub enum Chore {
    /// Removes the items of a deleted list.
    Items(DeletedList),
    /// Surveys the memory of the quiescent client with this number.
    Survey(ClientNo),
    /// Finds the values that only leases retain.
    Leases,
}

/// The remaining items of a deleted list, which are still names.
#[derive(Debug)]
pub struct DeletedList {
    pub id: u64,
    /// The remaining items.
    pub left: Left,
}

/// The method that finds the remaining items.
#[derive(Debug)]
pub enum Left {
    /// A search by the items' numbers.
    Numbers(std::ops::Range<u64>),
    /// A search among all entries whose owner words lead to cells. The search begins with this
    /// catalogue and entry.
    Entries(ClientNo, EntryNo),
}

/// The queue of chores, and the cost of the steps.
#[derive(Debug)]
pub struct Chores {
    queue: VecDeque<(NamespaceId, Chore)>,
    /// Cost of this step so far.
    spent: u32,
    /// Maximum cost of each step.
    units_max: u32,
    /// Earliest time of the next slice. A step that began without chores ignores this time.
    after_ns: u64,
    /// Whether a scan of leases has finished since the last call of [`Chores::take_scanned`].
    scanned: bool,
    /// Whether there were no chores when the step began.
    idle: bool,
    /// Time of the timer. `None` if the timer is not set.
    armed_ns: Option<u64>,
}

impl Default for Chores {
    fn default() -> Self {
        let queue = VecDeque::new();
        Self { queue, spent: 0, units_max: UNITS, after_ns: 0, scanned: false, idle: true, armed_ns: None }
    }
}

impl Chores {
    pub fn begin_step(&mut self) {
        self.spent = 0;
        self.idle = self.queue.is_empty();
    }

    fn may_continue(&self) -> bool {
        self.spent < self.units_max
    }

    /// Adds a cost. Returns true if the cost of this step was below the maximum before the addition.
    pub fn spend(&mut self, units: u32) -> bool {
        let may = self.may_continue();
        self.spent += units;
        may
    }

    /// Records that a scan of leases has finished.
    pub fn has_scanned(&mut self) {
        self.scanned = true;
    }

    /// Returns true if items of deleted lists still count as names of a namespace.
    pub fn has_items(&self, namespace: NamespaceId) -> bool {
        self.queue.iter().any(|(id, chore)| *id == namespace && matches!(chore, Chore::Items(_)))
    }

    /// Returns true if a survey of this client's memory is queued.
    pub fn surveyed(&self) -> BTreeSet<(NamespaceId, ClientNo)> {
        let surveyed = |(id, chore): &(NamespaceId, Chore)| match chore {
            Chore::Survey(number) => Some((*id, *number)),
            _ => None,
        };
        self.queue.iter().filter_map(surveyed).collect()
    }

    pub fn push(&mut self, namespace: NamespaceId, chore: Chore) {
        self.queue.push_back((namespace, chore));
    }

    /// Takes the next chore of this step from the queue.
    pub fn pop(&mut self) -> Option<(NamespaceId, Chore)> {
        if self.may_continue() { self.queue.pop_front() } else { None }
    }

    /// Returns true if this step may continue chores.
    pub fn are_due(&self, now_ns: u64) -> bool {
        !self.queue.is_empty() && (self.idle || now_ns >= self.after_ns)
    }

    /// Postpones the next slice by [`PAUSE_NS`].
    pub fn pause(&mut self, now_ns: u64) {
        self.after_ns = now_ns + PAUSE_NS;
    }

    /// Queues a chore, and sets the timer. This step begins the chore if the queue was empty.
    pub fn take_on(&mut self, clock: &mut Clock, namespace: NamespaceId, chore: Chore) {
        self.push(namespace, chore);
        self.arm(clock);
    }

    pub fn arm(&mut self, clock: &mut Clock) {
        if self.armed_ns.is_none() {
            let at = clock.now_ns() + PAUSE_NS;
            self.armed_ns = Some(at);
            clock.set_timer_at(at, Timer::Chores);
        }
    }

    pub fn disarm(&mut self, clock: &mut Clock) {
        if let Some(at) = self.armed_ns.take() {
            clock.cancel(at, Timer::Chores);
        }
    }

    pub fn has_fired(&mut self) {
        self.armed_ns = None;
    }

    /// Returns true if a scan of leases has finished since the last call of this function.
    pub fn take_scanned(&mut self) -> bool {
        std::mem::take(&mut self.scanned)
    }

    /// Returns the cost of this step so far.
    pub fn spent(&self) -> u32 {
        self.spent
    }

    /// Returns the number of unfinished chores.
    pub fn left(&self) -> usize {
        self.queue.len()
    }

    pub fn set_units_max(&mut self, units: u32) {
        self.units_max = units;
    }
}
