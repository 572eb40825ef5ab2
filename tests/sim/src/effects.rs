//! Execution of the core's effects, with the invariants that must hold at that moment.

use crate::Flaw;
use crate::client::{HeldSlot, cell_record};
use crate::sim::{File, Kind, Lent, Mem, Order, Seat, Sim};
use tensorlend_daemon::core::{ConnId, Effect, Event, Lending, MemId};
use tensorlend_layout::directory::{Directory, audience_bit};
use tensorlend_layout::header::Magic;
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::{Allocator, Export, Refusal, Reply, Request, ValueAt};
use tensorlend_layout::word::{Member, OwnerWord, Word};

impl Sim {
    fn actor_of(&self, conn: ConnId) -> usize {
        self.conns[conn.0 as usize - 1]
    }

    /// Returns the file with this id of the daemon.
    pub fn called(&self, mem: MemId) -> File {
        *self.names.get(&mem).unwrap_or_else(|| panic!("{mem:?} is not there"))
    }

    pub fn is_user_mode(&self) -> bool {
        self.settings.mode == tensorlend_daemon::core::settings::Mode::User
    }

    pub fn perform(&mut self, effect: Effect) {
        self.note(|| format!("  effect {effect:?}"));
        match effect {
            Effect::Create { mem, bytes, sheet, background, .. } => {
                self.order(Order::Create { mem, bytes, sheet }, background);
            }
            Effect::Allocate { mem, at, bytes } => {
                let whole = self.memory[&self.called(mem)].bytes;
                assert!(at + bytes <= whole && at.is_multiple_of(4096), "a part lies inside its memory");
                self.order(Order::Allocate { mem, at }, true);
            }
            Effect::Probe { mem } => {
                assert!(self.names.contains_key(&mem), "{mem:?} is looked at, and it is gone");
                self.order(Order::Probe { mem }, false);
            }
            Effect::Discard { mem, at, bytes } => {
                let view = self.memory[&self.called(mem)].view.clone().expect("parts of directories are given back");
                let words: &[Word] = view.array(at as usize, bytes as usize / 8).expect("they lie inside");
                for word in words {
                    word.put(0);
                }
            }
            Effect::CreateOnDevice { mem, bytes, .. } => self.order(Order::CreateOnDevice { mem, bytes }, true),
            Effect::AwaitExit { conn } => {
                let actor = self.actor_of(conn);
                if self.actors[actor].process {
                    assert!(self.awaited.insert(conn), "a process is waited for once");
                } else {
                    self.order(Order::Exited { conn }, false);
                }
            }
            Effect::CreateWake { mem, .. } => {
                let file = self.file(Mem::new(Kind::Wake, 0, None));
                self.call(mem, file);
            }
            Effect::Release { mem } => self.release(mem),
            Effect::Seal { conn, mem } => self.seal(conn, mem),
            Effect::Send { conn, lend, .. } if !lend.is_empty() && self.rng.chance(self.poor) => {
                let refusal = Refusal::Memory { bytes: 0, reason: "no descriptor".into() };
                self.at_once.push_back(Order::Unsent { conn, refusal });
            }
            Effect::Send { conn, reply, lend, close } => {
                let actor = self.actor_of(conn);
                if let (Reply::Welcome(welcome), [_, (catalogue, _), ..]) = (&reply, &lend[..])
                    && lend.len() > 2
                {
                    assert_eq!(Member(welcome.member).sheet(), catalogue.0 as u32);
                }
                let lend = lend.into_iter().map(|(mem, how)| (self.lent_as(mem, how), how)).collect();
                self.send(actor, reply, lend, close);
            }
            Effect::Keep { mem, label } => self.keep(mem, label),
            Effect::Forget { mem } => self.forget(mem),
            Effect::Resume { conn } => {
                let at = self.actor_of(conn);
                let actor = &mut self.actors[at];
                // The daemon knows that the client reads its directory; an honest client does since its welcome.
                if actor.honest.is_none() || !actor.away {
                    actor.away = false;
                    self.life.away.remove(&at);
                }
                assert!(!actor.read, "an answer nobody asked for");
                actor.read = true;
                actor.waits |= std::mem::take(&mut actor.may_wait);
            }
            Effect::Close { conn } => {
                let actor = self.actor_of(conn);
                self.hung_up_on(actor);
            }
            Effect::Spill { mem, file, bytes, .. } => {
                let source = self.called(mem);
                assert!(self.memory[&source].kind == Kind::Segment && self.memory[&source].bytes == bytes);
                self.check_order_of_spill(source);
                self.order(Order::Spill { source, file, bytes }, true);
            }
            Effect::Recall { mem, file, bytes, .. } => {
                let source = self.called(file);
                assert!(self.memory[&source].kind == Kind::File && self.memory[&source].bytes == bytes);
                self.order(Order::Recall { mem, source, bytes }, true);
            }
            Effect::DropFile { file } => self.drop_file(file),
            // The other effects concern descriptors only.
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

    /// The kernel completes an order, late.
    pub fn answer(&mut self, order: Order, fails: bool) {
        let event = self.answer_to(order, fails);
        if let Some(event) = event {
            self.happen(event);
        }
    }

    /// Returns the kernel's completion. `None`: the daemon has dropped the memory in the meantime.
    pub fn answer_to(&mut self, order: Order, fails: bool) -> Option<Event> {
        Some(match order {
            Order::Create { mem, .. } if fails => Event::Created { mem, made: Err("no space".into()) },
            Order::Create { mem, bytes, sheet } => {
                let view = sheet.map(|plan| {
                    let view = View::anonymous(bytes as usize);
                    plan.initialise(&view, view.bytes() as u64);
                    view
                });
                let kind = sheet.map_or(Kind::Segment, |plan| Kind::Sheet(plan.magic));
                let file = self.file(Mem::new(kind, bytes, view.clone()));
                self.call(mem, file);
                let mut shown = view;
                if self.has_flaw(Flaw::BlindToLeases) && sheet.is_some_and(|plan| plan.magic == Magic::Leases) {
                    let other = View::anonymous(bytes as usize);
                    shown = Some(other);
                }
                Event::Created { mem, made: Ok(shown) }
            }
            Order::Allocate { mem, at } => {
                if !self.names.contains_key(&mem) {
                    return None;
                }
                Event::Allocated { mem, at, made: if fails { Err("no space".into()) } else { Ok(()) } }
            }
            Order::CreateOnDevice { mem, .. } if fails => {
                Event::CreatedOnDevice { mem, made: Err("out of memory".into()) }
            }
            Order::CreateOnDevice { mem, bytes } => {
                let file = self.file(Mem::new(Kind::Device, bytes, None));
                self.call(mem, file);
                let block = self.settings.devices[0].allocator == Allocator::Async;
                let export = if block { Export::Block { pool: 0, pointer: [[0; 32]; 2] } } else { Export::Allocation };
                Event::CreatedOnDevice { mem, made: Ok(export) }
            }
            Order::Spill { source, file, bytes } => self.spill(source, file, bytes, fails),
            Order::Recall { mem, source, bytes } => self.recall(mem, source, bytes, fails),
            Order::Unsent { conn, refusal } => Event::Unsent { conn, refusal },
            Order::Exited { conn } => {
                self.done.departures += 1;
                Event::Exited { conn }
            }
            Order::Probe { mem } => {
                let file = self.names.get(&mem).map(|file| &self.memory[file]);
                let quiescent = file.is_none_or(|file| file.writers.is_empty());
                let leases = file.is_some_and(|file| file.kind == Kind::Sheet(Magic::Leases));
                let flawed = self.has_flaw(Flaw::TrustsTheLoud) || leases && self.has_flaw(Flaw::TakesTheAwayForGone);
                Event::Probed { mem, quiescent: quiescent || flawed }
            }
        })
    }

    fn release(&mut self, mem: MemId) {
        if self.has_flaw(Flaw::KeepsDescriptors) && self.rng.chance(12) {
            return;
        }
        self.forget(mem);
        let file = self.call_no_more(mem);
        let file = file.unwrap_or_else(|| panic!("{mem:?} is released twice, or was never made"));
        if self.is_held(file) {
            return;
        }
        // Nobody is charged for it any more, so no process may still be able to write it.
        let writers = &self.memory[&file].writers;
        assert!(writers.is_empty(), "{file:?} is let go of while {writers:?} can write it");
        self.assert_unleased(file, "released");
        self.directories.remove(&file);
        // If the fd store is missing, readers keep the memory.
        if self.life.keeper && !self.has_flaw(Flaw::ForgetsNothing) {
            self.memory.remove(&file);
        }
    }

    fn seal(&mut self, conn: ConnId, mem: MemId) {
        let file = self.called(mem);
        // A client that will not return has no connection.
        if conn != ConnId(u64::MAX) {
            let actor = self.actor_of(conn);
            let writers = &self.memory[&file].writers;
            // The previous daemon was killed before it lent the file, so nobody has mapped it;
            // `check_lending` checks that it is not lent again.
            let unheard = self.life.restarted && writers.is_empty();
            assert!(
                unheard || writers.contains(&actor) || !self.actors[actor].process,
                "{file:?} is sealed for a client that has never mapped it"
            );
        }
        self.memory.get_mut(&file).expect("what is called something is there").sealed = true;
    }

    /// Asserts that no honest client has a lease in this segment.
    pub fn assert_unleased(&self, file: File, what: &str) {
        for (at, actor) in self.actors.iter().enumerate() {
            let mut held = actor.honest.iter().flat_map(|h| &h.held);
            let here = |slot: &HeldSlot| self.lent.get(&slot.place).is_some_and(|lent| lent.segment == file);
            let lease = held.find(|lease| lease.slots.iter().any(|slot| slot.segment == file && here(slot)));
            assert!(lease.is_none(), "{file:?} is {what} while client {at} leases {lease:?} of it");
        }
    }

    /// Returns the file that a reply lends; a wakeup eventfd has only an id.
    fn lent_as(&self, mem: MemId, how: Lending) -> File {
        if how == Lending::Wakeup { File(0) } else { self.called(mem) }
    }

    fn send(&mut self, actor: usize, reply: Reply, lend: Vec<(File, Lending)>, close: bool) {
        let it = &self.actors[actor];
        assert!(it.connected, "an answer to connection {actor}, which is gone");
        assert!(close || !it.read || it.waits, "an answer nobody asked for: {reply:?}");
        let honest = it.honest.is_some();
        if honest && let Reply::Refused(Refusal::Violation(why)) = &reply {
            panic!("honest client {actor} is punished: {why}");
        }
        if self.has_flaw(Flaw::LosesAnswers) && lend.is_empty() && !close && self.rng.chance(3) {
            (self.actors[actor].read, self.actors[actor].waits) = (true, false);
            return;
        }
        if let Reply::Welcome(_) = &reply {
            self.seat(actor, &reply, &lend);
        }
        let reply = self.granted_again(actor, reply);
        self.check_reply(actor, &reply);
        self.check_queue(actor, &reply);
        for &(file, how) in &lend {
            self.check_lending(actor, &reply, file, how);
        }
        if let Reply::Segment { base, slots_log2, .. } = reply
            && lend[0].1 == Lending::Write
        {
            let seat = self.actors[actor].seat.as_ref().expect("segments are lent to those who joined");
            let place = (seat.directory_file, seat.number(), base);
            let (segment, slots) = (lend[0].0, lend[1].0);
            // The previous segment of this place may have been removed in this very step. The directory shows that: it
            // never has two lines for one place.
            match self.lent.get(&place) {
                Some(before) if before.segment == segment => panic!("{place:?} is lent twice"),
                Some(_) => self.taken(place),
                None => {}
            }
            self.lent.insert(place, Lent { slots_log2, segment, slots });
        }
        if let Reply::Segment { .. } = reply
            && lend[0].1 == Lending::Read
            && self.has_flaw(Flaw::ListsReadersLate)
        {
            self.unlist_reader(actor);
        }
        let it = &mut self.actors[actor];
        (it.read, it.waits) = (true, false);
        it.owes = !lend.is_empty();
        if close {
            if honest && it.away {
                it.inbox.push_back((reply, lend));
            }
            return self.hung_up_on(actor);
        }
        if honest {
            it.inbox.push_back((reply, lend));
            assert_eq!(it.inbox.len(), 1, "more answers than questions");
        }
    }

    /// As if no owner's audience had this client in it yet: it is listed when it is shown something more.
    fn unlist_reader(&self, actor: usize) {
        let seat = self.actors[actor].seat.as_ref().expect("who is shown something has joined");
        let (word, bit) = audience_bit(seat.number());
        for owner in self.directories[&seat.directory_file].members.iter() {
            owner.audience[word].clear_bits(bit);
        }
    }

    fn seat(&mut self, actor: usize, reply: &Reply, lend: &[(File, Lending)]) {
        let Reply::Welcome(welcome) = reply else { return };
        let hows: Vec<_> = lend.iter().map(|&(_, how)| how).collect();
        if let Some(seat) = &self.actors[actor].seat {
            assert_eq!(hows, [Lending::Read, Lending::Wakeup], "it has the others already");
            let before = &seat.welcome;
            assert_eq!((seat.directory_file, before.client), (lend[0].0, welcome.client), "its own session");
            assert_eq!(welcome.member, before.member, "its own session");
            return;
        }
        assert_eq!(hows, [Lending::Read, Lending::Write, Lending::Write, Lending::Wakeup]);
        let view = |file: File| self.memory[&file].view.clone().expect("a sheet");
        let directory = Directory::new(&view(lend[0].0)).expect("a directory's tables lie inside it");
        let entry = &directory.members[welcome.client.index()];
        assert_eq!(entry.member.read(), welcome.member, "a newcomer is in the directory before it is answered");
        assert!(directory.present().all(|n| n != welcome.client), "owners do not look for its leases yet");
        let seat = Seat {
            welcome: welcome.clone(),
            directory_file: lend[0].0,
            directory,
            catalogue: view(lend[1].0),
            catalogue_file: lend[1].0,
            leases: view(lend[2].0),
        };
        self.done.joined += 1;
        self.directories.entry(seat.directory_file).or_insert_with(|| seat.directory.clone());
        self.members.insert((seat.directory_file, seat.number()), actor);
        self.memory.get_mut(&lend[0].0).expect("seen above").lent_in = Some(lend[0].0);
        self.actors[actor].seat = Some(seat);
    }

    /// Checks that a response describes the present state.
    fn check_reply(&self, actor: usize, reply: &Reply) {
        let Some(seat) = &self.actors[actor].seat else { return };
        let Some(d) = self.directories.get(&seat.directory_file) else { return };
        match *reply {
            Reply::Bound { entry, owner_word } | Reply::Stream { entry, owner_word, .. } => {
                let now = OwnerWord(d.names[entry.index()].owner_word.read());
                let moved_on = now.version().wrapping_sub(OwnerWord(owner_word).version());
                assert!(
                    now.0 == owner_word || (1..1000).contains(&moved_on),
                    "the answer says {owner_word:x}, the directory {now:?}"
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
            Reply::Values(ref values) => self.check_values(actor, seat, values),
            _ => {}
        }
    }

    /// Checks that the contents of names are those of their cells.
    fn check_values(&self, actor: usize, seat: &Seat, values: &[ValueAt]) {
        let question = self.actors[actor].honest.as_ref().and_then(|h| h.question.as_ref());
        let Some(Request::ValuesOf { names }) = question else { return };
        assert!(values.len() <= names.len() && values.is_empty() == names.is_empty());
        for (name, value) in names.iter().zip(values) {
            let owner_word = OwnerWord(name.owner_word);
            let owner = self.members.get(&(seat.directory_file, owner_word.owner())).map(|&owner| &self.actors[owner]);
            let Some(owner) = owner.filter(|owner| owner.honest.is_some()).and_then(|owner| owner.seat.as_ref()) else {
                continue;
            };
            if let ValueAt::Slot { cell, .. } = *value {
                let record = cell_record(&owner.catalogue, owner_word.cell()).expect("a cell of its own");
                assert_eq!(record.cell.read(), cell, "the cell's value");
            }
        }
    }

    fn check_lending(&mut self, actor: usize, reply: &Reply, file: File, how: Lending) {
        if how == Lending::Wakeup {
            return;
        }
        let user_mode = self.is_user_mode();
        let it = &self.actors[actor];
        let (uid, alive) = (it.uid, it.process);
        let seat = it.seat.as_ref().expect("who is lent something has joined");
        let (here, seat_number) = (seat.directory_file, seat.number());
        let Some(memory) = self.memory.get_mut(&file) else { panic!("{file:?} is lent, and not there: {reply:?}") };
        assert!(
            memory.lent_in.is_none_or(|n| n == here),
            "{file:?} of one namespace is shown in another, to client {actor}"
        );
        memory.lent_in = Some(here);
        if how == Lending::Device {
            assert_eq!(memory.kind, Kind::Device, "{file:?} is lent as a device's");
            let own = matches!(reply, Reply::DeviceSegment(it) if it.lending.owner == seat_number);
            assert!(!own || memory.lent_to.is_none_or(|before| before == uid), "{file:?} goes from one uid to another");
            memory.lent_to = memory.lent_to.or(own.then_some(uid));
            self.done.on_device += 1;
            return;
        }
        if how != Lending::Write {
            let own =
                matches!(how, Lending::Wake | Lending::Woken) || file == here || (memory.view.is_none() && !user_mode);
            assert!(own || memory.sealed, "{file:?} is shown to client {actor} before it is sealed");
            return;
        }
        assert!(!memory.sealed, "{file:?} is lent to be written, and sealed already");
        assert!(memory.writers.is_empty(), "{file:?} is lent anew while {:?} can write it", memory.writers);
        if let Some(before) = memory.lent_to {
            assert!(!user_mode, "{file:?} is lent twice, and it is sealed");
            assert_eq!(before, uid, "{file:?} goes from one uid to another");
            memory.contents.clear();
            self.assert_unleased(file, "lent anew");
        }
        let memory = self.memory.get_mut(&file).expect("seen above");
        memory.lent_to = Some(uid);
        if alive {
            memory.writers.insert(actor);
        }
    }
}
