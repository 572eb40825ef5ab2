//! Requests without a response: those that the client repeats, and those whose response arrives after their timeout.
//!
//! The client repeats requests that end claims or subscriptions until a daemon responds.
//!
//! # Late responses
//! The thread that sent the request has returned an error, or does not need the response ([`Control::tell`]). No thread waits
//! for the response. The next request of the session receives it first, and frees what it carries:
//!
//! | abandoned request | late response | what it carries | what the client does |
//! |---|---|---|---|
//! | `Bind`, `BindFor` | `Bound` | nothing: the name has the cell and the slot | nothing |
//! | | `Refused` | the announced cell and its slot | [`super::late::Late::take_cells`]: frees the cell, retires the slot |
//! | `ListAppend`, `ListAppendEphemeral`, `Queue(Put)` | `Appended` | nothing: the items have the cells and the slots | nothing |
//! | | `Refused`, `Full` | the items' cells and slots | as for `Bind` |
//! | `Tidy` | `Done` | the cells of the deleted names | as for `Bind` |
//! | | `Refused` | the names, which the daemon has not forgotten | keeps them for the next `Tidy` |
//! | `Notices` | `Notices` | the cells that the daemon took; it reports them once | as for `Bind` |
//! | `GrowCells` | `Cells` | a part of the client's cells | keeps the part for the next `GrowCells` |
//! | `Segment` | `Segment` | a segment | gives it to the same request, or returns it (`ReturnSegment`) |
//! | `DeviceSegment` | `DeviceSegment` | a segment of device memory, and its loan | returns it, and reports the loan as unmapped |
//! | `SegmentOf` | `DeviceSegment` | a loan of device memory | reports the loan as unmapped |
//! | `ReturnSegment` | `Refused` | the segment, which a lease still covered | returns it again before the next request about segments |
//! | `StreamOpen` | `Stream` | an open stream | gives it to the same request, or closes the stream (`StreamClosed`) |
//! | `Subscribe`, `SubscribePollable` of a cursor that was given up | `Stream` | the cursor's place among the subscribers | `Unsubscribe`, then frees the cursor |
//! | | `Refused` | the cursor | frees the cursor |
//! | `Unsubscribe` | any | the cursor | frees the cursor |
//! | `Queue(Claim)` | `Claimed` | claims | gives the items back |
//! | `Queue(Done)`, `Queue(GiveBack)` | any | nothing | forgets to repeat the request |
//! | any | `Refused(Stopping)` | the request was not carried out | reports a lost connection |
//! | all others | any | at most read-only descriptors | acknowledges and closes them |
//!
//! If the daemon ends before the response, the client frees the same resources after its reconnection: cells and slots by
//! [`crate::names::NameTable::settle`]; deleted names, because the client reports them again; segments, because the client does not list them in `Return`; loans, because it does
//! not list them in `Mapped`; cursors and claims, because it repeats the request ([`Unanswered`]). A stream that the
//! former daemon opened stays open until this client opens it again or ends.

use super::socket::{is_readable, send};
use super::{Budget, Connection, Control, not_answering};
use crate::error::{Error, Result};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Mutex;
use tensorlend_layout::number::{CursorNo, StreamLine};
use tensorlend_layout::wire::{CLAIMS_MAX, QueueClaim, QueueReply, QueueRequest, Refusal, Reply, Request, decode};
use tensorlend_os::mutex::lock;
use tensorlend_os::packet::Packet;

/// Requests that end claims or subscriptions and that have no response from any daemon, at most [`CLAIMS_MAX`]. A thread
/// that holds the connection may lock them.
#[derive(Default)]
pub struct Unanswered(Mutex<VecDeque<Request>>);

impl Unanswered {
    /// Repeats a request before the session's next request, until a daemon responds.
    pub fn repeat(&self, request: Request) {
        let mut requests = lock(&self.0);
        // A daemon grants a client at most this number of claims. So the oldest request concerns a claim of a former
        // daemon.
        if requests.len() == CLAIMS_MAX {
            requests.pop_front();
        }
        requests.push_back(request);
    }

    /// Gives items back with the next request.
    pub fn give_back(&self, claims: impl IntoIterator<Item = QueueClaim>) {
        for claim in claims {
            self.repeat(Request::Queue(QueueRequest::GiveBack(claim)));
        }
    }

    fn first(&self) -> Option<Request> {
        lock(&self.0).front().cloned()
    }

    /// Records that a daemon has responded to a request.
    pub fn answered(&self, answered: &Request) {
        lock(&self.0).retain(|request| request != answered);
    }

    /// Returns the claims whose confirmation has no response from any daemon.
    fn unconfirmed(&self) -> Vec<QueueClaim> {
        let confirmed = |request: &Request| match request {
            Request::Queue(QueueRequest::Done(claim)) => Some(*claim),
            _ => None,
        };
        lock(&self.0).iter().filter_map(confirmed).collect()
    }
}

impl Control {
    /// Sends a request like [`Control::call`], for a request that ends a claim or a subscription. If no daemon responds, the client repeats
    /// the request before the session's next request, or after its reconnection. The daemon ignores a repeated request.
    pub fn deliver(&self, request: &Request, doing: &'static str) -> Result<Reply> {
        let reply = self.call(request, doing, "");
        // A request that was sent on a connection that continues is repeated already: see `abandon`. Another thread may have
        // received its response by now, and may use the cursor again.
        if matches!(reply, Err(Error::Disconnected { .. } | Error::NotAnswering { asked: false, .. })) {
            self.unanswered.repeat(request.clone());
        }
        reply
    }

    /// Ends a subscription like [`Control::deliver`]. The caller has given the cursor up. A response of the daemon, now or later,
    /// frees the cursor.
    pub fn unsubscribe(&self, stream: StreamLine, id: u64, cursor: CursorNo, doing: &'static str) -> Result<()> {
        self.deliver(&Request::Unsubscribe { stream, id, cursor }, doing)?;
        self.late.free_cursor(cursor);
        Ok(())
    }

    /// Confirms claims with the next request of the session, or after its reconnection: the request that confirms them was not
    /// answered.
    pub fn deliver_later(&self, done: &[QueueClaim]) {
        for &claim in done {
            self.unanswered.repeat(Request::Queue(QueueRequest::Done(claim)));
        }
    }

    /// Gives items back with the next request of the session, or after its reconnection.
    pub fn give_back_later(&self, claims: impl IntoIterator<Item = QueueClaim>) {
        self.unanswered.give_back(claims);
    }

    /// Returns the claims that the client asserts to a new daemon: those whose confirmation no daemon has answered, then the others.
    pub fn asserted(&self) -> Vec<QueueClaim> {
        self.claims.asserted(self.unanswered.unconfirmed())
    }

    /// Repeats the requests without a response, on a connection that has no late reply.
    pub(super) fn repeat_unanswered(
        &self,
        connection: &mut Connection,
        doing: &'static str,
        budget: Budget,
    ) -> Result<()> {
        while let Some(next) = self.unanswered.first() {
            send(&connection.socket, &next, doing)?;
            connection.late = Some(next.clone());
            self.take_late(connection, &next, doing, budget)?;
        }
        Ok(())
    }

    /// Repeats the requests without a response. All of them together wait for the daemon no longer than one request does.
    pub fn settle_unanswered(&self) {
        if self.unanswered.first().is_some() {
            // Ignore an error: the next request repeats them.
            let _ = self.call(&Request::Ping, "repeat requests", "");
        }
    }
}

/// Returns whether the client repeats a request until a daemon responds: see [`Control::deliver`].
pub(super) fn is_delivered(request: &Request) -> bool {
    matches!(request, Request::Unsubscribe { .. } | Request::Queue(QueueRequest::Done(_) | QueueRequest::GiveBack(_)))
}

/// Returns whether a thread with the same request takes a late response over.
fn is_taken_over(request: &Request) -> bool {
    matches!(request, Request::Segment { .. } | Request::GrowCells | Request::StreamOpen { .. })
}

impl Control {
    /// Records that the client has stopped to wait for the reply to a request. The caller holds the connection, so that no
    /// thread receives the reply before.
    pub(super) fn abandon(&self, connection: &mut Connection, request: &Request) {
        let repeats = match request {
            // If the daemon ends before it replies, the repeated request shows whether the next daemon lists the cursor.
            Request::Subscribe { cursor, .. } | Request::SubscribePollable { cursor, .. } => {
                self.late.is_given_up(*cursor)
            }
            other => is_delivered(other),
        };
        if repeats {
            self.unanswered.repeat(request.clone());
        }
        (connection.late, connection.is_told) = (Some(request.clone()), false);
    }

    /// Sends a request and does not wait for its reply, which the session's next request receives first.
    pub fn tell(&self, request: Request, doing: &'static str) -> Result<()> {
        let request = Cell::new(Some(request));
        let told = self.with_ready(doing, |connection, budget| {
            let Some(next) = request.take() else { return Ok(()) };
            if let Err(error) = self.send_next(connection, &next, doing, budget) {
                request.set(Some(next));
                return Err(error);
            }
            (connection.late, connection.is_told) = (Some(next), true);
            Ok(())
        });
        self.not_carried_out(request.take());
        told
    }

    /// Waits for the reply for which no thread waits, if there is one. After a replacement of the daemon there is none.
    pub fn receive_late(&self, doing: &'static str) -> Result<()> {
        if self.locked(doing)?.waiting.is_some() {
            // The thread that waits for an item has received that reply before its request.
            return Ok(());
        }
        self.with_ready(doing, |connection, budget| {
            self.take_late(connection, &Request::Ping, doing, budget).map(|_| ())
        })
    }

    /// Keeps the names of a report that no daemon has carried out.
    pub(super) fn not_carried_out(&self, late: Option<Request>) {
        if let Some(Request::Tidy { names }) = late {
            self.late.add_deleted(names);
        }
    }

    /// Receives the reply to an abandoned request, if there is one, and frees what the reply carries. Returns `Some` if that
    /// reply is also the reply to this request.
    pub(super) fn take_late(
        &self,
        connection: &mut Connection,
        request: &Request,
        doing: &'static str,
        budget: Budget,
    ) -> Result<Option<Packet>> {
        if matches!(request, Request::Segment { .. } | Request::DeviceSegment { .. } | Request::ReturnSegment { .. }) {
            let again = std::mem::take(&mut connection.unreturned);
            connection.undo.extend(again.into_iter().map(|base| Request::ReturnSegment { base }));
        }
        loop {
            if connection.late.is_none() {
                let Some(next) = connection.undo.pop_front() else { return Ok(None) };
                send(&connection.socket, &next, doing)?;
                connection.late = Some(next);
            }
            // Threads that waited behind an abandoned request time out at about the same time as that request.
            let left = budget.timeout.saturating_sub(budget.began.elapsed());
            if !is_readable(&[&connection.socket], left) {
                connection.is_told = false;
                return Err(not_answering(connection, doing, budget.timeout, false));
            }
            let packet = connection.receive(doing).map_err(Error::certain)?;
            let Some(late) = connection.late.take() else { continue };
            if &late == request && is_taken_over(request) {
                return Ok(Some(packet));
            }
            if packet.lost_descriptors || !packet.descriptors.is_empty() {
                send(&connection.socket, &Request::Ack, doing)?;
            }
            let Some(reply) = decode::<Reply>(&packet.bytes) else {
                self.unanswered.answered(&late);
                self.not_carried_out(Some(late));
                continue;
            };
            if matches!(reply, Reply::Refused(Refusal::Stopping)) {
                self.not_carried_out(Some(late));
                return Err(Error::Disconnected { doing, asked: false });
            }
            self.free(connection, late, reply, packet);
        }
    }

    /// Frees what a late reply carries: see the module's table.
    fn free(&self, connection: &mut Connection, late: Request, reply: Reply, packet: Packet) {
        match (late, reply) {
            (Request::Bind { cell, .. } | Request::BindFor { cell, .. }, Reply::Refused(_)) => {
                self.late.add_cells([cell]);
            }
            (
                Request::ListAppend { cells, .. }
                | Request::ListAppendEphemeral { cells, .. }
                | Request::Queue(QueueRequest::Put { cells, .. }),
                Reply::Refused(_) | Reply::Queue(QueueReply::Full),
            )
            | (Request::Notices, Reply::Notices { cells, .. }) => self.late.add_cells(cells),
            (Request::Tidy { names }, Reply::Done) => self.late.add_cells(names.into_iter().map(|(_, cell)| cell)),
            (late @ Request::Tidy { .. }, _) => self.not_carried_out(Some(late)),
            (Request::GrowCells, Reply::Cells { .. }) => connection.cells = Some(packet),
            (Request::Segment { .. }, Reply::Segment { base, .. }) => {
                connection.undo.push_back(Request::ReturnSegment { base });
            }
            (late, Reply::DeviceSegment(lent)) => {
                if matches!(late, Request::DeviceSegment { .. }) {
                    connection.undo.push_back(Request::ReturnSegment { base: lent.lending.base });
                }
                if cfg!(feature = "cuda") {
                    self.give_up(&Reply::DeviceSegment(lent), packet);
                } else {
                    // Without the feature, this process maps no device memory.
                    connection.undo.push_back(Request::Unmapped { lendings: vec![lent.lending] });
                }
            }
            (Request::ReturnSegment { .. }, Reply::Refused(Refusal::NotFound(_))) => {}
            (Request::ReturnSegment { base }, Reply::Refused(_)) => connection.unreturned.push(base),
            (Request::StreamOpen { .. }, reply @ Reply::Stream { stream, id, .. }) => {
                self.give_up(&reply, packet);
                connection.undo.push_back(Request::StreamClosed { stream, id });
            }
            (late @ (Request::Subscribe { cursor, .. } | Request::SubscribePollable { cursor, .. }), reply) => {
                self.unanswered.answered(&late);
                match reply {
                    Reply::Stream { stream, id, .. } if self.late.is_given_up(cursor) => {
                        self.unanswered.repeat(Request::Unsubscribe { stream, id, cursor });
                    }
                    Reply::Refused(_) => self.late.free_cursor(cursor),
                    _ => {}
                }
            }
            (late @ Request::Unsubscribe { cursor, .. }, _) => {
                self.unanswered.answered(&late);
                self.late.free_cursor(cursor);
            }
            (late @ Request::Queue(QueueRequest::Done(_) | QueueRequest::GiveBack(_)), _) => {
                self.unanswered.answered(&late);
            }
            (Request::Queue(_), Reply::Queue(QueueReply::Claimed(claims))) => self.unanswered.give_back(claims),
            _ => {}
        }
    }

    fn give_up(&self, lent: &Reply, packet: Packet) {
        if let Some(resume) = self.resume.get() {
            resume.give_up(lent, &packet.descriptors);
        }
    }
}
