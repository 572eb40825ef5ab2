//! Responses that arrive after their request has timed out.
//!
//! The thread that sent the request has returned an error, and no thread waits for the response. The next request of the
//! session receives the response first, and frees what it carries:
//!
//! | abandoned request | late response | what it carries | what the client does |
//! |---|---|---|---|
//! | `Bind`, `BindFor` | `Bound` | nothing: the name has the cell and the slot | nothing |
//! | | `Refused` | the announced cell and its slot | [`Late::take_cells`]: frees the cell, retires the slot |
//! | `ListAppend`, `ListAppendEphemeral`, `Queue(Put)` | `Appended` | nothing: the items have the cells and the slots | nothing |
//! | | `Refused`, `Full` | the items' cells and slots | as for `Bind` |
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
//! [`crate::names::NameTable::settle`]; segments, because the client does not list them in `Return`; loans, because it does
//! not list them in `Mapped`; cursors and claims, because it repeats the request ([`super::unanswered`]). A stream that the
//! former daemon opened stays open until this client opens it again or ends.

use super::socket::{is_readable, send};
use super::{Budget, Connection, Control, not_answering};
use crate::error::{Error, Result};
use std::sync::Mutex;
use tensorlend_layout::wire::{QueueReply, QueueRequest, Refusal, Reply, Request, decode};
use tensorlend_os::mutex::lock;
use tensorlend_os::packet::Packet;

/// The resources that late responses have set free. A thread that holds the connection may lock them.
#[derive(Default)]
pub struct Late {
    cells: Mutex<Vec<u32>>,
    cursors: Mutex<Cursors>,
}

#[derive(Default)]
struct Cursors {
    /// Cursors that the daemon may list and that no subscription will use.
    given_up: Vec<u16>,
    /// Cursors that were given up and that the daemon does not list.
    free: Vec<u16>,
}

impl Late {
    /// Returns whether a late response has set cells free.
    pub fn has_cells(&self) -> bool {
        !lock(&self.cells).is_empty()
    }

    /// Takes the cells that late responses have set free. No owner word refers to them. The caller holds the lock under
    /// which the client frees cells, and frees these cells before it unlocks it.
    pub fn take_cells(&self) -> Vec<u32> {
        std::mem::take(&mut lock(&self.cells))
    }

    /// Gives a cursor up, unless the coming response shows that the client may use or free it ([`Late::reclaim`]). Call this
    /// before the request, because another thread may receive the response.
    pub fn give_up_cursor(&self, cursor: u16) {
        lock(&self.cursors).given_up.push(cursor);
    }

    /// Takes a given up cursor back. Returns false if a late response has freed it already.
    pub fn reclaim(&self, cursor: u16) -> bool {
        lock(&self.cursors).take_back(cursor)
    }

    /// Takes the cursors that late responses have set free.
    pub fn take_cursors(&self) -> Vec<u16> {
        std::mem::take(&mut lock(&self.cursors).free)
    }

    fn is_given_up(&self, cursor: u16) -> bool {
        lock(&self.cursors).given_up.contains(&cursor)
    }

    /// Frees a cursor that was given up, because the daemon does not list it.
    pub fn free_cursor(&self, cursor: u16) {
        let mut cursors = lock(&self.cursors);
        if cursors.take_back(cursor) {
            cursors.free.push(cursor);
        }
    }
}

impl Cursors {
    fn take_back(&mut self, cursor: u16) -> bool {
        let at = self.given_up.iter().position(|&other| other == cursor);
        at.map(|at| self.given_up.swap_remove(at)).is_some()
    }
}

/// Returns whether a thread with the same request takes a late response over.
fn is_taken_over(request: &Request) -> bool {
    matches!(request, Request::Segment { .. } | Request::GrowCells | Request::StreamOpen { .. })
}

impl Control {
    /// Records that the client has stopped to wait for the reply to a request.
    pub(super) fn abandon(&self, connection: &mut Connection, request: &Request) {
        // If the daemon ends before it replies, the repeated request shows whether the next daemon lists the cursor.
        if let Request::Subscribe { cursor, .. } | Request::SubscribePollable { cursor, .. } = request
            && self.late.is_given_up(*cursor)
        {
            self.unanswered.repeat(request.clone());
        }
        connection.late = Some(request.clone());
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
                send(&connection.socket, &next, &[], doing)?;
                connection.late = Some(next);
            }
            // Threads that waited behind an abandoned request time out at about the same time as that request.
            let left = budget.timeout.saturating_sub(budget.began.elapsed());
            if !is_readable(&[&connection.socket], left) {
                return Err(not_answering(connection, doing, budget.timeout, false));
            }
            let packet = connection.receive(doing).map_err(Error::certain)?;
            let Some(late) = connection.late.take() else { continue };
            if &late == request && is_taken_over(request) {
                return Ok(Some(packet));
            }
            if packet.truncated || !packet.descriptors.is_empty() {
                send(&connection.socket, &Request::Ack, &[], doing)?;
            }
            let Some(reply) = decode::<Reply>(&packet.bytes) else { continue };
            if matches!(reply, Reply::Refused(Refusal::Stopping)) {
                return Err(Error::Disconnected { doing, asked: false });
            }
            self.free(connection, late, reply, packet);
        }
    }

    /// Frees what a late reply carries: see the module's table.
    fn free(&self, connection: &mut Connection, late: Request, reply: Reply, packet: Packet) {
        match (late, reply) {
            (Request::Bind { cell, .. } | Request::BindFor { cell, .. }, Reply::Refused(_)) => {
                lock(&self.late.cells).push(cell);
            }
            (
                Request::ListAppend { cells, .. }
                | Request::ListAppendEphemeral { cells, .. }
                | Request::Queue(QueueRequest::Put { cells, .. }),
                Reply::Refused(_) | Reply::Queue(QueueReply::Full),
            )
            | (Request::Notices, Reply::Notices { cells, .. }) => lock(&self.late.cells).extend(cells),
            (Request::GrowCells, Reply::Cells { .. }) => connection.cells = Some(packet),
            (Request::Segment { .. }, Reply::Segment { base, .. }) => {
                connection.undo.push_back(Request::ReturnSegment { base });
            }
            (late, Reply::DeviceSegment(lent)) => {
                if matches!(late, Request::DeviceSegment { .. }) {
                    connection.undo.push_back(Request::ReturnSegment { base: lent.lending.base });
                }
                self.give_up(&Reply::DeviceSegment(lent), packet);
            }
            (Request::ReturnSegment { base }, Reply::Refused(refusal)) if !matches!(refusal, Refusal::NotFound(_)) => {
                connection.unreturned.push(base);
            }
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
