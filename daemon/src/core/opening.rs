//! Namespaces whose directory the daemon is making.

use super::account::NamespaceId;
use super::bindings::Bindings;
use super::context::{Context, DirectoryWriter};
use super::devices::Devices;
use super::effect::SheetPlan;
use super::env::Env;
use super::event::MemId;
use super::label::Label;
use super::ledger::{Budget, Ledger};
use super::length;
use super::members::Members;
use super::names::Names;
use super::namespace::Namespace;
use super::orders::{Order, Purpose};
use super::pressure::Pressure;
use super::segment::Segments;
use super::settings::{Admission, NamespaceLimits};
use super::stream::Streams;
use tensorlend_layout::directory::Directory;
use tensorlend_layout::header::Magic;
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::Refusal;

/// A namespace whose directory the daemon is making.
#[derive(Debug)]
pub struct Opening {
    pub ledger: Ledger,
    pub mem: MemId,
    /// The owner of a private namespace.
    pub private: Option<u32>,
    /// Whether the directory's memory may come from the reserve for administrators.
    pub reserved: bool,
}

/// A namespace that does not exist yet.
#[derive(Clone, Copy, Debug)]
pub struct NewNamespace<'a> {
    pub id: NamespaceId,
    pub name: &'a str,
    /// The owner of a private namespace.
    pub private: Option<u32>,
    pub limits: NamespaceLimits,
}

impl Opening {
    /// Orders a directory for a client that joins. A private namespace's directory is charged to
    /// the namespace's uid.
    pub fn begin(
        env: &mut Env,
        NewNamespace { id, name, private, limits }: NewNamespace<'_>,
        for_whom: Admission,
    ) -> Result<Self, Refusal> {
        let geometry = length::geometry(&limits);
        // The daemon charges the whole length, although few pages exist at first. A reader that
        // accesses the other pages creates them.
        let bytes = geometry.bytes();
        // A private namespace has one user.
        let shares_tables = env.settings.uid_share && private.is_none();
        let budget = Budget { id, name, private, limits, shares_tables, owners: &env.settings.owners };
        let ledger = Ledger::open(&mut env.accounts, budget, bytes, for_whom.beyond)?;
        let plan = SheetPlan { magic: Magic::Directory, owner: ClientNo::DAEMON, count: 0, first: 0 };
        let (first, reserved) = (geometry.bytes_first(), for_whom.administrator);
        let order = Order { bytes, bytes_first: first, sheet: Some(plan), purpose: Purpose::Directory(id), reserved };
        let mem = env.orders.create(&mut env.effects, order);
        Ok(Self { ledger, mem, private, reserved })
    }

    /// Closes the budget of a namespace whose directory could not be made.
    pub fn give_up(self, env: &mut Env) {
        self.ledger.close(&mut env.accounts);
    }

    /// Opens the namespace after its directory has been made.
    pub fn finish(self, env: &mut Env, view: &View) -> Namespace {
        let limits = *self.ledger.limits();
        let geometry = length::geometry(&limits);
        let head = view.at(0).expect("the directory has its length");
        geometry.initialise(head, env.seed(), self.ledger.id());
        head.bytes_max.set(limits.bytes_max);
        let directory = Directory::new(view).expect("its tables lie inside");
        directory.head().wants_nudge.set(1);
        Segments::announce_spill(env, &directory);
        let (namespace, name) = (self.ledger.id(), self.ledger.name().to_owned());
        env.effects.keep(self.mem, Label::Directory { namespace, life: 0, uid: self.private, name });
        let names = Names::new(&directory, limits.names_max, !env.settings.is_user_mode(), env.seed());
        let segments = Segments::new(limits.segments_max);
        let mut namespace = self.namespace(directory, names, segments);
        namespace.devices.list_devices(env, &namespace.context);
        namespace
    }

    /// Returns the namespace of this directory, without clients.
    pub fn namespace(self, directory: Directory, names: Names, segments: Segments) -> Namespace {
        let limits = *self.ledger.limits();
        Namespace {
            streams: Streams::new(limits.streams_max),
            bindings: Bindings::new(&directory, names, limits.lists_max),
            segments,
            context: Context { ledger: self.ledger, directory: DirectoryWriter::new(directory, self.mem) },
            members: Members::new(),
            pressure: Pressure::default(),
            devices: Devices::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_number_is_given_out_once_and_then_again() {
        let limits = NamespaceLimits { members_max: 65535, ..crate::core::tests::world::limits() };
        let mut env = Env::new(crate::core::tests::world::settings());
        let lab = NewNamespace { id: 1, name: "lab", private: None, limits };
        let opening = Opening::begin(&mut env, lab, Admission::default()).unwrap();
        let view = View::anonymous(length::geometry(&limits).bytes() as usize);
        let mut namespace = opening.finish(&mut env, &view);
        namespace.members = Members::restored(BTreeMap::new(), 65534);
        let Namespace { context, members, .. } = &mut namespace;
        let given: Vec<ClientNo> = (0..65535).map(|_| members.number(context, false).unwrap()).collect();
        assert_eq!((given[0].get(), given[1].get()), (65534, 65535), "those that were never used come first");
        assert_eq!(given.iter().collect::<std::collections::BTreeSet<_>>().len(), 65535);
        assert!(matches!(members.number(context, true), Err(Refusal::Limit { .. })));
        members.unjoin(ClientNo::new(7));
        assert_eq!(members.number(context, false).unwrap(), ClientNo::new(7));
        assert!(members.number(context, false).is_err(), "the fresh ones do not begin again");
        namespace.context.ledger.close(&mut env.accounts);
    }
}
