//! Clients publish new names without the daemon: a completed publication is never lost, and a false one delays no other client.

use super::world::{Client, World, settings};
use crate::core::Event;
use crate::core::names::colliding::chosen_keys;
use crate::core::settings::{NamespaceLimits, Principal, Settings};
use tensorlend_layout::announce::Waiting;
use tensorlend_layout::catalogue::{CellRecord, RING};
use tensorlend_layout::directory::{SEARCH_MAX, key_word};
use tensorlend_layout::name::item_key;
use tensorlend_layout::number::{CellNo, SlotNo};
use tensorlend_layout::wire::{APPEND_MAX, Reply, Request};
use tensorlend_layout::word::{Absorbed, Cell, MemberState, OwnerWord};

fn many_names() -> World {
    let mut settings = settings();
    settings.private.names_max = 100_000;
    World::new(settings)
}

pub fn fill(record: &CellRecord, name: &str) {
    record.name_bytes.set(name.len() as u64);
    record.name[0].set(key_word(name.as_bytes()));
    record.cell.set(Cell::new(1, SlotNo::new(0)).0);
}

pub fn announce(client: &Client, name: &str, cell: CellNo) {
    client.words().announce(client.directory.hash(name.as_bytes()), cell);
}

fn bind(w: &mut World, client: &Client, name: String) -> bool {
    matches!(w.ask(client, &Request::Bind { name, cell: CellNo::new(0) }), Reply::Bound { .. })
}

#[test]
fn an_announcement_may_overtake_an_acknowledgement() {
    let mut w = World::new(settings());
    let a = w.announcer(1);
    w.say(a.conn, &Request::GrowCells);
    let (reply, lend) = w.hear(a.conn).unwrap();
    assert!(matches!(reply, Reply::Cells { part: 1, .. }));
    let view = w.view(lend[0].0);
    let records: &[CellRecord] = view.array(4096, 1024).unwrap();
    fill(&records[0], "x");
    announce(&a, "x", CellNo::new(4096));
    w.happen(Event::Woken { conn: a.conn });
    assert_eq!(a.find("x").map(OwnerWord::cell), Some(CellNo::new(4096)), "a completed put is lost");
    w.say(a.conn, &Request::Ack);
    assert_eq!(a.find("x").map(OwnerWord::cell), Some(CellNo::new(4096)));
}

#[test]
fn the_ring_of_one_who_may_only_read_counts_for_nobody() {
    let mut w = World::new(settings());
    let reader = w.join_unacknowledged(2, Some("lab"));
    let counts = |reader: &Client| {
        let absorbed = &reader.directory.members[reader.number().index()].absorbed;
        Waiting::read(reader.words(), absorbed).unwrap().map_or(0, |waiting| waiting.count())
    };
    assert!(!reader.welcome.writer);
    announce(&reader, "x", CellNo::new(3));
    assert_eq!(counts(&reader), 0, "before it has acknowledged");
    w.say(reader.conn, &Request::Ack);
    w.happen(Event::Woken { conn: reader.conn });
    assert_eq!(counts(&reader), 0, "after");
    assert!(reader.find("x").is_none());
}

#[test]
fn announcements_that_nobody_wakes_for_hold_no_request_up() {
    let mut w = many_names();
    let (a, liar) = (w.join(1), w.announcer(1));
    for i in 0..3200 {
        assert!(bind(&mut w, &a, format!("n{i}")));
    }
    liar.words().ring_head.set(4096);
    w.say(a.conn, &Request::Bind { name: "x".into(), cell: CellNo::new(1) });
    for _ in 0..1000 {
        w.wait_ns(1_000_000);
    }
    assert!(w.hear(a.conn).is_some(), "not answered within a second");
}

#[test]
fn a_ring_that_is_refilled_without_pause_delays_a_request_by_a_bounded_number_of_turns() {
    let mut w = World::new(settings());
    let (a, b) = (w.announcer(1), w.join(1));
    let absorbed = || Absorbed(a.directory.members[a.number().index()].absorbed.peek()).index();
    // The last announcement of a full ring precedes the request.
    fill(&a.words().cells[5], "x");
    a.words().ring_head.set(absorbed() + RING as u64 - 1);
    announce(&a, "x", CellNo::new(5));
    w.say(b.conn, &Request::Delete { name: "x".into() });
    let mut turns = 0;
    let reply = loop {
        if let Some((reply, _)) = w.hear(b.conn) {
            break reply;
        }
        let before = absorbed();
        a.words().ring_head.set(before + RING as u64);
        w.now_ns = w.core.alarm().expect("the daemon tries again").max(w.now_ns);
        w.happen(Event::Alarm);
        assert!(absorbed() - before < RING as u64 / 4, "a turn absorbs a few");
        turns += 1;
        assert!(turns < 500, "the request waits for ever");
    };
    assert_eq!(reply, Reply::Deleted { existed: true });
}

#[test]
fn an_announced_name_is_placed_however_hard_it_is_to_find() {
    let mut w = many_names();
    let (a, liar) = (w.announcer(1), w.join(1));
    // The searches for these names pass the same places in every table. The daemon adds them until they are too many of one
    // user.
    let hash = a.directory.hash(b"any");
    let mut crowd = chosen_keys(&a.directory, hash, 28).map(|key| String::from_utf8(key).unwrap());
    let taken = crowd.by_ref().take_while(|name| bind(&mut w, &liar, name.clone())).count();
    assert_eq!(taken as u64, SEARCH_MAX + 1);
    let mine = crowd.next().unwrap();
    assert!(a.directory.is_long_search(hash), "clients announce no such name");
    fill(&a.words().cells[5], &mine);
    announce(&a, &mine, CellNo::new(5));
    w.happen(Event::Woken { conn: a.conn });
    assert!(a.find(&mine).is_some(), "a completed put is lost");
}

#[test]
fn items_are_appended_all_or_none() {
    let mut w = many_names();
    let a = w.join(1);
    w.no_parts = true;
    let bound = (0..100_000).take_while(|n| bind(&mut w, &a, format!("n{n}"))).count();
    assert!(bound < 100_000, "memory ends");
    for i in 0..4 {
        w.ask(&a, &Request::Delete { name: format!("n{i}") });
    }
    let reply = w.ask(&a, &Request::ListAppend { list: "l".into(), cells: (10..20).map(CellNo::new).collect() });
    let there = (0..10).filter(|&i| a.find_key(&item_key(1, i)).is_some()).count();
    assert_eq!(there, if matches!(reply, Reply::Refused(_)) { 0 } else { 10 }, "{reply:?}");
}

#[test]
fn room_that_a_request_is_about_to_take_is_not_shown() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let head = a.directory.head();
    let room = head.names_room.peek();
    w.ask(&a, &Request::ListAppend { list: "l".into(), cells: (0..9).map(CellNo::new).collect() });
    assert_eq!(head.names_room.peek(), room - 10, "a list and nine items");
    // The list's items fill the namespace.
    let cells: Vec<CellNo> = (10..room as u32 - 2).map(CellNo::new).collect();
    for cells in cells.chunks(APPEND_MAX) {
        let append = Request::ListAppend { list: "l".into(), cells: cells.to_vec() };
        assert!(matches!(w.ask(&a, &append), Reply::Appended { .. }));
    }
    assert!(head.names_room.peek() <= 2);
    let cells = (0..3).map(CellNo::new).collect();
    assert!(matches!(w.ask(&a, &Request::ListAppend { list: "l".into(), cells }), Reply::Refused(_)));
    assert!(head.names_room.peek() <= 2, "exactly the refused name's reservation is free again");
}

#[test]
fn a_writer_that_asks_for_names_becomes_an_announcer() {
    let mut w = many_names();
    let state = |client: &Client| {
        let absorbed = client.directory.members[client.number().index()].absorbed.peek();
        let listed = client.directory.announcers().any(|number| number == client.number());
        assert_eq!(listed, Absorbed(absorbed).state() == MemberState::Open);
        listed
    };
    let (a, b, c) = (w.join(1), w.join(1), w.join(1));
    assert!(![&a, &b, &c].into_iter().any(state), "no client has requested a name");
    assert!(bind(&mut w, &a, "a".into()) && state(&a));
    assert!(bind(&mut w, &b, "a".into()) && !state(&b), "a takeover is no new name");
    assert!(bind(&mut w, &b, "n".repeat(65)) && !state(&b), "nor is one that could not be announced");
    let ephemeral = Request::BindFor { name: "e".into(), cell: CellNo::new(0), ttl_ns: None, ephemeral: true };
    assert!(matches!(w.ask(&b, &ephemeral), Reply::Bound { .. }) && !state(&b), "nor one that ends by itself");
    assert!(bind(&mut w, &b, "b".into()) && state(&b));
    assert!(bind(&mut w, &c, "c".into()) && !state(&c), "there are two, and it has asked once");
    assert!(bind(&mut w, &c, "d".into()) && state(&c));
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    fill(&a.words().cells[1], "last");
    a.words().cells[1].cell.set(Cell::new(1, lent.base).0);
    announce(&a, "last", CellNo::new(1));
    w.hang_up(&a);
    assert_eq!(
        (state(&a), b.find("last").map(OwnerWord::cell)),
        (false, Some(CellNo::new(1))),
        "it leaves with its last announcement"
    );
}

/// In a shared namespace with shares each user gets a part of the announcers, however many writers another user has.
#[test]
fn no_user_takes_the_places_of_all_announcers() {
    let limits = NamespaceLimits { members_max: 600, names_max: 200_000, ..settings().private };
    let mut settings = Settings { uid_share: true, uid_sessions_max: 300, ..settings() };
    let lab = settings.namespaces.get_mut("lab").unwrap();
    (lab.limits, lab.writers) = (limits, vec![Principal::Uid(1), Principal::Uid(3)]);
    let mut w = World::new(settings);
    let announces = |client: &Client| client.directory.announcers().any(|number| number == client.number());
    let join = |w: &mut World, uid, count: u32| {
        let writers: Vec<_> = (0..count).map(|_| w.join_unacknowledged(uid, Some("lab"))).collect();
        for writer in &writers {
            w.say(writer.conn, &Request::Ack);
        }
        for (number, writer) in writers.iter().enumerate() {
            for name in 0..=128 {
                assert!(bind(w, writer, format!("{uid}/{number}/{name}")));
                if announces(writer) {
                    break;
                }
            }
        }
        let announcers = writers.iter().filter(|writer| announces(writer)).count();
        (writers, announcers)
    };
    let (of_one, announcers) = join(&mut w, 1, 200);
    assert_eq!(announcers, 64, "half of 128");
    let (_of_another, announcers) = join(&mut w, 3, 40);
    assert_eq!(announcers, 21, "a third of the other half");
    // The end of an announcer frees its place. Its user still has more than its share, and gets no other announcer.
    w.hang_up(of_one.iter().find(|it| announces(it)).unwrap());
    let late = of_one.iter().rfind(|it| !announces(it)).unwrap();
    assert!(bind(&mut w, late, "late".into()) && !announces(late), "the user is above the share of two users");
}
