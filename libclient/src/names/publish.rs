//! Names: publishing, deleting, renaming.

use super::NameTable;
use crate::error::{Error, Result};
use crate::names::housekeeping::TIDY_BATCH;
use crate::names::lifetime::Lifetime;
use crate::names::version::Version;
use tensorlend_layout::publish::overwrite;
use tensorlend_layout::wire::{Reply, Request};
use tensorlend_layout::word::{Cell, Home, LifeWord, parked_bit};
use tensorlend_os::futex;
use tensorlend_os::mutex::lock;

/// How an attempt to overwrite a name of our own went.
enum Own {
    /// Done; what stood in the cell before.
    Replaced(Version, Cell),
    /// The name is somebody else's, or nobody's, or one that ends by itself.
    NotOurs,
}

impl NameTable {
    /// Puts a sealed slot under a name. The slot is the name's from here on; on error it is freed.
    #[inline]
    pub fn publish_value(&self, name: &str, value: Cell) -> Result<Version> {
        let done = self.publish_held(name, value);
        // Certain: nobody has seen it. Any other error leaves open whether the name leads to it, and so the slot in use.
        if done.as_ref().is_err_and(Error::is_certain) {
            self.alloc.take_back(value);
        }
        done
    }

    /// As [`NameTable::publish_value`], for a name that ends by itself. Always by the daemon: it has the clock, and it knows
    /// who is gone.
    pub fn publish_value_for(&self, name: &str, value: Cell, lifetime: Lifetime) -> Result<Version> {
        if lifetime.is_forever() {
            return self.publish_value(name, value);
        }
        let done = self.publish_held_for(name, value, lifetime);
        if done.as_ref().is_err_and(Error::is_certain) {
            self.alloc.take_back(value);
        }
        done
    }

    /// As [`NameTable::publish_value_for`], but on error the slot stays the caller's.
    pub fn publish_held_for(&self, name: &str, value: Cell, lifetime: Lifetime) -> Result<Version> {
        if lifetime.is_forever() {
            return self.publish_held(name, value);
        }
        self.check().map_err(Error::certain)?;
        let _one = lock(&self.binding);
        self.bind_tidily(name, value, lifetime)
    }

    /// As [`NameTable::publish_value`], but on error the slot stays the caller's.
    #[inline]
    pub fn publish_held(&self, name: &str, value: Cell) -> Result<Version> {
        self.check()?;
        // Into a directory that nobody reads any more: an overwrite asks no daemon, and would hear nothing of it.
        if self.control.is_dead() {
            return Err(Error::Disconnected { doing: "publish", asked: false });
        }
        let hash = self.directory.hash(name.as_bytes());
        if let Own::Replaced(version, before) = self.overwrite(hash, name, value) {
            self.after_overwrite(before);
            return Ok(version);
        }
        self.publish_first(hash, name, value)
    }

    #[cold]
    fn publish_first(&self, hash: u64, name: &str, value: Cell) -> Result<Version> {
        let _one = lock(&self.binding);
        // Another thread may have bound the name while we waited.
        if let Own::Replaced(version, before) = self.overwrite(hash, name, value) {
            self.after_overwrite(before);
            return Ok(version);
        }
        if let Some(version) = self.announce(hash, name.as_bytes(), value)? {
            return Ok(version);
        }
        self.bind_tidily(name, value, Lifetime::default())
    }

    fn bind_tidily(&self, name: &str, value: Cell, lifetime: Lifetime) -> Result<Version> {
        match self.bind(name, value, lifetime) {
            // Names that we have deleted still count until the daemon forgets them.
            Err(e) if e.is_limit() && !lock(&self.cells).deleted.is_empty() => {
                self.tidy()?;
                self.bind(name, value, lifetime)
            }
            done => done,
        }
    }

    /// Asks the daemon to lead the name to a fresh cell that holds `value`.
    fn bind(&self, name: &str, value: Cell, lifetime: Lifetime) -> Result<Version> {
        let ttl_ns = lifetime.ttl_ns()?;
        let cell = self.fill_cell(name.as_bytes(), value).map_err(Error::certain)?;
        tensorlend_layout::crash_point!("takeover: cell filled");
        let name_owned = name.to_owned();
        let request = if lifetime.is_forever() {
            Request::Bind { name: name_owned, cell }
        } else {
            Request::BindFor { name: name_owned, cell, ttl_ns, ephemeral: lifetime.ephemeral }
        };
        // It may be asked twice, and granted and taken again in between: then the notice waits until this is answered.
        let _one = lock(&self.housekeeping);
        match self.control.call(&request, "publish", name) {
            Ok(Reply::Bound { home, .. }) => {
                tensorlend_layout::crash_point!("takeover: bound");
                if let Some(record) = self.own_cell(cell) {
                    record.granted.set(home);
                }
                Ok(Version { home, cell: value.0 })
            }
            Ok(_) => Err(Error::Protocol { doing: "publish" }),
            Err(e) => {
                // Certain: no home leads to the cell. Any other error leaves that open, and so the cell in use.
                if e.is_certain() {
                    self.empty_cell(cell);
                }
                Err(e)
            }
        }
    }

    #[inline]
    fn overwrite(&self, hash: u64, name: &str, value: Cell) -> Own {
        // No cell is bound to another name while we are inside.
        let guard = self.shards.epoch_guard();
        loop {
            let Some(found) = self.find_live(hash, name.as_bytes()) else {
                drop(guard);
                return match self.overwrite_pending(hash, name.as_bytes(), value) {
                    Some((version, before)) => Own::Replaced(version, before),
                    None => Own::NotOurs,
                };
            };
            if found.home.catalogue() != self.me() {
                return Own::NotOurs;
            }
            let Some(record) = self.own_cell(found.home.cell()) else { return Own::NotOurs };
            // Closed: the name is published anew. One that is closed after this look takes the value all the same, and
            // `tidy` leaves it alone.
            if record.cell.peek() == Cell::CLOSING.0 {
                return Own::NotOurs;
            }
            let entry = &self.directory.names[found.entry as usize];
            // Beside the home, and stored before it: a name that ends by itself is the daemon's to overwrite and delete, so
            // that it knows what its end is of.
            if entry.life.peek() != LifeWord::FOREVER.0 {
                return Own::NotOurs;
            }
            let home = &entry.home;
            if let Some(before) = overwrite(home, found.home.0, &record.cell, value) {
                return Own::Replaced(Version { home: found.home.0, cell: value.0 }, before);
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

    /// Wakes who waits for one of our names. A fence stands between the news and this.
    #[inline]
    fn ring(&self) {
        let bit = parked_bit(self.me());
        if self.peers.anybody_parked(|parked| parked & bit != 0) {
            self.catalogue.bell.ring();
            futex::wake_all(&self.catalogue.bell);
        }
    }

    /// Deletes a name; false if there was none.
    pub fn delete(&self, name: &str) -> Result<bool> {
        self.check()?;
        let (hash, key) = (self.directory.hash(name.as_bytes()), name.as_bytes());
        loop {
            if let Own::Replaced(version, before) = self.overwrite(hash, name, Cell::DELETED) {
                self.after_overwrite(before);
                tensorlend_layout::crash_point!("delete: cell emptied");
                self.note_deleted(name, Home(version.home).cell());
                return Ok(before.is_value());
            }
            let in_directory = || self.find_live(hash, key).is_some();
            if in_directory() {
                break;
            }
            match self.announced(hash, key)? {
                // Another thread of ours is publishing it in this moment.
                Some(found) if found.catalogue == self.me() => drop(lock(&self.binding)),
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

    /// Notes that one of our names is deleted in its cell: the daemon is told later, of many together.
    fn note_deleted(&self, name: &str, cell: u32) {
        let waiting = {
            let mut cells = lock(&self.cells);
            if !cells.deleted.iter().any(|(n, c)| *c == cell && n == name) {
                cells.deleted.push((name.to_owned(), cell));
            }
            cells.deleted.len()
        };
        // The name is deleted, whether the daemon can be told now or later.
        if waiting.is_multiple_of(TIDY_BATCH) {
            let _ = self.tidy();
        }
    }
}
