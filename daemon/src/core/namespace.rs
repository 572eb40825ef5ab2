//! A namespace: its directory, who is in it, and who owns which name.

use super::bindings::Bindings;
use super::chores::Chore;
use super::context::Context;
use super::device::DeviceNumber;
use super::env::Env;
use super::holders::Holders;
use super::kept::Pressure;
use super::members::Members;
use super::stream::Streams;

/// A namespace.
#[derive(Debug)]
pub struct Namespace {
    pub context: Context,
    pub members: Members,
    pub bindings: Bindings,
    pub streams: Streams,
    /// Free places of the directory's table of segments.
    pub segment_entries: Vec<u32>,
    /// What leases keep, while memory is short.
    pub pressure: Pressure,
    /// The devices that the directory lists, in its order; `None`: one of which memory is lent no more.
    pub places: Vec<Option<DeviceNumber>>,
    /// Who may have which device memory mapped.
    pub holders: Holders,
}

impl Namespace {
    /// Whether nothing would be lost with it: it is opened again when somebody joins.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.bindings.has_no_lists() && self.streams.is_empty()
    }
}

impl Namespace {
    /// Continues a chore. Returns what is left of it.
    pub fn go_on(&mut self, env: &mut Env, chore: Chore) -> Option<Chore> {
        match chore {
            Chore::Items(deleted) => {
                self.bindings.remove_items(env, &mut self.context, &mut self.members, deleted).map(Chore::Items)
            }
            Chore::Survey(catalogue) => self.survey(env, catalogue).then_some(Chore::Survey(catalogue)),
            Chore::Leases => self.look(env).then_some(Chore::Leases),
        }
    }
}
