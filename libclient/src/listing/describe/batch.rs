//! The preparation of many descriptions. The client maps a sheet that many names share. The daemon reads the cells and
//! records of all other names. One packet carries as many names as fit.

use super::{Attempt, Bytes, Described, Describer, Lent, find};
use crate::error::{Error, Result};
use crate::lease::by_name::CellRoute;
use crate::lease::take::Miss;
use std::collections::HashMap;
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::tensor::BadTensor;
use tensorlend_layout::wire::{NameAt, Reply, Request, VALUES_MAX, ValueAt};
use tensorlend_layout::word::{Cell, SLOT_NONE};

/// Number of names that must share a sheet before the client maps it. Fewer records cost less in packets than the
/// mapping.
const SHARED_BY: usize = 64;

/// A sheet that is not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Unmapped {
    /// A part of a member's cells: the client number, the member word, and the part.
    Cells(ClientNo, u64, u8),
    Records(Lent),
}

impl Describer<'_> {
    /// Prepares the description of these names.
    pub fn prepare<'n>(&mut self, names: impl Iterator<Item = &'n str>) -> Result<()> {
        let mut names: Vec<&str> = names.collect();
        let mut unshared = Vec::new();
        // Two rounds: the cells that the client maps in the first round show which records are missing.
        for _ in 0..2 {
            let mut by_sheet: HashMap<Unmapped, Vec<(&str, NameAt)>> = HashMap::new();
            for name in names.drain(..) {
                if let Some((sheet, at)) = self.unmapped(name)? {
                    by_sheet.entry(sheet).or_default().push((name, at));
                }
            }
            for (sheet, group) in by_sheet {
                if group.len() < SHARED_BY {
                    unshared.extend(group.into_iter().map(|(_, at)| at));
                    continue;
                }
                match sheet {
                    Unmapped::Cells(owner, member, part) => {
                        if !self.session.peers().fetch_cells(owner, part)? {
                            self.missing.insert((owner, member, part));
                        }
                    }
                    Unmapped::Records(lent) => self.fetch(lent)?,
                }
                names.extend(group.into_iter().map(|(name, _)| name));
            }
        }
        self.ask_for(&unshared)
    }

    /// Returns the sheet without which this client cannot describe the name, if the name is in the directory.
    fn unmapped(&mut self, name: &str) -> Result<Option<(Unmapped, NameAt)>> {
        let session = self.session;
        let Some(found) = CellRoute::find(session, name.as_bytes())? else { return Ok(None) };
        let Some(entry) = found.entry else { return Ok(None) };
        let at = NameAt { entry, owner_word: found.route.seen };
        let member = &session.directory.members[found.owner.index()];
        let guard = session.shards.epoch_guard();
        let seen = match found.read(session, &guard) {
            Ok(seen) => seen,
            Err(Miss::Cells(part)) => {
                return Ok(Some((Unmapped::Cells(found.owner, member.member.read(), part), at)));
            }
            Err(_) => return Ok(None),
        };
        let geometry = member.geometry.read();
        let is_known = |it: &Self| {
            let mapped = it.mapped(seen.peer, seen.cell, geometry);
            mapped.or_else(|| it.fetched(found.owner, seen.cell)).is_some()
        };
        if !seen.cell.is_value() || is_known(self) {
            return Ok(None);
        }
        let lent = find(self.lent.get_or_insert_with(|| Lent::all(session)), found.owner, seen.cell.slot());
        let lent = lent.filter(|lent| !self.is_on_device(*lent) && !self.records.contains_key(lent));
        Ok(lent.map(|lent| (Unmapped::Records(lent), at)))
    }

    /// Requests the cells and records of these names from the daemon.
    fn ask_for(&mut self, mut names: &[NameAt]) -> Result<()> {
        const DOING: &str = "read what names hold";
        while !names.is_empty() {
            let now = &names[..names.len().min(VALUES_MAX)];
            let reply = self.session.control.call(&Request::ValuesOf { names: now.to_vec() }, DOING, "")?;
            let Reply::Values(values) = reply else { return Err(Error::Protocol { doing: DOING }) };
            if values.is_empty() || values.len() > now.len() {
                return Err(Error::Protocol { doing: DOING });
            }
            names = &names[values.len()..];
            self.said.extend(now.iter().copied().zip(values));
        }
        Ok(())
    }

    /// Returns the contents of a name that the daemon has read, if the name's route is unchanged. After `None`, this
    /// client reads the name itself.
    pub(super) fn said(&mut self, name: &str, found: &CellRoute<'_>) -> Option<Attempt> {
        let at = NameAt { entry: found.entry?, owner_word: found.route.seen };
        Some(match self.said.remove(&at)? {
            ValueAt::Unknown => return None,
            ValueAt::Deleted => Attempt::Done(Described::Absent),
            ValueAt::Nowhere => Attempt::Damaged(BadTensor::Segment),
            ValueAt::OnDevice => Attempt::Done(Described::Lease),
            ValueAt::Slot { cell, record, segment_bytes, in_file } => {
                match self.read(name, found, Cell(cell), &record, Bytes { count: segment_bytes, in_file }) {
                    Ok(Attempt::Doubtful(mut it)) => {
                        // The daemon has already followed the chain.
                        it.next = SLOT_NONE;
                        Attempt::Doubtful(it)
                    }
                    Ok(attempt) => attempt,
                    Err(cause) => Attempt::Damaged(cause),
                }
            }
        })
    }
}
