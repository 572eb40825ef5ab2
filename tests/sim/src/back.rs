//! Reconnection of clients to a restarted daemon: they name their session, repeat unanswered requests, and compare their
//! cells with the owner words.

use crate::client::{Asked, CellInUse, Honest};
use crate::restart::Away;
use crate::sim::{File, Sim};
use crate::steps::hello;
use std::collections::BTreeSet;
use tensorlend_layout::name::KeyKind;
use tensorlend_layout::number::{CellNo, ClientNo, SlotNo};
use tensorlend_layout::wire::{Hello, Reply, Request, Return};
use tensorlend_layout::word::{Absorbed, OwnerWord};

/// An honest client's progress in reconnecting.
#[derive(Debug, Default)]
pub enum Back {
    /// The client is connected, or needs no daemon any more.
    #[default]
    Here,
    /// The client has lost its daemon.
    Lost,
    /// The client has named its session.
    Said,
}

impl Sim {
    /// Ends all connections.
    pub fn everybody_is_away(&mut self) {
        let before = std::mem::take(&mut self.life.away);
        for at in 0..self.actors.len() {
            let it = &mut self.actors[at];
            if !it.connected && !it.away && !before.contains_key(&at) {
                continue;
            }
            let (was_away, was_here) = (it.away, it.connected || it.away);
            (it.connected, it.read, it.owes, it.wakes) = (false, true, false, false);
            it.waits = false;
            it.outbox.clear();
            let Some(seat) = &it.seat else {
                self.leave(at);
                continue;
            };
            let joined = self.memory.get(&seat.catalogue_file).is_some_and(|sheet| sheet.sealed);
            let it = &mut self.actors[at];
            match &mut it.honest {
                // A client that has not received its welcome is not a member.
                Some(h) if !matches!(h.asked, Some(Asked::Hello)) && (was_here || !before.contains_key(&at)) => {
                    it.away = true;
                    h.back = Back::Lost;
                    h.unsettled = true;
                    if was_away {
                        it.inbox.clear();
                    }
                    let sure = joined && self.life.keeper && before.get(&at).is_none_or(|away| away.sure);
                    self.life.away.insert(at, Away { sure });
                }
                Some(_) => {
                    self.leave(at);
                    self.life.away.insert(at, Away { sure: false });
                }
                None => {
                    it.inbox.clear();
                    it.away = true;
                    self.life.away.insert(at, Away { sure: false });
                }
            }
        }
    }

    /// Returns true if the daemon must know this client, although it has not reconnected yet.
    pub fn is_expected(&self, actor: usize) -> bool {
        let it = &self.actors[actor];
        it.away && it.process && self.life.away.get(&actor).is_some_and(|away| away.sure)
    }

    /// Returns true if the owner of this segment, a liar, may have handed another file back in its place.
    pub fn may_have_lied(&self, (directory, number, _): (File, ClientNo, SlotNo)) -> bool {
        let owner = self.members.get(&(directory, number));
        owner.is_none_or(|&owner| self.actors[owner].honest.is_none())
    }

    /// Ends a process that has no daemon.
    pub fn ends_away(&mut self, actor: usize) {
        if self.actors[actor].connected {
            self.hang_up(actor);
        }
        self.leave(actor);
        self.actors[actor].away = false;
        self.exit(actor);
    }

    /// The daemon hangs up.
    pub fn hung_up_on(&mut self, actor: usize) {
        let it = &mut self.actors[actor];
        if it.away && it.honest.is_some() {
            it.connected = false;
            it.outbox.clear();
            return;
        }
        it.away = false;
        self.leave(actor);
    }

    /// Takes one step of an honest client's reconnection; returns true if there was one.
    pub fn comes_back(&mut self, actor: usize, h: &mut Honest) -> bool {
        if self.life.is_gone {
            return false;
        }
        match std::mem::take(&mut h.back) {
            Back::Here => return false,
            Back::Lost => {
                // A response of the old daemon may still arrive.
                if let Some((reply, lend)) = self.actors[actor].inbox.pop_front() {
                    self.heard(actor, h, reply, &lend);
                }
                self.redials(actor, h);
                if self.actors[actor].connected {
                    self.says_who(actor, h);
                }
            }
            Back::Said => match self.actors[actor].inbox.pop_front() {
                None => {
                    // A daemon that could send no descriptor has hung up.
                    let is_lost = !self.actors[actor].connected;
                    h.back = if is_lost { Back::Lost } else { Back::Said };
                    return is_lost;
                }
                Some((Reply::Welcome(_), lend)) => self.is_welcome(actor, h, lend[0].0),
                Some((reply, _)) => self.is_unknown(actor, h, &format!("{reply:?}")),
            },
        }
        true
    }

    fn redials(&mut self, actor: usize, h: &mut Honest) {
        self.connects(actor);
        if !self.actors[actor].connected {
            // Other clients have taken all connections.
            h.back = Back::Lost;
        }
    }

    fn says_who(&mut self, actor: usize, h: &mut Honest) {
        let seat = self.actors[actor].seat.as_ref().expect("it had joined");
        let Hello { protocol_min, protocol_max, layout_version, layout_hash, .. } = hello();
        let kept = || h.segments.iter().filter(|(_, seg)| !seg.returning);
        let segments = kept().map(|(&base, _)| base).collect();
        let released = kept().filter(|(_, seg)| seg.released).map(|(&base, _)| base).collect();
        let back = Return {
            protocol_min,
            protocol_max,
            layout_version,
            layout_hash,
            namespace: seat.welcome.namespace.clone(),
            client: seat.number(),
            member: seat.welcome.member,
            segments: Some(segments),
            released,
            cells: h.parts.len() as u8,
            claims: h.asserted(),
        };
        h.back = Back::Said;
        self.tell(actor, &Request::Return(back));
    }

    /// The daemon does not know the session: it ends.
    fn is_unknown(&mut self, actor: usize, h: &mut Honest, why: &str) {
        self.note(|| format!("client {actor} is not known any more: {why}"));
        assert!(!self.is_expected(actor), "client {actor} is not known any more: {why}");
        if self.actors[actor].connected {
            self.hang_up(actor);
        }
        self.leave(actor);
        self.actors[actor].away = false;
        h.held.clear();
        h.asked = None;
        h.question = None;
        h.claims.clear();
        h.back = Back::Here;
    }

    /// The daemon welcomes the session back: the client reads the new directory, and repeats its request.
    fn is_welcome(&mut self, actor: usize, h: &mut Honest, directory: File) {
        let view = self.directories.get(&directory).expect("it is open").clone();
        let it = &mut self.actors[actor];
        it.seat.as_mut().expect("it had joined").directory = view;
        it.away = false;
        self.done.returns += 1;
        self.keeps_claims(h);
        h.stopped = false;
        self.tell(actor, &Request::Ack);
        let question = h.question.clone();
        match (&h.asked, question) {
            (None, _) => {}
            (Some(Asked::Confirm(_)), Some(question)) => self.tell(actor, &question),
            (Some(_), Some(question)) if question.is_repeatable() => self.tell(actor, &question),
            (Some(Asked::Append { cells }), _) => {
                // The append may or may not have happened; comparing cells with owner words tells.
                for &(cell, value) in cells {
                    h.own.insert(cell, CellInUse { key: None, value, owner_word: None, pending: None, deleted: false });
                }
                h.asked = None;
            }
            _ => h.asked = None,
        }
    }

    /// Retires cells to which no owner word refers: the previous daemon took over the names and was killed before it
    /// reported that.
    pub fn settle_cells(&mut self, actor: usize, h: &mut Honest) {
        let seat = self.actors[actor].seat.clone().expect("it has joined");
        let me = &seat.directory.members[seat.number().index()];
        // More cells were taken over since the request.
        if !h.unsettled || me.notices.read() != h.notices_seen {
            return;
        }
        h.unsettled = false;
        let absorbed = Absorbed(me.absorbed.read()).index();
        let pending = h.own.iter().filter(|(_, own)| own.pending.is_some_and(|number| number >= absorbed));
        let mut kept: BTreeSet<CellNo> = pending.map(|(&cell, _)| cell).collect();
        for (_, line) in seat.directory.entries() {
            let owner_word = OwnerWord(line.owner_word.read());
            // Those of lists and streams lead to no cell.
            if owner_word.is_live() && owner_word.owner() == seat.number() && KeyKind::of(line).leads_to_cell() {
                kept.insert(owner_word.cell());
            }
        }
        let lost: Vec<CellNo> = h.own.keys().filter(|cell| !kept.contains(cell)).copied().collect();
        self.disowned(actor, h, &lost);
    }
}
