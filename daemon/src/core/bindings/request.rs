//! Requests that bind, delete, tidy and rename names.

use super::{Binding, Bindings};
use crate::core::env::Env;
use crate::core::outcome::{Outcome, RequestResult, Wait};
use crate::core::parts::Parts;
use tensorlend_layout::leases::scan_fence;
use tensorlend_layout::name;
use tensorlend_layout::number::{CellNo, ClientNo, EntryNo};
use tensorlend_layout::wire::{Refusal, Reply};
use tensorlend_layout::word::{Cell, LifeWord};

/// Maximum number of names in one request to tidy.
const TIDY_MAX: usize = 256;

impl Bindings {
    pub fn bind(&mut self, parts: &mut Parts<'_>, name: &str, binding: Binding, since_ns: u64) -> RequestResult {
        let Binding { owner: number, cell, life } = binding;
        name::check(name)?;
        parts.members.check_cell(number, cell)?;
        if parts.members.me(number).notices.contains(&cell) {
            // An earlier attempt of the same request was granted, and another client has taken the
            // name since then. Each request takes effect once, so this attempt changes nothing.
            let found = parts.context.directory.find_key(name.as_bytes());
            let (entry, owner_word) = found.map_or((EntryNo::default(), 0), |found| (found.entry, found.owner_word.0));
            // The request may have waited while its name was reserved.
            self.unreserve(parts.context, name.as_bytes());
            return Ok(Outcome::Reply(Reply::Bound { entry, owner_word }));
        }
        if !self.names_ready(parts, 1, name.as_bytes()) {
            return Ok(Outcome::Later(Wait::Names));
        }
        if !self.settle(parts, parts.members.uid_of(number), name.as_bytes(), since_ns)? {
            return Ok(Outcome::Later(Wait::Claim));
        }
        let owner =
            parts.context.directory.find_live(name.as_bytes()).and_then(|f| parts.members.get(f.owner_word.owner()));
        let uid = owner.map(|client| client.uid);
        if uid != Some(parts.members.me(number).uid) {
            self.check_name_share(parts.context, parts.members, number, 1)?;
        }
        let (entry, owner_word) = self.take(parts, name.as_bytes(), binding)?;
        if uid.is_none() {
            parts.members.count_new_name(parts.context, number, name, life);
        }
        self.grant(parts.context, parts.members, number);
        Ok(Outcome::Reply(Reply::Bound { entry, owner_word: owner_word.0 }))
    }

    /// Returns the lifetime of a name that has a deadline or is ephemeral.
    ///
    /// # Errors
    /// A refusal if the time to live is 0.
    pub fn lifetime(env: &Env, ttl_ns: Option<u64>, ephemeral: bool) -> Result<LifeWord, Refusal> {
        if ttl_ns == Some(0) {
            return Err(Refusal::Bad("a time to live is a nanosecond at least".into()));
        }
        let deadline_ns = ttl_ns.map_or(0, |ttl| env.clock.now_ns().saturating_add(ttl));
        Ok(LifeWord::new(deadline_ns, ephemeral))
    }

    /// Handles a request to delete a name of any owner.
    pub fn delete(&mut self, parts: &mut Parts<'_>, name: &str, since_ns: u64) -> RequestResult {
        name::check(name)?;
        if !self.absorb_all(parts, since_ns) {
            return Ok(Outcome::Later(Wait::Claim));
        }
        let Some(found) = parts.context.directory.find_live(name.as_bytes()) else {
            return Ok(Outcome::Reply(Reply::Deleted { existed: false }));
        };
        self.remove(parts, found.entry, true);
        // Daemon D reads the value after this fence. Owner P may put or delete a value after D's
        // read. P's operation counts as earlier than the move of the owner word only if P read the
        // owner word before the move.
        scan_fence();
        let value = parts.members.client(found.owner_word.owner()).ok().and_then(|c| c.value(found.owner_word.cell()));
        let existed = value.is_some_and(Cell::is_value);
        Ok(Outcome::Reply(Reply::Deleted { existed }))
    }

    /// Handles an owner's request to forget names that the owner has deleted.
    pub fn tidy(&mut self, parts: &mut Parts<'_>, number: ClientNo, names: &[(String, CellNo)]) -> RequestResult {
        if names.len() > TIDY_MAX {
            return Err(Refusal::Bad(format!("a request tidies at most {TIDY_MAX} names, not {}", names.len())));
        }
        for (name, _) in names {
            name::check(name)?;
        }
        for (name, cell) in names {
            // After this response the client reuses the cell, so the client must not receive a
            // notice about it.
            parts.members.me(number).notices.remove(cell);
            if let Some(found) = parts.context.directory.find_live(name.as_bytes())
                && (found.owner_word.owner(), found.owner_word.cell()) == (number, *cell)
            {
                self.remove(parts, found.entry, false);
            }
        }
        Ok(Outcome::Reply(Reply::Done))
    }

    /// Handles a request to rename a name whose owner is frozen. For a moment both names lead to
    /// the same cell. No process writes that cell any more.
    pub fn rename(&mut self, parts: &mut Parts<'_>, from: &str, to: &str, since_ns: u64) -> RequestResult {
        name::check(from).and_then(|()| name::check(to))?;
        if !self.names_ready(parts, 1, to.as_bytes()) {
            return Ok(Outcome::Later(Wait::Names));
        }
        if !self.absorb_all(parts, since_ns) {
            return Ok(Outcome::Later(Wait::Claim));
        }
        let Some(found) = parts.context.directory.find_live(from.as_bytes()) else {
            return Err(Refusal::NotFound(format!("name {from:?}")));
        };
        let owner = parts.members.client(found.owner_word.owner())?;
        if !owner.is_frozen() {
            return Err(Refusal::NotQuiet(from.into()));
        }
        if !owner.value(found.owner_word.cell()).is_some_and(Cell::is_value) {
            return Err(Refusal::NotFound(format!("name {from:?}")));
        }
        if from == to {
            return Ok(Outcome::Reply(Reply::Done));
        }
        // This cell had the name `to` before. Readers may know the value by the version of the announced name, which has no
        // owner word. With the same cell, the name would get this version again. So the requester copies the value.
        if owner.sheets.names(&[found.owner_word.cell()]).iter().flatten().any(|name| name == to.as_bytes()) {
            return Err(Refusal::NotQuiet(from.into()));
        }
        let uid = parts.members.uid_of(found.owner_word.owner());
        if !self.settle(parts, uid, to.as_bytes(), since_ns)? {
            return Ok(Outcome::Later(Wait::Claim));
        }
        // The client that this request waited for may have deleted the name.
        let Some(found) = parts.context.directory.find_live(from.as_bytes()) else {
            self.unreserve(parts.context, to.as_bytes());
            return Err(Refusal::NotFound(format!("name {from:?}")));
        };
        let (number, cell) = (found.owner_word.owner(), found.owner_word.cell());
        let binding = Binding { owner: number, cell, life: parts.context.directory.life(found.entry) };
        self.take(parts, to.as_bytes(), binding)?;
        let found = parts.context.directory.find_live(from.as_bytes()).expect("the daemon alone moves homes");
        self.remove(parts, found.entry, true);
        Ok(Outcome::Reply(Reply::Done))
    }
}
