//! An honest client: its state, and its handling of responses. It keeps the protocol's rules, step by step, over the
//! same shared words as a real client; between two of its steps anything else may happen.

use crate::back::Back;
use crate::sim::{File, Seat, Sim};
use std::collections::BTreeMap;
use tensorlend_daemon::core::Lending;
use tensorlend_layout::announce::Waiting;
use tensorlend_layout::catalogue::{Catalogue, CellRecord, Description, FIRST_CELLS, SlotRecord};
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::number::{CellNo, ClientNo, EntryNo, SlotNo, StreamLine};
use tensorlend_layout::raw::View;
use tensorlend_layout::stream::{Ring, RingEntry, StreamRing};
use tensorlend_layout::wire::{QueueClaim, QueueReply, Refusal, Reply, Request};
use tensorlend_layout::word::{Cell, SLOT_NONE, Word};

/// A request without a response yet.
#[derive(Clone, Debug)]
pub enum Asked {
    Hello,
    Segment,
    Return(SlotNo),
    ReleaseForSpill(SlotNo),
    Bind {
        key: String,
        cell: CellNo,
        value: Cell,
    },
    Append {
        cells: Vec<(CellNo, Cell)>,
    },
    /// A segment of this member, in this life of it.
    SegmentOf {
        catalogue: ClientNo,
        member: u64,
    },
    Tidy {
        cell: CellNo,
    },
    StreamOpen,
    Notices,
    /// Items of a queue.
    Claim,
    /// As `Claim`, with the confirmations of items.
    ClaimNext(Vec<QueueClaim>),
    /// The confirmation of an item.
    Confirm(QueueClaim),
    Other,
}

/// A cell in use, and its value.
#[derive(Debug)]
pub struct CellInUse {
    pub key: Option<String>,
    pub value: Cell,
    /// The owner word that refers to it, once the client knows it.
    pub owner_word: Option<(EntryNo, u64)>,
    /// The number of the cell's announcement.
    pub pending: Option<u64>,
    pub deleted: bool,
}

/// A segment of this client.
#[derive(Debug)]
pub struct Seg {
    pub segment: File,
    pub slots_file: File,
    pub slots: View,
    pub used: Vec<bool>,
    pub generations: Vec<u64>,
    /// Whether the client has requested to return the segment.
    pub returning: bool,
    /// Whether the segment is released for spill: the client writes nothing more into it.
    pub released: bool,
}

impl Seg {
    pub fn record(&self, at: usize) -> &SlotRecord {
        let records: &[SlotRecord] = self.slots.array(4096, self.used.len()).expect("the daemon made it long enough");
        &records[at]
    }
}

/// A leased slot, as the world knows it.
#[derive(Clone, Copy, Debug)]
pub struct HeldSlot {
    pub segment: File,
    /// The slot's index in the segment.
    pub at: u32,
    pub place: (File, ClientNo, SlotNo),
    /// The slot's contents; `None`: unknown, since a liar wrote them.
    pub fill: Option<u64>,
}

/// A confirmed lease.
#[derive(Debug)]
pub struct Held {
    /// Index of the lease's entry in the lease table.
    pub entry: usize,
    pub slots: Vec<HeldSlot>,
}

/// The words by which a client found a value.
#[derive(Clone, Debug)]
pub enum Route {
    OwnerWord { entry: EntryNo, owner_word: u64, cell: CellNo },
    Announced { absorbed: u64, cell: CellNo },
    Message { entry: EntryNo, owner_word: u64, number: u64 },
}

/// A lease that is stored but not confirmed yet.
#[derive(Clone, Debug)]
pub struct Getting {
    pub entry: usize,
    pub catalogue: ClientNo,
    pub value: Cell,
    pub route: Route,
}

/// A name that is claimed but not announced yet.
#[derive(Debug)]
pub struct Claim {
    pub hash: u64,
    pub key: String,
    pub cell: CellNo,
    pub value: Cell,
}

/// A stream of which this client is the producer.
#[derive(Debug)]
pub struct OwnStream {
    pub ring: View,
    /// The stream's index in the directory, and its id.
    pub place: (StreamLine, u64),
    pub capacity: usize,
    pub entry: EntryNo,
    pub owner_word: u64,
    pub sent: u64,
    /// Whether the client has closed the stream, and waits for the stream's end to get the messages' slots back.
    pub is_closed: bool,
}

impl OwnStream {
    pub fn words(&self) -> Ring<'_> {
        let entries: &[RingEntry] = self.ring.array(size_of::<StreamRing>(), self.capacity).expect("long enough");
        Ring { head: self.ring.at(0).expect("long enough"), entries }
    }
}

/// An honest client's private state.
#[derive(Debug, Default)]
pub struct Honest {
    pub asked: Option<Asked>,
    pub hello_sent: bool,
    pub cells_next: CellNo,
    pub cells_free: Vec<CellNo>,
    pub own: BTreeMap<CellNo, CellInUse>,
    pub segments: BTreeMap<SlotNo, Seg>,
    /// Slots that are chained to a value's slot.
    pub chains: BTreeMap<SlotNo, SlotNo>,
    pub retired: Vec<Cell>,
    /// The members of which it has a segment mapped, and in which life.
    pub shown: BTreeMap<ClientNo, u64>,
    pub held: Vec<Held>,
    pub getting: Option<Getting>,
    pub claiming: Option<Claim>,
    pub stream: Option<OwnStream>,
    /// The claims on items of queues that it has received and not ended.
    pub claims: Vec<QueueClaim>,
    pub notices_seen: u64,
    /// Memory that the client returned but still has mapped.
    pub unmaps: Vec<File>,
    /// The pending request, to be repeated if the daemon ends before its response.
    pub question: Option<Request>,
    /// Whether the client has ended the wait of the pending request.
    pub stopped: bool,
    /// Further parts of the client's cells.
    pub parts: Vec<File>,
    /// The client's progress in reconnecting.
    pub back: Back,
    /// Whether the client must still compare its cells with the owner words: reports of the previous daemon may be lost.
    pub unsettled: bool,
}

impl Honest {
    /// Returns the segment of a slot, and the slot's index in it.
    pub fn place(&mut self, slot: SlotNo) -> Option<(&mut Seg, usize)> {
        let (&base, seg) = self.segments.range_mut(..=slot).next_back()?;
        let at = (slot - base) as usize;
        (at < seg.used.len()).then_some((seg, at))
    }

    /// Frees a slot that nobody leases, or that nobody has seen.
    pub fn free(&mut self, value: Cell) {
        for slot in [Some(value.slot()), self.chains.remove(&value.slot())].into_iter().flatten() {
            let (seg, at) = self.place(slot).expect("a value lies in a segment of its owner");
            assert!(std::mem::replace(&mut seg.used[at], false), "it is freed once");
        }
    }

    /// Retires a replaced value, to be freed when nobody leases it.
    pub fn retire(&mut self, value: Cell) {
        if value.is_value() {
            self.retired.push(value);
        }
    }

    pub fn leases_in(&self, segment: File) -> bool {
        self.held.iter().flat_map(|lease| &lease.slots).any(|slot| slot.segment == segment)
    }

    pub fn fresh_cell(&mut self) -> Option<CellNo> {
        self.cells_free.pop().or_else(|| {
            let cell = self.cells_next;
            self.cells_next = cell + 1;
            (cell.index() < FIRST_CELLS).then_some(cell)
        })
    }
}

/// Returns a cell's record in a catalogue's first part.
pub fn cell_record(catalogue: &View, cell: CellNo) -> Option<&CellRecord> {
    let catalogue: &Catalogue = catalogue.at(0).expect("the daemon made it long enough");
    catalogue.cells.get(cell.index())
}

/// Returns the words with which the clients of the simulation describe a value beside its cell.
pub fn description(value: Cell) -> Description {
    [value.0, !value.0, value.0 << 1, 0, u64::MAX]
}

/// Reads a cell like a client that leases its value. Fails if the record describes the value wrongly.
fn value_of(record: &CellRecord) -> Cell {
    let value = Cell(record.cell.read());
    let described = value.is_value().then(|| record.description(value)).flatten();
    assert!(
        described.is_none_or(|words| words == description(value)),
        "a false description of {value:?}: {described:?}"
    );
    value
}

/// Returns an entry of a lease table's first shard.
pub fn lease_entry(leases: &View, entry: usize) -> &Word {
    let table: &LeaseTable = leases.at(0).expect("the daemon made it long enough");
    &table.entries[0][entry]
}

impl Sim {
    /// An honest client handles a response.
    pub fn honest_hears(&mut self, actor: usize) {
        let Some(mut h) = self.actors[actor].honest.take() else {
            self.actors[actor].inbox.clear();
            return;
        };
        if self.actors[actor].away {
            self.comes_back(actor, &mut h);
            self.actors[actor].honest = Some(h);
            return;
        }
        if let Some((reply, lend)) = self.actors[actor].inbox.pop_front() {
            self.note(|| format!("client {actor} hears {reply:?}"));
            self.heard(actor, &mut h, reply, &lend);
            if !lend.is_empty() {
                self.tell(actor, &Request::Ack);
            }
        }
        self.actors[actor].honest = Some(h);
    }

    pub fn heard(&mut self, actor: usize, h: &mut Honest, reply: Reply, lend: &[(File, Lending)]) {
        let asked = h.asked.take().expect("an answer to a question");
        match (asked, reply) {
            (Asked::Segment, Reply::Segment { base, slots_log2, .. }) => {
                let count = 1 << slots_log2;
                let slots = self.memory[&lend[1].0].view.clone().expect("slots are a sheet");
                let (used, generations) = (vec![false; count], vec![0; count]);
                let (segment, slots_file) = (lend[0].0, lend[1].0);
                h.segments.insert(
                    base,
                    Seg { segment, slots_file, slots, used, generations, returning: false, released: false },
                );
            }
            // Not found: the segment was returned already, by a repeated request or by a daemon that knew the list of
            // segments.
            (Asked::Return(base), Reply::Done | Reply::Refused(Refusal::NotFound(_))) => {
                let seg = h.segments.remove(&base).expect("it was given back once");
                h.unmaps.extend([seg.segment, seg.slots_file]);
                if self.rng.chance(70) {
                    self.unmap(actor, h);
                }
            }
            (Asked::Return(base), _) => h.segments.get_mut(&base).expect("it is kept").returning = false,
            (Asked::ReleaseForSpill(base), Reply::Done) => {
                self.done.released += 1;
                h.unmaps.push(h.segments[&base].segment);
                if self.disk.chance(70) {
                    self.unmap(actor, h);
                }
            }
            (Asked::ReleaseForSpill(base), _) => h.segments.get_mut(&base).expect("it is kept").released = false,
            (Asked::Bind { key, cell, value }, Reply::Bound { entry, owner_word }) => {
                self.done.puts += 1;
                let own = CellInUse {
                    key: Some(key),
                    value,
                    owner_word: Some((entry, owner_word)),
                    pending: None,
                    deleted: false,
                };
                h.own.insert(cell, own);
            }
            (Asked::Bind { cell, value, .. }, _) => {
                h.free(value);
                h.cells_free.push(cell);
            }
            (Asked::Append { cells }, Reply::Appended { .. }) => {
                self.done.puts += cells.len() as u64;
                for (cell, value) in cells {
                    h.own.insert(cell, CellInUse { key: None, value, owner_word: None, pending: None, deleted: false });
                }
            }
            (Asked::SegmentOf { catalogue, member }, Reply::Segment { .. } | Reply::DeviceSegment(_)) => {
                h.shown.insert(catalogue, member);
            }
            (Asked::Claim | Asked::ClaimNext(_), Reply::Queue(QueueReply::Claimed(claims))) => h.claims.extend(claims),
            (Asked::Append { cells }, _) => {
                for (cell, value) in cells {
                    h.free(value);
                    h.cells_free.push(cell);
                }
            }
            (Asked::Tidy { cell }, Reply::Done) if h.own.remove(&cell).is_some() => h.cells_free.push(cell),
            (Asked::StreamOpen, Reply::Stream { stream, id, entry, owner_word, capacity, .. }) => {
                Self::forget_stream(h);
                let ring = self.memory[&lend[0].0].view.clone().expect("a ring is a sheet");
                let place = (stream, id);
                let (capacity, sent, is_closed) = (capacity as usize, 0, false);
                h.stream = Some(OwnStream { ring, place, capacity, entry, owner_word, sent, is_closed });
            }
            (Asked::Notices, Reply::Notices { cells, .. }) => {
                self.disowned(actor, h, &cells);
                self.settle_cells(actor, h);
            }
            (Asked::Other, Reply::Cells { part, .. }) if lend[0].1 == Lending::Write => {
                assert_eq!(usize::from(part), h.parts.len() + 1, "parts of cells come in order");
                h.parts.push(lend[0].0);
            }
            _ => {}
        }
    }

    /// Returns the value of a key as a client finds it: its owner, its cell, and the words that lead to it.
    pub fn find_value(&self, seat: &Seat, key: &[u8]) -> Option<(ClientNo, Cell, Route)> {
        let d = &seat.directory;
        let hash = d.hash(key);
        if let Some(found) = d.find(hash, key).ok()?.filter(|f| f.owner_word.is_live()) {
            let (number, cell) = (found.owner_word.owner(), found.owner_word.cell());
            let owner = self.seat_of(seat, number)?;
            let value = value_of(cell_record(&owner.catalogue, cell)?);
            let route = Route::OwnerWord { entry: found.entry, owner_word: found.owner_word.0, cell };
            return value.is_value().then_some((number, value, route));
        }
        for number in d.announcers() {
            let Some(other) = self.seat_of(seat, number) else { continue };
            let words: &Catalogue = other.catalogue.at(0).expect("long enough");
            let Ok(Some(waiting)) = Waiting::read(words, &d.members[number.index()].absorbed) else { continue };
            for cell in waiting.cells(hash) {
                let Some(record) = cell_record(&other.catalogue, cell) else { continue };
                let name: Vec<u8> = record.name.iter().flat_map(|w| w.peek().to_le_bytes()).collect();
                let value = value_of(record);
                if name.get(..record.name_bytes.peek() as usize) == Some(key) && value.is_value() {
                    return Some((number, value, Route::Announced { absorbed: waiting.absorbed.0, cell }));
                }
            }
        }
        None
    }

    /// The daemon took these cells over: their names no longer refer to the values.
    pub fn disowned(&self, actor: usize, h: &mut Honest, cells: &[CellNo]) {
        let seat = self.actors[actor].seat.clone().expect("it has joined");
        for &cell in cells {
            if h.own.remove(&cell).is_some() {
                let before = cell_record(&seat.catalogue, cell).expect("a cell of its own").cell.swap(Cell::EMPTY.0);
                h.retire(Cell(before));
                h.cells_free.push(cell);
            }
        }
    }

    /// The client forgets its stream, which has another producer now, or none.
    pub fn forget_stream(h: &mut Honest) {
        if let Some(stream) = h.stream.take() {
            let values: Vec<Cell> = stream.words().entries.iter().map(|e| Cell(e.cell.peek())).collect();
            for value in values {
                h.retire(value);
            }
        }
    }

    /// Unmaps a segment that the client has returned.
    pub fn unmap(&mut self, actor: usize, h: &mut Honest) {
        for file in h.unmaps.drain(..) {
            if let Some(memory) = self.memory.get_mut(&file) {
                memory.writers.remove(&actor);
            }
        }
    }

    /// Writes a value into a free slot, sometimes with a chained slot. `None`: no slot is free.
    pub fn fill(&mut self, h: &mut Honest) -> Option<Cell> {
        let value = self.fill_one(h, SLOT_NONE)?;
        if !self.rng.chance(20) {
            return Some(value);
        }
        let Some(root) = self.fill_one(h, value.slot()) else { return Some(value) };
        h.chains.insert(root.slot(), value.slot());
        Some(root)
    }

    fn fill_one(&mut self, h: &mut Honest, next: SlotNo) -> Option<Cell> {
        let mut free = h.segments.iter_mut().filter(|(_, seg)| !seg.returning && !seg.released);
        let (&base, seg, at) = free.find_map(|(b, s)| s.used.iter().position(|u| !u).map(|at| (b, s, at)))?;
        self.fills += 1;
        seg.used[at] = true;
        seg.generations[at] = tensorlend_layout::word::next_generation(seg.generations[at]);
        let generation = seg.generations[at];
        let record = seg.record(at);
        record.words[2].set(next.into());
        record.words[0].set(generation << 24);
        let memory = self.memory.get_mut(&seg.segment).expect("a lent segment is there");
        memory.contents.insert(at as u32, (self.fills, generation));
        Some(Cell::new(generation, base + at as u32))
    }
}
