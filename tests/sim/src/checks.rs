//! What must hold after every step.

use crate::sim::{Order, SEGMENT, Sim};
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_daemon::core::MemId;
use tensorlend_layout::catalogue::{CELL_PARTS, cells_count, cells_first};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::word::{HomeKind, Member, MemberState, RangeWord};

/// The names are walked over every so many steps.
const NAMES_EVERY: u32 = 16;

impl Sim {
    /// Compares what the core shows with what the world knows.
    pub fn check(&mut self) {
        let directories: BTreeMap<MemId, Directory> = self
            .actors
            .iter()
            .filter_map(|a| a.seat.as_ref())
            .filter(|seat| self.memory.contains_key(&seat.directory_mem))
            .map(|seat| (seat.directory_mem, seat.directory.clone()))
            .collect();
        let gone: Vec<_> = self.lent.keys().filter(|(d, ..)| !directories.contains_key(d)).copied().collect();
        for place in gone {
            self.taken(place);
        }
        for (&mem, directory) in &directories {
            self.check_members(mem, directory);
            self.check_segments(mem, directory);
            if self.step.is_multiple_of(NAMES_EVERY) {
                self.check_names(mem, directory);
            }
        }
        self.check_leases();
        self.check_bytes();
    }

    fn check_members(&self, mem: MemId, directory: &Directory) {
        let mut connected = BTreeMap::new();
        for actor in self.actors.iter().filter(|a| a.connected) {
            if let Some(seat) = actor.seat.as_ref().filter(|seat| seat.directory_mem == mem) {
                assert!(connected.insert(seat.number(), seat.welcome.member).is_none(), "one client a number");
            }
        }
        assert_eq!(directory.head().clients.read(), connected.len() as u64, "clients counted");
        let present: BTreeSet<u16> = directory.present().collect();
        for (number, entry) in (0u16..).zip(directory.members.iter()).skip(1) {
            let member = Member(entry.member.read());
            assert_eq!(member.state() != MemberState::Vacant, present.contains(&number), "present: member {number}");
            match connected.get(&number) {
                Some(&told) => assert_eq!(member.0, told, "member {number} is connected"),
                None => assert_ne!(member.state(), MemberState::Open, "member {number} is gone"),
            }
        }
    }

    fn check_segments(&mut self, mem: MemId, directory: &Directory) {
        let mut lines = BTreeSet::new();
        let mut bytes = 0;
        for line in directory.segments.iter() {
            let range = RangeWord(line.range.read());
            if !range.is_lent() {
                continue;
            }
            let place = (mem, range.catalogue(), range.base());
            assert!(lines.insert(place), "{place:?} stands twice");
            bytes += line.bytes.read();
            let Some(lent) = self.lent.get(&place) else {
                panic!("{place:?} stands in the directory and was never lent");
            };
            assert_eq!(range.slots(), 1 << lent.slots_log2);
            let there = |mem: &MemId| self.memory.contains_key(mem);
            assert!(there(&lent.segment) && there(&lent.slots), "{place:?} is lent, and its memory is gone");
        }
        assert_eq!(directory.head().bytes_lent.read(), bytes, "bytes lent");
        let gone: Vec<_> = self.lent.keys().filter(|p| p.0 == mem && !lines.contains(p)).copied().collect();
        for place in gone {
            self.taken(place);
        }
        let mut end = (0, 0);
        for (mem, number, base) in lines {
            assert!(end.0 != number || end.1 <= base, "ranges of member {number} overlap");
            end = (number, base + (1 << self.lent[&(mem, number, base)].slots_log2));
        }
    }

    /// The directory does not show a segment any more.
    fn taken(&mut self, place: (MemId, u16, u32)) {
        let lent = self.lent.remove(&place).expect("the caller found it");
        self.done.segments_freed += 1;
        for (at, actor) in self.actors.iter().enumerate() {
            for lease in actor.honest.iter().flat_map(|h| &h.held) {
                let in_it = lease.slots.iter().any(|slot| slot.segment == lent.segment && slot.place == place);
                assert!(!in_it, "{place:?} is taken while client {at} leases {:?} of it", lease.slots);
            }
        }
    }

    /// What honest clients lease is what they leased.
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

    fn check_names(&self, mem: MemId, directory: &Directory) {
        let mut live = 0;
        for (number, entry) in directory.entries() {
            let home = tensorlend_layout::word::Home(entry.home.read());
            match home.kind() {
                HomeKind::Tomb => continue,
                HomeKind::Reserved | HomeKind::Live => live += 1,
            }
            let key = directory.key(entry).unwrap_or_else(|| panic!("entry {number} has a home and no key"));
            let found = directory.find(directory.hash(&key), &key);
            assert!(
                matches!(found, Ok(Some(f)) if f.entry == number),
                "{key:?} stands in entry {number}, and a search finds {found:?}"
            );
            if home.is_live() && home.catalogue() != 0 {
                assert!(
                    directory.present().any(|n| n == home.catalogue()),
                    "{key:?} leads to member {}, of whom nothing is left",
                    home.catalogue()
                );
                assert!((home.cell() as usize) < cells_first(CELL_PARTS - 1) + cells_count(CELL_PARTS - 1));
            }
        }
        assert_eq!(directory.head().names_live.read(), live, "names counted in {mem:?}");
        let names_max = self.settings.private.names_max;
        assert!(live <= u64::from(names_max), "{live} names where {names_max} may be");
    }

    /// Every byte that is there is counted, and no other.
    fn check_bytes(&self) {
        let stat = self.core.stat();
        let mut segments = 0;
        let mut sheets = 0;
        for memory in self.memory.iter().filter(|(mem, _)| **mem < MemId::received(0)).map(|(_, memory)| memory) {
            *if memory.view.is_some() { &mut sheets } else { &mut segments } += memory.bytes;
        }
        for order in &self.orders {
            if let Order::Create { bytes, sheet, .. } = order {
                *if sheet.is_some() { &mut sheets } else { &mut segments } += bytes;
            }
        }
        assert_eq!(stat.pool_bytes, segments, "bytes of segments");
        assert_eq!(stat.bytes_sheets, sheets, "bytes of sheets");
        assert!(stat.pool_bytes <= self.settings.pool_bytes_max && sheets <= self.settings.sheet_bytes_max);
        assert!(stat.bytes_spare <= u64::from(self.settings.spare_segments) * SEGMENT);
        for uid in 1..4 {
            let connected = self.actors.iter().filter(|a| a.connected && a.uid == uid).count();
            assert!(connected <= 2 * self.settings.uid_sessions_max as usize, "{connected} connections of uid {uid}");
        }
        // One wake descriptor a subscription, and a client has few of those here.
        let received = self.memory.range(MemId::received(0)..).count();
        assert!(received <= 64 * self.actors.len(), "{received} clients' descriptors");
    }
}
