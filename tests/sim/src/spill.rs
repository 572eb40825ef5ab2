//! Spilling segments to files: the disk may be full, readers may have mapped a segment to be written, and the bytes
//! must be the same in both directions.

use crate::Flaw;
use crate::client::{Asked, HeldSlot, Honest, Seg};
use crate::rng::Rng;
use crate::sim::{File, Kind, Mem, SEGMENT, Seat, Sim};
use std::collections::BTreeMap;
use tensorlend_daemon::core::settings::{SpillMarks, SpillSettings};
use tensorlend_daemon::core::{Event, MemId};
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::wire::Request;

/// Percentage of worlds with a disk.
const WORLDS: u64 = 40;

/// A world's disk. It has its own random numbers, so worlds without a disk are unaffected.
pub struct Disk {
    rng: Rng,
    pub settings: Option<SpillSettings>,
    /// Percentage of file operations that fail.
    pub fails: u64,
    /// The source of each copy: of a file the memory, of memory the file.
    copies: BTreeMap<File, File>,
}

impl Disk {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(!seed.rotate_left(32));
        let there = rng.chance(WORLDS);
        let marks = rng.chance(50).then(|| {
            let high_percent = 20 + rng.below(79) as u8;
            SpillMarks { high_percent, low_percent: high_percent - 1 - rng.below(19) as u8 }
        });
        let settings = SpillSettings {
            directory: "/nowhere".into(),
            bytes_max: (1 + rng.below(9)) * SEGMENT,
            uid_bytes_max: if rng.chance(30) { 2 * SEGMENT } else { u64::MAX },
            marks,
        };
        let fails = if rng.chance(30) { 20 } else { 0 };
        Self { rng, settings: there.then_some(settings), fails, copies: BTreeMap::new() }
    }

    /// Returns true with this probability in percent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.rng.chance(percent)
    }
}

impl Sim {
    /// The daemon orders the spill of a segment: no honest client may still write to it. By the time that the segment is written,
    /// the daemon may have freed it and lent it again; then it drops the file.
    pub fn check_order_of_spill(&self, source: File) {
        for &writer in self.memory.get(&source).iter().flat_map(|memory| &memory.writers) {
            let its = self.actors[writer].honest.iter().flat_map(|h| h.segments.values());
            let writes = its.filter(|seg| seg.segment == source).any(|seg| !seg.released && !seg.returning);
            assert!(!writes, "{source:?} is to be spilled, and client {writer} has not let go of it");
        }
    }

    /// Writes a segment to a file, if no process holds it.
    pub fn spill(&mut self, source: File, file: MemId, bytes: u64, fails: bool) -> Event {
        // The kernel reports writers: a live owner may not have unmapped it yet, or have lied.
        let writers = self.memory.get(&source).map(|memory| memory.writers.clone()).unwrap_or_default();
        if fails || self.disk.rng.chance(self.disk.fails) {
            return Event::Spilled { file, written: Err("no space".to_owned().into()) };
        }
        if !writers.is_empty() {
            return Event::Spilled { file, written: Err(String::new().into()) };
        }
        // A leaseholder may have mapped the segment, or be about to; a client without leases may still have it mapped.
        let leased = self.actors.iter().flat_map(|actor| &actor.honest).any(|h| h.leases_in(source));
        if self.disk.rng.chance(if leased { 50 } else { 10 }) {
            return Event::Spilled { file, written: Err(String::new().into()) };
        }
        let copy = self.copy(source, Kind::File, bytes);
        self.call(file, copy);
        Event::Spilled { file, written: Ok(()) }
    }

    /// Creates memory with the contents of a file.
    pub fn recall(&mut self, mem: MemId, source: File, bytes: u64, fails: bool) -> Event {
        if fails || self.disk.rng.chance(self.disk.fails) {
            return Event::Created { mem, made: Err("it cannot be read".into()) };
        }
        let copy = self.copy(source, Kind::Segment, bytes);
        let sealed = self.is_user_mode();
        let memory = self.memory.get_mut(&copy).expect("it was made");
        memory.sealed = sealed;
        if self.plan.flaw == Some(Flaw::ReadsOtherBytes) {
            memory.contents.clear();
        }
        self.call(mem, copy);
        Event::Created { mem, made: Ok(None) }
    }

    fn copy(&mut self, source: File, kind: Kind, bytes: u64) -> File {
        let mut copy = Mem::new(kind, bytes, None);
        // A segment that was freed in the meantime is still written to the end.
        if let Some(memory) = self.memory.get(&source) {
            assert!(memory.writers.is_empty(), "{source:?} is copied while {:?} can write it", memory.writers);
            copy.contents = memory.contents.clone();
            (copy.lent_in, copy.lent_to) = (memory.lent_in, memory.lent_to);
        }
        let copy = self.file(copy);
        self.disk.copies.insert(copy, source);
        copy
    }

    /// The daemon stores this file, which may be a copy of earlier memory: from now on the bytes are here.
    pub fn kept_instead(&mut self, file: File) {
        // The source may no longer exist: memory that was read back is stored again when it is lent again.
        let source = self.disk.copies.get(&file).copied().filter(|source| self.memory.contains_key(source));
        if let Some(source) = source {
            match self.memory[&file].kind {
                Kind::File => self.done.spilled += 1,
                _ => self.done.recalled += 1,
            }
            self.moved(source, file);
        }
    }

    fn moved(&mut self, from: File, to: File) {
        let same = self.memory[&from].contents == self.memory[&to].contents;
        assert!(same, "{to:?} has other bytes than {from:?}, of which it is a copy");
        for lent in self.lent.values_mut().filter(|lent| lent.segment == from) {
            lent.segment = to;
        }
        let held = self.actors.iter_mut().filter_map(|actor| actor.honest.as_mut()).flat_map(|h| &mut h.held);
        for slot in held.flat_map(|lease| &mut lease.slots).filter(|slot| slot.segment == from) {
            slot.segment = to;
        }
    }

    pub fn drop_file(&mut self, file: MemId) {
        self.forget(file);
        let file = self.call_no_more(file).unwrap_or_else(|| panic!("{file:?} is dropped twice, or was never written"));
        assert_eq!(self.memory[&file].kind, Kind::File);
        // A killed daemon may have left the memory in the store: it still exists, and counts.
        let source = self.disk.copies[&file];
        if self.is_held(source) {
            self.moved(file, source);
        }
        self.assert_unleased(file, "dropped");
        // Memory that was read back from the file now belongs to its next owner, who overwrites it.
        self.disk.copies.retain(|_, from| *from != file);
        if self.life.keeper && !self.has_flaw(Flaw::ForgetsNothing) {
            self.memory.remove(&file);
        }
    }

    /// Releases a segment in use for spill: the client writes nothing more into it, and reuses none of its freed slots.
    pub fn shelve(&mut self, actor: usize, h: &mut Honest) {
        if self.disk.settings.is_none() || h.asked.is_some() || !self.life.keeper || !self.disk.rng.chance(15) {
            return;
        }
        let is_used = |seg: &Seg| !seg.returning && !seg.released && seg.used.iter().any(|&used| used);
        let Some((&base, seg)) = h.segments.iter_mut().find(|(_, seg)| is_used(seg)) else { return };
        seg.released = true;
        self.ask(actor, h, Asked::ReleaseForSpill(base), &Request::ReleaseForSpill { base });
    }

    /// Returns a slot in a file that this client should request: mostly one that it leases and must have in memory to
    /// read.
    pub fn wants_of_file(&mut self, h: &Honest, seat: &Seat) -> Option<(ClientNo, SlotNo)> {
        self.disk.settings.as_ref()?;
        let here = |slot: &&HeldSlot| slot.place.0 == seat.directory_file && self.is_in_file(slot.segment);
        let leased = h.held.iter().flat_map(|lease| &lease.slots).find(here);
        let leased = leased.map(|slot| (slot.place.1, slot.place.2 + slot.at));
        let wanted = leased.or_else(|| self.in_files(seat).first().copied())?;
        self.disk.rng.chance(60).then_some(wanted)
    }

    fn is_in_file(&self, segment: File) -> bool {
        self.memory.get(&segment).is_some_and(|it| it.kind == Kind::File)
    }

    /// Returns the owners and first slots of this namespace's spilled segments.
    pub fn in_files(&self, seat: &Seat) -> Vec<(ClientNo, SlotNo)> {
        let lent =
            self.lent.iter().filter(|(place, lent)| place.0 == seat.directory_file && self.is_in_file(lent.segment));
        lent.map(|(place, _)| (place.1, place.2)).collect()
    }
}
