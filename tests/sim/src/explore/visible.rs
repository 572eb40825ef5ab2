//! The state that a new client finds, read from the words that any client reads.

use super::model::{Model, RING, Stream, Val};
use super::world::World;
use crate::client::Route;
use crate::sim::Seat;
use crate::steps::{a_collection, a_name};
use tensorlend_layout::name::{item_key, list_key, stream_key};
use tensorlend_layout::wire::QueueItem;
use tensorlend_layout::word::{Cell, LifeWord, OwnerKind, OwnerWord, SubscriberWord, Word};

impl World {
    /// Returns a membership that reads the directory as the present daemon writes it. `None`: the namespace has ended.
    pub fn seat(&self) -> Option<Seat> {
        let seat = self.sim.actors.iter().find_map(|it| it.seat.clone())?;
        let directory = self.sim.directories.get(&seat.directory_file)?.clone();
        Some(Seat { directory, ..seat })
    }

    fn value(&self, seat: &Seat, key: &[u8]) -> Option<Val> {
        let (owner, cell, route) = self.sim.find_value(seat, key)?;
        let life = match route {
            Route::OwnerWord { entry, .. } => LifeWord(seat.directory.names[entry.index()].life.read()),
            _ => LifeWord::FOREVER,
        };
        let owner = self.sim.members[&(seat.directory_file, owner)];
        Some(val(owner, cell.0, life))
    }

    /// Returns the items of a list, if it exists.
    pub fn items(&self, list: &str) -> Option<Vec<(QueueItem, Val)>> {
        let seat = self.seat()?;
        let d = &seat.directory;
        let key = list_key(list);
        let found = d.find(d.hash(&key), &key).ok().flatten().filter(|found| found.owner_word.is_live())?;
        let line = &d.lists[found.owner_word.cell().index()];
        let list = line.id.read();
        let item = |number| Some((QueueItem { list, number }, self.value(&seat, &item_key(list, number))?));
        Some((0..line.end.read()).filter_map(item).collect())
    }

    pub fn item(&self, list: u64, number: u64) -> Option<Val> {
        let seat = self.seat()?;
        let found = [a_collection(0), a_collection(1)]
            .iter()
            .filter_map(|list| self.items(list))
            .flatten()
            .any(|(item, _)| item.list == list);
        self.value(&seat, &item_key(list, number)).filter(|_| found)
    }

    /// Returns all that a new client can find.
    pub fn visible(&self) -> Model {
        let Some(seat) = self.seat() else { return Model::default() };
        let names = [0, 1].map(a_name);
        let names =
            names.into_iter().filter_map(|name| Some((name.clone(), self.value(&seat, name.as_bytes())?))).collect();
        let lists = [0, 1].map(a_collection).into_iter();
        let lists =
            lists.filter_map(|list| Some((list.clone(), self.items(&list)?.into_iter().map(|(_, val)| val).collect())));
        let lists = lists.collect();
        let streams = self.stream(&seat).map(|stream| (a_collection(0), stream)).into_iter().collect();
        Model { names, lists, streams }
    }

    fn stream(&self, seat: &Seat) -> Option<Stream> {
        let (d, key) = (&seat.directory, stream_key(&a_collection(0)));
        let found = d.find(d.hash(&key), &key).ok().flatten().filter(|found| found.owner_word.is_live())?;
        let producer = self.sim.members[&(seat.directory_file, found.owner_word.owner())];
        let honest = self.sim.actors[producer].honest.as_ref();
        let own = honest.and_then(|h| h.stream.as_ref()).filter(|own| own.owner_word == found.owner_word.0);
        let messages = own.map_or_else(Vec::new, |own| {
            let first = own.sent.saturating_sub(RING as u64);
            (first..own.sent)
                .map(|number| own.words().entry(number).cell.peek())
                .filter(|&cell| Cell(cell).is_value())
                .collect()
        });
        let line = &d.streams[found.owner_word.stream().index()];
        let words = line.subscribers.iter().map(Word::read).filter(|&word| word != 0);
        let subscribers =
            words.map(|word| self.sim.members[&(seat.directory_file, SubscriberWord(word).client())]).collect();
        Some(Stream { producer, messages, subscribers })
    }

    /// Checks that the restart has left no reserved name, and no segment that its owner does not know.
    pub fn has_no_remains(&self) {
        let Some(seat) = self.seat() else { return };
        for (entry, line) in seat.directory.entries() {
            let is_reserved = OwnerWord(line.owner_word.read()).kind() == OwnerKind::Reserved;
            assert!(!is_reserved || !self.ops.is_empty(), "entry {entry} is reserved for no request");
        }
        for &(_, number, base) in self.sim.lent.keys() {
            let actor = self.sim.members[&(seat.directory_file, number)];
            let h = self.sim.actors[actor].honest.as_ref().filter(|h| self.is_here(actor) && h.asked.is_none());
            assert!(
                h.is_none_or(|h| h.segments.contains_key(&base)),
                "client {actor} does not know its segment {base}"
            );
        }
    }
}

/// Returns a value with its lifetime.
pub fn val(owner: usize, cell: u64, life: LifeWord) -> Val {
    Val { owner, cell, deadline_ns: life.deadline_ns(), ephemeral: life.is_ephemeral() }
}
