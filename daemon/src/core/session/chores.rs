//! The slices of chores: see [`crate::core::chores`].

use super::Core;

impl Core {
    /// Continues the chores in rotation, within the units of this step. Returns true if any chores
    /// were due.
    pub(super) fn do_chores(&mut self) -> bool {
        let Self { env, namespaces, .. } = self;
        if !env.chores.are_due(env.clock.now_ns()) {
            return false;
        }
        while let Some((id, chore)) = env.chores.pop() {
            // A closed namespace has no chores.
            if let Some(left) = namespaces.get_mut(&id).and_then(|namespace| namespace.advance(env, chore)) {
                env.chores.push(id, left);
            }
        }
        if env.chores.left() > 0 {
            env.chores.pause(env.clock.now_ns());
            env.chores.arm(&mut env.clock);
        } else {
            env.chores.disarm(&mut env.clock);
        }
        if env.chores.take_scanned() {
            self.move_charges();
        }
        true
    }

    /// Returns the cost of the last step. The cost is at most
    /// [`UNITS`](crate::core::chores::UNITS), apart from the step's last action.
    pub fn units_spent(&self) -> u32 {
        self.env.chores.spent()
    }

    pub fn chores_left(&self) -> usize {
        self.env.chores.left()
    }

    /// Sets the maximum cost of a step, at least 1. Simulations with small tables use this method.
    #[must_use]
    pub fn with_units(mut self, units: u32) -> Self {
        self.env.chores.set_units_max(units.max(1));
        self
    }
}
