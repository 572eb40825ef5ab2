//! The daemon is killed, between two events or in the middle of one event's effects, and another one takes its place.
//!
//! The next daemon gets the stored descriptors under other ids; in user mode there may be no fd store. In the meantime
//! clients continue with their mappings: `back.rs` has their reconnection.

use crate::Flaw;
use crate::checks::is_item_of_no_list;
use crate::rng::Rng;
use crate::sim::{File, Kind, Lent, Sim};
use std::collections::BTreeMap;
use tensorlend_daemon::core::label::{Label, Preserved};
use tensorlend_daemon::core::settings::Settings;
use tensorlend_daemon::core::{Core, Event, MemId};
use tensorlend_layout::directory::{Directory, NameEntry};
use tensorlend_layout::header::Magic;
use tensorlend_layout::name::{KeyKind, is_item_of, parse};
use tensorlend_layout::number::EntryNo;
use tensorlend_layout::raw::View;
use tensorlend_layout::word::{LifeWord, MemberState, OwnerWord, RangeWord, Word};

/// Frequency of kills, per thousand steps of a world that has kills left.
const KILLS_PER_MILLE: u64 = 12;

/// A client of a killed daemon.
#[derive(Debug)]
pub struct Away {
    /// Whether the next daemon must recognize the client, because the client has joined and reconnects in time.
    pub sure: bool,
}

/// The state of the present daemon's life, and the remains of the previous one.
#[derive(Debug)]
pub struct Life {
    /// Number of kills still to come.
    pub kills_left: u32,
    /// Whether there was a daemon before.
    pub restarted: bool,
    /// Whether there is an fd store.
    pub keeper: bool,
    /// Whether no daemon runs at the moment.
    pub is_gone: bool,
    /// The number of the next event's effects that it executes before it dies.
    pub dies_after: Option<usize>,
    /// The daemon's start.
    pub began_ns: u64,
    kept: BTreeMap<MemId, (Label, File)>,
    /// The recovered descriptors.
    heirlooms: Vec<(Label, File)>,
    /// Descriptors that a flawed shell has not stored yet.
    late: Vec<(MemId, Label)>,
    /// Clients of the previous daemon.
    pub away: BTreeMap<usize, Away>,
    /// The names at the end of the previous daemon: entries and owner words.
    owner_words: Vec<(File, EntryNo, u64)>,
}

impl Life {
    /// Returns the state of a first daemon.
    pub fn new(rng: &mut Rng) -> Self {
        Self {
            kills_left: rng.pick(&[0, 0, 0, 1, 1, 2]),
            restarted: false,
            keeper: rng.chance(85),
            is_gone: false,
            dies_after: None,
            began_ns: 0,
            kept: BTreeMap::new(),
            heirlooms: Vec::new(),
            late: Vec::new(),
            away: BTreeMap::new(),
            owner_words: Vec::new(),
        }
    }
}

impl Sim {
    /// The daemon stores a descriptor.
    pub fn keep(&mut self, mem: MemId, label: Label) {
        let file = self.called(mem);
        self.kept_instead(file);
        if self.has_flaw(Flaw::LosesWhatIsKept) && self.rng.chance(12) {
            return;
        }
        if self.has_flaw(Flaw::LendsBeforeItKeeps) {
            return self.life.late.push((mem, label));
        }
        self.life.kept.insert(mem, (label, file));
    }

    /// A flawed shell stores descriptors now, too late.
    pub fn keep_late(&mut self) {
        for (mem, label) in std::mem::take(&mut self.life.late) {
            if let Some(&file) = self.names.get(&mem) {
                self.life.kept.insert(mem, (label, file));
            }
        }
    }

    /// The fd store removes a descriptor, if it has it.
    pub fn forget(&mut self, mem: MemId) {
        if !self.has_flaw(Flaw::ForgetsNothing) {
            self.life.kept.remove(&mem);
        }
        self.life.late.retain(|(late, _)| *late != mem);
    }

    /// The daemon continues with a copy of a directory.
    fn copied(&mut self, file: File, copy: View) {
        let directory = Directory::new(&copy).expect("it is a copy of a directory");
        self.directories.insert(file, directory);
        self.memory.get_mut(&file).expect("it is held").view = Some(copy);
    }

    /// Sometimes kills the daemon.
    pub fn kills_daemon(&mut self) -> bool {
        if self.life.kills_left == 0 || self.rng.below(1000) >= KILLS_PER_MILLE {
            return false;
        }
        self.life.kills_left -= 1;
        if self.rng.chance(40) {
            self.daemon_dies();
        } else {
            self.life.dies_after = Some(self.rng.index(8));
        }
        true
    }

    /// Kills the daemon and drops all of its state.
    pub fn daemon_dies(&mut self) {
        self.note(|| "the daemon is killed".into());
        self.done.restarts += 1;
        let mut core = std::mem::replace(&mut self.core, Core::new(self.settings.clone()));
        core.leave();
        drop(core);
        self.orders.clear();
        self.at_once.clear();
        self.awaited.clear();
        let life = &mut self.life;
        (life.is_gone, life.restarted) = (true, true);
        life.late.clear();
        let kept = std::mem::take(&mut life.kept);
        life.heirlooms = if life.keeper { kept.into_values().collect() } else { Vec::new() };
        // A daemon that is killed between two stores may have bound names that count only after a later store.
        if self.cuts.is_none() {
            self.note_owner_words();
        }
        for mem in self.names.keys().copied().collect::<Vec<_>>() {
            self.call_no_more(mem);
        }
        self.everybody_is_away();
    }

    /// Records the names that clients could find. A stream's name counts only if its ring survives the daemon.
    fn note_owner_words(&mut self) {
        self.life.owner_words.clear();
        for (&file, directory) in &self.directories {
            let namespace = self.life.heirlooms.iter().find(|(_, held)| *held == file);
            let Some(namespace) = namespace.map(|(label, _)| label.namespace()) else { continue };
            for (entry, line) in directory.entries() {
                let owner_word = OwnerWord(line.owner_word.read());
                if !owner_word.is_live() {
                    continue;
                }
                let key = directory.key(line).expect("a live name has a key");
                // The daemon ends the items of a deleted list in slices, and the next daemon ends the rest.
                if is_item_of_no_list(directory, line) {
                    continue;
                }
                // Segments that liars claim to have in a driver's pool end with their daemon.
                let owner = self.members.get(&(file, owner_word.owner())).map(|&owner| &self.actors[owner]);
                if self.is_ending(file, line) {
                    continue;
                }
                if !self.settings.devices.is_empty() && owner.is_none_or(|it| it.honest.is_none()) {
                    continue;
                }
                // A list ends with its last item.
                if let Some((KeyKind::List, _)) = parse(&key) {
                    let id = directory.lists[owner_word.cell().index()].id.read();
                    let is_item = |it: &&NameEntry| OwnerWord(it.owner_word.read()).is_live() && is_item_of(it, id);
                    let mut items = directory.entries().map(|(_, it)| it).filter(is_item).peekable();
                    if items.peek().is_some() && items.all(|it| self.is_ending(file, it)) {
                        continue;
                    }
                }
                if let Some((KeyKind::Stream, _)) = parse(&key) {
                    let (place, id) = (owner_word.stream(), directory.streams[owner_word.stream().index()].id.read());
                    let ring = Label::Ring { namespace, line: place, id };
                    if !self.life.heirlooms.iter().any(|(label, _)| *label == ring) {
                        continue;
                    }
                }
                self.life.owner_words.push((file, entry, owner_word.0));
            }
        }
    }

    /// Returns true for an ephemeral name of an ended session. The daemon ends such names in slices, and the next
    /// daemon ends the rest.
    fn is_ending(&self, file: File, line: &NameEntry) -> bool {
        let owner = self.members.get(&(file, OwnerWord(line.owner_word.read()).owner()));
        LifeWord(line.life.read()).is_ephemeral() && owner.is_none_or(|&owner| !self.actors[owner].connected)
    }

    /// Takes a step in a world without a daemon.
    pub fn without_daemon(&mut self) {
        match self.rng.below(100) {
            0..20 => self.daemon_begins(),
            20..80 => self.honest_any(),
            80..94 => self.liar_any(),
            94..97 => self.exit_any(),
            _ => self.pass_time(),
        }
    }

    /// Starts another daemon with the stored descriptors.
    pub fn daemon_begins(&mut self) {
        self.note(|| format!("another daemon begins, keeper: {}", self.life.keeper));
        self.now_ns += 1_000_000;
        self.life.is_gone = false;
        self.life.began_ns = self.now_ns;
        let settings = Settings { seed: self.rng.next(), ..self.settings.clone() };
        self.core = Core::new(settings).with_units(self.units);
        self.directories.clear();
        let mut heirlooms = std::mem::take(&mut self.life.heirlooms);
        // A service manager may pass the stored descriptors in any order.
        for at in (1..heirlooms.len()).rev() {
            heirlooms.swap(at, self.rng.index(at + 1));
        }
        if !heirlooms.is_empty() {
            let kept = heirlooms.iter().map(|(label, file)| self.inherit(label.clone(), *file)).collect();
            self.note_unheard(&heirlooms);
            let now_ns = self.now_ns;
            let (effects, dies) = self.cut(|core| core.restore(now_ns, kept));
            for effect in effects {
                self.perform(effect);
            }
            if dies {
                return self.daemon_dies();
            }
            self.check_owner_words();
        }
        self.happen(Event::Start);
    }

    /// Returns a stored descriptor under its new id.
    fn inherit(&mut self, label: Label, file: File) -> Preserved {
        let number = self.names.len() as u64 + 1;
        let mem = MemId(number);
        self.call(mem, file);
        self.note(|| format!("{file:?} comes back as {mem:?}: {label}"));
        self.life.kept.insert(mem, (label.clone(), file));
        let memory = &self.memory[&file];
        let (bytes, mut view, acked) = (memory.bytes, memory.view.clone(), memory.view.is_none() || memory.sealed);
        let mut copied = false;
        if memory.kind == Kind::Sheet(Magic::Directory) {
            copied = self.is_user_mode();
            let words = view.expect("a directory is a sheet");
            let words = if self.is_user_mode() { copy_of(&words) } else { words };
            self.copied(file, words.clone());
            view = Some(words);
        }
        Preserved { label, mem, view, bytes, acked, copied }
    }

    /// Records segments that no client has heard of, since the daemon was killed before it lent them.
    fn note_unheard(&mut self, heirlooms: &[(Label, File)]) {
        let find = |wanted: Label| heirlooms.iter().find(|(label, _)| *label == wanted).map(|&(_, file)| file);
        for (label, directory) in heirlooms {
            let Label::Directory { namespace, .. } = *label else { continue };
            for line in self.directories[directory].segments.iter() {
                let range = RangeWord(line.range.read());
                let (owner, base) = (range.owner(), range.base());
                let lent =
                    (find(Label::Segment { namespace, owner, base }), find(Label::Slots { namespace, owner, base }));
                if let (true, (Some(segment), Some(slots))) = (range.is_lent(), lent) {
                    let slots_log2 = range.slots().ilog2() as u8;
                    self.lent.entry((*directory, owner, base)).or_insert(Lent { slots_log2, segment, slots });
                }
            }
        }
    }

    /// Checks that no published value is lost.
    fn check_owner_words(&mut self) {
        for (file, entry, owner_word) in std::mem::take(&mut self.life.owner_words) {
            let Some(directory) = self.directories.get(&file) else {
                panic!("the directory of entry {entry} is lost");
            };
            let now = OwnerWord(directory.names[entry.index()].owner_word.read());
            let owner = &directory.members[OwnerWord(owner_word).owner().index()];
            let open = tensorlend_layout::word::Member(owner.member.read()).state() != MemberState::Vacant;
            assert_eq!(
                now.0,
                owner_word,
                "entry {entry} led to {:?} (there: {open}), and is lost",
                OwnerWord(owner_word)
            );
        }
    }
}

fn copy_of(view: &View) -> View {
    let copy = View::anonymous(view.bytes());
    let (from, to): (&[Word], &[Word]) =
        (view.array(0, view.bytes() / 8).expect("as long"), copy.array(0, view.bytes() / 8).expect("as long"));
    for (from, to) in from.iter().zip(to) {
        to.put(from.peek());
    }
    copy
}
