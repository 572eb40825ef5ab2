//! Lists: collections that many producers append to and the daemon orders. Each item is a name. The
//! name consists of the list's id and the item's number.

use super::{Binding, Bindings, item_of};
use crate::core::chores::{Chore, DeletedList, ENTRIES_STEP, Left, READ, REMOVAL};
use crate::core::context::{Context, DirectoryWriter};
use crate::core::env::Env;
use crate::core::ledger::Table;
use crate::core::members::Members;
use crate::core::outcome::{Outcome, RequestResult, Wait};
use crate::core::parts::Parts;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use tensorlend_layout::name::{self, KeyKind, item_key, list_key};
use tensorlend_layout::number::{CellNo, ClientNo, EntryNo, ListLine};
use tensorlend_layout::wire::{APPEND_MAX, LimitKind, QueueItem, Refusal, Reply};
use tensorlend_layout::word::LifeWord;

#[derive(Debug)]
struct List {
    id: u64,
    line: ListLine,
    end: u64,
    /// The uid of the list's creator. `None` after a restart if the list has no items any more.
    uid: Option<u32>,
    /// Number of the list's items below `end` that end with their owners' sessions.
    ephemeral: u64,
    /// Whether the list has ever had an item that does not end with a session.
    lasting: bool,
    /// Number of the list's items below `end` that do not end with a session.
    items: u64,
    /// A number below which this daemon has already tried to grant every item.
    next: u64,
    /// Long runs of numbers from `next` on, whose items had ended before a restart. A claim skips
    /// each run at once.
    gaps: VecDeque<Range<u64>>,
}

impl List {
    /// Returns a list without items and without a creator.
    fn new(id: u64, line: ListLine, end: u64) -> Self {
        let gaps = VecDeque::new();
        Self { id, line, end, uid: None, ephemeral: 0, lasting: false, items: 0, next: 0, gaps }
    }
}

/// Minimum length of a run of ended items that a restart records.
const GAP_MIN: u64 = 64;

/// Returns the long runs of numbers below `end` that are missing in `numbers`, in ascending order.
/// The search begins at the lowest number in `numbers`.
fn gaps(mut numbers: Vec<u64>, end: u64) -> VecDeque<Range<u64>> {
    numbers.sort_unstable();
    let ends = numbers.iter().skip(1).copied().chain([end]);
    let between = numbers.iter().map(|number| number + 1).zip(ends).map(|(first, end)| first..end);
    between.filter(|gap| gap.end.saturating_sub(gap.start) >= GAP_MIN).collect()
}

/// Maximum plausible id and length of a list in a directory that another daemon wrote. A larger
/// number is false.
const COUNTED_MAX: u64 = u64::MAX / 4;

/// A namespace's lists.
#[derive(Debug)]
pub struct Lists {
    by_name: BTreeMap<String, List>,
    /// The name of each list, by its id. An item's key contains only the list's id.
    names: BTreeMap<u64, String>,
    free_lines: Vec<ListLine>,
    ids: u64,
}

impl Lists {
    /// Returns an empty set of at most `max` lists.
    pub fn new(max: u32) -> Self {
        Self {
            by_name: BTreeMap::new(),
            names: BTreeMap::new(),
            free_lines: (0..max).rev().map(ListLine::new).collect(),
            ids: 0,
        }
    }

    /// Checks that the names, the ids and the directory's table of lists agree.
    ///
    /// # Panics
    /// Panics if they disagree.
    pub fn check(&self, d: &DirectoryWriter) {
        assert_eq!(self.by_name.len(), self.names.len(), "each list has a name and an id");
        assert_eq!(self.by_name.len() + self.free_lines.len(), d.lists.len(), "each line is free or a list's");
        for (name, list) in &self.by_name {
            assert_eq!(self.names.get(&list.id), Some(name), "the name of list {}", list.id);
            let found = d.find_live(&list_key(name)).map(|found| found.owner_word.list());
            assert_eq!(found, Some(list.line), "the name of list {name:?} leads to it");
            let list_entry = &d.lists[list.line.index()];
            assert_eq!((list_entry.id.peek(), list_entry.end.peek()), (list.id, list.end), "the line of list {name:?}");
        }
    }

    /// Checks that no item is lost. A client can still claim each item for the first time, or the
    /// item is known to the claims (`is_known`). Also checks that each list counts its items.
    ///
    /// # Panics
    /// Panics if no client can ever claim an item, or if a count is wrong.
    pub fn check_items(&self, d: &DirectoryWriter, is_known: impl Fn(QueueItem) -> bool) {
        let mut counts: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (entry, _, (list, number)) in d.live_keys(KeyKind::Item, |key| item_of(&key)) {
            let item = QueueItem { list, number };
            assert!(self.is_ahead(item) || is_known(item), "{item:?} is lost");
            let (ephemeral, lasting) = counts.entry(list).or_default();
            *if d.life(entry).is_ephemeral() { ephemeral } else { lasting } += 1;
        }
        for (name, list) in &self.by_name {
            let counted = counts.get(&list.id).copied().unwrap_or_default();
            assert_eq!((list.ephemeral, list.items), counted, "the items of list {name:?}");
        }
    }

    /// Returns a list's id and the number of its items. Returns `None` if the list does not exist.
    pub fn id_and_items(&self, name: &str) -> Option<(u64, u64)> {
        self.by_name.get(name).map(|list| (list.id, list.ephemeral + list.items))
    }

    /// Returns true if a list with this id exists.
    pub fn has_id(&self, id: u64) -> bool {
        self.names.contains_key(&id)
    }

    /// Returns the name of the list with this id.
    pub fn name_of(&self, id: u64) -> Option<&String> {
        self.names.get(&id)
    }

    /// Returns a number below which this daemon has already tried to grant every item.
    pub fn next(&self, name: &str) -> u64 {
        self.by_name.get(name).map_or(0, |list| list.next)
    }

    /// Returns the number of the next item that may be claimed for the first time.
    pub fn take_next(&mut self, name: &str) -> Option<u64> {
        let list = self.by_name.get_mut(name)?;
        if let Some(gap) = list.gaps.pop_front_if(|gap| gap.start <= list.next) {
            list.next = list.next.max(gap.end);
        }
        if list.next >= list.end {
            return None;
        }
        list.next += 1;
        Some(list.next - 1)
    }

    /// Returns true if a client may still claim the item for the first time, or if the item's list
    /// is gone.
    fn is_ahead(&self, item: QueueItem) -> bool {
        self.by_id(item.list)
            .is_none_or(|list| list.next <= item.number && !list.gaps.iter().any(|gap| gap.contains(&item.number)))
    }

    fn by_id(&self, id: u64) -> Option<&List> {
        self.by_name.get(self.names.get(&id)?)
    }

    fn insert(&mut self, name: &str, list: List) {
        self.names.insert(list.id, name.to_owned());
        self.by_name.insert(name.to_owned(), list);
    }

    fn remove(&mut self, name: &str) -> Option<List> {
        let list = self.by_name.remove(name)?;
        self.names.remove(&list.id);
        Some(list)
    }

    /// Returns the user of each list.
    pub fn uids(&self) -> impl Iterator<Item = Option<u32>> + '_ {
        self.by_name.values().map(|list| list.uid)
    }

    /// Returns true if no list exists.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

impl Bindings {
    /// Restores the lists of a directory that another daemon wrote and may have left at any step. A
    /// list has a name and a table entry. Items without a list belonged to a list that the other
    /// daemon was removing.
    pub fn restore_lists(&mut self, parts: &mut Parts<'_>) {
        self.lists = self.restore_table(parts);
        let mut items = self.restore_items(parts);
        for list in self.lists.by_name.values_mut() {
            match items.remove(&list.id) {
                Some(items) => items.restore(list),
                None => list.next = list.end,
            }
        }
        self.restore_claims(parts.env);
    }

    /// Returns the lists that have a name and a table entry. Ends names without such an entry, and frees the entries without a name.
    fn restore_table(&mut self, parts: &mut Parts<'_>) -> Lists {
        let directory = &parts.context.directory;
        let mut lists = Lists::new(parts.context.ledger.limits().lists_max);
        let mut keys = directory.live_keys(KeyKind::List, Some);
        // The previous daemon may have been renaming a list, so that two names lead to it. The present name comes first.
        keys.sort_by_key(|(_, owner_word, key)| {
            let list_entry = directory.lists.get(owner_word.cell().index());
            list_entry.is_none_or(|list_entry| list_entry.key_hash.peek() != directory.hash(key))
        });
        for (entry, owner_word, key) in keys {
            let Some((KeyKind::List, name)) = name::parse(&key) else { continue };
            let list_entry = directory.lists.get(owner_word.cell().index());
            let list_entry = list_entry.filter(|list_entry| {
                (1..=COUNTED_MAX).contains(&list_entry.id.peek())
                    && list_entry.end.peek() <= COUNTED_MAX
                    && !lists.has_id(list_entry.id.peek())
            });
            match list_entry {
                Some(list_entry) => {
                    list_entry.key_hash.set(directory.hash(&key));
                    lists.insert(name, List::new(list_entry.id.peek(), owner_word.list(), list_entry.end.peek()));
                }
                None => self.names.set_tombstone(directory, entry),
            }
        }
        let taken: BTreeSet<ListLine> = lists.by_name.values().map(|list| list.line).collect();
        lists.free_lines.retain(|line| !taken.contains(line));
        for &line in &lists.free_lines {
            directory.lists[line.index()].id.set(0);
        }
        // No list gets the id of an earlier list. The ids of former lists were below the current
        // time.
        lists.ids = lists.names.last_key_value().map_or(0, |(&id, _)| id).max(parts.env.clock.now_ns());
        lists
    }

    /// Returns the items of each list, by the list's id. Removes the items without a list.
    fn restore_items(&mut self, parts: &mut Parts<'_>) -> BTreeMap<u64, RestoredItems> {
        let mut items: BTreeMap<u64, RestoredItems> = BTreeMap::new();
        for (entry, owner_word, (id, number)) in parts.context.directory.live_keys(KeyKind::Item, |key| item_of(&key)) {
            // An item behind the end belongs to an append that the previous daemon did not finish.
            if number >= self.lists.by_id(id).map_or(0, |list| list.end) {
                self.remove(parts, entry, false);
                continue;
            }
            let its = items.entry(id).or_default();
            if its.first.is_none_or(|(first, _)| number < first) {
                its.first = Some((number, parts.members.uid_of(owner_word.owner())));
            }
            its.numbers.push(number);
            let is_ephemeral = parts.context.directory.life(entry).is_ephemeral();
            *if is_ephemeral { &mut its.ephemeral } else { &mut its.lasting } += 1;
        }
        items
    }
}

/// The items of a list that outlived the previous daemon.
#[derive(Debug, Default)]
struct RestoredItems {
    numbers: Vec<u64>,
    /// The lowest number, and the uid of its item's owner.
    first: Option<(u64, Option<u32>)>,
    /// Number of the items that end with their owners' sessions.
    ephemeral: u64,
    /// Number of the other items.
    lasting: u64,
}

impl RestoredItems {
    /// Restores a list from its items.
    fn restore(self, list: &mut List) {
        (list.next, list.uid) = self.first.unwrap_or((list.end, None));
        list.gaps = gaps(self.numbers, list.end);
        (list.ephemeral, list.items, list.lasting) = (self.ephemeral, self.lasting, self.lasting > 0);
    }
}

/// A client's cells that become items of a list, and their lifetime.
#[derive(Clone, Copy, Debug)]
pub struct NewItems<'r> {
    pub owner: ClientNo,
    pub cells: &'r [CellNo],
    pub life: LifeWord,
}

impl Bindings {
    /// Handles a request to append cells. The list gets all of the cells or none.
    pub fn list_append(
        &mut self,
        parts: &mut Parts<'_>,
        list: &str,
        NewItems { owner, cells, life }: NewItems<'_>,
    ) -> RequestResult {
        name::check(list)?;
        if cells.len() > APPEND_MAX {
            return Err(Refusal::Bad(format!("a request appends at most {APPEND_MAX} items, not {}", cells.len())));
        }
        for &cell in cells {
            parts.members.check_cell(owner, cell)?;
        }
        let known = self.lists.by_name.contains_key(list);
        self.check_name_share(parts.context, parts.members, owner, cells.len() as u64)?;
        self.check_room(parts.context, parts.members, cells.len() as u64 + u64::from(!known))?;
        if !self.names_ready(parts, cells.len() as u64 + 1, &list_key(list)) {
            return Ok(Outcome::Later(Wait::Names));
        }
        if !known {
            let uid = parts.members.me(owner).uid;
            parts.context.ledger.check_table_share(Table::Lists, uid, self.lists.uids())?;
            self.list_create(parts.context, parts.members, list, uid)?;
        }
        let (id, line, first) = {
            let list = &self.lists.by_name[list];
            (list.id, list.line.index(), list.end)
        };
        for (number, &cell) in (first..).zip(cells) {
            let binding = Binding { owner, cell, life };
            if let Err(refusal) = self.take(parts, &item_key(id, number), binding) {
                // The request fails as a whole, and the client reuses all its cells. So the items
                // that are already bound are removed.
                for number in first..number {
                    if let Some(found) = parts.context.directory.find_live(&item_key(id, number)) {
                        self.remove(parts, found.entry, false);
                    }
                }
                if !known {
                    self.list_remove(parts.env, parts.context, list);
                }
                return Err(refusal);
            }
            tensorlend_layout::crash_point!("daemon: item bound");
        }
        // The end is stored once, after the items' owner words. So a reader that sees the new end
        // finds all the items.
        parts.context.directory.lists[line].set_end(first + cells.len() as u64);
        tensorlend_layout::crash_point!("daemon: items counted");
        if let Some(known) = self.lists.by_name.get_mut(list) {
            known.end = first + cells.len() as u64;
            *if life.is_ephemeral() { &mut known.ephemeral } else { &mut known.items } += cells.len() as u64;
            known.lasting |= !life.is_ephemeral() && !cells.is_empty();
        }
        self.queue_changed(list);
        parts.context.directory.announce(u64::MAX);
        Ok(Outcome::Reply(Reply::Appended { first }))
    }

    fn list_create(&mut self, context: &Context, members: &Members, list: &str, uid: u32) -> Result<(), Refusal> {
        if self.lists.free_lines.is_empty() {
            return Err(context.ledger.limit(
                LimitKind::Lists,
                "the number of lists",
                "lists_max",
                context.ledger.limits().lists_max,
            ));
        }
        let entry = self.place(context, members, Some(uid), &list_key(list))?;
        let line = self.lists.free_lines.pop().expect("checked above");
        self.lists.ids += 1;
        let id = self.lists.ids;
        let list_entry = &context.directory.lists[line.index()];
        list_entry.set_end(0);
        list_entry.key_hash.set(context.directory.hash(&list_key(list)));
        list_entry.id.set(id);
        self.set(context, entry, |before| before.then_list(line));
        self.lists.insert(list, List { uid: Some(uid), ..List::new(id, line, 0) });
        Ok(())
    }

    /// Handles a request to remove a list and its items.
    pub fn list_delete(&mut self, env: &mut Env, context: &mut Context, list: &str) -> RequestResult {
        name::check(list)?;
        let existed = self.list_remove(env, context, list);
        Ok(Outcome::Reply(Reply::Deleted { existed }))
    }

    /// Handles the end of an item. A list that has only ever had ephemeral items ends with its last
    /// item.
    pub fn item_ended(&mut self, env: &mut Env, context: &mut Context, item: QueueItem, ephemeral: bool) {
        self.claims.remove(item);
        let Lists { by_name, names, .. } = &mut self.lists;
        let Some(name) = names.get(&item.list) else { return };
        // The list does not count an item of an append that was not completed.
        let Some(list) = by_name.get_mut(name).filter(|list| item.number < list.end) else { return };
        if !ephemeral {
            list.items = list.items.saturating_sub(1);
            return;
        }
        list.ephemeral = list.ephemeral.saturating_sub(1);
        if list.ephemeral == 0 && !list.lasting {
            let name = name.clone();
            self.list_remove(env, context, &name);
        }
    }

    fn list_remove(&mut self, env: &mut Env, context: &mut Context, name: &str) -> bool {
        let Some(list) = self.lists.remove(name) else { return false };
        if let Some(found) = context.directory.find_live(&list_key(name)) {
            self.names.set_tombstone(&context.directory, found.entry);
        }
        self.end_list(env, context, &list);
        true
    }

    /// Ends a list to which no name leads any more.
    fn end_list(&mut self, env: &mut Env, context: &mut Context, list: &List) {
        context.directory.lists[list.line.index()].id.set(0);
        self.lists.free_lines.push(list.line);
        // The items' claims end with the items.
        self.claims.take_refused(list.id, 0);
        self.claims.set_maximum(list.id, 0);
        // From here on, no client that looks the list up finds its items. No client learns the
        // list's id any more, and no other list gets the id.
        let left = if list.end <= self.names.live() {
            Left::Numbers(0..list.end)
        } else {
            // A search by number would visit all items ever appended. There may be many more of
            // them than live names.
            Left::Entries(ClientNo::default(), EntryNo::default())
        };
        env.chores.take_on(&mut env.clock, context.ledger.id(), Chore::Items(DeletedList { id: list.id, left }));
        context.directory.announce(u64::MAX);
    }

    /// Removes items of a deleted list until this step has spent its units. Returns the list if
    /// items remain.
    pub fn remove_items(&mut self, parts: &mut Parts<'_>, mut deleted: DeletedList) -> Option<DeletedList> {
        match &mut deleted.left {
            Left::Numbers(numbers) => {
                while !numbers.is_empty() {
                    if !parts.env.chores.spend(READ) {
                        return Some(deleted);
                    }
                    let number = numbers.next()?;
                    if let Some(found) = parts.context.directory.find_live(&item_key(deleted.id, number)) {
                        parts.env.chores.spend(REMOVAL);
                        self.remove(parts, found.entry, true);
                    }
                }
                None
            }
            Left::Entries(next_owner, next) => loop {
                let entries = self.names.owned().all_from(*next_owner, *next, ENTRIES_STEP);
                if entries.is_empty() {
                    return None;
                }
                for (owner, found) in entries {
                    if !parts.env.chores.spend(READ) {
                        return Some(deleted);
                    }
                    (*next_owner, *next) = (owner, found + 1);
                    if name::is_item_of(&parts.context.directory.names[found.index()], deleted.id) {
                        parts.env.chores.spend(REMOVAL);
                        self.remove(parts, found, true);
                    }
                }
            },
        }
    }

    /// Handles a request to rename a list. For a moment both names lead to the list.
    pub fn list_rename(&mut self, parts: &mut Parts<'_>, from: &str, to: &str) -> RequestResult {
        name::check(from)?;
        name::check(to)?;
        if !self.lists.by_name.contains_key(from) {
            return Err(Refusal::NotFound(format!("list {from:?}")));
        }
        if !self.names_ready(parts, 1, &list_key(to)) {
            return Ok(Outcome::Later(Wait::Names));
        }
        if from != to {
            self.check_room(parts.context, parts.members, 1)?;
            let uid = self.lists.by_name.get(from).and_then(|list| list.uid);
            let entry = self.place(parts.context, parts.members, uid, &list_key(to))?;
            // One store moves the name from the former list to this one. A daemon that is killed before it leaves both lists.
            let former = self.lists.remove(to);
            let list = self.lists.remove(from).expect("checked above");
            parts.context.directory.lists[list.line.index()].key_hash.set(parts.context.directory.hash(&list_key(to)));
            self.set(parts.context, entry, |before| before.then_list(list.line));
            tensorlend_layout::crash_point!("daemon: list has both names");
            self.lists.insert(to, list);
            self.queue_changed(to);
            if let Some(found) = parts.context.directory.find_live(&list_key(from)) {
                self.names.set_tombstone(&parts.context.directory, found.entry);
            }
            if let Some(former) = former {
                self.end_list(parts.env, parts.context, &former);
            }
            parts.context.directory.announce(u64::MAX);
        }
        Ok(Outcome::Reply(Reply::Done))
    }
}

#[cfg(test)]
mod tests {
    use super::{GAP_MIN, gaps};

    #[test]
    fn long_runs_of_ended_items_are_gaps() {
        let runs = |numbers: &[u64], end| Vec::from(gaps(numbers.to_vec(), end));
        assert_eq!(runs(&[], 1000), [], "without items a claim begins at the end");
        assert_eq!(runs(&[5, 4, 3], 5 + GAP_MIN), []);
        assert_eq!(runs(&[0, 3, 2 + GAP_MIN], 3 + GAP_MIN), []);
        assert_eq!(runs(&[500, 0, 1], 501 + GAP_MIN), [2..500, 501..501 + GAP_MIN]);
        assert_eq!(runs(&[0], u64::MAX).first(), Some(&(1..u64::MAX)));
    }
}
