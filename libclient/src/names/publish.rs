//! Publishing and deleting names.

use super::NameTable;
use crate::error::{Error, Result};
use crate::names::lifetime::Lifetime;
use crate::names::version::Version;
use tensorlend_layout::number::CellNo;
use tensorlend_layout::publish::{is_lasting, overwrite};
use tensorlend_layout::tensor::Sealed;
use tensorlend_layout::wire::{Reply, Request};
use tensorlend_layout::word::{Cell, OwnerWord, parked_bit};
use tensorlend_os::futex;
use tensorlend_os::mutex::lock;

/// A publication of a sealed slot.
#[derive(Clone, Copy)]
pub struct Publication {
    pub sealed: Sealed,
    pub lifetime: Lifetime,
    /// Whether a name of this client keeps the lifetime that it has. The client then overwrites the name without a request.
    pub keeps_lifetime: bool,
}

impl From<Sealed> for Publication {
    /// Returns the publication of a value for a name without a lifetime.
    #[inline]
    fn from(sealed: Sealed) -> Self {
        Self { sealed, lifetime: Lifetime::default(), keeps_lifetime: false }
    }
}

/// The outcome of an attempt to overwrite a name of this client.
enum Overwrite {
    /// The cell has the new value. The fields are the new value's version and the former content of the cell.
    Replaced(Version, Cell),
    /// Another client owns the name, the name has no owner, or it has a lifetime that the new value must not have.
    NotOurs,
}

impl NameTable {
    /// Publishes a sealed slot under a name, which then holds it. After an error, frees the slot if the daemon certainly did
    /// nothing.
    #[inline]
    pub fn publish(&self, name: &str, publication: &Publication) -> Result<Version> {
        match self.publish_held(name, publication) {
            Ok(version) => Ok(version),
            Err(e) => Err(self.not_published(publication.sealed.value, e)),
        }
    }

    /// Frees the slot after an error, if no reader can have seen it.
    #[cold]
    fn not_published(&self, value: Cell, error: Error) -> Error {
        // If the daemon certainly did nothing, no reader has seen the slot. After any other error the name may refer to the
        // slot, so the slot stays in use.
        if error.is_certain() {
            self.alloc.take_back(value);
        }
        error
    }

    /// Publishes like [`NameTable::publish`], but on an error the slot stays the caller's. Asks the daemon for a new
    /// lifetime, because the daemon has the clock and detects the end of sessions.
    #[inline]
    pub fn publish_held(&self, name: &str, publication: &Publication) -> Result<Version> {
        let &Publication { ref sealed, lifetime, keeps_lifetime } = publication;
        if !lifetime.is_forever() && !keeps_lifetime {
            return self.bind_elsewhere(name, sealed, lifetime, None);
        }
        self.check_session("publish")?;
        let hash = self.directory.hash(name.as_bytes());
        if let Overwrite::Replaced(version, before) = self.overwrite(hash, name, sealed, keeps_lifetime) {
            self.after_overwrite(before);
            return Ok(version);
        }
        if lifetime.is_forever() {
            self.publish_first(hash, name, sealed)
        } else {
            self.bind_elsewhere(name, sealed, lifetime, None)
        }
    }

    /// Removes the value of a name of this client without a request. The name keeps its cell and its lifetime. Returns false
    /// if the name held no value, or does not belong to this client.
    pub fn empty(&self, name: &str) -> Result<bool> {
        self.check()?;
        let hash = self.directory.hash(name.as_bytes());
        // The daemon may enter an announced name into the directory after the look-up there, and before the look-up among the
        // announced names. The second attempt finds the name in the directory.
        for _ in 0..2 {
            if let Overwrite::Replaced(_, before) = self.overwrite(hash, name, &Cell::DELETED.into(), true) {
                self.after_overwrite(before);
                return Ok(before.is_value());
            }
        }
        Ok(false)
    }

    /// Binds a name through the daemon to a fresh cell other than `barred`, so that the name gets an owner word that it
    /// never had. On an error the slot stays the caller's.
    pub fn bind_elsewhere(
        &self,
        name: &str,
        sealed: &Sealed,
        lifetime: Lifetime,
        barred: Option<CellNo>,
    ) -> Result<Version> {
        self.check().map_err(Error::certain)?;
        let _one = lock(&self.binding);
        self.bind_tidily(name, sealed, lifetime, barred)
    }

    /// Checks that the session is not over. After its end no process reads this client's cells any more. An overwrite
    /// sends no request, and so would not detect the end.
    #[inline]
    fn check_session(&self, doing: &'static str) -> Result<()> {
        self.check()?;
        if self.control.is_dead() {
            return Err(self.control.ended(doing, Error::Disconnected { doing, asked: false }));
        }
        Ok(())
    }

    #[cold]
    fn publish_first(&self, hash: u64, name: &str, sealed: &Sealed) -> Result<Version> {
        let _one = lock(&self.binding);
        // Another thread may have bound the name in the meantime.
        if let Overwrite::Replaced(version, before) = self.overwrite(hash, name, sealed, false) {
            self.after_overwrite(before);
            return Ok(version);
        }
        if let Some(version) = self.announce(hash, name.as_bytes(), sealed)? {
            return Ok(version);
        }
        self.bind_tidily(name, sealed, Lifetime::default(), None)
    }

    fn bind_tidily(&self, name: &str, sealed: &Sealed, lifetime: Lifetime, barred: Option<CellNo>) -> Result<Version> {
        match self.bind(name, sealed, lifetime, barred) {
            // Names that this client has deleted use up the limit until the daemon forgets them.
            Err(e) if e.is_limit() && self.has_deleted() => {
                self.tidy()?;
                self.bind(name, sealed, lifetime, barred)
            }
            done => done,
        }
    }

    /// Asks the daemon to bind the name to a new cell that holds the value, and that is not `barred`.
    fn bind(&self, name: &str, sealed: &Sealed, lifetime: Lifetime, barred: Option<CellNo>) -> Result<Version> {
        let ttl_ns = lifetime.ttl_ns()?;
        let mut cell = self.fill_cell(name.as_bytes(), sealed).map_err(Error::certain)?;
        if barred == Some(cell) {
            let other = self.fill_cell(name.as_bytes(), sealed);
            self.empty_cell(cell);
            cell = other.map_err(Error::certain)?;
        }
        tensorlend_layout::crash_point!("takeover: cell filled");
        let name_owned = name.to_owned();
        let request = if lifetime.is_forever() {
            Request::Bind { name: name_owned, cell }
        } else {
            Request::BindFor { name: name_owned, cell, ttl_ns, ephemeral: lifetime.ephemeral }
        };
        // If the client sends the request twice, the daemon may grant it and then take the name away before the second
        // reply. This lock delays the processing of that notice until the reply has arrived.
        let _one = lock(&self.housekeeping);
        match self.control.call(&request, "publish", name) {
            Ok(Reply::Bound { owner_word, .. }) => {
                tensorlend_layout::crash_point!("takeover: bound");
                Ok(Version { owner_word, cell: sealed.value.0 })
            }
            Ok(_) => Err(Error::Protocol { doing: "publish" }),
            Err(e) => {
                // If the daemon certainly did nothing, no owner word refers to the cell. After any other error an owner word
                // may refer to the cell, so the cell stays in use.
                if e.is_certain() {
                    self.empty_cell(cell);
                }
                Err(e)
            }
        }
    }

    // Inlined, because a caller that gets the result through memory waits for the processor's store buffer.
    #[inline(always)]
    fn overwrite(&self, hash: u64, name: &str, sealed: &Sealed, keeps_lifetime: bool) -> Overwrite {
        // While the guard is open, this client gives none of its cells to another name.
        let guard = self.shards.epoch_guard();
        loop {
            let Some(found) = self.find_live(hash, name.as_bytes()) else {
                drop(guard);
                return match self.overwrite_pending(hash, name.as_bytes(), sealed) {
                    Some((version, before)) => Overwrite::Replaced(version, before),
                    None => Overwrite::NotOurs,
                };
            };
            if found.owner_word.owner() != self.me() {
                return Overwrite::NotOurs;
            }
            let Some(record) = self.own_cell(found.owner_word.cell()) else { return Overwrite::NotOurs };
            // The cell is closed, so publish the name in another cell. If `tidy` closes the cell after this check, the store
            // below succeeds nevertheless, and `tidy` leaves the cell to its name.
            if record.cell.peek() == Cell::CLOSING.0 {
                return Overwrite::NotOurs;
            }
            let entry = &self.directory.names[found.entry.index()];
            // Only the daemon ends a lifetime, so a value without a lifetime needs a request.
            if !keeps_lifetime && !is_lasting(&entry.life) {
                return Overwrite::NotOurs;
            }
            let owner_word = &entry.owner_word;
            record.describe_sealed(sealed, self.shards.is_alone(&guard));
            if let Some(before) = overwrite(owner_word, found.owner_word.0, &record.cell, sealed.value) {
                return Overwrite::Replaced(Version { owner_word: found.owner_word.0, cell: sealed.value.0 }, before);
            }
        }
    }

    #[inline]
    fn after_overwrite(&self, before: Cell) {
        self.ring();
        if before.is_value() {
            tensorlend_layout::crash_point!("overwrite: bell rung");
            self.alloc.retire(before);
        }
    }

    /// Wakes readers that wait for a name of this client. The caller must have executed a fence after the
    /// publication.
    #[inline]
    fn ring(&self) {
        let bit = parked_bit(self.me());
        if self.peers.anybody_parked(|parked| parked & bit != 0) {
            self.catalogue.bell.ring();
            futex::wake_all(&self.catalogue.bell);
        }
    }

    /// Deletes a name. Returns false if the name held no value.
    pub fn delete(&self, name: &str) -> Result<bool> {
        self.check_session("delete")?;
        let (hash, key) = (self.directory.hash(name.as_bytes()), name.as_bytes());
        loop {
            // A name with a lifetime keeps it until the daemon removes the name. The next publication finds it there.
            if let Overwrite::Replaced(version, before) = self.overwrite(hash, name, &Cell::DELETED.into(), true) {
                self.after_overwrite(before);
                tensorlend_layout::crash_point!("delete: cell emptied");
                self.note_deleted(name, OwnerWord(version.owner_word).cell());
                return Ok(before.is_value());
            }
            let in_directory = || self.find_live(hash, key).is_some();
            if in_directory() {
                break;
            }
            match self.announced(hash, key)? {
                // Another thread of this client is publishing the name now. Wait until that thread has finished.
                Some(found) if found.owner == self.me() => drop(lock(&self.binding)),
                Some(_) => break,
                None if in_directory() => {}
                None => return Ok(false),
            }
        }
        match self.control.call(&Request::Delete { name: name.to_owned() }, "delete", name)? {
            Reply::Deleted { existed } => Ok(existed),
            _ => Err(Error::Protocol { doing: "delete" }),
        }
    }

    /// Records that a name of this client was deleted in its cell. The client reports many such names to the daemon
    /// together.
    fn note_deleted(&self, name: &str, cell: CellNo) {
        let is_due = {
            let mut cells = lock(&self.cells);
            cells.deleted.note(name, cell);
            cells.is_tidy_due()
        };
        // The name is deleted, even if this report to the daemon fails.
        if is_due {
            let _ = self.report_deleted();
        }
    }
}
