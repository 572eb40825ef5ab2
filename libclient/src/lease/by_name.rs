//! The routes from names to cells, the values in these cells, and leases on the values.

use crate::error::{Error, Result};
use crate::lease::take::{At, Attempt, Leased, Leasing, Miss, Route, lease};
use crate::link::epoch::EpochGuard;
use crate::names::announce::Announced;
use crate::names::version::Version;
use crate::peers::Peer;
use crate::session::Session;
use tensorlend_layout::catalogue::cell_place;
use tensorlend_layout::directory::FoundName;
use tensorlend_layout::number::{CellNo, ClientNo, EntryNo};
use tensorlend_layout::tensor::BadTensor;
use tensorlend_layout::word::{Cell, OwnerWord, Word};

/// Maximum number of requests for a part of cells that does not exist, while the route to the cell does not change.
const MISSING_MAX: u32 = 64;

/// Leases the value of a name.
#[inline]
pub fn lease_key(session: &Session, key: &[u8], name: &str) -> Result<Option<Leased>> {
    Polled::new(session, key).lease(name)
}

/// Returns the route to an announced name, which leads through the `absorbed` word of the announcing client.
fn route_of<'s>(session: &'s Session, announced: &Announced) -> Route<'s> {
    let word = &session.directory.members[announced.owner.index()].absorbed;
    Route { word, seen: announced.absorbed.0, owner_word: announced.owner_word(), member: announced.member }
}

/// Leases the value of a name that is not in the directory.
#[cold]
fn lease_announced(session: &Session, hash: u64, key: &[u8], name: &str) -> Result<Leasing> {
    let Some(announced) = session.names().announced(hash, key)? else {
        // The daemon may have entered the name into the directory in the meantime.
        let live = session.find_live(hash, key).is_some();
        return Ok(if live { Leasing::Moved } else { Leasing::Absent });
    };
    lease(session, announced.owner, route_of(session, &announced), At::Cell(announced.cell), name)
}

/// The route from a name to its cell.
pub struct CellRoute<'s> {
    pub route: Route<'s>,
    pub owner: ClientNo,
    pub number: CellNo,
    /// The name's entry in the directory. `None`: the name is only announced.
    pub entry: Option<EntryNo>,
}

/// A cell that this thread has read.
pub struct SeenCell<'s> {
    /// The owner's memory. `None`: the cell is this client's own, and its memory is not mapped for reading.
    pub peer: Option<&'s Peer>,
    pub word: &'s Word,
    pub cell: Cell,
}

impl<'s> CellRoute<'s> {
    /// Finds the route to a name's cell. Returns `None` if the name does not exist.
    #[inline]
    pub fn find(session: &'s Session, key: &[u8]) -> Result<Option<Self>> {
        let hash = session.directory.hash(key);
        loop {
            if let Some(found) = session.find_live(hash, key) {
                let route =
                    Route::owner_word(&session.directory.names[found.entry.index()].owner_word, found.owner_word);
                let (owner, number) = (found.owner_word.owner(), found.owner_word.cell());
                return Ok(Some(Self { route, owner, number, entry: Some(found.entry) }));
            }
            if let Some(found) = session.names().announced(hash, key)? {
                let (route, number) = (route_of(session, &found), found.cell);
                return Ok(Some(Self { route, owner: found.owner, number, entry: None }));
            }
            // The daemon may have entered the name into the directory in the meantime.
            if session.find_live(hash, key).is_none() {
                return Ok(None);
            }
        }
    }

    /// Reads the cell, if it is mapped.
    #[inline]
    pub fn read(&self, session: &'s Session, guard: &'s EpochGuard<'_>) -> Attempt<SeenCell<'s>> {
        let Some(entry) = session.directory.members.get(self.owner.index()) else {
            return Err(Miss::Moved);
        };
        let member = entry.member.read();
        if self.route.member != 0 && self.route.member != member {
            return Err(Miss::Moved);
        }
        let peer = session.peers().get(guard, self.owner).filter(|peer| peer.is_of_epoch(member));
        let word = if self.owner == session.me() {
            session.names().own_cell(self.number).map(|record| &record.cell)
        } else {
            peer.and_then(|peer| peer.cell(self.number))
        };
        let Some(word) = word else { return Err(Miss::Cells(cell_place(self.number).0)) };
        Ok(SeenCell { peer, word, cell: Cell(word.read()) })
    }

    /// Returns whether the route has not changed.
    pub fn is_unchanged(&self) -> bool {
        self.route.word.peek() == self.route.seen
    }

    pub fn version(&self, cell: Cell) -> Version {
        Version { owner_word: self.route.owner_word, cell: cell.0 }
    }
}

/// Reads the cell of a name that the directory contains, without a lease. After `None`, the name has another owner word, or
/// the cell is not mapped.
#[inline(always)]
fn cell_of(session: &Session, found: &FoundName) -> Option<Cell> {
    let (owner, number) = (found.owner_word.owner(), found.owner_word.cell());
    let cell = if owner == session.me() {
        // This client never unmaps its own cells, so it reads them without a guard.
        session.names().own_cell(number)?.cell.read()
    } else {
        let member = session.directory.members.get(owner.index())?.member.read();
        let guard = session.shards.epoch_guard();
        let peer = session.peers().get(&guard, owner).filter(|peer| peer.is_of_epoch(member))?;
        peer.cell(number)?.read()
    };
    // If the owner word is unchanged, the cell belonged to this name when this thread read it.
    let same = session.directory.names[found.entry.index()].owner_word.peek() == found.owner_word.0;
    same.then_some(Cell(cell))
}

/// A name whose state a thread reads several times. It remembers the entry of the name: the entry belongs to the name while
/// its owner word is unchanged, because each new owner word has the next version. Versions repeat after 2^22 of them.
pub struct Polled<'a> {
    session: &'a Session,
    key: &'a [u8],
    hash: u64,
    found: Option<FoundName>,
}

impl<'a> Polled<'a> {
    #[inline(always)]
    pub fn new(session: &'a Session, key: &'a [u8]) -> Self {
        Self { session, key, hash: session.directory.hash(key), found: None }
    }

    /// Leases the name's value.
    #[inline(always)]
    pub fn lease(mut self, name: &str) -> Result<Option<Leased>> {
        let Self { session, key, hash, .. } = self;
        session.check()?;
        loop {
            let Some(found) = self.found.take().or_else(|| session.find_live(hash, key)) else {
                match lease_announced(session, hash, key, name)? {
                    Leasing::Held(leased) => return Ok(Some(leased)),
                    Leasing::Absent => return Ok(None),
                    Leasing::Moved => continue,
                }
            };
            let word = &session.directory.names[found.entry.index()].owner_word;
            let route = Route::owner_word(word, found.owner_word);
            match lease(session, found.owner_word.owner(), route, At::Cell(found.owner_word.cell()), name)? {
                Leasing::Held(leased) => return Ok(Some(leased)),
                Leasing::Absent => return Ok(None),
                Leasing::Moved => std::hint::spin_loop(),
            }
        }
    }

    /// Returns the present state of the name, without a lease: its version, if the name has a value.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Peeked> {
        if let Some(found) = &self.found
            && let Some(cell) = cell_of(self.session, found)
        {
            return Ok(Peeked::of(found.owner_word, cell));
        }
        self.find_and_peek()
    }

    #[inline(always)]
    fn find_and_peek(&mut self) -> Result<Peeked> {
        self.found = self.session.find_live(self.hash, self.key);
        match &self.found {
            Some(found) if let Some(cell) = cell_of(self.session, found) => Ok(Peeked::of(found.owner_word, cell)),
            _ => peek_slowly(self.session, self.key),
        }
    }
}

/// Returns whether a name holds a value, without a lease.
#[inline]
pub fn exists(session: &Session, key: &[u8]) -> Result<bool> {
    Ok(peek(session, key)?.exists)
}

/// Returns the present state of a name, without a lease: its version, if the name has a value.
#[inline]
pub fn peek(session: &Session, key: &[u8]) -> Result<Peeked> {
    Polled::new(session, key).find_and_peek()
}

/// Does the work of [`Polled::peek`] for a name that is announced, has changed, does not exist, or whose cell is not mapped.
#[cold]
fn peek_slowly(session: &Session, key: &[u8]) -> Result<Peeked> {
    let mut missing = 0;
    loop {
        let Some(found) = CellRoute::find(session, key)? else { return Ok(Peeked::default()) };
        let part = {
            let guard = session.shards.epoch_guard();
            match found.read(session, &guard) {
                Ok(SeenCell { cell, .. }) if found.is_unchanged() => {
                    let (owner, seen) = (Some(found.owner), Some(found.version(cell)));
                    return Ok(Peeked { owner, seen, exists: cell.is_value() });
                }
                Err(Miss::Cells(part)) => part,
                _ => continue,
            }
        };
        if !session.peers().fetch_cells(found.owner, part)? {
            missing += 1;
            if missing > MISSING_MAX && found.route.word.read() == found.route.seen {
                let name = String::from_utf8_lossy(key).into_owned();
                return Err(Error::Damaged { name, cause: BadTensor::Record });
            }
            std::thread::yield_now();
        }
    }
}

/// The state of a name, read without a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peeked {
    /// The name's owner.
    pub owner: Option<ClientNo>,
    /// The version of the name's cell: a value, or a deletion.
    pub seen: Option<Version>,
    /// True if the version is a value, false if it is a deletion.
    pub exists: bool,
}

impl Peeked {
    #[inline(always)]
    fn of(owner_word: OwnerWord, cell: Cell) -> Self {
        let seen = Some(Version { owner_word: owner_word.0, cell: cell.0 });
        Self { owner: Some(owner_word.owner()), seen, exists: cell.is_value() }
    }
}
