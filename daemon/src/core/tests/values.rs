//! Contents of names, read for a client that lists them.

use super::world::{Client, World, settings};
use tensorlend_layout::number::{CellNo, EntryNo};
use tensorlend_layout::wire::{NameAt, Refusal, Reply, Request, VALUES_MAX, ValueAt};
use tensorlend_layout::word::{Cell, SLOT_NONE};

fn name_at(client: &Client, name: &str) -> NameAt {
    let hash = client.directory.hash(name.as_bytes());
    let found = client.directory.find(hash, name.as_bytes()).unwrap().expect("it is bound");
    NameAt { entry: found.entry, owner_word: found.owner_word.0 }
}

fn values_of(w: &mut World, reader: &Client, names: Vec<NameAt>) -> Vec<ValueAt> {
    match w.ask(reader, &Request::ValuesOf { names }) {
        Reply::Values(values) => values,
        other => panic!("{other:?}"),
    }
}

#[test]
fn contents_are_those_of_the_cell_and_of_nothing_that_moved() {
    let mut w = World::new(settings());
    let (owner, reader) = (w.join(1), w.join(1));
    let lent = w.segment(&owner);
    lent.write(lent.base, 7, None);
    w.bind(&owner, "here", CellNo::new(0), Cell::new(7, lent.base));
    w.bind(&owner, "deleted", CellNo::new(1), Cell::DELETED);
    w.bind(&owner, "nowhere", CellNo::new(2), Cell::new(1, lent.base + 5000));
    w.bind(&owner, "moved", CellNo::new(3), Cell::new(7, lent.base));
    let moved = name_at(&reader, "moved");
    w.bind(&reader, "moved", CellNo::new(0), Cell::DELETED);
    let mut names: Vec<NameAt> = ["here", "deleted", "nowhere"].map(|name| name_at(&reader, name)).into();
    names.extend([moved, NameAt { entry: EntryNo::MAX, owner_word: moved.owner_word }]);
    let expected = |values: &[ValueAt]| {
        let ValueAt::Slot { cell, record, segment_bytes, in_file } = values[0] else { panic!("{values:?}") };
        assert_eq!((Cell(cell), in_file), (Cell::new(7, lent.base), false));
        assert_eq!((Cell(record[0]).generation(), segment_bytes > 0), (7, true));
        assert_eq!(values[1..], [ValueAt::Deleted, ValueAt::Nowhere, ValueAt::Unknown, ValueAt::Unknown]);
    };
    expected(&values_of(&mut w, &reader, names.clone()));
    w.hang_up(&owner);
    let of_dead = values_of(&mut w, &reader, names.clone());
    assert!(matches!(of_dead[0], ValueAt::Slot { .. }), "{of_dead:?}");
    let reply = w.ask(&reader, &Request::ValuesOf { names: vec![names[0]; VALUES_MAX + 1] });
    assert!(matches!(reply, Reply::Refused(Refusal::Bad(_))), "{reply:?}");
}

/// Names whose chains are long or endless.
#[test]
fn a_request_ends_after_many_records() {
    let mut w = World::new(settings());
    let (owner, reader) = (w.join(1), w.join(1));
    let lent = w.segment(&owner);
    lent.write(lent.base, 1, Some(lent.base + 1));
    lent.write(lent.base + 1, 1, Some(lent.base));
    lent.write(lent.base + 2, 1, Some(SLOT_NONE));
    w.bind(&owner, "circle", CellNo::new(0), Cell::new(1, lent.base));
    w.bind(&owner, "plain", CellNo::new(1), Cell::new(1, lent.base + 2));
    let [circle, plain] = ["circle", "plain"].map(|name| name_at(&reader, name));
    assert_eq!(values_of(&mut w, &reader, vec![circle; 8]).len(), 1);
    assert_eq!(values_of(&mut w, &reader, vec![plain; VALUES_MAX]).len(), VALUES_MAX);
}
