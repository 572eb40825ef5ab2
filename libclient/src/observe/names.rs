//! The names, lists and streams of a namespace, and the cells to which they refer.

use super::ENTRIES_MAX;
use super::observation::ListSeen;
use super::sheets::{Sheets, cell_of, part_of};
use crate::error::Result;
use crate::session::Session;
use std::collections::{BTreeSet, HashMap, HashSet};
use tensorlend_layout::announce::Waiting;
use tensorlend_layout::name::{KeyKind, parse};
use tensorlend_layout::number::{CellNo, ClientNo, EntryNo, StreamLine};
use tensorlend_layout::word::{Absorbed, Cell, MemberState};

/// The name, list or stream that holds a value.
pub enum Led {
    Name(String),
    Item { list: u64, number: u64 },
}

/// The route from a name to its cell.
struct Route {
    led: Led,
    owner: ClientNo,
    cell: CellNo,
    /// The entry and the owner word. `None`: the name is announced, and not in the directory yet.
    owner_word: Option<(EntryNo, u64)>,
}

/// The result of a walk through the namespace's names.
#[derive(Default)]
pub struct Names {
    routes: Vec<Route>,
    /// Streams by name, with their index in the table.
    pub streams: Vec<(String, StreamLine)>,
    /// Lists' names, by id.
    pub lists: HashMap<u64, String>,
    /// Lists, in the order of the directory.
    pub lists_seen: Vec<ListSeen>,
    /// True if the namespace has more entries than the walk may read.
    pub truncated: bool,
}

impl Names {
    /// Reads the announcements, and then the directory. If the daemon enters a name into the directory in between, the
    /// walk finds the name twice and counts it once.
    pub fn walk(session: &Session, sheets: &mut Sheets) -> Result<Self> {
        let mut it = Self::default();
        for owner in session.directory.announcers().collect::<Vec<_>>() {
            it.announced(session, sheets, owner)?;
        }
        it.bound(session);
        Ok(it)
    }

    fn announced(&mut self, session: &Session, sheets: &mut Sheets, owner: ClientNo) -> Result<()> {
        let member = &session.directory.members[owner.index()];
        if !matches!(Absorbed(member.absorbed.read()).state(), MemberState::Open | MemberState::Ending) {
            return Ok(());
        }
        sheets.fetch_cells(session, owner, 0)?;
        let guard = session.shards.epoch_guard();
        let peer = session.peers().get(&guard, owner).filter(|peer| peer.is_of_epoch(member.member.read()));
        let first = if owner == session.me() {
            Some(session.names().catalogue())
        } else {
            peer.and_then(|p| p.catalogue()).map(|c| &**c)
        };
        let waiting = first.and_then(|first| Waiting::read_also_ending(first, &member.absorbed));
        let Some(waiting) = waiting else { return Ok(()) };
        for (n, cell) in (0..).zip(waiting.all_cells()) {
            // The record contains the name. If the record is not mapped yet, the next observation reports the name.
            let Some(record) = cell_of(session, peer, owner, cell) else {
                sheets.incomplete = true;
                continue;
            };
            if let Some(name) = waiting.name(n, record, &member.absorbed) {
                self.routes.push(Route { led: Led::Name(name), owner, cell, owner_word: None });
            }
        }
        Ok(())
    }

    fn bound(&mut self, session: &Session) {
        let directory = &session.directory;
        self.truncated = directory.head().names_end.read() > ENTRIES_MAX as u64;
        for (at, entry) in directory.entries().take(ENTRIES_MAX) {
            let Some((owner_word, key)) = directory.live_key(entry) else { continue };
            let word = |from: usize| key.get(from..from + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap()));
            let led = match parse(&key) {
                Some((KeyKind::Name, name)) => Led::Name(name.to_owned()),
                Some((KeyKind::Item, _)) => Led::Item { list: word(1), number: word(9) },
                Some((KeyKind::Stream, name)) => {
                    self.streams.push((name.to_owned(), owner_word.stream()));
                    continue;
                }
                Some((KeyKind::List, name)) => {
                    if let Some(list) = directory.lists.get(owner_word.cell().index()) {
                        self.lists.insert(list.id.read(), name.to_owned());
                        self.lists_seen.push(ListSeen { name: name.to_owned(), items: list.end.read() });
                    }
                    continue;
                }
                None => continue,
            };
            self.routes.push(Route {
                led,
                owner: owner_word.owner(),
                cell: owner_word.cell(),
                owner_word: Some((at, owner_word.0)),
            });
        }
    }

    /// Calls `found` with each value: its holder, its owner and its cell.
    pub fn resolve(
        &mut self,
        session: &Session,
        sheets: &mut Sheets,
        mut found: impl FnMut(Led, ClientNo, Cell),
    ) -> Result<()> {
        let parts: BTreeSet<(ClientNo, u8)> = self.routes.iter().map(|r| (r.owner, part_of(r.cell))).collect();
        for (owner, part) in parts {
            sheets.fetch_cells(session, owner, part)?;
        }
        let mut seen = HashSet::with_capacity(self.routes.len());
        // Names in the directory come first, because they stay, while announcements disappear.
        self.routes.sort_by_key(|route| route.owner_word.is_none());
        for route in self.routes.drain(..) {
            if !seen.insert((route.owner, route.cell)) {
                continue;
            }
            let Some(member) = session.directory.members.get(route.owner.index()) else { continue };
            let guard = session.shards.epoch_guard();
            let peer = session.peers().get(&guard, route.owner).filter(|peer| peer.is_of_epoch(member.member.read()));
            let Some(record) = cell_of(session, peer, route.owner, route.cell) else { continue };
            let cell = Cell(record.cell.read());
            let is_unchanged = route
                .owner_word
                .is_none_or(|(entry, owner_word)| session.owner_word(entry).is_some_and(|w| w.peek() == owner_word));
            if is_unchanged && cell.is_value() {
                found(route.led, route.owner, cell);
            }
        }
        Ok(())
    }
}
