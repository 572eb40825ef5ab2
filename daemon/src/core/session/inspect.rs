//! Requests of observers, who see names, sizes and holders of all namespaces. An observer joins no
//! namespace: it gets no descriptor, no number and no table entry. Its responses contain no byte of
//! a value and no metadata. Any user may request the metrics of its own accounts.

use super::{Conn, Core};
use crate::core::account::NamespaceId;
use crate::core::namespace::Namespace;
use crate::core::outcome::{Outcome, RequestResult};
use crate::core::owners::SUPERUSER;
use crate::core::stat::{namespace_use, stat};
use crate::core::versions::common_protocol;
use tensorlend_layout::wire::{Inspect, Inspected, Refusal, Reply, View};

/// Maximum number of namespaces in one response.
const NAMESPACES_MAX: usize = 64;

impl Core {
    pub(super) fn inspect(
        &self,
        state: &Conn,
        Inspect { protocol_min, protocol_max, view }: &Inspect,
    ) -> RequestResult {
        common_protocol((*protocol_min, *protocol_max))?;
        let is_own = matches!(view, View::Health);
        if let Some(over) = state.over
            && !is_own
        {
            return Err(self.env.accounts.too_many_sessions(state.peer.uid, over.reserved));
        }
        if !is_own && !self.env.settings.is_observer(&state.peer) {
            return Err(Refusal::NotObserver);
        }
        let shown = match view {
            View::Daemon => {
                // No namespace has the id 0.
                Inspected::Daemon(Box::new(stat(&self.env, &self.namespaces, Some((SUPERUSER, NamespaceId::MIN)))))
            }
            View::Namespaces { after } => {
                let next = self.namespaces.after(after).take(NAMESPACES_MAX);
                let some = next.map(|namespace| namespace_use(&self.env, namespace));
                Inspected::Namespaces(some.collect())
            }
            View::Clients { namespace, from } => self
                .observed(namespace)
                .map_or_else(|| Inspected::Clients { clients: Vec::new(), next: None }, |it| it.show_clients(*from)),
            View::Names { namespace, from } => self
                .observed(namespace)
                .map_or_else(|| Inspected::Names { names: Vec::new(), next: None }, |it| it.show_names(*from)),
            View::Leases { namespace, from } => self.observed(namespace).map_or_else(
                || Inspected::Leases { leases: Vec::new(), next: None, truncated: false },
                |it| it.show_leases(*from),
            ),
            View::Streams { namespace, from } => self.observed(namespace).map_or_else(
                || Inspected::Streams { streams: Vec::new(), next: None },
                |it| it.streams.show(&it.members, *from),
            ),
            View::Health => self.own_view(state),
        };
        Ok(Outcome::Reply(Reply::Inspected(shown)))
    }

    /// Returns the metrics and the health, with the accounts of the requesting user.
    fn own_view(&self, state: &Conn) -> Inspected {
        let uid = state.peer.uid;
        let private = || self.namespaces.id_of(&format!("uid:{uid}")).unwrap_or(NamespaceId::MIN);
        let namespace = state.joined.map_or_else(private, |joined| joined.namespace);
        let stat = stat(&self.env, &self.namespaces, Some((uid, namespace)));
        Inspected::Health { stat: Box::new(stat), health: Box::new(self.env.health(&state.peer)) }
    }

    /// Returns a namespace. Returns `None` if the namespace is not open.
    fn observed(&self, name: &str) -> Option<&Namespace> {
        self.namespaces.id_of(name).map(|id| &self.namespaces[&id])
    }
}
