//! Invariants that hold after every step.

use crate::sim::{File, Kind, Order, PID_FIRST, SEGMENT, Sim};
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_daemon::core::settings::RESERVED_SESSIONS;
use tensorlend_layout::catalogue::{CELL_PARTS, cells_count, cells_first};
use tensorlend_layout::directory::{Directory, NameEntry};
use tensorlend_layout::name::{KeyKind, is_item_of};
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::word::{Absorbed, Member, MemberState, OwnerKind, OwnerWord, ProcessWord, RangeWord};

/// Time that a daemon waits for clients that still read the previous directory.
const GATHERING_NS: u64 = 5_000_000_000;
/// The parts of the core are checked once in this many steps.
const PARTS_EVERY: u32 = 4;
/// The names are checked once in this many steps.
const NAMES_EVERY: u32 = 16;

/// Returns whether an entry is an item of a deleted list, or of an append that a killed daemon did not finish.
pub fn is_item_of_no_list(directory: &Directory, entry: &NameEntry) -> bool {
    KeyKind::of(entry) == KeyKind::Item && !directory.lists.iter().any(|list| is_item_of(entry, list.id.read()))
}

impl Sim {
    /// Compares the core's visible state with the world's.
    pub fn check(&mut self) {
        if self.life.is_gone {
            return self.check_leases();
        }
        self.done.sliced += u64::from(self.core.chores_left() > 0);
        let directories = self.directories.clone();
        // If nobody preserved a namespace's directory, its clients continue without the daemon.
        let gone: Vec<_> = self.lent.keys().filter(|(d, ..)| !self.memory.contains_key(d)).copied().collect();
        for place in gone {
            self.taken(place);
        }
        for (&file, directory) in &directories {
            self.check_members(file, directory);
            self.check_segments(file, directory);
            if self.step.is_multiple_of(NAMES_EVERY) {
                self.check_names(file, directory);
            }
        }
        if self.step.is_multiple_of(NAMES_EVERY / 4) {
            self.check_outdated();
        }
        self.check_leases();
        self.check_bytes();
        if self.step.is_multiple_of(PARTS_EVERY) {
            self.core.check();
        }
    }

    fn check_members(&self, file: File, directory: &Directory) {
        let (mut connected, mut away) = (BTreeMap::new(), BTreeMap::new());
        // Members that have acknowledged their sheets: their leases count.
        let mut acknowledged = BTreeSet::new();
        for (at, actor) in self.actors.iter().enumerate() {
            let Some(seat) = actor.seat.as_ref().filter(|seat| seat.directory_file == file) else { continue };
            if actor.connected && !actor.away || self.is_expected(at) {
                assert!(connected.insert(seat.number(), seat.welcome.member).is_none(), "one client a number");
                acknowledged.extend(self.memory[&seat.catalogue_file].sealed.then_some(seat.number()));
            } else if self.life.away.contains_key(&at) {
                away.insert(seat.number(), seat.welcome.member);
            }
        }
        let mut open = 0;
        let present: BTreeSet<ClientNo> = directory.present().collect();
        let announcers: BTreeSet<ClientNo> = directory.announcers().collect();
        for (number, entry) in directory.numbered_members().skip(1) {
            let member = Member(entry.member.read());
            // A member that has ended, and that may have device memory mapped, or that says that it has children: its leases
            // count until its process exits, and until no process can write its lease table.
            let departing = Absorbed(entry.absorbed.read()).state() == MemberState::Closed;
            let drains = !self.settings.devices.is_empty() || self.is_liar(ProcessWord(entry.process.peek()).pid());
            if departing && member.state() == MemberState::Open && drains {
                continue;
            }
            let may_announce = Absorbed(entry.absorbed.read()).state() == MemberState::Open;
            assert!(
                member.state() != MemberState::Open || may_announce == announcers.contains(&number),
                "announcers: member {number}"
            );
            let is_present = present.contains(&number);
            assert!(member.state() != MemberState::Vacant || !is_present, "present: member {number}");
            if member.state() != MemberState::Vacant {
                assert!(is_present || !acknowledged.contains(&number), "present: member {number} has acknowledged");
            }
            match connected.get(&number) {
                Some(&told) => assert_eq!(member.0, told, "member {number} is there, or may come back"),
                None if away.get(&number) == Some(&member.0) => {}
                None => assert_ne!(member.state(), MemberState::Open, "member {number} is gone"),
            }
            open += u64::from(member.state() == MemberState::Open);
        }
        assert_eq!(directory.head().clients.read(), open, "clients counted");
    }

    pub fn check_segments(&mut self, mem: File, directory: &Directory) {
        let mut lines = BTreeSet::new();
        let mut bytes = 0;
        for line in directory.segments.iter() {
            let range = RangeWord(line.range.read());
            if !range.is_lent() {
                continue;
            }
            if line.place.read() != 0 {
                // Only liars have segments on the device; honest clients do not access them.
                assert!(!self.settings.devices.is_empty(), "a place on a device that is not there");
                continue;
            }
            let place = (mem, range.owner(), range.base());
            assert!(lines.insert(place), "{place:?} stands twice");
            let Some(lent) = self.lent.get(&place) else {
                panic!("{place:?} stands in the directory and was never lent");
            };
            assert_eq!(range.slots(), 1 << lent.slots_log2);
            // A spilled segment counts as lent, but not as memory.
            let in_file = self.memory.get(&lent.segment).is_some_and(|it| it.kind == Kind::File);
            bytes += if in_file { 0 } else { line.bytes.read() };
            let there = self.is_held(lent.segment) && self.is_held(lent.slots);
            assert!(
                there || self.may_have_lied(place),
                "{place:?} is lent, and its memory is gone: {lent:?}, {:?}",
                self.names
            );
        }
        assert_eq!(directory.head().bytes_lent.read(), bytes, "bytes lent");
        let gone: Vec<_> = self.lent.keys().filter(|p| p.0 == mem && !lines.contains(p)).copied().collect();
        for place in gone {
            self.taken(place);
        }
        let mut end = (ClientNo::default(), SlotNo::default());
        for (mem, number, base) in lines {
            assert!(end.0 != number || end.1 <= base, "ranges of member {number} overlap");
            end = (number, base + (1 << self.lent[&(mem, number, base)].slots_log2));
        }
    }

    /// The directory no longer lists a segment.
    pub fn taken(&mut self, place: (File, ClientNo, SlotNo)) {
        let lent = self.lent.remove(&place).expect("the caller found it");
        self.done.segments_freed += 1;
        // If nobody preserved the segment, its readers keep the old memory.
        if !self.is_held(lent.segment) {
            return;
        }
        for (at, actor) in self.actors.iter().enumerate() {
            for lease in actor.honest.iter().flat_map(|h| &h.held) {
                let in_it = lease.slots.iter().any(|slot| slot.segment == lent.segment && slot.place == place);
                assert!(!in_it, "{place:?} is taken while client {at} leases {:?} of it", lease.slots);
            }
        }
    }

    /// Returns whether the client of this process writes anything into its memory, and so may say that it has forked.
    fn is_liar(&self, pid: u32) -> bool {
        let actor = pid.checked_sub(PID_FIRST).and_then(|at| self.actors.get(at as usize));
        actor.is_some_and(|actor| actor.honest.is_none())
    }

    /// Checks that every honest lease still covers the value that was leased.
    fn check_leases(&self) {
        for (at, actor) in self.actors.iter().enumerate() {
            for slot in actor.honest.iter().flat_map(|h| &h.held).flat_map(|lease| &lease.slots) {
                let Some(fill) = slot.fill else { continue };
                let memory = &self.memory[&slot.segment];
                let found = memory.contents.get(&slot.at).map(|&(fill, _)| fill);
                assert_eq!(found, Some(fill), "client {at} leases {slot:?}, and it was written anew");
            }
        }
    }

    fn check_names(&self, mem: File, directory: &Directory) {
        let mut live = 0;
        for (number, entry) in directory.entries() {
            let owner_word = OwnerWord(entry.owner_word.read());
            match owner_word.kind() {
                OwnerKind::Tomb => continue,
                OwnerKind::Reserved | OwnerKind::Live => live += 1,
            }
            let key = directory.key(entry).unwrap_or_else(|| panic!("entry {number} has an owner word and no key"));
            let found = directory.find(directory.hash(&key), &key);
            assert!(
                matches!(found, Ok(Some(f)) if f.entry == number),
                "{key:?} stands in entry {number}, and a search finds {found:?}"
            );
            let orphaned = is_item_of_no_list(directory, entry);
            assert!(!orphaned || self.core.chores_left() > 0, "entry {number} is an item of no list");
            if owner_word.is_live() && owner_word.owner() != ClientNo::new(0) {
                assert!(
                    directory.present().any(|n| n == owner_word.owner()),
                    "{key:?} leads to member {}, of whom nothing is left",
                    owner_word.owner()
                );
                assert!(owner_word.cell().index() < cells_first(CELL_PARTS - 1) + cells_count(CELL_PARTS - 1));
            }
        }
        assert_eq!(directory.head().names_live.read(), live, "names counted in {mem:?}");
        let names_max = self.settings.private.names_max;
        assert!(live <= u64::from(names_max), "{live} names where {names_max} may be");
    }

    /// A client that still reads the previous daemon's directory is not misled: no name moves before all clients have
    /// reconnected.
    fn check_outdated(&self) {
        if !self.is_user_mode() || self.now_ns >= self.life.began_ns + GATHERING_NS {
            return;
        }
        for (at, actor) in self.actors.iter().enumerate().filter(|&(at, _)| self.is_expected(at)) {
            let seat = actor.seat.as_ref().expect("it had joined");
            let Some(now) = self.directories.get(&seat.directory_file) else { continue };
            for (entry, line) in seat.directory.entries() {
                let owner_word = OwnerWord(line.owner_word.read());
                let moved = OwnerWord(now.names[entry.index()].owner_word.read());
                // Names of ended clients may end, and their cells show that too.
                let owner = Member(now.members[owner_word.owner().index()].member.read());
                // A stream whose ring its daemon did not live to keep is nobody's.
                let plain = KeyKind::of(line).leads_to_cell();
                // The daemon ends the items of a deleted list in slices, and the next daemon ends the rest.
                let stays = plain
                    && !is_item_of_no_list(now, line)
                    && owner_word.is_live()
                    && owner.state() == MemberState::Open;
                assert!(!stays || moved == owner_word, "client {at} reads {owner_word:?} still, and it is {moved:?}");
            }
        }
    }

    /// Checks that all existing bytes, and no others, are counted.
    fn check_bytes(&mut self) {
        let stat = self.core.stat();
        let mut segments = 0;
        let mut sheets = 0;
        let mut wakes = 0;
        let mut on_device = 0;
        let mut in_files = 0;
        for file in self.names.values() {
            let memory = &self.memory[file];
            match memory.kind {
                Kind::Wake => wakes += 1,
                Kind::Device => on_device += memory.bytes,
                Kind::File => in_files += memory.bytes,
                Kind::Segment => segments += memory.bytes,
                Kind::Sheet(_) => sheets += memory.bytes,
            }
        }
        for order in &self.orders {
            if let Order::Create { bytes, sheet, .. } = order {
                *if sheet.is_some() { &mut sheets } else { &mut segments } += bytes;
            }
            if let Order::Recall { bytes, .. } = order {
                segments += bytes;
            }
            if let Order::CreateOnDevice { bytes, .. } = order {
                on_device += bytes;
            }
        }
        assert_eq!(stat.pool_bytes, segments, "bytes of segments");
        assert_eq!(stat.bytes_sheets, sheets, "bytes of sheets");
        assert_eq!(stat.bytes_spilled, in_files, "bytes of files");
        let files_max = self.settings.spill.as_ref().map_or(0, |spill| spill.bytes_max);
        assert!(in_files <= files_max, "{in_files} bytes in files, of {files_max}");
        let counted: u64 = stat.devices.iter().map(|device| device.bytes).sum();
        assert_eq!(counted, on_device, "bytes of devices");
        assert!(stat.devices.iter().all(|device| device.bytes <= device.bytes_max), "{stat:?}: limits of devices hold");
        assert!(self.is_within_limits(&stat), "{stat:?}: limits hold");
        assert!(stat.bytes_spare <= u64::from(self.settings.spare_segments) * SEGMENT);
        for uid in 1..4 {
            let connected = self.actors.iter().filter(|a| a.connected && a.uid == uid).count();
            let reserve = if self.settings.is_administrator(uid) { RESERVED_SESSIONS } else { 0 };
            let most = (2 * self.settings.uid_sessions_max + reserve) as usize;
            assert!(connected <= most, "{connected} connections of uid {uid}");
        }
        // One wake descriptor per subscription, and a client has few subscriptions here.
        assert!(wakes <= 64 * self.actors.len(), "{wakes} wake pairs");
    }
}
