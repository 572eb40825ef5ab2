//! Packets of clients: the daemon checks each, and then performs its request.

use super::{Conn, Core, Phase, requests};
use crate::core::counters::Counter;
use crate::core::effect::Effect;
use crate::core::event::ConnId;
use crate::core::outcome::Lent;
use crate::core::settings::Peer;
use crate::core::versions::Versions;
use tensorlend_layout::wire::{QueueRequest, Refusal, Request, decode};

impl Conn {
    /// Returns the rule that a packet breaks. `request` is `None` if the packet contains no request.
    fn violation(&self, request: Option<&Request>, descriptors: usize) -> Option<&'static str> {
        match (request, &self.phase, self.joined) {
            (None, ..) => Some("a damaged or oversized packet"),
            // Clients of earlier protocols send a wake descriptor with this request.
            (Some(Request::Subscribe { wake: true, .. }), Phase::Idle, Some(_)) => None,
            _ if descriptors > 0 => Some("descriptors that belong to no request"),
            (Some(Request::Ack), Phase::Lent(_), _)
            | (Some(Request::Queue(QueueRequest::Stop)), Phase::Blocked { .. }, _) => None,
            (Some(Request::Ack), ..) => Some("an acknowledgement of nothing"),
            (Some(_), Phase::Lent(_), _) => Some("a request before the last reply's descriptors were acknowledged"),
            (Some(_), Phase::Working(_) | Phase::Later { .. } | Phase::Blocked { .. }, _) => {
                Some("a request before the response to the last one")
            }
            (Some(request), _, joined) => requests::rule(request).registration.broken_by(joined.is_some()),
        }
    }
}

impl Core {
    /// Handles a packet of a client.
    pub(super) fn packet(&mut self, conn: ConnId, bytes: &[u8], descriptors: usize, truncated: bool) {
        let Some(state) = self.conns.get(&conn) else { return };
        let request = (!truncated).then(|| decode::<Request>(bytes)).flatten();
        if let Some(refusal) = self.refusal_of_user(&state.peer) {
            self.end(conn, Some(refusal));
            return;
        }
        let broken = state.violation(request.as_ref(), descriptors);
        let request = match (request, broken) {
            (Some(request), None) => request,
            (request, broken) => {
                let is_first = state.joined.is_none() && !truncated && request.is_none();
                let other_version = is_first.then(|| Versions::refusal_of(bytes)).flatten();
                let violation = || Refusal::Violation(broken.unwrap_or_default().into());
                self.end(conn, Some(other_version.unwrap_or_else(violation)));
                return;
            }
        };
        if let (Request::Ack, &Phase::Lent(lent)) = (&request, &state.phase) {
            self.acknowledged(conn, lent);
            return;
        }
        self.env.counters.count(Counter::Requests);
        if matches!(request, Request::Queue(QueueRequest::Stop)) {
            self.stop_waiting(conn);
            return;
        }
        self.ask(conn, request, self.env.clock.now_ns());
    }

    /// Returns the refusal of a user whom the daemon cannot tell from others, or from itself.
    fn refusal_of_user(&self, &Peer { known, uid, .. }: &Peer) -> Option<Refusal> {
        if !known {
            // Several users would share this uid, and could read each other's tensors.
            let why =
                format!("your user is not mapped in the daemon's user namespace, where uid {uid} is all such users");
            return Some(Refusal::Bad(why));
        }
        if self.env.settings.refused_uid == Some(uid) {
            let why = format!(
                "your uid {uid} is the daemon's own, so that you could write to memory of its other clients: in the daemon's \
                 configuration set mode = \"user\" if all its clients have this uid, or mode = \"system\" if you trust \
                 all processes of this uid"
            );
            return Some(Refusal::Bad(why));
        }
        None
    }

    /// Handles the acknowledgement of the memory that was lent last.
    fn acknowledged(&mut self, conn: ConnId, lent: Lent) {
        self.conns.get_mut(&conn).expect("found by the caller").phase = Phase::Idle;
        if lent == Lent::Back && !self.is_back(conn) {
            self.end(conn, Some(Refusal::Violation("its session is over, or goes on elsewhere".into())));
            return;
        }
        if let Some(joined) = self.conns[&conn].joined {
            let namespace = self.namespaces.get_mut(&joined.namespace).expect("it has a client");
            namespace.acknowledged(&mut self.env, joined.number, &lent);
        }
        self.env.effects.push(Effect::Resume { conn });
    }
}
