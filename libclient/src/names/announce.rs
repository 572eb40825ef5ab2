//! First publications: a client announces a new name, and the daemon registers it in the directory asynchronously.
//!
//! The steps are those of `tensorlend_layout::announce`. docs/protocol.md has the proofs.

use super::NameTable;
use super::hashed::Hashed;
use crate::error::{Error, Result};
use crate::link::epoch::EpochGuard;
use crate::names::version::Version;
use crate::peers::Peer;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use tensorlend_layout::announce::{Ending, Waiting};
use tensorlend_layout::catalogue::{CELL_NAME_WORDS, Catalogue, CellRecord, RING, cell_place};
use tensorlend_layout::directory::key_word;
use tensorlend_layout::number::{CellNo, ClientNo};
use tensorlend_layout::publish::overwrite;
use tensorlend_layout::tensor::Sealed;
use tensorlend_layout::wake::news_fence;
use tensorlend_layout::word::{Absorbed, Cell, MemberState, OwnerKind, PARKED_ANY, Word, parked_bit};
use tensorlend_os::mutex::lock;

/// Maximum bytes of a name that a client announces: the name is stored next to its cell. The daemon publishes longer
/// names.
const KEY_BYTES_MAX: usize = CELL_NAME_WORDS * 8;
/// Maximum number of attempts while the daemon processes the last announcements of a client that ended. The daemon does so
/// in one step, unless it is killed during that step.
const ENDING_ATTEMPTS: u32 = 10_000;

/// This client's own announcements: cell and number of each, by the hash of its name.
#[derive(Default)]
pub struct Pending {
    cells: HashMap<u64, (CellNo, u64), BuildHasherDefault<Hashed>>,
    /// The announcements' numbers with the hashes of their names, sorted by number.
    order: VecDeque<(u64, u64)>,
}

impl Pending {
    /// Returns the cells of all announcements from this number on.
    pub fn cells_from(&self, absorbed: u64) -> impl Iterator<Item = CellNo> + '_ {
        self.cells.values().filter(move |&&(_, number)| absorbed <= number).map(|&(cell, _)| cell)
    }

    fn insert(&mut self, hash: u64, cell: CellNo, number: u64) {
        self.cells.insert(hash, (cell, number));
        self.order.push_back((hash, number));
    }

    /// Forgets the announcements that the daemon has entered into the directory.
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

/// An announcement that a search found.
#[derive(Clone, Copy)]
pub struct Announced {
    pub owner: ClientNo,
    pub cell: CellNo,
    /// The client's `absorbed` word. The announcement leads to the value only while this word is unchanged.
    pub absorbed: Absorbed,
    /// The client's epoch.
    pub member: u64,
}

impl Announced {
    /// Returns a substitute for the owner word, because an announced name does not have an owner word yet.
    pub fn owner_word(&self) -> u64 {
        Version::announced(self.owner, self.cell)
    }
}

/// Returns whether a cell's record contains this name. The record is what its client claims.
fn is_named(record: &CellRecord, key: &[u8]) -> bool {
    record.name_bytes.peek() == key.len() as u64
        && key.chunks(8).zip(&record.name).all(|(bytes, word)| word.peek() == key_word(bytes))
}

/// The mapped sheets of a client that may announce names: this client, or another member.
enum Publisher<'s> {
    This(&'s NameTable),
    Other(Option<&'s Peer>),
}

impl<'s> Publisher<'s> {
    /// Returns the client's catalogue. Returns `None` if the catalogue is not mapped.
    fn catalogue(&self) -> Option<&'s Catalogue> {
        match *self {
            Self::This(names) => Some(&names.catalogue),
            Self::Other(peer) => peer?.catalogue().map(|catalogue| &**catalogue),
        }
    }

    /// Returns the record of one of the client's cells. Returns `None` if that part is not mapped.
    fn record(&self, cell: CellNo) -> Option<&'s CellRecord> {
        match *self {
            Self::This(names) => names.own_cell(cell),
            Self::Other(peer) => peer?.record(cell),
        }
    }
}

/// The result of a check whether this client may announce a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Availability {
    Free,
    /// The daemon must decide.
    Taken,
    /// The sheets of a client that may be publishing are not mapped.
    Unmapped,
}

/// The result of a search of the other clients' rings.
enum Searched {
    Found(Announced),
    Nothing,
    /// A member's sheet must be mapped first.
    Fetch(ClientNo, u8),
    /// The daemon is ending a member: search again.
    Again,
}

impl NameTable {
    fn absorbed_word(&self) -> &Word {
        &self.directory.members[self.me().index()].absorbed
    }

    /// Returns the number of announcements granted to this client: its user's share of a namespace's names.
    fn may_announce_until(&self) -> u64 {
        self.directory.members[self.me().index()].announce_until.read()
    }

    /// Returns the announcement of a name that is not in the directory. If the result is `None`, the caller must
    /// search the directory again, because the daemon may have entered the name in the meantime.
    pub fn announced(&self, hash: u64, key: &[u8]) -> Result<Option<Announced>> {
        if key.len() > KEY_BYTES_MAX {
            return Ok(None);
        }
        let mut attempts = 0;
        let mut missing = Vec::new();
        loop {
            match self.search(hash, key, &missing) {
                Searched::Found(announced) => return Ok(Some(announced)),
                Searched::Nothing => return Ok(None),
                Searched::Fetch(catalogue, part) => {
                    // The client has ended or never existed, so each of its announcements, if any, is in the
                    // directory.
                    if !self.peers.fetch_cells(catalogue, part)? {
                        missing.push((catalogue, part));
                    }
                }
                Searched::Again if attempts < ENDING_ATTEMPTS => {
                    attempts += 1;
                    std::thread::yield_now();
                }
                // The search cannot tell whether the name exists, so the call fails instead of reporting the name as
                // absent.
                Searched::Again => return Err(Error::Disconnected { doing: "look a name up", asked: false }),
            }
        }
    }

    /// Searches all rings. `missing` lists parts of members that do not exist.
    fn search(&self, hash: u64, key: &[u8], missing: &[(ClientNo, u8)]) -> Searched {
        let guard = self.shards.epoch_guard();
        for number in self.directory.announcers() {
            let member = &self.directory.members[number.index()];
            let life = member.member.read();
            if !self.may_publish(number) {
                continue;
            }
            let publisher = self.publisher(&guard, number, life);
            let Some(catalogue) = publisher.catalogue() else {
                if missing.contains(&(number, 0)) {
                    continue;
                }
                return Searched::Fetch(number, 0);
            };
            let waiting = match Waiting::read(catalogue, &member.absorbed) {
                Ok(Some(waiting)) => waiting,
                Ok(None) => continue,
                Err(Ending) => return Searched::Again,
            };
            for cell in waiting.cells(hash) {
                match publisher.record(cell) {
                    Some(record) if is_named(record, key) => {
                        return Searched::Found(Announced {
                            owner: number,
                            cell,
                            absorbed: waiting.absorbed,
                            member: life,
                        });
                    }
                    Some(_) => {}
                    // The part does not exist: the client wrote a wrong cell number.
                    None if missing.contains(&(number, cell_place(cell).0)) => {}
                    None => return Searched::Fetch(number, cell_place(cell).0),
                }
            }
        }
        Searched::Nothing
    }

    /// Returns the names that clients claim to have announced and that are not in the directory yet. A caller that reads
    /// the directory afterwards misses no name.
    pub fn announced_names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for number in self.directory.announcers().collect::<Vec<_>>() {
            // Map a sheet at the first cell that needs this sheet.
            while let Some((catalogue, part)) = self.names_announced_by(number, &mut names) {
                if !self.peers.fetch_cells(catalogue, part)? {
                    break;
                }
            }
        }
        Ok(names)
    }

    /// Adds the names that one client has announced. Returns `Some` if the caller must map a sheet first.
    fn names_announced_by(&self, number: ClientNo, names: &mut Vec<String>) -> Option<(ClientNo, u8)> {
        let guard = self.shards.epoch_guard();
        let member = &self.directory.members[number.index()];
        if !self.may_publish(number) {
            return None;
        }
        let publisher = self.publisher(&guard, number, member.member.read());
        let Some(catalogue) = publisher.catalogue() else { return Some((number, 0)) };
        let waiting = Waiting::read_also_ending(catalogue, &member.absorbed)?;
        for (n, cell) in (0..).zip(waiting.all_cells()) {
            let Some(record) = publisher.record(cell) else { return Some((number, cell_place(cell).0)) };
            names.extend(waiting.name(n, record, &member.absorbed));
        }
        None
    }

    /// Returns this client's cells whose names are announced and not in the directory yet.
    pub fn pending_cells(&self) -> Vec<CellNo> {
        // Read `absorbed` now, before the caller reads the owner words. Every name that the daemon entered into the
        // directory up to this number has an owner word.
        let absorbed = Absorbed(self.absorbed_word().read()).index();
        lock(&self.pending).cells_from(absorbed).collect()
    }

    /// Returns whether any name that this client announced before the call is not in the directory yet.
    pub fn has_waiting(&self) -> bool {
        let head = self.catalogue.ring_head.peek();
        Absorbed(self.absorbed_word().read()).index() != head
    }

    /// Returns whether the name of a cell of this client is announced and not in the directory yet.
    pub fn is_pending(&self, key: &[u8], cell: CellNo) -> bool {
        let found = lock(&self.pending).cells.get(&self.directory.hash(key)).copied();
        found.is_some_and(|(at, number)| at == cell && Absorbed(self.absorbed_word().read()).index() <= number)
    }

    /// Overwrites a name of this client that is announced and not in the directory yet. Returns `None` for any other name.
    #[cold]
    pub fn overwrite_pending(&self, hash: u64, key: &[u8], sealed: &Sealed) -> Option<(Version, Cell)> {
        let mut pending = lock(&self.pending);
        let &(cell, number) = pending.cells.get(&hash)?;
        let record = self.own_cell(cell).filter(|record| is_named(record, key))?;
        // While this guard is open, this client does not give the cell to another name. This also holds if the daemon enters
        // the name into the directory now.
        let guard = self.shards.epoch_guard();
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
                // The daemon has entered the name into the directory since the check above, and another thread of
                // this client is freeing the cell.
                return None;
            }
            record.describe_sealed(sealed, self.shards.is_alone(&guard));
            if let Some(before) = overwrite(self.absorbed_word(), absorbed.0, &record.cell, sealed.value) {
                let version = Version { owner_word: Version::announced(self.me(), cell), cell: sealed.value.0 };
                return Some((version, before));
            }
        }
    }

    /// Publishes a name that has no owner, without a request to the daemon. Returns `None` if the daemon must decide. Only
    /// one thread at a time may call this function.
    pub fn announce(&self, hash: u64, key: &[u8], sealed: &Sealed) -> Result<Option<Version>> {
        let absorbed = Absorbed(self.absorbed_word().read());
        let waiting = self.catalogue.ring_head.peek().wrapping_sub(absorbed.index());
        if !self.may_announce(hash, key, absorbed, waiting) {
            return Ok(None);
        }
        let cell = self.fill_cell(key, sealed).map_err(Error::certain)?;
        tensorlend_layout::crash_point!("first: cell filled");
        let claimed = self.claim_free(hash, key, waiting);
        if !matches!(claimed, Ok(true)) {
            self.empty_cell(cell);
            return claimed.map(|_| None).map_err(Error::certain);
        }
        tensorlend_layout::crash_point!("first: found free");
        let number = self.catalogue.announce(hash, cell);
        // Record the announcement after the publication. In the other order, another thread could overwrite the value
        // early, and this publication would then overwrite the newer value.
        lock(&self.pending).insert(hash, cell, number);
        tensorlend_layout::crash_point!("first: noted");
        self.catalogue.unclaim();
        // Pairs with two fences of the daemon D: when D ends this client, and when D goes to sleep. Also pairs with the
        // fence of a reader R that waits for the name.
        news_fence();
        if Absorbed(self.absorbed_word().read()).state() != MemberState::Open {
            // This client cannot tell whether the daemon D has entered the name into the directory.
            return Err(Error::SessionEnded);
        }
        let bits = parked_bit(self.me()) | PARKED_ANY;
        // Readers that wait for an unowned name sleep on the daemon's bell, which rings when the daemon enters the name
        // into the directory.
        if self.directory.head().wants_nudge.read() != 0
            || waiting + 1 == RING as u64 / 2
            || self.peers.anybody_parked(|parked| parked & bits != 0)
        {
            self.wakeup();
        }
        Ok(Some(Version { owner_word: Version::announced(self.me(), cell), cell: sealed.value.0 }))
    }

    /// Returns whether this client may announce the name instead of asking the daemon. `waiting` is the number of this
    /// client's announcements that wait.
    fn may_announce(&self, hash: u64, key: &[u8], absorbed: Absorbed, waiting: u64) -> bool {
        // True if this client has announced a name with the same hash. That name is another one, or it is this name
        // and the daemon is entering it into the directory.
        let is_alike = {
            let mut pending = lock(&self.pending);
            pending.forget(absorbed.index());
            pending.cells.contains_key(&hash)
        };
        !is_alike
            && key.len() <= KEY_BYTES_MAX
            && hash != 0
            && self.welcome.writer
            && absorbed.state() == MemberState::Open
            && waiting < RING as u64
            && self.catalogue.ring_head.peek() < self.may_announce_until()
    }

    /// Claims a name if it is free. Returns false, without a claim, if the daemon must decide.
    fn claim_free(&self, hash: u64, key: &[u8], waiting: u64) -> Result<bool> {
        let mut has_mapped = false;
        loop {
            self.catalogue.claim_name(hash);
            #[cfg(feature = "broken-for-tests")]
            if crate::sabotage::broken() == Some(crate::sabotage::Broken::Claim) {
                return Ok(true);
            }
            let found = self.availability(hash, key, waiting);
            if found == Availability::Free {
                return Ok(true);
            }
            self.catalogue.unclaim();
            // A claim makes other clients ask the daemon, so this client maps the sheets of others without one.
            if found == Availability::Taken || has_mapped || !self.map_publishers()? {
                return Ok(false);
            }
            has_mapped = true;
        }
    }

    /// Maps the catalogue of every client that may be publishing. Returns false if it could not map one of them.
    fn map_publishers(&self) -> Result<bool> {
        loop {
            let missing = {
                let guard = self.shards.epoch_guard();
                self.directory.announcers().find(|&number| {
                    let life = self.directory.members[number.index()].member.read();
                    self.may_publish(number) && self.publisher(&guard, number, life).catalogue().is_none()
                })
            };
            let Some(number) = missing else { return Ok(true) };
            if !self.peers.fetch_cells(number, 0)? && self.may_publish(number) {
                // The number belongs to another member now, so the daemon must decide.
                return Ok(false);
            }
        }
    }

    /// Returns a member's mapped sheets, if they belong to this epoch.
    fn publisher<'s>(&'s self, guard: &'s EpochGuard<'_>, number: ClientNo, life: u64) -> Publisher<'s> {
        if number == self.me() {
            return Publisher::This(self);
        }
        Publisher::Other(self.peers.get(guard, number).filter(|peer| peer.is_of_epoch(life)))
    }

    fn may_publish(&self, number: ClientNo) -> bool {
        let state = Absorbed(self.directory.members[number.index()].absorbed.read()).state();
        matches!(state, MemberState::Open | MemberState::Ending)
    }

    /// Returns whether the name has no owner, no other client is publishing it, and one more name fits. The caller must have
    /// claimed the name. `own` is the number of this client's announcements that wait.
    fn availability(&self, hash: u64, key: &[u8], own: u64) -> Availability {
        let guard = self.shards.epoch_guard();
        let mut announced = own;
        for number in self.directory.announcers() {
            if number == self.me() || !self.may_publish(number) {
                continue;
            }
            let member = &self.directory.members[number.index()];
            // `None`: the client has become an announcer since this client last mapped the announcers' sheets.
            let Some(catalogue) = self.publisher(&guard, number, member.member.read()).catalogue() else {
                return Availability::Unmapped;
            };
            // Read the claim before the ring: a name that is no longer in the claim is in the ring.
            let claim = catalogue.claim.read();
            match Waiting::read(catalogue, &member.absorbed) {
                Ok(None) => {}
                Ok(Some(waiting)) => {
                    // This client also asks the daemon if another name has the same tag.
                    if claim == hash || waiting.cells(hash).next().is_some() {
                        return Availability::Taken;
                    }
                    announced += waiting.count() + u64::from(claim != 0);
                }
                Err(Ending) => return Availability::Taken,
            }
        }
        // Many names collide with this name, so the daemon decides.
        if self.directory.is_long_search(hash) {
            return Availability::Taken;
        }
        // Read the free space after the rings. Then a name that the daemon enters in between counts twice, but this
        // check never misses it.
        let is_free = announced < self.directory.head().names_room.read()
            && self
                .find_hashed(hash, key)
                .is_none_or(|found| !found.owner_word.is_live() && found.owner_word.kind() != OwnerKind::Reserved);
        if is_free { Availability::Free } else { Availability::Taken }
    }

    /// Wakes the daemon, which sleeps or is about to sleep. The daemon then enters the announced names into the
    /// directory.
    fn wakeup(&self) {
        // An error means that the eventfd's counter is full, so another wakeup is already pending.
        let _ = rustix::io::write(&*lock(&self.wakeup), &1u64.to_ne_bytes());
    }
}
