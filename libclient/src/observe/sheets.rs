//! Sheets that only an observer maps: slot records without their segments, and rings.

use super::ASKED_MAX;
use crate::error::{Error, Result};
use crate::peers::Peer;
use crate::segment::mapping::records;
use crate::session::Session;
use crate::stream::ring::map_ring;
use std::collections::HashMap;
use tensorlend_layout::catalogue::{CELL_PARTS, CellRecord, SlotRecord, cell_place};
use tensorlend_layout::header::Magic;
use tensorlend_layout::number::{CellNo, ClientNo, CursorNo};
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::stream::{RingEntry, StreamRing};
use tensorlend_layout::wire::{Refusal, Reply, Request};
use tensorlend_layout::word::RangeWord;
use tensorlend_os::memfd::Access;

/// A loan of a segment, as the directory lists it: the range word and the time of the loan.
pub type Lending = (u64, u64);
/// A ring: its head and its entries.
pub type Ring = (Sheet<StreamRing>, Records<RingEntry>);

/// Mapped sheets, and the number of requests left in this observation.
#[derive(Default)]
pub struct Sheets {
    records: HashMap<Lending, Records<SlotRecord>>,
    rings: HashMap<u64, Ring>,
    /// The number of requests in this observation.
    pub asked: usize,
    /// True if a sheet could not be mapped yet.
    pub incomplete: bool,
}

impl Sheets {
    /// Begins an observation.
    pub fn begin(&mut self) {
        (self.asked, self.incomplete) = (0, false);
    }

    /// Counts a request. Returns false if the observation has made the maximum number of requests.
    fn may_ask(&mut self) -> bool {
        let may = self.asked < ASKED_MAX;
        if may {
            self.asked += 1;
        } else {
            self.incomplete = true;
        }
        may
    }

    /// Unmaps sheets that no longer exist.
    pub fn keep(&mut self, lent: impl Fn(&Lending) -> bool, streams: impl Fn(u64) -> bool) {
        self.records.retain(|lending, _| lent(lending));
        self.rings.retain(|&id, _| streams(id));
    }

    /// Returns the slot records of a lent segment of host memory.
    pub fn records(&self, lending: Lending) -> Option<&Records<SlotRecord>> {
        self.records.get(&lending)
    }

    /// Maps the records of a loan, without its segment.
    pub fn fetch_records(&mut self, session: &Session, at: usize, lending: Lending) -> Result<()> {
        if self.records.contains_key(&lending) || !self.may_ask() {
            return Ok(());
        }
        let range = RangeWord(lending.0);
        let request = Request::SlotsOf { owner: range.owner(), slot: range.base() };
        let mut answer = match session.control.ask(&request, "inspect a segment", "") {
            Ok(answer) => answer,
            Err(Error::Refused { refusal: Refusal::NotFound(_), .. }) => {
                self.incomplete = true;
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let Reply::Segment { base, slots_log2, .. } = answer.reply else { return answer.unexpected() };
        let slots = answer.descriptor()?;
        let is_it = base == range.base() && 1u32.checked_shl(u32::from(slots_log2)) == Some(range.slots());
        let mapped: Result<Records<SlotRecord>> = records(&slots, Access::Read, Magic::Slots, range.slots() as usize);
        answer.acknowledge()?;
        // The reply belongs to this loan if the directory's row is unchanged.
        let line = &session.directory.segments[at];
        if is_it && (line.range.read(), line.since_ns.peek()) == lending {
            self.records.insert(lending, mapped?);
        } else {
            self.incomplete = true;
        }
        Ok(())
    }

    /// Maps a part of a client's cells, if it exists.
    pub fn fetch_cells(&mut self, session: &Session, client: ClientNo, part: u8) -> Result<()> {
        if part >= CELL_PARTS || has_part(session, client, part) || !self.may_ask() {
            return Ok(());
        }
        if !session.peers().fetch_cells(client, part)? {
            self.incomplete = true;
        }
        Ok(())
    }

    /// Maps a live member's lease table. Returns false if this observation may make no more requests.
    pub fn fetch_leases(&mut self, session: &Session, client: ClientNo) -> bool {
        let member = session.directory.members[client.index()].member.read();
        let known = client == session.me() || {
            let guard = session.shards.epoch_guard();
            let peer = session.peers().get(&guard, client).filter(|peer| peer.is_of_epoch(member));
            peer.and_then(Peer::leases).is_some()
        };
        known || self.may_ask()
    }

    /// Returns a stream's ring.
    pub fn ring(&self, id: u64) -> Option<&Ring> {
        self.rings.get(&id)
    }

    /// Maps a stream's ring. The daemon lends rings only to subscribers, so the observer subscribes for two requests.
    /// Its cursor is beyond all messages from the start. So no producer waits for the observer or keeps a message for
    /// it.
    pub fn fetch_ring(&mut self, session: &Session, name: &str, id: u64) -> Result<()> {
        if self.rings.contains_key(&id) || !self.may_ask() {
            return Ok(());
        }
        let Some(cursor) = session.streams().take_cursor() else {
            self.incomplete = true;
            return Ok(());
        };
        // Until the daemon does not list the cursor, it stays beyond all messages, and is not reused.
        session.control.late().give_up_cursor(cursor);
        match self.subscribe(session, name, id, cursor) {
            // The stream has the maximum number of subscribers, or has just ended.
            Err(Error::Refused { .. }) => {
                self.incomplete = true;
                Ok(())
            }
            other => other,
        }
    }

    fn subscribe(&mut self, session: &Session, name: &str, wanted: u64, cursor: CursorNo) -> Result<()> {
        let words = &session.shards.table().cursors[cursor.index()];
        words.next.set(u64::MAX);
        words.lost.set(0);
        words.stream.set(0);
        words.parked.set(0);
        let request = Request::Subscribe { name: name.to_owned(), cursor, wake: false };
        let answer = session.control.ask(&request, "observe a stream", name);
        let mut answer = answer.inspect_err(|e| {
            if e.is_certain() {
                session.control.late().free_cursor(cursor);
            }
        })?;
        let Reply::Stream { stream, id, capacity, .. } = answer.reply else { return answer.unexpected() };
        let ring = answer.descriptor().and_then(|fd| map_ring(&fd, capacity, Access::Read));
        answer.acknowledge()?;
        session.control.unsubscribe(stream, id, cursor, "observe a stream")?;
        match ring {
            Ok(ring) if id == wanted => drop(self.rings.insert(id, ring)),
            _ => self.incomplete = true,
        }
        Ok(())
    }
}

/// Returns whether a part of a client's cells is mapped.
fn has_part(session: &Session, client: ClientNo, part: u8) -> bool {
    if client == session.me() {
        return true;
    }
    let Some(entry) = session.directory.members.get(client.index()) else { return true };
    let guard = session.shards.epoch_guard();
    let peer = session.peers().get(&guard, client).filter(|peer| peer.is_of_epoch(entry.member.read()));
    peer.is_some_and(|peer| peer.has_part(part))
}

/// Returns the number of the part that contains this cell.
pub fn part_of(cell: CellNo) -> u8 {
    cell_place(cell).0
}

/// Returns the record of a client's cell, if that cell's part is mapped.
pub fn cell_of<'s>(
    session: &'s Session,
    peer: Option<&'s Peer>,
    client: ClientNo,
    cell: CellNo,
) -> Option<&'s CellRecord> {
    if client == session.me() { session.names().own_cell(cell) } else { peer?.record(cell) }
}
