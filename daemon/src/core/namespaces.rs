//! The open namespaces, by number and by name.

use super::account::NamespaceId;
use super::namespace::Namespace;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::ops::Deref;

/// The open namespaces. Each has one number and one name. No other namespace ever gets the same
/// number.
#[derive(Debug, Default)]
pub struct Namespaces {
    by_id: BTreeMap<NamespaceId, Namespace>,
    by_name: BTreeMap<String, NamespaceId>,
    /// The greatest number ever given to a namespace.
    last_id: NamespaceId,
}

impl Deref for Namespaces {
    type Target = BTreeMap<NamespaceId, Namespace>;

    fn deref(&self) -> &Self::Target {
        &self.by_id
    }
}

impl Namespaces {
    pub fn new_id(&mut self) -> NamespaceId {
        self.last_id += 1;
        self.last_id
    }

    /// Excludes a number that a previous daemon gave to a namespace.
    pub fn exclude_id(&mut self, id: NamespaceId) {
        self.last_id = self.last_id.max(id);
    }

    pub fn open(&mut self, namespace: Namespace) {
        let ledger = &namespace.context.ledger;
        self.by_name.insert(ledger.name().to_owned(), ledger.id());
        self.by_id.insert(ledger.id(), namespace);
    }

    pub fn close(&mut self, id: NamespaceId) -> Namespace {
        let namespace = self.by_id.remove(&id).expect("it is closed once");
        self.by_name.remove(namespace.context.ledger.name());
        namespace
    }

    /// Returns the namespaces whose names follow `after`, in the order of their names.
    pub fn after(&self, after: &str) -> impl Iterator<Item = &Namespace> {
        self.by_name.range::<str, _>((Bound::Excluded(after), Bound::Unbounded)).map(|(_, id)| &self.by_id[id])
    }

    pub fn id_of(&self, name: &str) -> Option<NamespaceId> {
        self.by_name.get(name).copied()
    }

    /// Returns a mutable reference to a namespace.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as the map's function")]
    pub fn get_mut(&mut self, id: &NamespaceId) -> Option<&mut Namespace> {
        self.by_id.get_mut(id)
    }

    /// Returns mutable references to all namespaces.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Namespace> {
        self.by_id.values_mut()
    }

    /// Checks that each namespace is found by its number and by its name.
    ///
    /// # Panics
    /// Panics if the check fails.
    pub fn check(&self) {
        for (id, namespace) in &self.by_id {
            namespace.check();
            let ledger = &namespace.context.ledger;
            assert_eq!((ledger.id(), self.id_of(ledger.name())), (*id, Some(*id)), "its name leads to it");
            assert!(*id <= self.last_id, "number {id} was given out");
        }
        assert_eq!(self.by_id.len(), self.by_name.len(), "each namespace has a name");
    }
}
