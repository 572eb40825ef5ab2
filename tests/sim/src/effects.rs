//! What the core wants done, and what must hold when it wants it.

use crate::Flaw;
use crate::sim::{Lent, Mem, Order, Seat, Sim};
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_daemon::core::{ConnId, Effect, Event, Lending, MemId};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::header::Magic;
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::{Refusal, Reply};
use tensorlend_layout::word::{Home, Member, Word};

fn actor_of(conn: ConnId) -> usize {
    conn.0 as usize - 1
}

impl Sim {
    pub fn perform(&mut self, effect: Effect) {
        self.note(|| format!("  effect {effect:?}"));
        match effect {
            Effect::Create { mem, bytes, sheet, background, .. } => {
                self.order(Order::Create { mem, bytes, sheet }, background);
            }
            Effect::Allocate { mem, at, bytes, background } => {
                let whole = self.memory[&mem].bytes;
                assert!(at + bytes <= whole && at.is_multiple_of(4096), "a part lies inside its memory");
                self.order(Order::Allocate { mem, at }, background);
            }
            Effect::Probe { mem } => {
                assert!(self.memory.contains_key(&mem), "{mem:?} is looked at, and it is gone");
                self.order(Order::Probe { mem }, false);
            }
            Effect::Discard { mem, at, bytes } => {
                let view = self.memory[&mem].view.clone().expect("parts of directories are given back");
                let words: &[Word] = view.array(at as usize, bytes as usize / 8).expect("they lie inside");
                for word in words {
                    word.put(0);
                }
            }
            Effect::Release { mem } => self.release(mem),
            Effect::Seal { conn, mem } => {
                let held = self.memory.get(&mem).is_some_and(|m| m.writers.contains(&actor_of(conn)));
                assert!(
                    held || !self.actors[actor_of(conn)].process,
                    "{mem:?} is sealed for a client that has never mapped it"
                );
                self.memory.get_mut(&mem).expect("what is sealed is there").sealed = true;
            }
            Effect::Send { conn, reply, lend, close } => self.send(actor_of(conn), reply, lend, close),
            Effect::Resume { conn } => {
                let actor = &mut self.actors[actor_of(conn)];
                assert!(!actor.read, "an answer nobody asked for");
                actor.read = true;
            }
            Effect::Close { conn } => self.leave(actor_of(conn)),
            // Of descriptors' fates alone.
            _ => {}
        }
    }

    fn order(&mut self, order: Order, background: bool) {
        if self.prompt && !background {
            self.at_once.push_back(order);
        } else {
            self.orders.push(order);
        }
    }

    /// The kernel answers, late.
    pub fn answer(&mut self, order: Order, fails: bool) {
        let event = self.answer_to(order, fails);
        if let Some(event) = event {
            self.happen(event);
        }
    }

    /// What the kernel answers. `None`: nobody asks any more.
    pub fn answer_to(&mut self, order: Order, fails: bool) -> Option<Event> {
        Some(match order {
            Order::Create { mem, .. } if fails => Event::Created { mem, made: Err("no space".into()) },
            Order::Create { mem, bytes, sheet } => {
                let view = sheet.map(|plan| {
                    let view = View::anonymous(bytes as usize);
                    plan.initialise(&view);
                    view
                });
                let (writers, contents) = (BTreeSet::new(), BTreeMap::new());
                let made =
                    Mem { bytes, view: view.clone(), writers, lent_in: None, lent_to: None, sealed: false, contents };
                assert!(self.memory.insert(mem, made).is_none(), "{mem:?} is made once");
                let mut shown = view;
                if self.has_flaw(Flaw::BlindToLeases) && sheet.is_some_and(|plan| plan.magic == Magic::Leases) {
                    let other = View::anonymous(bytes as usize);
                    shown = Some(other);
                }
                Event::Created { mem, made: Ok(shown) }
            }
            Order::Allocate { mem, at } => {
                if !self.memory.contains_key(&mem) {
                    return None;
                }
                Event::Allocated { mem, at, made: if fails { Err("no space".into()) } else { Ok(()) } }
            }
            Order::Probe { mem } => {
                let quiet = self.memory.get(&mem).is_none_or(|m| m.writers.is_empty());
                Event::Probed { mem, quiet: quiet || self.has_flaw(Flaw::TrustsTheLoud) }
            }
        })
    }

    fn release(&mut self, mem: MemId) {
        if self.has_flaw(Flaw::KeepsDescriptors) && self.rng.chance(12) {
            return;
        }
        let gone = self.memory.remove(&mem);
        let gone = gone.unwrap_or_else(|| panic!("{mem:?} is released twice, or was never made"));
        // Nobody pays for it any more, so nobody may keep it.
        assert!(gone.writers.is_empty(), "{mem:?} is let go of while {:?} can write it", gone.writers);
        self.assert_unleased(mem, "released");
    }

    /// No honest client's lease lies in this segment.
    fn assert_unleased(&self, mem: MemId, what: &str) {
        for (at, actor) in self.actors.iter().enumerate() {
            let mut held = actor.honest.iter().flat_map(|h| &h.held);
            let lease = held.find(|lease| lease.slots.iter().any(|slot| slot.segment == mem));
            assert!(lease.is_none(), "{mem:?} is {what} while client {at} leases {lease:?} of it");
        }
    }

    fn send(&mut self, actor: usize, reply: Reply, lend: Vec<(MemId, Lending)>, close: bool) {
        let it = &self.actors[actor];
        assert!(it.connected, "an answer to connection {actor}, which is gone");
        assert!(close || !it.read, "an answer nobody asked for: {reply:?}");
        let honest = it.honest.is_some();
        if honest && let Reply::Refused(Refusal::Violation(why)) = &reply {
            panic!("honest client {actor} is punished: {why}");
        }
        if self.has_flaw(Flaw::LosesAnswers) && lend.is_empty() && !close && self.rng.chance(3) {
            self.actors[actor].read = true;
            return;
        }
        if let Reply::Welcome(_) = &reply {
            self.seat(actor, &reply, &lend);
        }
        self.check_reply(actor, &reply);
        for &(mem, how) in &lend {
            self.check_lending(actor, &reply, mem, how);
        }
        if let Reply::Segment { base, slots_log2, .. } = reply
            && lend[0].1 == Lending::Write
        {
            let seat = self.actors[actor].seat.as_ref().expect("segments are lent to those who joined");
            let place = (seat.directory_mem, seat.number(), base);
            let (segment, slots) = (lend[0].0, lend[1].0);
            let before = self.lent.insert(place, Lent { slots_log2, segment, slots });
            assert!(before.is_none(), "{place:?} is lent twice");
        }
        let it = &mut self.actors[actor];
        it.read = true;
        it.owes = !lend.is_empty();
        if close {
            return self.leave(actor);
        }
        if honest {
            it.inbox.push_back((reply, lend));
            assert_eq!(it.inbox.len(), 1, "more answers than questions");
        }
    }

    fn seat(&mut self, actor: usize, reply: &Reply, lend: &[(MemId, Lending)]) {
        let Reply::Welcome(welcome) = reply else { return };
        let hows: Vec<_> = lend.iter().map(|&(_, how)| how).collect();
        assert_eq!(hows, [Lending::Read, Lending::Write, Lending::Write, Lending::Nudge]);
        let view = |mem: MemId| self.memory[&mem].view.clone().expect("a sheet");
        let directory = Directory::new(&view(lend[0].0)).expect("a directory's tables lie inside it");
        // Before the answer: else its leases would not be looked at.
        let entry = &directory.members[usize::from(welcome.catalogue)];
        assert_eq!(entry.member.read(), welcome.member, "a newcomer is in the directory before it is answered");
        assert!(directory.present().any(|n| n == welcome.catalogue), "and among those present");
        assert_eq!(Member(welcome.member).sheet(), lend[1].0.0 as u32);
        let seat = Seat {
            welcome: welcome.clone(),
            directory_mem: lend[0].0,
            directory,
            catalogue: view(lend[1].0),
            leases: view(lend[2].0),
        };
        self.done.joined += 1;
        self.members.insert((seat.directory_mem, seat.number()), actor);
        self.memory.get_mut(&lend[0].0).expect("seen above").lent_in = Some(lend[0].0);
        self.actors[actor].seat = Some(seat);
    }

    /// What an answer says is so already.
    fn check_reply(&self, actor: usize, reply: &Reply) {
        let Some(seat) = &self.actors[actor].seat else { return };
        let d = &seat.directory;
        match *reply {
            Reply::Bound { entry, home } | Reply::Stream { entry, home, .. } => {
                let now = Home(d.names[entry as usize].home.read());
                let moved_on = now.version().wrapping_sub(Home(home).version());
                assert!(
                    now.0 == home || (1..1000).contains(&moved_on),
                    "the answer says {home:x}, the directory {now:?}"
                );
            }
            Reply::Segment { base, slots_log2, bytes, .. } => {
                let found = d.segments.iter().any(|line| {
                    let range = tensorlend_layout::word::RangeWord(line.range.read());
                    range.is_lent()
                        && range.base() == base
                        && range.slots() == 1 << slots_log2
                        && line.bytes.read() == bytes
                });
                assert!(found, "a segment is in the directory before it is answered");
            }
            _ => {}
        }
    }

    fn check_lending(&mut self, actor: usize, reply: &Reply, mem: MemId, how: Lending) {
        let user_mode = self.settings.mode == tensorlend_daemon::core::settings::Mode::User;
        let it = &self.actors[actor];
        let (uid, alive) = (it.uid, it.process);
        let here = it.seat.as_ref().expect("who is lent something has joined").directory_mem;
        let Some(memory) = self.memory.get_mut(&mem) else { panic!("{mem:?} is lent, and not there: {reply:?}") };
        if how == Lending::Nudge {
            return;
        }
        assert!(
            memory.lent_in.is_none_or(|n| n == here),
            "{mem:?} of one namespace is shown in another, to client {actor}"
        );
        memory.lent_in = Some(here);
        if how != Lending::Write {
            let own = how == Lending::Wake || mem == here || (memory.view.is_none() && !user_mode);
            assert!(own || memory.sealed, "{mem:?} is shown to client {actor} before it is sealed");
            return;
        }
        assert!(memory.writers.is_empty(), "{mem:?} is lent anew while {:?} can write it", memory.writers);
        if let Some(before) = memory.lent_to {
            assert!(!user_mode, "{mem:?} is lent twice, and it is sealed");
            assert_eq!(before, uid, "{mem:?} goes from one uid to another");
            memory.contents.clear();
            self.assert_unleased(mem, "lent anew");
        }
        let memory = self.memory.get_mut(&mem).expect("seen above");
        memory.lent_to = Some(uid);
        if alive {
            memory.writers.insert(actor);
        }
    }
}
