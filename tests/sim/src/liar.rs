//! A client that keeps only the rules that the kernel enforces: it sends any message at any time, writes anything into
//! its sheets, keeps memory that it returned, and may leave at any moment.

use crate::sim::{DEVICE, File, Packet, SEGMENT, Sim};
use crate::steps::{a_collection, a_name, hello};
use tensorlend_layout::Uuid;
use tensorlend_layout::number::{CellNo, ClientNo, CursorNo, EntryNo, SlotNo, StreamLine};
use tensorlend_layout::wire::{Hello, LendingId, NameAt, Policy, QueueClaim, QueueItem, Request, Return, encode};
use tensorlend_layout::word::{Cell, OwnerWord, RangeWord, SLOT_NONE, Word};

impl Sim {
    pub fn liar_any(&mut self) {
        let Some(actor) = self.any_actor(|a| a.honest.is_none() && a.process) else { return };
        if self.actors[actor].away && !self.actors[actor].connected && self.rng.chance(30) {
            return self.liar_returns(actor);
        }
        if self.rng.chance(45) || !self.actors[actor].connected {
            for _ in 0..=self.rng.below(4) {
                self.scribble(actor);
            }
            self.pretend(actor);
            return;
        }
        if self.actors[actor].away && self.rng.chance(40) {
            return self.liar_returns(actor);
        }
        self.actors[actor].inbox.clear();
        if self.actors[actor].outbox.len() > 3 {
            return;
        }
        if self.rng.chance(10) {
            self.actors[actor].wakes = true;
        }
        let mut request = self.any_request();
        if !self.settings.devices.is_empty() && self.rng.chance(25) {
            request = self.any_device_request();
        }
        if let (Request::ReturnSegment { base } | Request::Shelve { base }, Some(own)) =
            (&mut request, self.own_base(actor))
        {
            *base = own.0;
        }
        // Mostly the expected message: otherwise it would not get far.
        let proper = self.rng.chance(90);
        let it = &self.actors[actor];
        let request = if !proper {
            request
        } else if !it.outbox.is_empty() || !it.read {
            return;
        } else if it.owes {
            if self.rng.chance(25) {
                return;
            }
            Request::Ack
        } else if it.seat.is_none() && matches!(request, Request::Return(_) | Request::HandBack) {
            request
        } else if it.seat.is_none() {
            let lab = self.rng.chance(50).then(|| "lab".to_owned());
            Request::Hello(Hello { namespace: lab, ..hello() })
        } else if matches!(request, Request::Ack | Request::Hello(_) | Request::Return(_) | Request::HandBack) {
            Request::Ping
        } else {
            request
        };
        self.send_lie(actor, &request);
    }

    /// Reconnects to the next daemon, or claims so.
    fn liar_returns(&mut self, actor: usize) {
        if self.life.is_gone {
            return;
        }
        if !self.actors[actor].connected {
            self.connects(actor);
        }
        let it = &self.actors[actor];
        let Some(seat) = it.seat.as_ref().filter(|_| it.connected && it.read && it.outbox.is_empty()) else { return };
        let mut back = Return {
            namespace: seat.welcome.namespace.clone(),
            client: seat.number(),
            ..self.any_return(ClientNo::new(0), SlotNo::new(0))
        };
        let seat = self.actors[actor].seat.as_ref().expect("seen above");
        back.member = seat.welcome.member;
        (back.segments, back.cells) = (self.rng.chance(30).then(Vec::new), u8::MAX);
        self.send_lie(actor, &Request::Return(back));
    }

    fn send_lie(&mut self, actor: usize, request: &Request) {
        // One process, one session: the world records one membership per process.
        if self.actors[actor].away && matches!(request, Request::Hello(_)) {
            return;
        }
        self.note(|| format!("liar {actor} sends {request:?}"));
        let mut bytes = encode(request);
        let mut descriptors = 0;
        let mut truncated = false;
        match self.rng.below(60) {
            0 => {
                let at = self.rng.index(bytes.len());
                bytes[at] ^= 1 << self.rng.below(8);
            }
            1 => bytes.truncate(self.rng.index(bytes.len())),
            2 => bytes = (0..self.rng.below(40)).map(|_| self.rng.next() as u8).collect(),
            3 => descriptors = self.rng.index(3),
            4 => truncated = true,
            _ => {}
        }
        self.actors[actor].outbox.push_back(Packet { bytes, descriptors, truncated });
    }

    fn any_request(&mut self) -> Request {
        let catalogue = ClientNo::low(self.rng.below(10));
        let cell = self.rng.pick(&[0, 1, 2, 3, 5000, u32::MAX].map(CellNo::new));
        let slot = self.rng.pick(&[0, 1, 2, 4, 8, SLOT_NONE.get(), u32::MAX].map(SlotNo::new));
        let (name, to) = (a_name(self.rng.next()), a_name(self.rng.next()));
        let (list, other) = (a_collection(self.rng.next()), a_collection(self.rng.next()));
        let (stream, id, cursor) = (self.rng.below(4) as u32, self.rng.below(6), self.rng.pick(&[0, 1, 255, 256]));
        match self.rng.below(36) {
            0 => Request::Ack,
            1 => Request::Hello(hello()),
            2..6 => {
                let bytes = self.rng.pick(&[SEGMENT, SEGMENT, 3 * SEGMENT, 1, 0, u64::MAX, 1 << 40]);
                Request::Segment { bytes, slots_log2: self.rng.pick(&[0, 1, 2, 3, 20, 21, 255]) }
            }
            6..8 if self.disk.settings.is_some() && self.disk.chance(50) => Request::Shelve { base: slot },
            6..8 => Request::ReturnSegment { base: slot },
            8 => Request::GrowCells,
            9 => Request::SegmentOf { owner: catalogue, slot },
            10 => Request::CellsOf { client: catalogue, part: self.rng.pick(&[0, 1, 49, 255]) },
            11 => Request::LeasesOf { client: catalogue },
            12..16 => Request::Bind { name, cell },
            16 => Request::Delete { name },
            17 => Request::Tidy { names: vec![(name, cell); self.rng.pick(&[0, 1, 257])] },
            18 => Request::Rename { from: name, to },
            19 => Request::Notices,
            20 => Request::Wait,
            21 => {
                let capacity = self.rng.pick(&[0, 1, 4, 1 << 16, u32::MAX]);
                Request::StreamOpen { name: list, capacity, policy: Policy::Block }
            }
            22 if self.rng.chance(50) => Request::SubscribePollable { name: list, cursor: CursorNo::new(cursor) },
            22 => Request::Subscribe { name: list, cursor: CursorNo::new(cursor), wake: self.rng.chance(50) },
            23 => Request::Unsubscribe { stream: StreamLine::new(stream), id, cursor: CursorNo::new(cursor) },
            24 => Request::WakeDescriptor {
                stream: StreamLine::new(stream),
                subscriber: catalogue,
                cursor: CursorNo::new(cursor),
            },
            25 => Request::StreamDelete { name: list },
            26 => Request::ListAppend { list, cells: vec![cell; self.rng.pick(&[0, 1, 3, 4097])] },
            27 => Request::ListDelete { list },
            28 => Request::ListRename { from: list, to: other },
            29 if self.rng.chance(50) => Request::GaveUp,
            29 => Request::Stat,
            33 => Request::StreamClosed { stream: StreamLine::new(stream), id },
            34 => Request::ListAppendEphemeral { list, cells: vec![cell; self.rng.pick(&[0, 1, 3])] },
            35 => {
                let liar = NameAt { entry: EntryNo::new(cell.get()), owner_word: self.rng.next() };
                Request::ValuesOf { names: vec![liar; self.rng.pick(&[0, 1, 3, 321])] }
            }
            30 => Request::Return(self.any_return(catalogue, slot)),
            31 => Request::HandBack,
            _ => Request::Queue(self.queues.any_request(list, cell)),
        }
    }

    fn any_device_request(&mut self) -> Request {
        match self.rng.below(6) {
            0..3 => {
                let uuid = if self.rng.chance(95) { DEVICE } else { Uuid([0; 16]) };
                let bytes = self.rng.pick(&[1, 1, 4 << 20, 5 << 20, 0, u64::MAX]);
                Request::DeviceSegment { uuid, bytes, slots_log2: self.rng.pick(&[0, 1, 2, 20, 21]) }
            }
            3 => {
                let lending = self.any_lendings()[0];
                Request::SegmentOf { owner: lending.owner, slot: lending.base }
            }
            4 => Request::Unmapped { lendings: self.any_lendings() },
            _ => Request::Mapped { lendings: self.any_lendings(), last: self.rng.chance(60) },
        }
    }

    /// Returns names of an actor's namespace, as the directory has them.
    pub fn any_names(&mut self, actor: usize) -> Vec<NameAt> {
        let Some(seat) = &self.actors[actor].seat else { return Vec::new() };
        let names = seat.directory.entries().filter(|(_, entry)| OwnerWord(entry.owner_word.read()).is_live());
        names.map(|(entry, it)| NameAt { entry, owner_word: it.owner_word.read() }).take(8).collect()
    }

    /// Returns existing lendings of any client, and some that do not exist.
    pub fn any_lendings(&mut self) -> Vec<LendingId> {
        let mut lendings =
            vec![LendingId { owner: ClientNo::new(1), base: SlotNo::new(0), since_ns: self.rng.below(3) }];
        for directory in self.directories.values() {
            for line in directory.segments.iter().filter(|line| line.place.read() != 0) {
                let range = RangeWord(line.range.read());
                let (catalogue, base) = (range.owner(), range.base());
                lendings.push(LendingId { owner: catalogue, base, since_ns: line.since_ns.read() });
            }
        }
        let from = self.rng.index(lendings.len());
        lendings.split_off(from)
    }

    /// Returns a claim of a previous session.
    fn any_return(&mut self, catalogue: ClientNo, slot: SlotNo) -> Return {
        let Hello { protocol_min, protocol_max, layout_version, layout_hash, .. } = hello();
        Return {
            protocol_min,
            protocol_max,
            layout_version,
            layout_hash,
            namespace: "lab".into(),
            client: catalogue,
            member: self.a_member(),
            segments: self.rng.chance(50).then(|| vec![slot; self.rng.pick(&[0, 1, 3, 4096])]),
            shelved: if self.disk.chance(50) { vec![slot; 3] } else { Vec::new() },
            cells: self.rng.pick(&[0, 1, 255]),
            claims: vec![QueueClaim { item: QueueItem { list: slot.into(), number: u64::MAX }, grant: 0 }; 3],
        }
    }

    /// Returns the member word of a live member, or any word.
    fn a_member(&mut self) -> u64 {
        let member = ClientNo::low(self.rng.below(10));
        let word = self
            .actors
            .iter()
            .find_map(|a| a.seat.as_ref())
            .and_then(|seat| seat.directory.members.get(member.index()));
        word.map_or_else(|| self.rng.next(), |entry| entry.member.peek())
    }

    /// Returns one of the client's segments: first slot and log2 of the slots.
    fn own_base(&mut self, actor: usize) -> Option<(SlotNo, u8)> {
        let seat = self.actors[actor].seat.as_ref()?;
        let from = (seat.directory_file, seat.number());
        let its = self.lent.range((from.0, from.1, SlotNo::default())..=(from.0, from.1, SlotNo::MAX));
        let its: Vec<(SlotNo, u8)> = its.map(|(place, lent)| (place.2, lent.slots_log2)).collect();
        (!its.is_empty() && self.members.get(&from) == Some(&actor)).then(|| self.rng.pick(&its))
    }

    /// Writes a plausible value into a cell; others find it if the cell is bound.
    fn pretend(&mut self, actor: usize) {
        let Some((base, slots_log2)) = self.own_base(actor) else { return };
        let value = Cell::new(1 + self.rng.below(3), base + self.rng.below(1 << slots_log2) as u32);
        let cell = self.rng.below(4) as u32;
        let seat = self.actors[actor].seat.as_ref().expect("it has a segment");
        if self.actors[actor].process {
            crate::client::cell_record(&seat.catalogue, CellNo::new(cell)).expect("one of the first").cell.set(value.0);
        }
    }

    /// Writes one word of one of the client's sheets.
    fn scribble(&mut self, actor: usize) {
        let its = |memory: &crate::sim::Mem| memory.view.is_some() && memory.writers.contains(&actor);
        let sheets: Vec<File> = self.memory.iter().filter(|(_, m)| its(m)).map(|(&mem, _)| mem).collect();
        if sheets.is_empty() {
            return;
        }
        let mem = self.rng.pick(&sheets);
        let view = self.memory[&mem].view.clone().expect("chosen for it");
        // Mostly at words in use: after the header, at 4096, and at the cells and leases.
        let from = self.rng.pick(&[64, 4096, 36864, 36864, 128, 192]);
        let words = if self.rng.chance(90) { 40 } else { 4000 };
        let at = from + 8 * self.rng.index(words);
        let value = self.a_lie(&view, at);
        let Some(word) = view.at::<Word>(at) else { return };
        self.note(|| format!("liar {actor} writes {value:#x} at {at} of {mem:?}"));
        word.set(value);
        self.done.lies += 1;
    }

    fn a_lie(&mut self, view: &tensorlend_layout::raw::View, at: usize) -> u64 {
        let catalogue = ClientNo::low(self.rng.below(9));
        let (generation, slot) =
            (self.rng.below(4), self.rng.pick(&[0, 1, 2, 3, 4, 8, SLOT_NONE.get()].map(SlotNo::new)));
        match self.rng.below(10) {
            0 => self.rng.next(),
            1 => self.rng.pick(&[u64::MAX, 1 << 63, u64::MAX >> 1, 4096, 4097]),
            2 => view.at::<Word>(at).map_or(0, |word| word.peek().wrapping_add(1)),
            3 => 0,
            // A lease on any client's slot, and on a whole segment.
            4 | 5 => Cell::new(generation, slot).lease(catalogue).0,
            6 => tensorlend_layout::word::LeaseWord::of_segment(catalogue, slot).0,
            7 => slot.into(),
            // The hash of a name of this namespace, for a claim or an announcement.
            8 => {
                let seat = self.actors.iter().find_map(|a| a.seat.clone());
                let name = a_name(self.rng.next());
                let hash = seat.map_or(1, |seat| seat.directory.hash(name.as_bytes()));
                if self.rng.chance(50) { hash } else { hash >> 24 << 24 | self.rng.below(4) }
            }
            _ => Cell::new(generation, slot).0,
        }
    }
}
