//! Leases on values of names; and lookups without a lease.

use crate::error::{Error, Result};
use crate::lease::take::{At, Leased, Leasing, Route, lease};
use crate::names::announce::Announced;
use crate::names::version::Version;
use crate::session::Session;
use tensorlend_layout::catalogue::cell_place;
use tensorlend_layout::directory::FoundName;
use tensorlend_layout::tensor::BadTensor;
use tensorlend_layout::word::Cell;

/// Leases the value of a name.
#[inline]
pub fn lease_key(session: &Session, key: &[u8], name: &str) -> Result<Option<Leased>> {
    session.check()?;
    let hash = session.directory.hash(key);
    loop {
        let Some(found) = session.find_live(hash, key) else {
            match lease_announced(session, hash, key, name)? {
                Leasing::Held(leased) => return Ok(Some(leased)),
                Leasing::Absent => return Ok(None),
                Leasing::Moved => continue,
            }
        };
        let word = &session.directory.names[found.entry as usize].home;
        let route = Route::home(word, found.home);
        match lease(session, found.home.catalogue(), route, At::Cell(found.home.cell()), name)? {
            Leasing::Held(leased) => return Ok(Some(leased)),
            Leasing::Absent => return Ok(None),
            Leasing::Moved => std::hint::spin_loop(),
        }
    }
}

/// The route to a name that is announced: through its client's `absorbed` word.
pub fn route_of<'s>(session: &'s Session, announced: &Announced) -> Route<'s> {
    let word = &session.directory.members[usize::from(announced.catalogue)].absorbed;
    Route { word, seen: announced.absorbed.0, home: announced.home(), member: announced.member }
}

/// Leases the value of a name that is not in the directory.
#[cold]
fn lease_announced(session: &Session, hash: u64, key: &[u8], name: &str) -> Result<Leasing> {
    let Some(announced) = session.names().announced(hash, key)? else {
        // The daemon absorbed it in between: then it is in the directory.
        let live = session.find_live(hash, key).is_some();
        return Ok(if live { Leasing::Moved } else { Leasing::Absent });
    };
    lease(session, announced.catalogue, route_of(session, &announced), At::Cell(announced.cell), name)
}

/// The present state of a name, without a lease: its version, if it has a value.
pub fn peek(session: &Session, key: &[u8]) -> Result<Peeked> {
    let hash = session.directory.hash(key);
    let mut missing = 0;
    loop {
        let (route, catalogue, number) = match session.find_live(hash, key) {
            Some(FoundName { entry, home }) => {
                let word = &session.directory.names[entry as usize].home;
                (Route::home(word, home), home.catalogue(), home.cell())
            }
            None => match session.names().announced(hash, key)? {
                Some(found) => (route_of(session, &found), found.catalogue, found.cell),
                None if session.find_live(hash, key).is_some() => continue,
                None => return Ok(Peeked::default()),
            },
        };
        let cell = if catalogue == session.me() {
            session.names().own_cell(number).map(|record| Cell(record.cell.read()))
        } else {
            let member = session.directory.members[usize::from(catalogue)].member.read();
            let guard = session.shards.epoch_guard();
            let peer = session.peers().get(&guard, catalogue).filter(|p| p.is_life(member));
            if route.member != 0 && route.member != member {
                continue;
            }
            peer.and_then(|p| p.cell(number)).map(|cell| Cell(cell.read()))
        };
        match cell {
            Some(cell) if route.word.peek() == route.seen => {
                let version = Version { home: route.home, cell: cell.0 };
                return Ok(Peeked { owner: Some(catalogue), seen: Some(version), exists: cell.is_value() });
            }
            Some(_) => {}
            None => {
                if !session.peers().fetch_cells(catalogue, cell_place(number).0)? {
                    missing += 1;
                    if missing > 64 && route.word.read() == route.seen {
                        return Err(Error::Damaged {
                            name: String::from_utf8_lossy(key).into_owned(),
                            cause: BadTensor::Record,
                        });
                    }
                    std::thread::yield_now();
                }
            }
        }
    }
}

/// The state of a name, read without a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peeked {
    /// The name's owner.
    pub owner: Option<u16>,
    /// The version of its value.
    pub seen: Option<Version>,
    /// Whether the version is a value, and not a deletion.
    pub exists: bool,
}
