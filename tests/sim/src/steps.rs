//! The steps of an honest client.

use crate::client::{
    Asked, CellInUse, Claim, Getting, Held, HeldSlot, Honest, Route, cell_record, description, lease_entry,
};
use crate::sim::{DEVICE, Packet, SEGMENT, Seat, Sim};
use tensorlend_layout::announce::Waiting;
use tensorlend_layout::catalogue::{Catalogue, RING};
use tensorlend_layout::leases::{self, LeaseTable, Shard, reuse_fence, scan_fence};
use tensorlend_layout::name::{item_key, list_key, stream_key};
use tensorlend_layout::number::{CellNo, ClientNo, CursorNo, SlotNo};
use tensorlend_layout::publish::{is_lasting, overwrite};
use tensorlend_layout::wake::news_fence;
use tensorlend_layout::wire::{Allocator, Hello, Policy, Request, encode};
use tensorlend_layout::word::{Absorbed, Cell, LeaseWord, Member, MemberState, OwnerKind, Word};

/// Returns a name that a client may have.
pub fn a_name(number: u64) -> String {
    match number % 7 {
        6 => format!("long/{}", "x".repeat(150)),
        n => format!("n{n}"),
    }
}

/// Returns a list or stream that a client may have.
pub fn a_collection(number: u64) -> String {
    format!("c{}", number % 3)
}

pub fn hello() -> Hello {
    Hello::new(None, "simulated")
}

impl Sim {
    pub fn tell(&mut self, actor: usize, request: &Request) {
        self.note(|| format!("client {actor} sends {request:?}"));
        let packet = Packet { bytes: encode(request), descriptors: 0, truncated: false };
        self.actors[actor].outbox.push_back(packet);
    }

    pub fn honest_any(&mut self) {
        let Some(actor) = self.any_actor(|a| a.honest.is_some() && (a.connected || a.away)) else {
            return self.liar_any();
        };
        if !self.actors[actor].away && !self.actors[actor].inbox.is_empty() && self.rng.chance(70) {
            return self.honest_hears(actor);
        }
        let Some(mut h) = self.actors[actor].honest.take() else { return };
        if self.actors[actor].away && self.rng.chance(60) && self.comes_back(actor, &mut h) {
            self.actors[actor].honest = Some(h);
            return;
        }
        match self.actors[actor].seat.clone() {
            // Until its acknowledgement has arrived, it waits for the response to a ping.
            Some(seat) if !seat.directory.present().any(|number| number == seat.number()) => {}
            Some(seat) if h.hello_sent && !matches!(h.asked, Some(Asked::Hello)) => {
                for _ in 0..=self.rng.below(4) {
                    self.honest_step(actor, &mut h, &seat);
                }
            }
            None if !h.hello_sent => {
                h.hello_sent = true;
                let lab = self.rng.chance(40).then(|| "lab".to_owned());
                self.ask(actor, &mut h, Asked::Hello, &Request::Hello(Hello { namespace: lab, ..hello() }));
            }
            Some(_) | None => {}
        }
        self.actors[actor].honest = Some(h);
    }

    pub fn ask(&mut self, actor: usize, h: &mut Honest, asked: Asked, request: &Request) {
        assert!(h.asked.is_none());
        h.asked = Some(asked);
        h.stopped = false;
        h.question = Some(request.clone());
        // Without a daemon it is sent after the reconnection.
        if !self.actors[actor].away {
            self.tell(actor, request);
        }
    }

    fn honest_step(&mut self, actor: usize, h: &mut Honest, seat: &Seat) {
        if h.claiming.is_some() && self.rng.chance(50) {
            return self.conclude_claim(actor, h, seat);
        }
        if h.getting.is_some() && self.rng.chance(60) {
            return self.get_on(h, seat);
        }
        if h.asked.is_none()
            && let Some((catalogue, slot)) = self.wants_of_file(h, seat)
        {
            return self.ask(actor, h, Asked::Other, &Request::SegmentOf { owner: catalogue, slot });
        }
        if h.asked.is_none() && self.queues.are_next() {
            return self.queue_step(actor, h, seat);
        }
        if h.may_stop() && !self.actors[actor].away && self.queues.are_over() {
            return self.stop_waiting(actor, h);
        }
        match self.rng.below(100) {
            0..25 => self.put(actor, h, seat),
            25..30 => self.delete(actor, h, seat),
            30..52 => self.begin_get(actor, h, seat),
            52..60 => self.drop_lease(h, seat),
            60..70 => self.reclaim(h, seat),
            70..75 => self.give_back(actor, h),
            75..85 => self.housekeeping(actor, h, seat),
            85..90 => self.send_message(actor, h, seat),
            90..93 => self.append(actor, h, seat),
            _ if h.asked.is_none() => self.ask_something(actor, h),
            _ => {}
        }
    }

    pub fn want_segment(&mut self, actor: usize, h: &mut Honest) {
        if h.asked.is_none() {
            let bytes = self.rng.pick(&[SEGMENT, SEGMENT, SEGMENT, 5000, 2 * SEGMENT]);
            let slots_log2 = self.rng.below(3) as u8;
            self.ask(actor, h, Asked::Segment, &Request::Segment { bytes, slots_log2 });
        }
    }

    pub fn put(&mut self, actor: usize, h: &mut Honest, seat: &Seat) {
        let key = a_name(self.rng.next());
        let own = h.own.iter().find(|(_, o)| o.key.as_deref() == Some(&key) && o.owner_word.is_some() && !o.deleted);
        let lasts = |(_, own): &(_, &CellInUse)| {
            own.owner_word.is_some_and(|(entry, _)| is_lasting(&seat.directory.names[entry.index()].life))
        };
        if let Some((&cell, own)) = own.filter(lasts) {
            let (entry, owner_word) = own.owner_word.expect("seen above");
            let Some(new) = self.fill(h) else { return self.want_segment(actor, h) };
            let word = &seat.directory.names[entry.index()].owner_word;
            let record = cell_record(&seat.catalogue, cell).expect("a cell of its own");
            record.describe(new, &description(new), true);
            match overwrite(word, owner_word, &record.cell, new) {
                Some(before) => {
                    self.done.puts += 1;
                    h.own.get_mut(&cell).expect("seen above").value = new;
                    h.retire(before);
                }
                None => h.free(new),
            }
            return;
        }
        if self.rng.chance(50) && h.claiming.is_none() && key.len() <= 64 {
            return self.claim(actor, h, seat, key);
        }
        if h.asked.is_some() {
            return;
        }
        let Some((cell, value)) = self.filled_cell(h, seat, &key) else { return self.want_segment(actor, h) };
        let request = Request::Bind { name: key.clone(), cell };
        self.ask(actor, h, Asked::Bind { key, cell, value }, &request);
    }

    pub fn filled_cell(&mut self, h: &mut Honest, seat: &Seat, key: &str) -> Option<(CellNo, Cell)> {
        let value = self.fill(h)?;
        let Some(cell) = h.fresh_cell() else {
            h.free(value);
            return None;
        };
        let record = cell_record(&seat.catalogue, cell).expect("a cell of its own");
        record.name_bytes.put(key.len() as u64);
        let mut chunks = key.as_bytes().chunks(8);
        for word in &record.name {
            word.put(chunks.next().map_or(0, tensorlend_layout::directory::key_word));
        }
        record.describe(value, &description(value), true);
        record.cell.set(value.0);
        Some((cell, value))
    }

    /// The first step of a publication without the daemon.
    pub fn claim(&mut self, actor: usize, h: &mut Honest, seat: &Seat, key: String) {
        let hash = seat.directory.hash(key.as_bytes());
        let words: &Catalogue = seat.catalogue.at(0).expect("long enough");
        let absorbed = Absorbed(seat.directory.members[seat.number().index()].absorbed.read());
        let waiting = words.ring_head.peek().wrapping_sub(absorbed.index());
        let possible = hash != 0 && seat.welcome.writer && absorbed.state() == MemberState::Open;
        let alike = h.own.values().any(|o| o.pending.is_some() && o.key.as_deref() == Some(&key));
        if !possible || alike || waiting >= RING as u64 {
            return;
        }
        let Some((cell, value)) = self.filled_cell(h, seat, &key) else { return self.want_segment(actor, h) };
        words.claim_name(hash);
        self.note(|| format!("client {actor} claims {key:?}"));
        h.claiming = Some(Claim { hash, key, cell, value });
    }

    /// The second step, also called when the daemon expedites a claim.
    pub fn finish_claim(&mut self, actor: usize) {
        let Some(mut h) = self.actors[actor].honest.take() else { return };
        match self.actors[actor].seat.clone() {
            Some(seat) if self.actors[actor].connected || self.actors[actor].away => {
                self.conclude_claim(actor, &mut h, &seat);
            }
            _ => h.claiming = None,
        }
        self.actors[actor].honest = Some(h);
    }

    pub fn conclude_claim(&mut self, actor: usize, h: &mut Honest, seat: &Seat) {
        let Some(Claim { hash, key, cell, value }) = h.claiming.take() else { return };
        let words: &Catalogue = seat.catalogue.at(0).expect("long enough");
        if !self.is_free(seat, hash, key.as_bytes()) {
            words.unclaim();
            h.free(value);
            h.cells_free.push(cell);
            return;
        }
        let number = words.announce(hash, cell);
        words.unclaim();
        news_fence();
        self.done.puts += 1;
        self.done.announced += 1;
        self.note(|| format!("client {actor} announces {key:?} as number {number}"));
        h.own
            .insert(cell, CellInUse { key: Some(key), value, owner_word: None, pending: Some(number), deleted: false });
        if seat.directory.head().wants_nudge.read() != 0 {
            self.actors[actor].wakes = true;
        }
    }

    /// Returns true if no client has or is about to publish the name, and there is room for one more name.
    fn is_free(&self, seat: &Seat, hash: u64, key: &[u8]) -> bool {
        let d = &seat.directory;
        let words: &Catalogue = seat.catalogue.at(0).expect("long enough");
        let own = Absorbed(d.members[seat.number().index()].absorbed.read());
        let mut announced = words.ring_head.peek().wrapping_sub(own.index());
        for number in d.announcers().filter(|&n| n != seat.number()) {
            let member = &d.members[number.index()];
            let Some(other) = self.seat_of(seat, number) else { return false };
            let catalogue: &Catalogue = other.catalogue.at(0).expect("long enough");
            let claim = catalogue.claim.read();
            match Waiting::read(catalogue, &member.absorbed) {
                Ok(None) => {}
                Ok(Some(waiting)) => {
                    if claim == hash || waiting.cells(hash).next().is_some() {
                        return false;
                    }
                    announced += waiting.count() + u64::from(claim != 0);
                }
                Err(_) => return false,
            }
        }
        announced < d.head().names_room.read()
            && !matches!(d.find(hash, key), Ok(Some(f)) if f.owner_word.is_live() || f.owner_word.kind() == OwnerKind::Reserved)
    }

    /// Returns the membership of a member of this namespace, live or ended.
    pub fn seat_of(&self, seat: &Seat, number: ClientNo) -> Option<&Seat> {
        let &actor = self.members.get(&(seat.directory_file, number))?;
        self.actors[actor].seat.as_ref()
    }

    pub fn delete(&mut self, actor: usize, h: &mut Honest, seat: &Seat) {
        let key = a_name(self.rng.next());
        let own =
            h.own.iter_mut().find(|(_, o)| o.key.as_deref() == Some(&key) && o.owner_word.is_some() && !o.deleted);
        if let Some((&cell, own)) = own {
            let (entry, owner_word) = own.owner_word.expect("seen above");
            if seat.directory.names[entry.index()].owner_word.read() == owner_word {
                let record = cell_record(&seat.catalogue, cell).expect("a cell of its own");
                own.deleted = true;
                let before = Cell(record.cell.swap(Cell::DELETED.0));
                h.retire(before);
            }
        } else if h.asked.is_none() {
            self.ask(actor, h, Asked::Other, &Request::Delete { name: key });
        }
    }

    /// The first step of a lease: reads the words that lead to a value, and stores the lease.
    pub fn begin_get(&mut self, actor: usize, h: &mut Honest, seat: &Seat) {
        if h.getting.is_some() {
            return;
        }
        let Some((catalogue, value, route)) = self.look_up(seat) else { return };
        // No lease before the segment is mapped: its owner looks for the leases of those who were shown one.
        let member = self.seat_of(seat, catalogue).expect("seen above").welcome.member;
        if catalogue != seat.number() && h.shown.get(&catalogue) != Some(&member) {
            if h.asked.is_none() {
                let request = Request::SegmentOf { owner: catalogue, slot: value.slot() };
                self.ask(actor, h, Asked::SegmentOf { catalogue, member }, &request);
            }
            return;
        }
        let table: &LeaseTable = seat.leases.at(0).expect("long enough");
        let Some((entry, word)) = Shard::new(table, 0).free_entry_from(0) else { return };
        leases::store(word, value.lease(catalogue));
        h.getting = Some(Getting { entry, catalogue, value, route });
    }

    fn look_up(&mut self, seat: &Seat) -> Option<(ClientNo, Cell, Route)> {
        let d = &seat.directory;
        if self.rng.chance(15) {
            return self.look_up_message(seat);
        }
        let key = if self.rng.chance(15) {
            let list = list_key(&a_collection(self.rng.next()));
            let found = d.find(d.hash(&list), &list).ok()?.filter(|f| f.owner_word.is_live())?;
            let line = &d.lists[found.owner_word.cell().index()];
            item_key(line.id.read(), self.rng.below(line.end.read().max(1))).to_vec()
        } else {
            a_name(self.rng.next()).into_bytes()
        };
        self.find_value(seat, &key)
    }

    fn look_up_message(&mut self, seat: &Seat) -> Option<(ClientNo, Cell, Route)> {
        let d = &seat.directory;
        let key = stream_key(&a_collection(self.rng.next()));
        let found = d.find(d.hash(&key), &key).ok()?.filter(|f| f.owner_word.is_live())?;
        let number = found.owner_word.owner();
        let producer = *self.members.get(&(seat.directory_file, number))?;
        let stream = self.actors[producer].honest.as_ref()?.stream.as_ref()?;
        // The ring of this epoch of the stream: the producer has it already, or has died since.
        if (stream.entry, stream.owner_word) != (found.entry, found.owner_word.0) || stream.sent == 0 {
            return None;
        }
        let message = stream.sent - 1;
        let value = Cell(stream.words().entry(message).cell.read());
        let route = Route::Message { entry: found.entry, owner_word: found.owner_word.0, number: message };
        value.is_value().then_some((number, value, route))
    }

    /// The last step: checks whether the lease is valid, and records what it protects.
    pub fn get_on(&mut self, h: &mut Honest, seat: &Seat) {
        let Some(getting) = h.getting.take() else { return };
        let word = lease_entry(&seat.leases, getting.entry);
        leases::lease_fence();
        if !self.confirm(h, seat, word, &getting) {
            word.set(0);
            return;
        }
        match self.leased_slots(h, seat, &getting) {
            Some(slots) => {
                self.done.leases += 1;
                h.held.push(Held { entry: getting.entry, slots });
            }
            None => leases::release(word),
        }
    }

    fn confirm(&self, h: &Honest, seat: &Seat, word: &Word, getting: &Getting) -> bool {
        let names = &seat.directory.names;
        let value = getting.value.0;
        let Some(owner) = self.seat_of(seat, getting.catalogue) else { return false };
        match getting.route {
            Route::OwnerWord { entry, owner_word, cell } => {
                let Some(record) = cell_record(&owner.catalogue, cell) else { return false };
                leases::confirm(word, &[(&names[entry.index()].owner_word, owner_word), (&record.cell, value)])
            }
            Route::Announced { absorbed, cell } => {
                let Some(record) = cell_record(&owner.catalogue, cell) else { return false };
                let member = &seat.directory.members[getting.catalogue.index()];
                leases::confirm(word, &[(&member.absorbed, absorbed), (&record.cell, value)])
            }
            Route::Message { entry, owner_word, number } => {
                let producer = self.members[&(seat.directory_file, getting.catalogue)];
                // A client's own state is borrowed at this moment.
                let stream = self.actors[producer].honest.as_ref().map_or(&h.stream, |other| &other.stream);
                let Some(stream) = stream.as_ref().filter(|s| s.owner_word == owner_word) else { return false };
                let message = &stream.words().entry(number).cell;
                leases::confirm(word, &[(&names[entry.index()].owner_word, owner_word), (message, value)])
            }
        }
    }

    /// Returns the world's knowledge of a valid lease's slots. `None`: a liar's name refers to nothing.
    fn leased_slots(&self, h: &Honest, seat: &Seat, getting: &Getting) -> Option<Vec<HeldSlot>> {
        let owner = self.members[&(seat.directory_file, getting.catalogue)];
        let myself = getting.catalogue == seat.number();
        let honest = if myself { Some(h) } else { self.actors[owner].honest.as_ref() };
        let find = |slot: SlotNo| {
            let from = (seat.directory_file, getting.catalogue, SlotNo::default());
            let (&place, lent) = self.lent.range(from..=(from.0, from.1, slot)).next_back()?;
            (slot - place.2 < 1 << lent.slots_log2).then_some((place, lent.segment, slot - place.2))
        };
        let root = find(getting.value.slot());
        let Some(honest) = honest else {
            let (place, segment, at) = root?;
            return Some(vec![HeldSlot { segment, at, place, fill: None }]);
        };
        let value = getting.value;
        // Found through an outdated directory, in memory that the next daemon does not have.
        let outdated = self.actors[self.members[&(seat.directory_file, seat.number())]].away && !self.life.keeper;
        if root.is_none() && outdated {
            return None;
        }
        let (place, segment, at) = root.unwrap_or_else(|| panic!("{value:?} is found and lies in no segment"));
        let Some(&(fill, generation)) = self.memory[&segment].contents.get(&at) else {
            panic!("{value:?} is found and was never written")
        };
        assert_eq!(generation, value.generation(), "{value:?} is found, and written anew already");
        let mut slots = vec![HeldSlot { segment, at, place, fill: Some(fill) }];
        if let Some(&next) = honest.chains.get(&value.slot()) {
            let Some((place, segment, at)) = find(next) else {
                assert!(outdated, "what lies behind {value:?} is gone");
                return None;
            };
            let fill = self.memory[&segment].contents.get(&at).map(|&(fill, _)| fill);
            slots.push(HeldSlot { segment, at, place, fill });
        }
        Some(slots)
    }

    /// Frees retired slots that nobody leases.
    pub fn reclaim(&mut self, h: &mut Honest, seat: &Seat) {
        scan_fence();
        let mut found: Vec<LeaseWord> = Vec::new();
        let me = seat.number();
        for number in seat.directory.audience(me).chain([me]) {
            let member = Member(seat.directory.members[number.index()].member.read());
            if member.state() != MemberState::Open {
                continue;
            }
            // The member's daemon ended before its welcome: nobody can tell its leases.
            let other = self.seat_of(seat, number).filter(|other| other.welcome.member == member.0);
            assert!(other.is_some() || self.life.restarted, "an open member has been welcomed");
            let Some(other) = other else { return };
            let table: &LeaseTable = other.leases.at(0).expect("long enough");
            table.scan(|lease| {
                if lease.owner() == seat.number() {
                    found.push(lease);
                }
            });
        }
        let is_leased = |value: Cell| found.iter().any(|l| *l == value.lease(seat.number()));
        let (kept, free): (Vec<Cell>, Vec<Cell>) = h.retired.drain(..).partition(|&value| is_leased(value));
        reuse_fence();
        h.retired = kept;
        for value in free {
            h.free(value);
        }
    }

    pub fn give_back(&mut self, actor: usize, h: &mut Honest) {
        if h.asked.is_some() {
            return;
        }
        let empty = h.segments.iter_mut().find(|(_, seg)| !seg.returning && seg.used.iter().all(|used| !used));
        let Some((&base, seg)) = empty else { return };
        seg.returning = true;
        self.ask(actor, h, Asked::Return(base), &Request::ReturnSegment { base });
    }

    pub fn housekeeping(&mut self, actor: usize, h: &mut Honest, seat: &Seat) {
        if self.rng.chance(50) {
            self.unmap(actor, h);
        }
        self.shelve(actor, h);
        let d = &seat.directory;
        let me = &d.members[seat.number().index()];
        let absorbed = Absorbed(me.absorbed.read());
        for (&cell, own) in &mut h.own {
            if own.pending.is_some_and(|number| number < absorbed.index()) {
                own.pending = None;
                let key = own.key.as_deref().expect("it was announced by name").as_bytes();
                let found = d.find(d.hash(key), key).ok().flatten().filter(|f| f.owner_word.is_live());
                let ours = found.filter(|f| (f.owner_word.owner(), f.owner_word.cell()) == (seat.number(), cell));
                own.owner_word = ours.map(|f| (f.entry, f.owner_word.0));
            }
        }
        if h.asked.is_some() {
            return;
        }
        let notices = me.notices.read();
        if notices == h.notices_seen && !h.unsettled && !self.actors[actor].away {
            for own in h.own.values().filter(|own| own.key.is_some() && own.pending.is_none()) {
                let here = own
                    .owner_word
                    .is_some_and(|(entry, owner_word)| d.names[entry.index()].owner_word.read() == owner_word);
                assert!(here, "client {actor} lost {own:?} and was not told");
            }
        }
        if notices != h.notices_seen || h.unsettled {
            h.notices_seen = notices;
            return self.ask(actor, h, Asked::Notices, &Request::Notices);
        }
        let deleted = h.own.iter().find(|(_, own)| own.deleted);
        if let Some((&cell, own)) = deleted {
            let names = vec![(own.key.clone().expect("it was deleted by name"), cell)];
            self.ask(actor, h, Asked::Tidy { cell }, &Request::Tidy { names });
        }
    }

    pub fn send_message(&mut self, actor: usize, h: &mut Honest, seat: &Seat) {
        let Some(stream) = &h.stream else {
            if h.asked.is_none() {
                let name = a_collection(self.rng.next());
                let capacity = 1 << self.rng.below(3);
                let request = Request::StreamOpen { name, capacity, policy: Policy::DropOldest };
                self.ask(actor, h, Asked::StreamOpen, &request);
            }
            return;
        };
        if seat.directory.names[stream.entry.index()].owner_word.read() != stream.owner_word {
            self.done.streams_ended += u64::from(stream.is_closed);
            return Self::forget_stream(h);
        }
        let (stream, id) = stream.place;
        let closed = Request::StreamClosed { stream, id };
        let stream = h.stream.as_mut().expect("seen above");
        if stream.is_closed || self.rng.chance(10) {
            stream.is_closed = true;
            stream.words().head.closed.set(1);
            // If the client does not report the closing, the daemon finds out when the client ends.
            if h.asked.is_none() && self.rng.chance(60) {
                self.ask(actor, h, Asked::Other, &closed);
            }
            return;
        }
        let Some(value) = self.fill(h) else { return self.want_segment(actor, h) };
        let stream = h.stream.as_mut().expect("seen above");
        let before = stream.words().send(stream.sent, value, &[0; tensorlend_layout::stream::SUMMARY_WORDS]);
        stream.sent += 1;
        self.done.puts += 1;
        if let Some(value) = before {
            h.retire(value);
        }
    }

    pub fn append(&mut self, actor: usize, h: &mut Honest, seat: &Seat) {
        if h.asked.is_some() {
            return;
        }
        let cells: Vec<(CellNo, Cell)> = (0..=self.rng.below(2)).map_while(|_| self.filled_cell(h, seat, "")).collect();
        if cells.is_empty() {
            return self.want_segment(actor, h);
        }
        let list = a_collection(self.rng.next());
        let numbers = cells.iter().map(|&(cell, _)| cell).collect();
        let request = if self.rng.chance(50) {
            Request::ListAppend { list, cells: numbers }
        } else {
            Request::ListAppendEphemeral { list, cells: numbers }
        };
        self.ask(actor, h, Asked::Append { cells }, &request);
    }

    /// Returns true if lent device memory outlives its daemon, so that sessions with such memory survive too.
    fn lends_for_long(&self) -> bool {
        self.life.keeper && self.settings.devices.iter().any(|device| device.allocator != Allocator::Async)
    }

    fn ask_something(&mut self, actor: usize, h: &mut Honest) {
        let member = ClientNo::low(self.rng.below(9));
        let (name, to) = (a_name(self.rng.next()), a_name(self.rng.next()));
        let (collection, other) = (a_collection(self.rng.next()), a_collection(self.rng.next()));
        let request = match self.rng.below(24) {
            22 | 23 => Request::ValuesOf { names: self.any_names(actor) },
            14..19 if self.lends_for_long() => Request::DeviceSegment { uuid: DEVICE, bytes: 1, slots_log2: 2 },
            19 | 20 => Request::Unmapped { lendings: self.any_lendings() },
            // This client never maps device memory.
            21 => Request::Mapped { lendings: Vec::new(), last: true },
            0 => Request::LeasesOf { client: member },
            1 => Request::CellsOf { client: member, part: 0 },
            2 => Request::SegmentOf { owner: member, slot: SlotNo::new(self.rng.below(8) as u32) },
            3 if self.rng.chance(50) => Request::GaveUp,
            3 => Request::Stat,
            4 => Request::GrowCells,
            5 => Request::Wait,
            6 | 7 => Request::Rename { from: name, to },
            8 => Request::StreamDelete { name: collection },
            9 => Request::ListDelete { list: collection },
            10 => Request::ListRename { from: collection, to: other },
            11 | 12 => {
                let cursor = CursorNo::low(self.rng.below(2));
                if self.rng.chance(50) {
                    Request::SubscribePollable { name: collection, cursor }
                } else {
                    Request::Subscribe { name: collection, cursor, wake: false }
                }
            }
            _ => Request::Ping,
        };
        self.ask(actor, h, Asked::Other, &request);
    }
}
