use super::world::{World, settings};
use tensorlend_layout::number::{CellNo, SlotNo};
use tensorlend_layout::wire::{APPEND_MAX, LimitKind, Refusal, Reply, Request};
use tensorlend_layout::word::{Cell, OwnerKind, OwnerWord, PARKED_ANY, parked_bit};

fn delete(name: &str) -> Request {
    Request::Delete { name: name.into() }
}

#[test]
fn bind_take_over_delete() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let first = w.bind(&a, "x", CellNo::new(1), Cell::new(1, SlotNo::new(0)));
    assert_eq!((first.owner(), first.cell().get()), (a.number(), 1));
    assert_eq!(w.bind(&a, "x", CellNo::new(1), Cell::new(1, SlotNo::new(0))), first, "asked again, nothing moves");
    let second = w.bind(&b, "x", CellNo::new(4), Cell::new(1, SlotNo::new(0)));
    assert_eq!((second.owner(), second.cell().get(), second.version()), (b.number(), 4, first.version() + 1));
    assert_eq!(a.directory.members[1].notices.peek(), 1);
    assert_eq!(w.ask(&a, &Request::Notices), Reply::Notices { cells: vec![CellNo::new(1)], more: false });
    assert_eq!(w.ask(&a, &Request::Notices), Reply::Notices { cells: vec![], more: false });
    w.bind(&b, "x", CellNo::new(5), Cell::new(1, SlotNo::new(0)));
    assert_eq!(w.ask(&b, &Request::Notices), Reply::Notices { cells: vec![CellNo::new(4)], more: false });
    assert_eq!(w.ask(&a, &delete("x")), Reply::Deleted { existed: true });
    assert_eq!(w.ask(&a, &delete("x")), Reply::Deleted { existed: false });
    assert_eq!(a.find("x"), None);
    assert_eq!(w.ask(&b, &Request::Notices), Reply::Notices { cells: vec![CellNo::new(5)], more: false });
    w.bind(&a, "x", CellNo::new(1), Cell::DELETED);
    assert_eq!(w.ask(&b, &delete("x")), Reply::Deleted { existed: false }, "its owner deleted it");
    assert_eq!(a.find("x"), None);
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn bad_names_and_cells_are_refused() {
    let mut w = World::new(settings());
    let a = w.join(1);
    for name in ["", "a\n", "\u{3}stream", &"x".repeat(256)] {
        let reply = w.ask(&a, &Request::Bind { name: name.into(), cell: CellNo::new(0) });
        assert!(matches!(reply, Reply::Refused(Refusal::Bad(_))), "{name:?}");
        let reply = w.ask(&a, &Request::Tidy { names: vec![(name.into(), CellNo::new(0))] });
        assert!(matches!(reply, Reply::Refused(Refusal::Bad(_))), "{name:?}");
    }
    let beyond = Request::Bind { name: "x".into(), cell: CellNo::new(4096) };
    assert!(matches!(w.ask(&a, &beyond), Reply::Refused(Refusal::Bad(_))));
    assert!(matches!(w.ask(&a, &Request::GrowCells), Reply::Cells { part: 1, .. }));
    assert!(matches!(w.ask(&a, &beyond), Reply::Bound { .. }));
}

#[test]
fn names_grow_to_their_limit_and_no_further() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let name = |i: u32| if i.is_multiple_of(10) { format!("{i:0>120}") } else { format!("name {i}") };
    for i in 0..2048 {
        w.bind(&a, &name(i), CellNo::new(i), Cell::new(1, SlotNo::new(0)));
    }
    let full = w.ask(&a, &Request::Bind { name: "more".into(), cell: CellNo::new(2048) });
    assert!(matches!(full, Reply::Refused(Refusal::Limit { kind: LimitKind::Names, .. })));
    for i in 0..2048 {
        assert_eq!(b.find(&name(i)).map(OwnerWord::cell), Some(CellNo::new(i)));
    }
    for i in 0..2048 {
        assert_eq!(w.ask(&b, &delete(&name(i))), Reply::Deleted { existed: true });
    }
    assert_eq!(a.directory.head().names_live.peek(), 0);
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn tidy_forgets_what_still_leads_to_the_cell() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    w.bind(&a, "x", CellNo::new(1), Cell::DELETED);
    w.bind(&a, "y", CellNo::new(2), Cell::DELETED);
    w.bind(&b, "y", CellNo::new(3), Cell::new(1, SlotNo::new(0)));
    let names = ["x", "y", "z"].into_iter().zip(1..).map(|(name, cell)| (name.into(), CellNo::new(cell))).collect();
    assert_eq!(w.ask(&a, &Request::Tidy { names }), Reply::Done);
    assert_eq!((a.find("x"), a.find("y").map(OwnerWord::owner)), (None, Some(b.number())));
}

#[test]
fn a_claim_puts_the_request_off_until_it_is_gone_or_a_second_is_over() {
    let mut w = World::new(settings());
    let (a, b) = (w.announcer(1), w.join(1));
    let hash = a.directory.hash(b"x");
    a.words().claim.set(hash);
    w.say(b.conn, &Request::Bind { name: "x".into(), cell: CellNo::new(0) });
    assert!(w.hear(b.conn).is_none());
    let found = a.directory.find(hash, b"x").unwrap().unwrap();
    assert_eq!(found.owner_word.kind(), OwnerKind::Reserved);
    w.wait_ns(500_000_000);
    a.words().claim.set(0);
    w.wait_ns(1_000_000);
    assert!(matches!(w.hear(b.conn), Some((Reply::Bound { .. }, _))));

    let hash = a.directory.hash(b"y");
    a.words().claim.set(hash);
    w.say(b.conn, &Request::Bind { name: "y".into(), cell: CellNo::new(1) });
    w.wait_ns(1_100_000_000);
    assert!(matches!(w.refusal(a.conn), Refusal::Violation(_)));
    assert!(matches!(w.hear(b.conn), Some((Reply::Bound { .. }, _))));

    let c = w.announcer(1);
    c.words().claim.set(c.directory.hash(b"z"));
    w.say(b.conn, &Request::Bind { name: "z".into(), cell: CellNo::new(2) });
    w.hang_up(&b);
    let owner_word = c.directory.find(c.directory.hash(b"z"), b"z").unwrap().map(|f| f.owner_word.kind());
    assert!(matches!(owner_word, None | Some(OwnerKind::Tomb)), "nothing stays reserved");
}

#[test]
fn announcements_come_into_the_directory_first() {
    let mut w = World::new(settings());
    let (a, b) = (w.announcer(1), w.join(1));
    announce(&a, "x", CellNo::new(3), 0);
    announce(&a, "y", CellNo::new(4), 1);
    let owner_word = w.bind(&b, "x", CellNo::new(0), Cell::new(1, SlotNo::new(0)));
    assert_eq!((owner_word.owner(), a.find("y").map(OwnerWord::cell)), (b.number(), Some(CellNo::new(4))));
    assert_eq!(w.ask(&a, &Request::Notices), Reply::Notices { cells: vec![CellNo::new(3)], more: false });
    let absorbed = tensorlend_layout::word::Absorbed(a.directory.members[1].absorbed.peek());
    assert_eq!(absorbed.index(), 2);
    announce(&a, "last", CellNo::new(5), 2);
    w.hang_up(&a);
    assert_eq!(b.find("last").map(OwnerWord::cell), None, "never filled: nothing leads to a value");
    // The daemon ends a client with a false ring.
    let c = w.announcer(1);
    c.words().ring_head.set(1 << 40);
    w.bind(&b, "q", CellNo::new(1), Cell::new(1, SlotNo::new(0)));
    assert!(matches!(w.refusal(c.conn), Refusal::Violation(_)));
}

/// The daemon copies the records of cells with near numbers together, and those of others one by one.
#[test]
fn announced_names_of_near_and_far_cells_come_into_the_directory() {
    let mut w = World::new(settings());
    let (a, b) = (w.announcer(1), w.join(1));
    let cells = || (0..16).map(|n| 40 - n).chain((0..16).map(|n| 50 + n * 100));
    for (index, cell) in cells().enumerate() {
        announce(&a, &format!("n{cell}"), CellNo::new(cell), index);
    }
    w.bind(&b, "x", CellNo::new(0), Cell::new(1, SlotNo::new(0)));
    for cell in cells() {
        assert_eq!(a.find(&format!("n{cell}")).map(OwnerWord::cell), Some(CellNo::new(cell)));
    }
}

fn announce(client: &super::world::Client, name: &str, cell: CellNo, index: usize) {
    let record = &client.words().cells[cell.index()];
    record.name_bytes.set(name.len() as u64);
    record.name[0].set(tensorlend_layout::directory::key_word(name.as_bytes()));
    let tag = client.directory.hash(name.as_bytes()) >> 24;
    client.words().ring[index].set(tag << 24 | u64::from(cell));
    client.words().ring_head.set(index as u64 + 1);
}

#[test]
fn only_listed_and_parked_sleepers_are_woken() {
    let mut w = World::new(settings());
    let (a, b, sleeper) = (w.join(1), w.join(1), w.join(1));
    w.bind(&a, "x", CellNo::new(0), Cell::new(1, SlotNo::new(0)));
    sleeper.table().parked.set(PARKED_ANY);
    w.bind(&a, "y", CellNo::new(1), Cell::new(1, SlotNo::new(0)));
    assert_eq!(w.wakes, 0, "not listed");
    assert_eq!(w.ask(&sleeper, &Request::Wait), Reply::Done);
    assert_eq!(w.ask(&sleeper, &Request::Wait), Reply::Done);
    assert_eq!(sleeper.directory.head().waiters_count.peek(), 1);
    let bell = sleeper.directory.head().bell.read();
    w.bind(&a, "z", CellNo::new(2), Cell::new(1, SlotNo::new(0)));
    assert_eq!((w.wakes, sleeper.directory.head().bell.read()), (1, bell + 1));
    sleeper.table().parked.set(parked_bit(a.number()));
    w.bind(&b, "x", CellNo::new(0), Cell::new(1, SlotNo::new(0)));
    assert_eq!(w.wakes, 2, "it waited for a's claim");
    sleeper.table().parked.set(0);
    w.bind(&b, "v", CellNo::new(1), Cell::new(1, SlotNo::new(0)));
    assert_eq!(w.wakes, 2);
    w.hang_up(&sleeper);
    assert_eq!(a.directory.head().waiters_count.peek(), 0);
}

#[test]
fn a_name_is_renamed_for_an_owner_that_is_gone() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    lent.write(SlotNo::new(0), 1, None);
    w.bind(&a, "x", CellNo::new(0), Cell::new(1, SlotNo::new(0)));
    w.bind(&b, "y", CellNo::new(0), Cell::new(1, SlotNo::new(0)));
    let rename = |from: &str, to: &str| Request::Rename { from: from.into(), to: to.into() };
    assert_eq!(w.ask(&b, &rename("x", "y")), Reply::Refused(Refusal::NotQuiet("x".into())));
    assert!(matches!(w.ask(&b, &rename("none", "y")), Reply::Refused(Refusal::NotFound(_))));
    w.hang_up(&a);
    assert_eq!(w.ask(&b, &rename("x", "y")), Reply::Done);
    assert_eq!((b.find("x"), b.find("y").map(OwnerWord::owner)), (None, Some(a.number())));
    assert_eq!(w.ask(&b, &Request::Notices), Reply::Notices { cells: vec![CellNo::new(0)], more: false });
    assert_eq!(w.ask(&b, &delete("y")), Reply::Deleted { existed: true });
    w.hang_up(&b);
    w.assert_empty();
}

/// The table of names has places for a few thousand names at first. The list's items fill half of it, too few for the daemon to
/// build a larger table.
#[test]
fn a_request_for_many_names_has_a_larger_table_made() {
    let mut settings = settings();
    settings.private.names_max = 20_000;
    let mut w = World::new(settings);
    let a = w.join(1);
    let count = APPEND_MAX as u64;
    for number in 0..16 {
        w.say(
            a.conn,
            &Request::ListAppend { list: "l".into(), cells: (0..APPEND_MAX as u32).map(CellNo::new).collect() },
        );
        w.wait_ns(50_000_000);
        let appended = w.hear(a.conn).map(|(reply, _)| reply);
        assert_eq!(appended, Some(Reply::Appended { first: number * count }));
    }
}
