//! Names that are published for the first time: announced by their client, in the directory a moment later.
//!
//! The steps are those of `tensorlend_layout::announce`; what they prove stands in docs/protocol.md.

use super::NameTable;
use crate::error::{Error, Result};
use crate::link::epoch::EpochGuard;
use crate::names::version::Version;
use crate::peers::sheets::Peer;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use tensorlend_layout::announce::{Ending, Waiting};
use tensorlend_layout::catalogue::{CELL_NAME_WORDS, Catalogue, CellRecord, RING, cell_place};
use tensorlend_layout::directory::key_word;
use tensorlend_layout::name::check;
use tensorlend_layout::publish::overwrite;
use tensorlend_layout::wake::news_fence;
use tensorlend_layout::word::{Absorbed, Cell, HomeKind, MemberState, PARKED_ANY, Word, parked_bit};
use tensorlend_os::mutex::lock;

/// Bytes of a name that stand beside its cell; longer ones are published by the daemon.
const KEY_BYTES_MAX: usize = CELL_NAME_WORDS * 8;
/// How often to look again while the daemon takes the last announcements of somebody over: that is one step of it, unless
/// it died in between.
const ENDING_LOOKS: u32 = 10_000;

/// Hashes what is a hash already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// This client's own announcements: cell and number of each, by the hash of its name.
#[derive(Default)]
pub struct Pending {
    cells: HashMap<u64, (u32, u64), BuildHasherDefault<Hashed>>,
    /// In the order of their numbers.
    order: VecDeque<(u64, u64)>,
}

impl Pending {
    /// The cells of all that is announced from this number on.
    pub fn cells_from(&self, absorbed: u64) -> impl Iterator<Item = u32> + '_ {
        self.cells.values().filter(move |&&(_, number)| absorbed <= number).map(|&(cell, _)| cell)
    }

    fn insert(&mut self, hash: u64, cell: u32, number: u64) {
        self.cells.insert(hash, (cell, number));
        self.order.push_back((hash, number));
    }

    /// Forgets what the daemon has absorbed.
    fn forget(&mut self, absorbed: u64) {
        while let Some(&(hash, number)) = self.order.front()
            && number < absorbed
        {
            self.order.pop_front();
            if self.cells.get(&hash).is_some_and(|&(_, n)| n == number) {
                self.cells.remove(&hash);
            }
        }
    }
}

/// An announcement that was found.
#[derive(Clone, Copy)]
pub struct Announced {
    /// Whose.
    pub catalogue: u16,
    /// The cell that it leads to.
    pub cell: u32,
    /// The client's `absorbed`: the announcement is a route only while it stands.
    pub absorbed: Absorbed,
    /// Which life of the client.
    pub member: u64,
}

impl Announced {
    /// What stands for the home of a name that has none yet.
    pub fn home(&self) -> u64 {
        Version::announced(self.catalogue, self.cell)
    }
}

/// Whether a cell's record carries this name, as its client says.
fn is_named(record: &CellRecord, key: &[u8]) -> bool {
    record.name_bytes.peek() == key.len() as u64
        && key.chunks(8).zip(&record.name).all(|(bytes, word)| word.peek() == key_word(bytes))
}

/// What is mapped of one who may announce names: ourselves, or another member.
enum Publisher<'s> {
    Own(&'s NameTable),
    Other(Option<&'s Peer>),
}

impl<'s> Publisher<'s> {
    /// Its catalogue; `None`: not mapped.
    fn catalogue(&self) -> Option<&'s Catalogue> {
        match *self {
            Self::Own(names) => Some(&names.catalogue),
            Self::Other(peer) => peer?.catalogue().map(|catalogue| &**catalogue),
        }
    }

    /// The record of one of its cells; `None`: its part is not mapped.
    fn record(&self, cell: u32) -> Option<&'s CellRecord> {
        match *self {
            Self::Own(names) => names.own_cell(cell),
            Self::Other(peer) => peer?.record(cell),
        }
    }
}

/// What a look at the others' rings came to.
enum Look {
    Found(Announced),
    Nothing,
    /// A member's sheet must be fetched first.
    Fetch(u16, u8),
    /// Somebody is being ended.
    Again,
}

impl NameTable {
    fn absorbed_word(&self) -> &Word {
        &self.directory.members[usize::from(self.me())].absorbed
    }

    /// So many announcements are granted to us: a user's share of a namespace's names.
    fn may_announce_until(&self) -> u64 {
        self.directory.members[usize::from(self.me())].announce_until.read()
    }

    /// The announcement of a name that is not in the directory. After `None` the directory must be looked at again: the
    /// daemon may have absorbed it in between.
    pub fn announced(&self, hash: u64, key: &[u8]) -> Result<Option<Announced>> {
        if key.len() > KEY_BYTES_MAX {
            return Ok(None);
        }
        let mut looks = 0;
        let mut missing = Vec::new();
        loop {
            match self.look_for(hash, key, &missing) {
                Look::Found(announced) => return Ok(Some(announced)),
                Look::Nothing => return Ok(None),
                Look::Fetch(catalogue, part) => {
                    // Gone, or never there: then what it announced is in the directory, or is a lie.
                    if !self.peers.fetch_cells(catalogue, part)? {
                        missing.push((catalogue, part));
                    }
                }
                Look::Again if looks < ENDING_LOOKS => {
                    looks += 1;
                    std::thread::yield_now();
                }
                // Whether the name exists is not known; it is not absent.
                Look::Again => return Err(Error::Disconnected { doing: "look a name up", asked: false }),
            }
        }
    }

    /// `missing`: parts of members that are known not to exist.
    fn look_for(&self, hash: u64, key: &[u8], missing: &[(u16, u8)]) -> Look {
        let guard = self.shards.epoch_guard();
        for number in self.directory.announcers() {
            let member = &self.directory.members[usize::from(number)];
            let life = member.member.read();
            if !self.may_publish(number) {
                continue;
            }
            let publisher = self.publisher(&guard, number, life);
            let Some(catalogue) = publisher.catalogue() else {
                if missing.contains(&(number, 0)) {
                    continue;
                }
                return Look::Fetch(number, 0);
            };
            let waiting = match Waiting::read(catalogue, &member.absorbed) {
                Ok(Some(waiting)) => waiting,
                Ok(None) => continue,
                Err(Ending) => return Look::Again,
            };
            for cell in waiting.cells(hash) {
                match publisher.record(cell) {
                    Some(record) if is_named(record, key) => {
                        return Look::Found(Announced {
                            catalogue: number,
                            cell,
                            absorbed: waiting.absorbed,
                            member: life,
                        });
                    }
                    Some(_) => {}
                    // A part that there is not: the client lies.
                    None if missing.contains(&(number, cell_place(cell).0)) => {}
                    None => return Look::Fetch(number, cell_place(cell).0),
                }
            }
        }
        Look::Nothing
    }

    /// Names that are announced and not in the directory yet, as their clients say. Read before the directory, no name is
    /// missed.
    pub fn announced_names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for number in self.directory.announcers().collect::<Vec<_>>() {
            // Fetched with the first cell of it that is looked at.
            while let Some((catalogue, part)) = self.names_announced_by(number, &mut names) {
                if !self.peers.fetch_cells(catalogue, part)? {
                    break;
                }
            }
        }
        Ok(names)
    }

    /// Adds the names that one client has announced. `Some`: a sheet must be fetched first.
    fn names_announced_by(&self, number: u16, names: &mut Vec<String>) -> Option<(u16, u8)> {
        let guard = self.shards.epoch_guard();
        let member = &self.directory.members[usize::from(number)];
        if !self.may_publish(number) {
            return None;
        }
        let publisher = self.publisher(&guard, number, member.member.read());
        let Some(catalogue) = publisher.catalogue() else { return Some((number, 0)) };
        // Who is being ended: what it announced is in the directory by the time that is read.
        let waiting = Waiting::read(catalogue, &member.absorbed).ok().flatten()?;
        for cell in waiting.all_cells() {
            let Some(record) = publisher.record(cell) else { return Some((number, cell_place(cell).0)) };
            let bytes: Vec<u8> = record.name.iter().flat_map(|word| word.peek().to_le_bytes()).collect();
            let name = bytes.get(..record.name_bytes.peek() as usize).and_then(|name| std::str::from_utf8(name).ok());
            names.extend(name.filter(|name| check(name).is_ok()).map(str::to_owned));
        }
        None
    }

    /// Cells of ours that are announced and not absorbed yet.
    pub fn pending_cells(&self) -> Vec<u32> {
        // Before the homes are looked at: what is absorbed by this number has its home.
        let absorbed = Absorbed(self.absorbed_word().read()).index();
        lock(&self.pending).cells_from(absorbed).collect()
    }

    /// Whether a cell of ours is announced and not absorbed yet.
    pub fn is_pending(&self, key: &[u8], cell: u32) -> bool {
        let found = lock(&self.pending).cells.get(&self.directory.hash(key)).copied();
        found.is_some_and(|(at, number)| at == cell && Absorbed(self.absorbed_word().read()).index() <= number)
    }

    /// Overwrites a name of ours that is announced and not in the directory yet. `None`: it is not.
    #[cold]
    pub fn overwrite_pending(&self, hash: u64, key: &[u8], value: Cell) -> Option<(Version, Cell)> {
        let mut pending = lock(&self.pending);
        let &(cell, number) = pending.cells.get(&hash)?;
        let record = self.own_cell(cell).filter(|record| is_named(record, key))?;
        // While we are inside, the cell is not given to another name, even if the daemon absorbs it now.
        let _guard = self.shards.epoch_guard();
        loop {
            let absorbed = Absorbed(self.absorbed_word().read());
            if absorbed.state() != MemberState::Open {
                return None;
            }
            if absorbed.index() > number {
                pending.forget(absorbed.index());
                return None;
            }
            if record.cell.peek() == Cell::CLOSING.0 {
                // It is being absorbed in this moment, and given back.
                return None;
            }
            if let Some(before) = overwrite(self.absorbed_word(), absorbed.0, &record.cell, value) {
                let version = Version { home: Version::announced(self.me(), cell), cell: value.0 };
                return Some((version, before));
            }
        }
    }

    /// Publishes a name that nobody has, without the daemon. `None`: the daemon must decide. One at a time.
    pub fn announce(&self, hash: u64, key: &[u8], value: Cell) -> Result<Option<Version>> {
        let absorbed = Absorbed(self.absorbed_word().read());
        let waiting = self.catalogue.ring_head.peek().wrapping_sub(absorbed.index());
        let possible = key.len() <= KEY_BYTES_MAX
            && hash != 0
            && self.welcome.writer
            && absorbed.state() == MemberState::Open
            && waiting < RING as u64
            && self.catalogue.ring_head.peek() < self.may_announce_until();
        // An announcement of ours with the same hash: the names differ, or it is being absorbed.
        let alike = {
            let mut pending = lock(&self.pending);
            pending.forget(absorbed.index());
            pending.cells.contains_key(&hash)
        };
        if !possible || alike || !self.map_publishers()? {
            return Ok(None);
        }
        let cell = self.fill_cell(key, value).map_err(Error::certain)?;
        tensorlend_layout::crash_point!("first: cell filled");
        self.catalogue.claim_name(hash);
        #[cfg(feature = "broken-for-tests")]
        let looks = crate::sabotage::broken() != Some(crate::sabotage::Broken::Claim);
        #[cfg(not(feature = "broken-for-tests"))]
        let looks = true;
        if looks && !self.is_free(hash, key, waiting) {
            self.catalogue.unclaim();
            self.empty_cell(cell);
            return Ok(None);
        }
        tensorlend_layout::crash_point!("first: found free");
        let number = self.catalogue.announce(hash, cell);
        // Noted when it is published, and not before: another thread that overwrote it early would be overwritten.
        lock(&self.pending).insert(hash, cell, number);
        tensorlend_layout::crash_point!("first: noted");
        self.catalogue.unclaim();
        // Against the daemon's fence when it ends us, and when it goes to sleep; and against that of whoever waits for
        // the name.
        news_fence();
        if Absorbed(self.absorbed_word().read()).state() != MemberState::Open {
            // It may have been absorbed or not.
            return Err(Error::SessionEnded);
        }
        let bits = parked_bit(self.me()) | PARKED_ANY;
        // Waiters for a name that is nobody's sleep on the daemon's bell: it rings when it absorbs.
        if self.directory.head().wants_nudge.read() != 0
            || waiting + 1 == RING as u64 / 2
            || self.peers.anybody_parked(|parked| parked & bits != 0)
        {
            self.nudge();
        }
        Ok(Some(Version { home: Version::announced(self.me(), cell), cell: value.0 }))
    }

    /// Sees to it that everybody who may be publishing is mapped. False: somebody could not be.
    fn map_publishers(&self) -> Result<bool> {
        loop {
            let missing = {
                let guard = self.shards.epoch_guard();
                self.directory.announcers().find(|&number| {
                    let life = self.directory.members[usize::from(number)].member.read();
                    self.may_publish(number) && self.publisher(&guard, number, life).catalogue().is_none()
                })
            };
            let Some(number) = missing else { return Ok(true) };
            if !self.peers.fetch_cells(number, 0)? && self.may_publish(number) {
                // The number is another member's by now: the daemon knows more.
                return Ok(false);
            }
        }
    }

    /// What is mapped of a member in this life of it.
    fn publisher<'s>(&'s self, guard: &'s EpochGuard<'_>, number: u16, life: u64) -> Publisher<'s> {
        if number == self.me() {
            return Publisher::Own(self);
        }
        Publisher::Other(self.peers.get(guard, number).filter(|peer| peer.is_life(life)))
    }

    fn may_publish(&self, number: u16) -> bool {
        let state = Absorbed(self.directory.members[usize::from(number)].absorbed.read()).state();
        matches!(state, MemberState::Open | MemberState::Ending)
    }

    /// Whether nobody has the name or is about to have it, and there is room for one more. We have claimed it; `own` of
    /// our announcements wait.
    fn is_free(&self, hash: u64, key: &[u8], own: u64) -> bool {
        let guard = self.shards.epoch_guard();
        let mut announced = own;
        for number in self.directory.announcers() {
            if number == self.me() || !self.may_publish(number) {
                continue;
            }
            let member = &self.directory.members[usize::from(number)];
            // An announcer since a moment ago.
            let Some(catalogue) = self.publisher(&guard, number, member.member.read()).catalogue() else {
                return false;
            };
            // The claim before the ring: a name that leaves the one is in the other.
            let claim = catalogue.claim.read();
            match Waiting::read(catalogue, &member.absorbed) {
                Ok(None) => {}
                Ok(Some(waiting)) => {
                    // Another name with the same tag is as good a reason to ask the daemon.
                    if claim == hash || waiting.cells(hash).next().is_some() {
                        return false;
                    }
                    announced += waiting.count() + u64::from(claim != 0);
                }
                Err(Ending) => return false,
            }
        }
        // Many names collide with this one: the daemon decides.
        if self.directory.is_long_search(hash) {
            return false;
        }
        // The room after the rings: what is absorbed in between counts twice, and not never.
        announced < self.directory.head().names_room.read()
            && self
                .find_hashed(hash, key)
                .is_none_or(|found| !found.home.is_live() && found.home.kind() != HomeKind::Reserved)
    }

    /// Asks the daemon to look for announcements. It sleeps, or will soon.
    fn nudge(&self) {
        // An error would mean that the counter is full, and so that it has been told.
        let _ = rustix::io::write(&*lock(&self.nudge), &1u64.to_ne_bytes());
    }
}
