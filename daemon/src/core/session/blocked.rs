//! Claims that wait until their queue has an item. The daemon reads the next packet of such a client, which may end the wait.

use super::{Conn, Core, Phase};
use crate::core::account::NamespaceId;
use crate::core::clock::Timer;
use crate::core::effect::Effect;
use crate::core::event::ConnId;
use crate::core::outcome::Outcome;
use tensorlend_layout::wire::{QueueReply, QueueRequest, Reply, Request};

/// Maximum number of waiting claims to which one step responds.
const SERVED_MAX: usize = 64;

/// The result of an attempt to grant the first waiting claim.
#[derive(PartialEq, Eq)]
enum Served {
    Done,
    /// The queue has no item.
    Waits,
    /// Another event must happen first.
    Later,
}

impl Core {
    /// Lets a claim wait for its queue, and reads the client's next packet: see [`QueueRequest::Stop`].
    pub(super) fn block(&mut self, conn: ConnId, request: QueueRequest, since_ns: u64) {
        let state = self.conns.get_mut(&conn).expect("the requester is connected");
        let joined = state.joined.expect("requests about queues follow a hello");
        self.blocked.push(joined.namespace, request.waits_for().expect("it waits"), conn);
        state.phase = Phase::Blocked { request, since_ns };
        tensorlend_layout::crash_point!("daemon: request blocked");
        self.env.effects.push(Effect::Resume { conn });
    }

    /// Ends the wait of a client's claim, if it still waits.
    pub(super) fn stop_waiting(&mut self, conn: ConnId) {
        if self.unblock(conn) {
            self.conclude(conn, Ok(Outcome::Reply(Reply::Queue(QueueReply::Empty))));
        } else {
            self.env.effects.push(Effect::Resume { conn });
        }
    }

    /// Removes a connection's waiting claim; returns false if it has none.
    pub(super) fn unblock(&mut self, conn: ConnId) -> bool {
        let Some(state) = self.conns.get_mut(&conn) else { return false };
        let Phase::Blocked { request, .. } = &state.phase else { return false };
        if let (Some(joined), Some(list)) = (state.joined, request.waits_for()) {
            self.blocked.remove(joined.namespace, list, conn);
        }
        state.phase = Phase::Idle;
        true
    }

    /// Answers the claims that waited for queues that have changed, each with the first items.
    pub(super) fn serve_blocked(&mut self) {
        let changed: Vec<NamespaceId> =
            self.namespaces.iter().filter(|(_, it)| it.bindings.has_changed_queues()).map(|(&id, _)| id).collect();
        let mut left = SERVED_MAX;
        for id in changed {
            let lists = self.namespaces.get_mut(&id).map(|it| it.bindings.take_changed_queues()).unwrap_or_default();
            for list in lists {
                if !self.serve(id, &list, &mut left)
                    && let Some(namespace) = self.namespaces.get_mut(&id)
                {
                    namespace.bindings.queue_changed(&list);
                }
            }
        }
    }

    /// Checks that no claim waits for an item that exists.
    ///
    /// # Panics
    /// Panics if one does.
    pub(super) fn check_blocked(&self) {
        let mut lines = 0;
        for (id, list, line) in self.blocked.lines() {
            let bindings = &self.namespaces[&id].bindings;
            let waiting = bindings.queue_size(list).0;
            lines += line.len();
            for conn in line {
                let Phase::Blocked { request, .. } = &self.conns[conn].phase else {
                    panic!("{conn:?} waits for queue {list:?}")
                };
                assert_eq!(request.waits_for(), Some(list), "{conn:?} waits in its line");
            }
            assert!(waiting == 0 || bindings.is_changed_queue(list), "{line:?} wait, and {waiting} items wait");
        }
        let blocked = self.conns.values().filter(|conn| matches!(conn.phase, Phase::Blocked { .. })).count();
        assert_eq!(lines, blocked, "each waiting claim is in a line");
    }

    /// Returns false if the claims of this queue must be tried again in a later step.
    fn serve(&mut self, id: NamespaceId, list: &str, left: &mut usize) -> bool {
        while let Some(conn) = self.blocked.first(id, list) {
            if *left == 0 {
                self.env.clock.set_timer(0, Timer::Untried);
                return false;
            }
            *left -= 1;
            match self.try_blocked(conn) {
                Served::Done => {}
                Served::Waits => return true,
                Served::Later => return false,
            }
        }
        true
    }

    fn try_blocked(&mut self, conn: ConnId) -> Served {
        let Some(Conn { phase: Phase::Blocked { request, since_ns }, .. }) = self.conns.get(&conn) else {
            unreachable!("it waits in a line")
        };
        let (request, since_ns) = (Request::Queue(request.clone()), *since_ns);
        match self.perform(conn, &request, since_ns) {
            Ok(Outcome::Blocked) => Served::Waits,
            Ok(Outcome::Later(wait)) => {
                self.put_off(conn, wait);
                Served::Later
            }
            result => {
                self.unblock(conn);
                self.conclude(conn, result);
                tensorlend_layout::crash_point!("daemon: blocked request answered");
                Served::Done
            }
        }
    }
}
