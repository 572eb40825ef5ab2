//! Work that grows with what somebody has, or has left behind: the items of a list that was deleted, the memory of a client
//! that is gone, the values that leases keep. The daemon does it in slices, with requests in between: one step spends at most [`UNITS`] on it, in all namespaces
//! together, and the next slice follows after [`PAUSE_NS`].
//!
//! A chore begins when everything that others may see has been done: the list has neither name nor line any more, the
//! client is closed. A daemon that ends with chores left loses nothing by it: the next one finds items without a list, and
//! clients that are quiet.

use super::account::NamespaceId;
use super::env::{Env, Timer};
use super::list::Doomed;
use super::namespace::Namespace;
use super::session::Core;
use std::collections::VecDeque;

/// What one step may spend: a unit is a fraction of a microsecond, and all of them together less than some milliseconds.
pub const UNITS: u32 = 4096;
/// Units that the removal of a name costs.
pub const REMOVAL: u32 = 4;
/// Units that a look at a name and at the value behind it costs.
pub const LOOK: u32 = 2;
/// Units that the scan of a lease table costs.
pub const SCAN: u32 = 64;
/// Units that the freeing of a segment, or the removal of a stream, costs.
pub const RELEASE: u32 = 16;
/// Between two slices: requests that have come meanwhile are served.
pub const PAUSE_NS: u64 = 500_000;

/// A piece of work that is not done yet.
#[derive(Debug)]
pub enum Chore {
    /// The items of a list that was deleted.
    Items(Doomed),
    /// The memory of the client with this number, which is quiet.
    Survey(u16),
    /// What leases alone keep: see [`super::kept`].
    Leases,
}

/// What is left to do, and what a step may spend on it.
#[derive(Debug)]
pub struct Chores {
    queue: VecDeque<(NamespaceId, Chore)>,
    /// What this step has spent.
    spent: u32,
    /// What each step may spend.
    units_max: u32,
    /// Before this, only what has just been begun is gone on with.
    after_ns: u64,
    /// Whether a look at leases was finished since this was asked last.
    looked: bool,
    /// Whether there was nothing to do when the step began.
    idle: bool,
    /// When the timer comes, if it is set.
    armed_ns: Option<u64>,
}

impl Default for Chores {
    /// Nothing to do.
    fn default() -> Self {
        let queue = VecDeque::new();
        Self { queue, spent: 0, units_max: UNITS, after_ns: 0, looked: false, idle: true, armed_ns: None }
    }
}

impl Chores {
    /// A step begins.
    pub fn begin_step(&mut self) {
        self.spent = 0;
        self.idle = self.queue.is_empty();
    }

    fn may_go_on(&self) -> bool {
        self.spent < self.units_max
    }

    /// Whether this step may go on; so many units more are spent in any case.
    pub fn spend(&mut self, units: u32) -> bool {
        let may = self.may_go_on();
        self.spent += units;
        may
    }

    /// A look at what leases keep is finished.
    pub fn has_looked(&mut self) {
        self.looked = true;
    }

    /// Whether items of deleted lists still count as names of a namespace.
    pub fn has_items(&self, namespace: NamespaceId) -> bool {
        self.queue.iter().any(|(id, chore)| *id == namespace && matches!(chore, Chore::Items(_)))
    }
}

impl Env {
    /// Puts a chore on the list: this step begins with it, if it has nothing else to do.
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

    /// The timer has come.
    pub fn chores_due(&mut self) {
        self.chores.armed_ns = None;
    }
}

impl Core {
    /// Goes on with the chores as far as this step may: those that wait have their turns when a slice is due.
    pub(super) fn do_chores(&mut self) {
        let (env, namespaces) = self.parts();
        if env.chores.queue.is_empty() || !env.chores.idle && env.now_ns < env.chores.after_ns {
            return;
        }
        while env.chores.may_go_on()
            && let Some((id, chore)) = env.chores.queue.pop_front()
        {
            // A namespace that is gone has left nothing to do.
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

    /// Units that the last step has spent on chores: less than [`UNITS`], and the last thing that it did.
    pub fn units_spent(&self) -> u32 {
        self.env().chores.spent
    }

    /// Chores that are not done yet.
    pub fn chores_left(&self) -> usize {
        self.env().chores.queue.len()
    }

    /// Lets each step spend so many units, at least one: for simulations, in whose worlds everything is small.
    #[must_use]
    pub fn with_units(mut self, units: u32) -> Self {
        self.parts().0.chores.units_max = units.max(1);
        self
    }
}

impl Namespace {
    /// Goes on with a chore; what is left of it.
    fn go_on(&mut self, env: &mut Env, chore: Chore) -> Option<Chore> {
        match chore {
            Chore::Items(doomed) => self.remove_items(env, doomed).map(Chore::Items),
            Chore::Survey(catalogue) => self.survey(env, catalogue).then_some(Chore::Survey(catalogue)),
            Chore::Leases => self.look(env).then_some(Chore::Leases),
        }
    }
}
