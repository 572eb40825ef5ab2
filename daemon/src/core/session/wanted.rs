//! Waits for clients that let go of segments, so that the daemon can spill them.

use super::{Core, Joined, Phase};
use crate::core::account::NamespaceId;
use crate::core::client::Client;
use crate::core::parts::Parts;
use crate::core::segment::Segments;
use std::collections::BTreeSet;
use tensorlend_layout::number::ClientNo;

impl Core {
    /// Asks clients to let go of segments in memory: see [`Segments::want_out`]. `counts` selects by
    /// namespace and owner. `asker` is the client whose request needs the memory. Returns true if
    /// clients may let go of a segment soon.
    pub(super) fn want_out(&mut self, asker: Option<Joined>, counts: impl Fn(NamespaceId, &Client) -> bool) -> bool {
        let Self { env, namespaces, conns, .. } = self;
        let waits = conns.values().filter(|conn| !matches!(conn.phase, Phase::Idle | Phase::Lent(_)));
        let busy: BTreeSet<(NamespaceId, ClientNo)> =
            waits.filter_map(|conn| conn.joined).chain(asker).map(|joined| (joined.namespace, joined.number)).collect();
        let mut awaits = false;
        for namespace in namespaces.values_mut() {
            let id = namespace.context.ledger.id();
            let (context, members) = (&mut namespace.context, &mut namespace.members);
            let is_busy = |number| busy.contains(&(id, number));
            awaits |= Segments::want_out(&mut Parts { env, context, members }, |client| counts(id, client), is_busy);
        }
        awaits
    }
}
