//! Queues: honest clients put, claim, confirm and give back items. No item is granted to a client while another one has a
//! claim on it, no item is confirmed twice, and no daemon assigns a grant number again. The core itself checks that every
//! item waits, is claimed, or has not been reached yet.

use crate::Flaw;
use crate::client::{Asked, Honest};
use crate::rng::Rng;
use crate::sim::{File, Seat, Sim};
use crate::steps::a_collection;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::number::CellNo;
use tensorlend_layout::wire::{QueueClaim, QueueItem, QueueReply, QueueRequest, Reply, Request};
use tensorlend_layout::word::Cell;

/// Time after a daemon's start within which a returning client keeps its claims.
const KEPT_NS: u64 = 5_000_000_000;

/// The world's knowledge of queues.
pub struct Queues {
    /// A separate generator, so that other choices of a seed do not change.
    rng: Rng,
    /// Percentage of clients' steps that concern queues.
    busy: u64,
    /// The latest claim that the daemons have granted in each namespace, by its directory.
    latest: BTreeMap<File, QueueClaim>,
    confirmed: BTreeSet<(File, QueueItem)>,
}

impl Queues {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x51_0E0E);
        let busy = rng.pick(&[0, 25, 60]);
        Self { rng, busy, latest: BTreeMap::new(), confirmed: BTreeSet::new() }
    }

    /// Returns true if the next step of a client concerns queues.
    pub fn are_next(&mut self) -> bool {
        self.busy > 0 && self.rng.chance(self.busy)
    }

    /// Returns true if the next request waits. A client that waits asks for nothing else, so most worlds have no waits.
    fn wait(&mut self) -> bool {
        self.busy > 25 && self.rng.chance(70)
    }

    /// Returns true if the next step of a client that waits ends its wait.
    pub fn are_over(&mut self) -> bool {
        self.rng.chance(5)
    }

    /// Returns a request of a liar, which may concern its own claim or another client's.
    pub fn any_request(&mut self, list: String, cell: CellNo) -> QueueRequest {
        let item = QueueItem { list: self.rng.below(4), number: self.rng.below(6) };
        let claim = QueueClaim { item, grant: self.rng.pick(&[0, 1, 2, 3, 4, 5, u64::MAX]) };
        let wait = self.rng.chance(30);
        match self.rng.below(7) {
            0 => {
                let cells = vec![cell; self.rng.pick(&[1, 1, 1, 2, 0])];
                QueueRequest::Put { list, cells, max: self.rng.pick(&[0, 1, u64::MAX]) }
            }
            1 | 2 => {
                let done = vec![claim; self.rng.pick(&[0, 0, 1, 3, 65])];
                QueueRequest::Claim { list, done, max: self.rng.pick(&[1, 1, 2, 64, 0, 65]), wait }
            }
            5 => QueueRequest::Stop,
            3 => QueueRequest::Done(claim),
            4 => QueueRequest::GiveBack(claim),
            _ => QueueRequest::Size { list },
        }
    }
}

impl Honest {
    /// Returns the claims that the client asserts: those that it has, and those of unanswered confirmations.
    pub fn asserted(&self) -> Vec<QueueClaim> {
        let confirming = match &self.asked {
            Some(Asked::Confirm(claim)) => vec![*claim],
            Some(Asked::ClaimNext(done)) => done.clone(),
            _ => Vec::new(),
        };
        confirming.into_iter().chain(self.claims.iter().copied()).collect()
    }

    /// Returns whether the client may end the wait of its request.
    pub fn may_stop(&self) -> bool {
        let waits = |request: &Request| matches!(request, Request::Queue(it) if it.waits_for().is_some());
        self.asked.is_some() && !self.stopped && self.question.as_ref().is_some_and(waits)
    }
}

impl Sim {
    /// A step of an honest client without a pending request.
    pub fn queue_step(&mut self, actor: usize, h: &mut Honest, seat: &Seat) {
        let list = a_collection(self.queues.rng.below(2));
        let (kind, at) = (self.queues.rng.below(9), self.queues.rng.next());
        let (wait, max) = (self.queues.wait(), self.queues.rng.pick(&[1, 1, 2, 3]));
        let (asked, request) = match kind {
            0..2 => {
                let max = self.queues.rng.pick(&[0, 1, 2]);
                let count = if max == 1 { 1 } else { 1 + self.queues.rng.below(2) };
                let cells: Vec<(CellNo, Cell)> = (0..count).map_while(|_| self.filled_cell(h, seat, "")).collect();
                if cells.is_empty() {
                    return self.want_segment(actor, h);
                }
                let numbers = cells.iter().map(|&(cell, _)| cell).collect();
                (Asked::Append { cells }, QueueRequest::Put { list, cells: numbers, max })
            }
            2..5 => (Asked::Claim, QueueRequest::Claim { list, done: Vec::new(), max, wait }),
            8 => {
                let done: Vec<QueueClaim> = h.claims.drain(..h.claims.len().min(usize::from(max))).collect();
                (Asked::ClaimNext(done.clone()), QueueRequest::Claim { list, done, max, wait })
            }
            5..8 if !h.claims.is_empty() => {
                let claim = h.claims.swap_remove(at as usize % h.claims.len());
                match kind {
                    7 => (Asked::Other, QueueRequest::GiveBack(claim)),
                    _ => (Asked::Confirm(claim), QueueRequest::Done(claim)),
                }
            }
            _ => (Asked::Other, QueueRequest::Size { list }),
        };
        self.ask(actor, h, asked, &Request::Queue(request));
    }

    /// Returns the reply of a flawed daemon, which grants the latest claim again.
    pub fn granted_again(&self, actor: usize, reply: Reply) -> Reply {
        let seat = self.actors[actor].seat.as_ref().filter(|_| self.has_flaw(Flaw::GrantsAgain));
        match (&reply, seat.and_then(|seat| self.queues.latest.get(&seat.directory_file))) {
            (Reply::Queue(QueueReply::Claimed(_)), Some(&claim)) => Reply::Queue(QueueReply::Claimed(vec![claim])),
            _ => reply,
        }
    }

    /// Checks a response about a queue.
    pub fn check_queue(&mut self, actor: usize, reply: &Reply) {
        let Some(directory) = self.actors[actor].seat.as_ref().map(|seat| seat.directory_file) else { return };
        let asked = self.actors[actor].honest.as_ref().and_then(|h| h.asked.as_ref());
        if let (Reply::Queue(QueueReply::Claimed(_) | QueueReply::Empty), Some(Asked::ClaimNext(done))) = (reply, asked)
        {
            for claim in done {
                assert!(self.queues.confirmed.insert((directory, claim.item)), "{:?} is confirmed twice", claim.item);
                self.done.confirmed += 1;
            }
        }
        match (reply, asked) {
            (Reply::Queue(QueueReply::Claimed(claims)), _) => {
                for claim in claims {
                    self.check_granted(actor, directory, *claim);
                }
            }
            (Reply::Deleted { existed: true }, Some(Asked::Confirm(claim))) => {
                let item = claim.item;
                assert!(self.queues.confirmed.insert((directory, item)), "{item:?} is confirmed twice");
                self.done.confirmed += 1;
            }
            _ => {}
        }
    }

    fn check_granted(&mut self, actor: usize, directory: File, claim: QueueClaim) {
        let before = self.queues.latest.insert(directory, claim);
        assert!(before.is_none_or(|before| before.grant < claim.grant), "{claim:?} is not new: {before:?}");
        assert!(!self.queues.confirmed.contains(&(directory, claim.item)), "{claim:?} is of a confirmed item");
        for other in (0..self.actors.len()).filter(|&other| other != actor) {
            assert!(!self.has_claim(other, directory, claim.item), "{claim:?} is of client {other}'s item");
        }
        self.done.claims += 1;
        self.done.handed_over += u64::from(self.actors[actor].waits);
    }

    /// Ends the wait of a client's request.
    pub fn stop_waiting(&mut self, actor: usize, h: &mut Honest) {
        h.stopped = true;
        self.tell(actor, &Request::Queue(QueueRequest::Stop));
    }

    /// Returns true if an honest client has a claim on an item, or will receive it.
    fn has_claim(&self, actor: usize, directory: File, item: QueueItem) -> bool {
        let it = &self.actors[actor];
        let (Some(h), Some(seat)) = (&it.honest, &it.seat) else { return false };
        let in_time = self.now_ns < self.life.began_ns + KEPT_NS;
        let counts = if it.away { self.is_expected(actor) && in_time } else { it.connected };
        let received = it.inbox.iter().flat_map(|(reply, _)| match reply {
            Reply::Queue(QueueReply::Claimed(claims)) => claims.clone(),
            _ => Vec::new(),
        });
        counts && seat.directory_file == directory && h.asserted().into_iter().chain(received).any(|it| it.item == item)
    }

    /// A client that returned late may have lost its claims.
    pub fn keeps_claims(&self, h: &mut Honest) {
        if self.now_ns >= self.life.began_ns + KEPT_NS {
            h.claims.clear();
            if let Some(Asked::ClaimNext(done)) = &mut h.asked {
                done.clear();
            }
        }
    }
}
