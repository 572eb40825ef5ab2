//! Lists: collections that many producers append to and the daemon orders. An item is a name of its own, made of the
//! list's id and its number.

use super::env::Env;
use super::names::live_home;
use super::namespace::Namespace;
use super::session::{Answer, Outcome, Wait};
use std::collections::BTreeMap;
use tensorlend_layout::name::{self, item_key, list_key};
use tensorlend_layout::wire::{Refusal, Reply};
use tensorlend_layout::word::HomeKind;

/// Items that one request may append.
const APPEND_MAX: usize = 4096;

#[derive(Debug)]
struct List {
    id: u64,
    place: u32,
    end: u64,
}

/// A namespace's lists.
#[derive(Debug)]
pub struct Lists {
    by_name: BTreeMap<String, List>,
    places: Vec<u32>,
    ids: u64,
}

impl Lists {
    /// None yet, at most `max`.
    pub fn new(max: u32) -> Self {
        Self { by_name: BTreeMap::new(), places: (0..max).rev().collect(), ids: 0 }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

fn check(list: &str) -> Result<(), Refusal> {
    name::check(list).map_err(|e| Refusal::Bad(e.to_string()))
}

impl Namespace {
    /// A request to append cells. All of them are appended, or none.
    pub fn list_append(&mut self, env: &mut Env, catalogue: u16, list: &str, cells: &[u32]) -> Answer {
        check(list)?;
        if cells.len() > APPEND_MAX {
            return Err(Refusal::Bad(format!("a request appends at most {APPEND_MAX} items, not {}", cells.len())));
        }
        for &cell in cells {
            self.check_cell(catalogue, cell)?;
        }
        let known = self.lists.by_name.contains_key(list);
        self.check_name_share(catalogue, cells.len() as u64)?;
        self.check_room(cells.len() as u64 + u64::from(!known))?;
        if !self.names_ready(env, cells.len() as u64 + 1) {
            return Ok(Outcome::Later(Wait::Names));
        }
        if !known {
            self.list_create(list)?;
        }
        let (id, place, first) = {
            let list = &self.lists.by_name[list];
            (list.id, list.place as usize, list.end)
        };
        for (number, &cell) in (first..).zip(cells) {
            if let Err(refusal) = self.take(env, &item_key(id, number), catalogue, cell) {
                // All or nothing: the client uses the cells again.
                self.directory.lists[place].end.set(first);
                for number in first..number {
                    if let Some(found) = live_home(&self.directory, &item_key(id, number)) {
                        self.remove(env, found.entry, false);
                    }
                }
                return Err(refusal);
            }
            // After the item's home: whoever sees the length finds the items.
            self.directory.lists[place].end.set(number + 1);
        }
        self.lists.by_name.get_mut(list).expect("it was there or was made").end = first + cells.len() as u64;
        self.announce(u64::MAX);
        Ok(Outcome::Reply(Reply::Appended { first }))
    }

    fn list_create(&mut self, list: &str) -> Result<(), Refusal> {
        if self.lists.places.is_empty() {
            return Err(self.limit("the number of lists", "lists_max", self.limits.lists_max));
        }
        let entry = self.names.place(&self.directory, &list_key(list)).map_err(|full| self.full(full))?;
        let place = self.lists.places.pop().expect("checked above");
        self.lists.ids += 1;
        let id = self.lists.ids;
        let line = &self.directory.lists[place as usize];
        line.end.put(0);
        line.id.set(id);
        self.names.set(&self.directory, entry, HomeKind::Live, 0, place);
        self.lists.by_name.insert(list.into(), List { id, place, end: 0 });
        Ok(())
    }

    /// A request to remove a list and its items.
    pub fn list_delete(&mut self, env: &mut Env, list: &str) -> Answer {
        check(list)?;
        let existed = self.list_remove(env, list);
        Ok(Outcome::Reply(Reply::Deleted { existed }))
    }

    fn list_remove(&mut self, env: &mut Env, name: &str) -> bool {
        let Some(list) = self.lists.by_name.remove(name) else { return false };
        if let Some(found) = live_home(&self.directory, &list_key(name)) {
            self.names.bury(&self.directory, found.entry);
        }
        // Items come and go: those ever appended may be many more than all names that live.
        if list.end <= self.names.live() {
            for number in 0..list.end {
                if let Some(found) = live_home(&self.directory, &item_key(list.id, number)) {
                    self.remove(env, found.entry, true);
                }
            }
        } else {
            for entry in self.names.items(&self.directory, list.id) {
                self.remove(env, entry, true);
            }
        }
        self.directory.lists[list.place as usize].id.set(0);
        self.lists.places.push(list.place);
        self.announce(u64::MAX);
        true
    }

    /// A request to rename a list. Both names lead to it for a moment.
    pub fn list_rename(&mut self, env: &mut Env, from: &str, to: &str) -> Answer {
        check(from)?;
        check(to)?;
        if !self.lists.by_name.contains_key(from) {
            return Err(Refusal::NotFound(format!("list {from:?}")));
        }
        if !self.names_ready(env, 1) {
            return Ok(Outcome::Later(Wait::Names));
        }
        if from != to {
            self.check_room(1)?;
            self.list_remove(env, to);
            let entry = self.names.place(&self.directory, &list_key(to)).map_err(|full| self.full(full))?;
            let list = self.lists.by_name.remove(from).expect("checked above");
            self.names.set(&self.directory, entry, HomeKind::Live, 0, list.place);
            self.lists.by_name.insert(to.into(), list);
            if let Some(found) = live_home(&self.directory, &list_key(from)) {
                self.names.bury(&self.directory, found.entry);
            }
            self.announce(u64::MAX);
        }
        Ok(Outcome::Reply(Reply::Done))
    }
}
