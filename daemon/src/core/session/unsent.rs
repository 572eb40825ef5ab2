//! Replies whose descriptors could not be opened or sent: the daemon takes back the memory that the reply lent, and
//! refuses the request. The session continues.

use super::{Core, Phase};
use crate::core::effect::Effect;
use crate::core::env::Env;
use crate::core::event::ConnId;
use crate::core::namespace::Namespace;
use crate::core::outcome::Lent;
use crate::core::parts::Parts;
use crate::core::segment::Segments;
use crate::core::stream::{CursorId, StreamId};
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::wire::{Refusal, Reply};

impl Core {
    /// Refuses a request that the core has carried out, because its reply could not be sent.
    pub(super) fn unsent(&mut self, conn: ConnId, refusal: Refusal) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        let Phase::Lent(lent) = state.phase else { return };
        state.phase = Phase::Idle;
        match lent {
            // The client has no session yet.
            Lent::Welcome => return self.end(conn, Some(refusal)),
            // A refusal would end the session. Without a reply, the client connects and asks again.
            Lent::Back => {
                tracing::warn!("{} cannot continue its session yet: {refusal}", self.who(conn));
                self.count_refusal(&refusal);
                self.end(conn, None);
                self.env.effects.push(Effect::Close { conn });
                return;
            }
            _ => {}
        }
        let joined = state.joined.expect("only members borrow");
        if let Some(namespace) = self.namespaces.get_mut(&joined.namespace) {
            namespace.take_back(&mut self.env, joined.number, lent);
        }
        self.refuse(conn, &refusal);
        let reply = Reply::Refused(refusal);
        self.env.effects.push(Effect::Send { conn, reply, lend: Vec::new(), close: false });
    }
}

impl Namespace {
    /// Takes back memory that a client never received.
    fn take_back(&mut self, env: &mut Env, number: ClientNo, lent: Lent) {
        let parts = &mut Parts { env, context: &mut self.context, members: &mut self.members };
        match lent {
            Lent::Nothing | Lent::Welcome | Lent::Back => {}
            Lent::OnDevice(lending) => {
                let _ = self.devices.unmapped(parts.env, parts.context, number, &[lending]);
            }
            Lent::Segment(base) => {
                if let Some(segment) = Segments::describe_on_device(parts, number, base) {
                    let _ = self.devices.unmapped(parts.env, parts.context, number, &[segment.lending]);
                }
                let _ = self.segments.return_segment(parts, &mut self.devices, number, base);
            }
            Lent::Cells(part) => parts.members.drop_cells_after(parts.env, number, part - 1),
            Lent::Ring(line, id) => self.streams.never_opened(parts, &mut self.bindings, StreamId { line, id }),
            Lent::Subscription(line, id, cursor) => {
                self.streams.unsubscribe(parts, StreamId { line, id }, CursorId { number, cursor });
            }
        }
    }
}
