//! A namespace: its directory, its clients, and the owners of its names.

use super::bindings::Bindings;
use super::chores::Chore;
use super::context::Context;
use super::devices::Devices;
use super::env::Env;
use super::members::Members;
use super::parts::Parts;
use super::pressure::Pressure;
use super::segment::Segments;
use super::segment::spill::Candidate;
use super::stream::Streams;

#[derive(Debug)]
pub struct Namespace {
    pub context: Context,
    pub members: Members,
    pub bindings: Bindings,
    pub streams: Streams,
    pub segments: Segments,
    /// The values that only leases retain, while memory is short.
    pub pressure: Pressure,
    pub devices: Devices,
}

impl Namespace {
    /// Returns true if closing the namespace loses nothing. The next client that joins opens the
    /// namespace again.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.bindings.has_no_lists() && self.streams.is_empty()
    }
}

impl Namespace {
    /// Continues a chore. Returns the remaining part of the chore, or `None` if it has ended.
    pub fn advance(&mut self, env: &mut Env, chore: Chore) -> Option<Chore> {
        match chore {
            Chore::Items(deleted) => self
                .bindings
                .remove_items(&mut Parts { env, context: &mut self.context, members: &mut self.members }, deleted)
                .map(Chore::Items),
            Chore::Survey(number) => self.survey(env, number).then_some(Chore::Survey(number)),
            Chore::Leases => self
                .pressure
                .scan(
                    &mut Parts { env, context: &mut self.context, members: &mut self.members },
                    &self.bindings,
                    &self.streams,
                )
                .then_some(Chore::Leases),
        }
    }
}

impl Namespace {
    /// Returns the segments that no process writes any more and that have no copy in a file.
    pub fn spillable(&self) -> impl Iterator<Item = Candidate> {
        Segments::spillable(&self.context, &self.members)
    }
}

impl Namespace {
    /// Checks each part.
    ///
    /// # Panics
    /// Panics if a part is inconsistent.
    pub fn check(&self) {
        let Self { context, members, bindings, segments, streams, devices, .. } = self;
        members.check(context);
        bindings.check(context, members);
        segments.check(context, members);
        streams.check(context, members);
        devices.check(|number| members.get(number).is_some());
    }
}
