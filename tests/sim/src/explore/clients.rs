//! The choices, and the steps of clients among them.

use super::model::{Op, RING};
use super::visible::val;
use super::world::{TTL_NS, World};
use crate::client::{Asked, Honest};
use crate::sim::{SEGMENT, Seat};
use crate::steps::{a_collection, a_name};
use std::collections::BTreeSet;
use tensorlend_layout::number::CursorNo;
use tensorlend_layout::wire::{Policy, QueueRequest, Request};
use tensorlend_layout::word::LifeWord;

/// One step of a client, of the kernel, or of the clock. The first number is the client, the second the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Overwrites an own name, or requests it.
    Put(usize, u64),
    /// Publishes a name without the daemon.
    Announce(usize, u64),
    /// Requests a name that ends with the client's session.
    Ephemeral(usize, u64),
    /// Requests a name that ends after a second.
    Expiring(usize, u64),
    Delete(usize, u64),
    /// Renames the first name to the second.
    Rename(usize),
    /// The client learns which names it has lost, and reports the names that it has deleted.
    Tend(usize),
    /// Leases a name's value, or drops the lease.
    Lease(usize, u64),
    /// Appends this many items.
    Append(usize, u64, u8),
    AppendEphemeral(usize, u64),
    /// Renames the first list to the second.
    ListRename(usize),
    ListDelete(usize, u64),
    /// Claims an item of the first list.
    Claim(usize),
    Done(usize),
    GiveBack(usize),
    Open(usize),
    Send(usize),
    StreamDelete(usize),
    Subscribe(usize),
    /// Requests a further segment.
    Grow(usize),
    /// The same, and the kernel has no memory.
    GrowFails(usize),
    /// Returns an empty segment.
    Shrink(usize),
    /// The client's process ends.
    Dies(usize),
    /// The kernel completes the oldest order that it has not completed at once.
    Kernel,
    /// The kernel has no memory for this order.
    KernelFails,
    /// The next timer fires, within a second.
    Alarm,
    /// Three seconds pass.
    Later,
}

impl Choice {
    /// Returns the client that takes the step.
    pub fn client(self) -> Option<usize> {
        match self {
            Self::Put(a, _)
            | Self::Announce(a, _)
            | Self::Ephemeral(a, _)
            | Self::Expiring(a, _)
            | Self::Delete(a, _)
            | Self::Rename(a)
            | Self::Tend(a)
            | Self::Lease(a, _)
            | Self::Append(a, ..)
            | Self::AppendEphemeral(a, _)
            | Self::ListRename(a)
            | Self::ListDelete(a, _)
            | Self::Claim(a)
            | Self::Done(a)
            | Self::GiveBack(a)
            | Self::Open(a)
            | Self::Send(a)
            | Self::StreamDelete(a)
            | Self::Subscribe(a)
            | Self::Grow(a)
            | Self::GrowFails(a)
            | Self::Shrink(a)
            | Self::Dies(a) => Some(a),
            Self::Kernel | Self::KernelFails | Self::Alarm | Self::Later => None,
        }
    }
}

impl World {
    /// A client reads its responses, takes a step if it can, and sends what it has to send.
    pub fn client(&mut self, a: usize, step: impl FnOnce(&mut Self, &mut Honest, &Seat) -> bool) -> bool {
        while self.is_here(a) && !self.sim.actors[a].inbox.is_empty() {
            self.answered.remove(&a);
            self.ops.remove(&a);
            self.sim.honest_hears(a);
            self.sends(a);
        }
        if !self.is_here(a) {
            // The daemon was killed when it received the acknowledgement.
            return self.sim.life.is_gone;
        }
        let seat = self.sim.actors[a].seat.clone().expect("it has joined");
        let mut h = self.sim.actors[a].honest.take().expect("it is honest");
        let stepped = step(self, &mut h, &seat);
        self.sim.actors[a].honest = Some(h);
        self.sends(a);
        stepped
    }

    fn sends(&mut self, a: usize) {
        while let it = &self.sim.actors[a]
            && it.connected
            && (it.wakes || it.read && !it.outbox.is_empty())
        {
            self.sim.deliver(a);
            // In the order in which the daemon answers.
            self.notes_answers();
        }
    }

    pub fn ask(&mut self, a: usize, h: &mut Honest, asked: Asked, request: &Request, op: Op) {
        self.sim.ask(a, h, asked, request);
        self.ops.insert(a, op);
    }

    pub fn client_takes(&mut self, choice: Choice) -> bool {
        let Some(a) = choice.client() else { return false };
        self.client(a, |w, h, seat| match choice {
            Choice::Lease(..) | Choice::Send(_) | Choice::Put(..) | Choice::Announce(..) => {
                w.without_request(choice, h, seat)
            }
            Choice::Delete(_, n) => w.deletes(a, n, h, seat),
            _ if h.asked.is_some() => false,
            Choice::Ephemeral(_, n) => w.binds(a, n, h, seat, (None, true)),
            Choice::Expiring(_, n) => w.binds(a, n, h, seat, (Some(TTL_NS), false)),
            Choice::Tend(_) => {
                w.sim.housekeeping(a, h, seat);
                h.asked.is_some()
            }
            Choice::Grow(_) | Choice::GrowFails(_) => {
                // The kernel completes this order at once, and fails if the chosen number is below the share of failures.
                w.sim.poor = if matches!(choice, Choice::Grow(_)) { 0 } else { 100 };
                let possible = h.segments.len() < 2;
                if possible {
                    w.ask(a, h, Asked::Segment, &Request::Segment { bytes: SEGMENT, slots_log2: 1 }, Op::Nothing);
                }
                possible
            }
            Choice::Shrink(_) => {
                w.sim.reclaim(h, seat);
                w.sim.give_back(a, h);
                h.asked.is_some()
            }
            Choice::Append(..) | Choice::AppendEphemeral(..) => w.appends(choice, h, seat),
            _ => w.requests(choice, h),
        })
    }

    /// A step for which a client may need no request.
    fn without_request(&mut self, choice: Choice, h: &mut Honest, seat: &Seat) -> bool {
        let a = choice.client().expect("it is of a client");
        self.sim.reclaim(h, seat);
        let puts = self.sim.done.puts;
        let own = |h: &Honest| h.own.values().map(|own| own.value.0).collect::<BTreeSet<u64>>();
        let before = own(h);
        match choice {
            Choice::Lease(_, n) if h.held.is_empty() => {
                self.chooses(&[99, 99, n as u8]);
                self.sim.begin_get(a, h, seat);
                let asked = h.getting.is_none() && h.asked.is_some();
                self.sim.get_on(h, seat);
                return asked || !h.held.is_empty();
            }
            Choice::Lease(..) => {
                self.sim.drop_lease(h, seat);
                return true;
            }
            _ if !has_slot(h) => return false,
            Choice::Send(_) => {
                if h.stream.as_ref().is_none_or(|stream| stream.is_closed) {
                    return false;
                }
                self.sim.send_message(a, h, seat);
                if let (true, Some(own)) = (self.sim.done.puts > puts, &h.stream)
                    && let Some(stream) = self.model.streams.get_mut(&a_collection(0))
                {
                    stream.messages.push(own.words().entry(own.sent - 1).cell.peek());
                    let old = stream.messages.len().saturating_sub(RING);
                    stream.messages.drain(..old);
                }
                return true;
            }
            Choice::Put(_, n) => {
                self.chooses(&[n as u8]);
                let asked = h.asked.is_some();
                self.sim.put(a, h, seat);
                if let (false, Some(Asked::Bind { key, value, .. })) = (asked, &h.asked) {
                    self.ops.insert(a, Op::Bind(key.clone(), val(a, value.0, LifeWord::FOREVER)));
                    return true;
                }
            }
            Choice::Announce(_, n) => {
                self.sim.claim(a, h, seat, a_name(n));
                self.sim.conclude_claim(a, h, seat);
            }
            _ => unreachable!("the caller passes no other"),
        }
        let published = self.sim.done.puts > puts;
        if let (true, Choice::Put(_, n) | Choice::Announce(_, n)) = (published, choice) {
            let cell = *own(h).difference(&before).next().expect("it is published");
            self.model.names.insert(a_name(n), val(a, cell, LifeWord::FOREVER));
        }
        published
    }

    fn deletes(&mut self, a: usize, n: u64, h: &mut Honest, seat: &Seat) -> bool {
        let deleted = |h: &Honest| h.own.values().filter(|own| own.deleted).count();
        let (before, asked) = (deleted(h), h.asked.is_some());
        self.chooses(&[n as u8]);
        self.sim.delete(a, h, seat);
        if deleted(h) > before {
            self.model.names.remove(&a_name(n));
            return true;
        }
        if !asked && h.asked.is_some() {
            self.ops.insert(a, Op::Delete(a_name(n)));
        }
        !asked && h.asked.is_some()
    }

    fn binds(
        &mut self,
        a: usize,
        n: u64,
        h: &mut Honest,
        seat: &Seat,
        (ttl_ns, ephemeral): (Option<u64>, bool),
    ) -> bool {
        self.sim.reclaim(h, seat);
        let key = a_name(n);
        let Some((cell, value)) = self.sim.filled_cell(h, seat, &key) else { return false };
        let life = LifeWord::new(ttl_ns.map_or(0, |ttl| self.sim.now_ns + ttl), ephemeral);
        let op = Op::Bind(key.clone(), val(a, value.0, life));
        let request = Request::BindFor { name: key.clone(), cell, ttl_ns, ephemeral };
        self.ask(a, h, Asked::Bind { key, cell, value }, &request, op);
        true
    }

    fn appends(&mut self, choice: Choice, h: &mut Honest, seat: &Seat) -> bool {
        let (a, c, count, ephemeral) = match choice {
            Choice::Append(a, c, count) => (a, c, count, false),
            Choice::AppendEphemeral(a, c) => (a, c, 1, true),
            _ => unreachable!("the caller passes no other"),
        };
        self.sim.reclaim(h, seat);
        let cells: Vec<_> = (0..count).map_while(|_| self.sim.filled_cell(h, seat, "")).collect();
        if cells.len() < count.into() {
            for (cell, value) in cells {
                h.free(value);
                h.cells_free.push(cell);
            }
            return false;
        }
        let vals = cells.iter().map(|&(_, value)| val(a, value.0, LifeWord::new(0, ephemeral))).collect();
        let (list, numbers) = (a_collection(c), cells.iter().map(|&(cell, _)| cell).collect());
        let op = Op::Append(list.clone(), vals);
        let request = if ephemeral {
            Request::ListAppendEphemeral { list, cells: numbers }
        } else {
            Request::ListAppend { list, cells: numbers }
        };
        self.ask(a, h, Asked::Append { cells }, &request, op);
        true
    }

    /// The other requests.
    fn requests(&mut self, choice: Choice, h: &mut Honest) -> bool {
        let (first, second) = (a_collection(0), a_collection(1));
        let (name, list) = (first.clone(), first.clone());
        let (a, asked, request, op) = match choice {
            Choice::Rename(a) => {
                let (from, to) = (a_name(0), a_name(1));
                (a, Asked::Other, Request::Rename { from: from.clone(), to: to.clone() }, Op::Rename(from, to))
            }
            Choice::ListRename(a) => {
                let request = Request::ListRename { from: first.clone(), to: second.clone() };
                (a, Asked::Other, request, Op::ListRename(first, second))
            }
            Choice::ListDelete(a, c) => {
                let list = a_collection(c);
                (a, Asked::Other, Request::ListDelete { list: list.clone() }, Op::ListDelete(list))
            }
            Choice::Claim(a) => {
                let claim = QueueRequest::Claim { list, done: Vec::new(), max: 1, wait: false };
                (a, Asked::Claim, Request::Queue(claim), Op::Nothing)
            }
            Choice::Done(a) | Choice::GiveBack(a) if !h.claims.is_empty() => {
                let claim = h.claims.remove(0);
                if matches!(choice, Choice::GiveBack(_)) {
                    (a, Asked::Other, Request::Queue(QueueRequest::GiveBack(claim)), Op::Nothing)
                } else {
                    let val = self.item(claim.item.list, claim.item.number);
                    (a, Asked::Confirm(claim), Request::Queue(QueueRequest::Done(claim)), Op::Done(val))
                }
            }
            Choice::Open(a) => {
                let request = Request::StreamOpen { name, capacity: RING as u32, policy: Policy::DropOldest };
                (a, Asked::StreamOpen, request, Op::Open(first, a))
            }
            Choice::StreamDelete(a) => (a, Asked::Other, Request::StreamDelete { name }, Op::StreamDelete(first)),
            Choice::Subscribe(a) => {
                let request = Request::Subscribe { name, cursor: CursorNo::low(0), wake: false };
                (a, Asked::Other, request, Op::Subscribe(first, a))
            }
            _ => return false,
        };
        self.ask(a, h, asked, &request, op);
        true
    }
}

fn has_slot(h: &Honest) -> bool {
    h.segments.values().any(|seg| !seg.returning && seg.used.iter().any(|used| !used))
}
