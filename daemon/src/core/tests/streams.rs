use super::world::{Client, World, settings};
use crate::core::Lending;
use tensorlend_layout::name::{item_key, list_key, stream_key};
use tensorlend_layout::stream::{RingEntry, StreamRing};
use tensorlend_layout::wire::{Policy, Refusal, Reply, Request};
use tensorlend_layout::word::{Cell, Home, SubscriberWord};

fn open(name: &str) -> Request {
    Request::StreamOpen { name: name.into(), capacity: 3, policy: Policy::DropOldest }
}

fn subscribe(name: &str, cursor: u16, wake: bool) -> Request {
    Request::Subscribe { name: name.into(), cursor, wake }
}

fn stream(reply: Reply) -> (u32, u64) {
    match reply {
        Reply::Stream { stream, id, capacity: 4, policy: Policy::DropOldest, .. } => (stream, id),
        other => panic!("{other:?}"),
    }
}

fn subscribers(client: &Client, place: u32) -> Vec<SubscriberWord> {
    let entry = &client.directory.streams[place as usize];
    let count = entry.subscribers_count.peek() as usize;
    entry.subscribers[..count].iter().map(|w| SubscriberWord(w.peek())).collect()
}

#[test]
fn a_stream_has_one_live_producer_and_listed_subscribers() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    assert!(matches!(w.ask(&b, &subscribe("s", 0, false)), Reply::Refused(Refusal::NotFound(_))));
    let (place, id) = stream(w.ask(&a, &open("s")));
    let home = a.find_key(&stream_key("s")).unwrap();
    assert_eq!((home.catalogue(), home.cell()), (a.number(), place));
    assert_eq!(w.ask(&b, &open("s")), Reply::Refused(Refusal::StreamTaken("s".into())));

    w.say_with(b.conn, &subscribe("s", 5, true), 1);
    let (reply, lend) = w.hear(b.conn).unwrap();
    assert_eq!((stream(reply), lend[0].1), ((place, id), Lending::Read));
    w.say(b.conn, &Request::Ack);
    let listed = subscribers(&a, place);
    assert_eq!((listed[0].catalogue(), listed[0].cursor(), listed[0].has_wake()), (b.number(), 5, true));
    let ask = Request::WakeDescriptor { stream: place, catalogue: b.number(), cursor: 5 };
    let (reply, lend) = w.ask_lent(&a, &ask);
    assert!(matches!(reply, Reply::Sheet { .. }) && lend[0].1 == Lending::Wake);
    assert!(matches!(w.ask(&b, &ask), Reply::Refused(Refusal::NotFound(_))), "not the producer");
    stream(w.ask(&b, &subscribe("s", 5, false)));
    assert_eq!(subscribers(&a, place).len(), 1, "the same cursor is listed once");
    assert_eq!(w.ask(&a, &ask), Reply::Done, "no wake descriptor any more");
    stream(w.ask(&b, &subscribe("s", 6, false)));
    assert_eq!(w.ask(&b, &Request::Unsubscribe { stream: place, id, cursor: 5 }), Reply::Done);
    assert_eq!(subscribers(&a, place).iter().filter(|s| s.0 != 0).count(), 1);
    let version = a.directory.streams[place as usize].subscribers_version.peek();
    w.hang_up(&b);
    assert!(subscribers(&a, place).is_empty());
    assert!(a.directory.streams[place as usize].subscribers_version.peek() > version);
    w.hang_up(&a);
    let c = w.join(1);
    assert_eq!(w.ask(&c, &Request::StreamDelete { name: "s".into() }), Reply::Deleted { existed: true });
    assert_eq!(w.ask(&c, &Request::StreamDelete { name: "s".into() }), Reply::Deleted { existed: false });
    w.hang_up(&c);
    w.assert_empty();
}

#[test]
fn a_dead_producers_stream_stays_readable_until_it_is_opened_anew() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let (reply, lend) = w.ask_lent(&a, &open("s"));
    let (place, id) = stream(reply);
    let ring = w.view(lend[0].0);
    let (old, new) = (w.segment(&a), w.segment(&a));
    old.write(old.base, 1, None);
    new.write(new.base, 1, None);
    let entries: &[RingEntry] = ring.array(4096, 4).unwrap();
    // Message 0 was replaced by message 4; messages 1 to 4 are held.
    for (number, value) in [(1, Cell::EMPTY), (4, Cell::new(1, new.base))] {
        entries[number % 4].cell.set(value.0);
        entries[number % 4].number.set(number as u64);
    }
    let head: &StreamRing = ring.at(0).unwrap();
    head.tail.set(1);
    head.head.set(5);
    w.hang_up(&a);
    assert_eq!((w.stat().segments, w.stat().frozen), (1, 1), "what the ring holds stays");
    stream(w.ask(&b, &subscribe("s", 0, false)));
    let (again, fresh) = stream(w.ask(&b, &open("s")));
    assert_eq!(again, place);
    assert_ne!(fresh, id);
    assert!(subscribers(&b, place).is_empty(), "subscribers come again");
    w.wait_ns(100_000_000);
    assert_eq!((w.stat().segments, w.stat().frozen), (0, 0));
    w.ask(&b, &Request::StreamDelete { name: "s".into() });
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn streams_have_limits() {
    let mut w = World::new(settings());
    let a = w.join(1);
    for i in 0..4 {
        stream(w.ask(&a, &open(&format!("s{i}"))));
    }
    let full = w.ask(&a, &open("more"));
    let setting = "namespace_default.streams_max";
    assert!(matches!(full, Reply::Refused(Refusal::Limit { setting: s, .. }) if s == setting));
    let long = Request::StreamOpen { name: "s0".into(), capacity: u32::MAX, policy: Policy::Block };
    assert!(matches!(w.ask(&a, &long), Reply::Refused(Refusal::Bad(_))));
    for cursor in 0..64 {
        stream(w.ask(&a, &subscribe("s0", cursor, false)));
    }
    assert!(matches!(w.ask(&a, &subscribe("s0", 64, false)), Reply::Refused(Refusal::Bad(_))));
    assert!(matches!(w.ask(&a, &subscribe("s0", 256, false)), Reply::Refused(Refusal::Bad(_))));
    w.say(a.conn, &Request::StreamDelete { name: "s0".into() });
    (1..4).for_each(|i| w.say(a.conn, &Request::StreamDelete { name: format!("s{i}") }));
    w.hang_up(&a);
    w.assert_empty();
}

fn append(list: &str, cells: &[u32]) -> Request {
    Request::ListAppend { list: list.into(), cells: cells.to_vec() }
}

#[test]
fn lists_are_appended_to_by_many_and_ordered_by_one() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    for cell in 0..8 {
        a.words().cells[cell].cell.set(Cell::new(1, 0).0);
        b.words().cells[cell].cell.set(Cell::new(1, 0).0);
    }
    assert_eq!(w.ask(&a, &append("l", &[0, 1])), Reply::Appended { first: 0 });
    assert_eq!(w.ask(&b, &append("l", &[5])), Reply::Appended { first: 2 });
    let home = a.find_key(&list_key("l")).unwrap();
    assert_eq!(home.catalogue(), 0);
    let entry = &a.directory.lists[home.cell() as usize];
    let id = entry.id.peek();
    assert_eq!(entry.end.peek(), 3);
    let item = |client: &Client, n| client.find_key(&item_key(id, n)).map(|h| (h.catalogue(), h.cell()));
    assert_eq!((item(&a, 0), item(&a, 1), item(&a, 2)), (Some((1, 0)), Some((1, 1)), Some((2, 5))));
    assert!(matches!(w.ask(&a, &append("l", &[2, 9999])), Reply::Refused(Refusal::Bad(_))));
    assert_eq!(entry.end.peek(), 3, "all of them or none");
    assert_eq!(w.ask(&a, &Request::ListRename { from: "l".into(), to: "m".into() }), Reply::Done);
    assert_eq!((a.find_key(&list_key("l")), a.find_key(&list_key("m")).map(Home::cell)), (None, Some(home.cell())));
    assert_eq!(w.ask(&a, &append("m", &[2])), Reply::Appended { first: 3 });
    assert_eq!(w.ask(&b, &append("l", &[6])), Reply::Appended { first: 0 });
    let rename = Request::ListRename { from: "m".into(), to: "l".into() };
    assert_eq!(w.ask(&b, &rename), Reply::Done);
    assert_eq!(w.ask(&b, &Request::Notices), Reply::Notices { cells: vec![6], more: false });
    assert_eq!(w.ask(&b, &Request::ListDelete { list: "l".into() }), Reply::Deleted { existed: true });
    assert_eq!(w.ask(&b, &Request::ListDelete { list: "l".into() }), Reply::Deleted { existed: false });
    assert_eq!(w.ask(&a, &Request::Notices), Reply::Notices { cells: vec![0, 1, 2], more: false });
    assert_eq!((w.stat().names, entry.id.peek()), (0, 0));
    assert_eq!(w.ask(&a, &append("l", &[0])), Reply::Appended { first: 0 });
    assert!(a.directory.lists[home.cell() as usize].id.peek() > id, "ids are never used again");
    w.ask(&b, &Request::ListDelete { list: "l".into() });
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn a_lists_items_outlive_their_producer_and_go_with_the_list() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    a.words().cells[0].cell.set(Cell::new(1, lent.base).0);
    w.ask(&a, &append("l", &[0]));
    w.hang_up(&a);
    assert_eq!(w.stat().segments, 1);
    assert_eq!(w.ask(&b, &Request::ListDelete { list: "l".into() }), Reply::Deleted { existed: true });
    w.wait_ns(100_000_000);
    assert_eq!((w.stat().segments, w.stat().frozen), (0, 0));
    w.hang_up(&b);
    w.assert_empty();
}
