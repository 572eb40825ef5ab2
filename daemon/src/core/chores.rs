//! Work whose amount a client decides: removing the items of a deleted list, looking through the memory of a disconnected
//! client, and finding the values that leases keep. The daemon does it in slices and serves requests in between: one step
//! spends at most [`UNITS`] on all namespaces together, and the next slice follows after [`PAUSE_NS`].
//!
//! A chore begins after everything that other clients may see is done: the list has no name and no line any more, or the
//! client is closed. A daemon that ends before its chores loses nothing: the next one finds items without a list, and
//! quiescent clients.

use super::account::NamespaceId;
use super::env::{Env, Timer};
use super::list::Doomed;
use super::namespace::Namespace;
use super::session::Core;
use std::collections::VecDeque;

/// Maximum cost of one step. A unit is a fraction of a microsecond, and a step a few milliseconds.
pub const UNITS: u32 = 4096;
/// Cost of removing a name.
pub const REMOVAL: u32 = 4;
/// Cost of reading a name and its value.
pub const LOOK: u32 = 2;
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
    /// Remove the items of a deleted list.
    Items(Doomed),
    /// Look through the memory of the quiescent client with this number.
    Survey(u16),
    /// Find the values that leases alone keep.
    Leases,
}

/// The queue of chores, and what the steps spend on it.
#[derive(Debug)]
pub struct Chores {
    queue: VecDeque<(NamespaceId, Chore)>,
    /// Cost of this step so far.
    spent: u32,
    /// Maximum cost of each step.
    units_max: u32,
    /// Earliest time of the next slice; a step that found no chores is not bound by it.
    after_ns: u64,
    /// A look at leases has finished since the flag was taken last.
    looked: bool,
    /// There were no chores when the step began.
    idle: bool,
    /// Time of the timer, if it is set.
    armed_ns: Option<u64>,
}

impl Default for Chores {
    /// Without chores.
    fn default() -> Self {
        let queue = VecDeque::new();
        Self { queue, spent: 0, units_max: UNITS, after_ns: 0, looked: false, idle: true, armed_ns: None }
    }
}

impl Chores {
    /// Begins a step.
    pub fn begin_step(&mut self) {
        self.spent = 0;
        self.idle = self.queue.is_empty();
    }

    fn may_go_on(&self) -> bool {
        self.spent < self.units_max
    }

    /// Adds a cost, and returns whether this step was below its maximum before.
    pub fn spend(&mut self, units: u32) -> bool {
        let may = self.may_go_on();
        self.spent += units;
        may
    }

    /// Notes that a look at leases has finished.
    pub fn has_looked(&mut self) {
        self.looked = true;
    }

    /// Returns true if items of deleted lists still count as names of a namespace.
    pub fn has_items(&self, namespace: NamespaceId) -> bool {
        self.queue.iter().any(|(id, chore)| *id == namespace && matches!(chore, Chore::Items(_)))
    }
}

impl Env {
    /// Queues a chore. This step begins it if no other was queued.
    pub fn take_on(&mut self, namespace: NamespaceId, chore: Chore) {
        self.chores.queue.push_back((namespace, chore));
        self.arm_chores();
    }

    fn arm_chores(&mut self) {
        if self.chores.armed_ns.is_none() {
            self.chores.armed_ns = Some(self.now_ns + PAUSE_NS);
            self.set_timer(PAUSE_NS, Timer::Chores);
        }
    }

    /// Notes that the timer has fired.
    pub fn chores_due(&mut self) {
        self.chores.armed_ns = None;
    }
}

impl Core {
    /// Continues the chores within the cost of this step, in turn.
    pub(super) fn do_chores(&mut self) {
        let (env, namespaces) = self.parts();
        if env.chores.queue.is_empty() || !env.chores.idle && env.now_ns < env.chores.after_ns {
            return;
        }
        while env.chores.may_go_on()
            && let Some((id, chore)) = env.chores.queue.pop_front()
        {
            // A closed namespace has no chores.
            let left = namespaces.get_mut(&id).and_then(|namespace| namespace.go_on(env, chore));
            env.chores.queue.extend(left.map(|chore| (id, chore)));
        }
        if !env.chores.queue.is_empty() {
            env.chores.after_ns = env.now_ns + PAUSE_NS;
            env.arm_chores();
        } else if let Some(at) = env.chores.armed_ns.take() {
            env.timers.remove(&(at, Timer::Chores));
        }
        if std::mem::take(&mut env.chores.looked) {
            self.move_charges();
        }
    }

    /// Returns the cost of the last step: [`UNITS`] at most, apart from its last action.
    pub fn units_spent(&self) -> u32 {
        self.env().chores.spent
    }

    /// Returns the number of unfinished chores.
    pub fn chores_left(&self) -> usize {
        self.env().chores.queue.len()
    }

    /// Sets the maximum cost of a step, at least one: for simulations, in which everything is small.
    #[must_use]
    pub fn with_units(mut self, units: u32) -> Self {
        self.parts().0.chores.units_max = units.max(1);
        self
    }
}

impl Namespace {
    /// Continues a chore. Returns what is left of it.
    fn go_on(&mut self, env: &mut Env, chore: Chore) -> Option<Chore> {
        match chore {
            Chore::Items(doomed) => self.remove_items(env, doomed).map(Chore::Items),
            Chore::Survey(catalogue) => self.survey(env, catalogue).then_some(Chore::Survey(catalogue)),
            Chore::Leases => self.look(env).then_some(Chore::Leases),
        }
    }
}
