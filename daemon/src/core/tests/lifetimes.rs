use super::world::{Client, World, settings};
use crate::core::bindings::lifetime::Lifetimes;
use tensorlend_layout::number::{CellNo, EntryNo, SlotNo};
use tensorlend_layout::wire::{Refusal, Reply, Request};
use tensorlend_layout::word::{Cell, LifeWord, OwnerWord};

const SECOND: u64 = 1_000_000_000;

fn bind_for(w: &mut World, c: &Client, name: &str, cell: CellNo, ttl_ns: Option<u64>, ephemeral: bool) -> u32 {
    c.words().cells[cell.index()].cell.set(Cell::new(1, SlotNo::new(0)).0);
    match w.ask(c, &Request::BindFor { name: name.into(), cell, ttl_ns, ephemeral }) {
        Reply::Bound { entry, .. } => entry.get(),
        other => panic!("{other:?}"),
    }
}

fn life(c: &Client, entry: EntryNo) -> LifeWord {
    LifeWord(c.directory.names[entry.index()].life.peek())
}

#[test]
fn a_deadline_ends_a_name_and_tells_its_owner() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let entry = bind_for(&mut w, &a, "x", CellNo::new(1), Some(SECOND), false);
    assert_eq!(life(&a, EntryNo::new(entry)).deadline_ns(), Some(w.now_ns + SECOND));
    w.wait_ns(SECOND - 1);
    assert!(a.find("x").is_some());
    w.wait_ns(1);
    assert_eq!((a.find("x"), life(&a, EntryNo::new(entry))), (None, LifeWord::FOREVER));
    assert_eq!(w.ask(&a, &Request::Notices), Reply::Notices { cells: vec![CellNo::new(1)], more: false });
    assert_eq!(w.stat().names_expired, 1);
    w.hang_up(&a);
    w.assert_empty();
}

#[test]
fn overwriting_by_whomever_and_deleting_take_the_deadline_away() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    lent.write(lent.base, 2, None);
    for (name, cell) in [("own", 1), ("other's", 2), ("deleted", 3), ("longer", 4)] {
        bind_for(&mut w, &a, name, CellNo::new(cell), Some(SECOND), true);
    }
    w.bind(&a, "own", CellNo::new(11), Cell::new(2, lent.base));
    w.bind(&b, "other's", CellNo::new(12), Cell::new(2, SlotNo::new(0)));
    w.ask(&a, &Request::Delete { name: "deleted".into() });
    let longer = bind_for(&mut w, &a, "longer", CellNo::new(14), Some(3 * SECOND), false);
    // The new name has the deleted one's entry, but not its lifetime.
    w.bind(&a, "new", CellNo::new(13), Cell::new(2, lent.base));
    w.wait_ns(2 * SECOND);
    for name in ["own", "other's", "new", "longer"] {
        assert!(a.find(name).is_some(), "{name}");
    }
    assert!(life(&a, EntryNo::new(longer)).deadline_ns().is_some());
    w.wait_ns(SECOND);
    assert_eq!((a.find("longer"), w.stat().names_expired), (None, 1));
    w.hang_up(&a);
    assert!(b.find("own").is_some() && b.find("new").is_some(), "ephemeral no more, or never");
    assert_eq!(w.stat().names_ephemeral_gone, 0);
}

#[test]
fn ephemeral_names_end_with_the_session_and_not_with_the_memory() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    for cell in 0..600 {
        bind_for(&mut w, &a, &format!("e{cell}"), CellNo::new(cell), None, true);
    }
    w.bind(&a, "kept", CellNo::new(601), Cell::new(1, lent.base));
    lent.write(lent.base, 1, None);
    // Another process may still write the memory: the names end nevertheless.
    w.loud.insert(lent.segment);
    w.hang_up(&a);
    assert!((0..512).all(|cell| b.find(&format!("e{cell}")).is_none()), "as many as one turn ends");
    w.wait_ns(1_000_000);
    assert!((0..600).all(|cell| b.find(&format!("e{cell}")).is_none()));
    assert!(b.find("kept").is_some());
    assert_eq!(w.stat().names_ephemeral_gone, 600);
    w.loud.clear();
    w.wait_ns(60 * SECOND);
    assert!(b.find("kept").is_some(), "a tensor outlives its producer");
    assert_eq!(w.ask(&b, &Request::Delete { name: "kept".into() }), Reply::Deleted { existed: true });
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn a_renamed_orphan_keeps_its_deadline() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    a.words().cells[1].cell.set(Cell::new(1, lent.base).0);
    let request =
        Request::BindFor { name: "x".into(), cell: CellNo::new(1), ttl_ns: Some(5 * SECOND), ephemeral: false };
    assert!(matches!(w.ask(&a, &request), Reply::Bound { .. }));
    w.hang_up(&a);
    w.wait_ns(SECOND);
    assert_eq!(w.ask(&b, &Request::Rename { from: "x".into(), to: "y".into() }), Reply::Done);
    w.wait_ns(3 * SECOND);
    assert!(b.find("y").is_some());
    w.wait_ns(SECOND);
    assert_eq!((b.find("y"), w.stat().names_expired), (None, 1));
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn the_index_can_be_made_from_the_directory() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let timed = bind_for(&mut w, &a, "timed", CellNo::new(1), Some(SECOND), false);
    let both = bind_for(&mut w, &a, "both", CellNo::new(2), Some(SECOND), true);
    w.bind(&a, "plain", CellNo::new(3), Cell::new(1, SlotNo::new(0)));
    let text = format!("{:?}", Lifetimes::of(&a.directory));
    for (at, entry) in [(w.now_ns + SECOND, timed), (w.now_ns + SECOND, both)] {
        assert!(text.contains(&format!("({at}, {entry})")), "{text}");
    }
    assert!(text.contains(&format!("ephemeral: {{({}, {both})}}", a.number())), "{text}");
}

#[test]
fn no_time_is_refused_and_any_other_is_a_time() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let request = |ttl_ns| Request::BindFor { name: "x".into(), cell: CellNo::new(1), ttl_ns, ephemeral: false };
    assert!(matches!(w.ask(&a, &request(Some(0))), Reply::Refused(Refusal::Bad(_))));
    assert!(matches!(w.ask(&a, &request(Some(u64::MAX))), Reply::Bound { .. }));
    w.wait_ns(3600 * SECOND);
    assert!(a.find("x").is_some_and(OwnerWord::is_live));
    assert!(matches!(w.ask(&a, &request(Some(1))), Reply::Bound { .. }), "the same cell, another life");
    w.wait_ns(1);
    assert_eq!(a.find("x"), None);
}
