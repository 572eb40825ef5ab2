use super::world::{Client, STREAM_GRACE_NS, World, settings};
use crate::core::Lending;
use crate::core::settings::{Mode, Principal, Settings};
use tensorlend_layout::name::{item_key, list_key, stream_key};
use tensorlend_layout::number::{CellNo, ClientNo, CursorNo, SlotNo, StreamLine};
use tensorlend_layout::raw::View;
use tensorlend_layout::stream::{RingEntry, StreamRing};
use tensorlend_layout::wire::{LimitKind, Policy, Refusal, Reply, Request};
use tensorlend_layout::word::{Cell, OwnerWord, ProcessWord, SubscriberWord};

fn open(name: &str) -> Request {
    Request::StreamOpen { name: name.into(), capacity: 3, policy: Policy::DropOldest }
}

pub fn subscribe(name: &str, cursor: CursorNo, wake: bool) -> Request {
    let name = name.into();
    if wake { Request::SubscribePollable { name, cursor } } else { Request::Subscribe { name, cursor, wake } }
}

fn stream(reply: Reply) -> (u32, u64) {
    match reply {
        Reply::Stream { stream, id, capacity: 4, policy: Policy::DropOldest, .. } => (stream.get(), id),
        other => panic!("{other:?}"),
    }
}

fn subscribers(client: &Client, place: StreamLine) -> Vec<SubscriberWord> {
    let entry = &client.directory.streams[place.index()];
    let count = entry.subscribers_count.peek() as usize;
    entry.subscribers[..count].iter().map(|w| SubscriberWord(w.peek())).collect()
}

#[test]
fn a_stream_has_one_live_producer_and_listed_subscribers() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    assert!(matches!(w.ask(&b, &subscribe("s", CursorNo::new(0), false)), Reply::Refused(Refusal::NotFound(_))));
    let (place, id) = stream(w.ask(&a, &open("s")));
    let owner_word = a.find_key(&stream_key("s")).unwrap();
    assert_eq!((owner_word.owner(), owner_word.stream()), (a.number(), StreamLine::new(place)));
    assert_eq!(w.ask(&b, &open("s")), Reply::Refused(Refusal::StreamTaken("s".into())));

    w.say(b.conn, &subscribe("s", CursorNo::new(5), true));
    let (reply, lend) = w.hear(b.conn).unwrap();
    let how: Vec<Lending> = lend.iter().map(|it| it.1).collect();
    assert_eq!((stream(reply), &how[..2]), ((place, id), &[Lending::Read, Lending::Woken][..]));
    w.say(b.conn, &Request::Ack);
    let listed = subscribers(&a, StreamLine::new(place));
    assert_eq!((listed[0].client(), listed[0].cursor(), listed[0].has_wake()), (b.number(), CursorNo::new(5), true));
    let ask =
        Request::WakeDescriptor { stream: StreamLine::new(place), subscriber: b.number(), cursor: CursorNo::new(5) };
    let (reply, lend) = w.ask_lent(&a, &ask);
    assert!(matches!(reply, Reply::Sheet { .. }) && lend[0].1 == Lending::Wake);
    assert!(matches!(w.ask(&b, &ask), Reply::Refused(Refusal::NotFound(_))), "not the producer");
    stream(w.ask(&b, &subscribe("s", CursorNo::new(5), false)));
    assert_eq!(subscribers(&a, StreamLine::new(place)).len(), 1, "the same cursor is listed once");
    assert_eq!(w.ask(&a, &ask), Reply::Done, "no wake descriptor any more");
    stream(w.ask(&b, &subscribe("s", CursorNo::new(6), false)));
    assert_eq!(
        w.ask(&b, &Request::Unsubscribe { stream: StreamLine::new(place), id, cursor: CursorNo::new(5) }),
        Reply::Done
    );
    assert_eq!(subscribers(&a, StreamLine::new(place)).iter().filter(|s| s.0 != 0).count(), 1);
    let version = a.directory.streams[place as usize].subscribers_version.peek();
    w.hang_up(&b);
    assert!(subscribers(&a, StreamLine::new(place)).is_empty());
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
    assert_eq!((w.stat().segments, w.stat().frozen), (1, 1), "the ring's messages stay");
    stream(w.ask(&b, &subscribe("s", CursorNo::new(0), false)));
    let (again, fresh) = stream(w.ask(&b, &open("s")));
    assert_eq!(again, place);
    assert_ne!(fresh, id);
    assert!(subscribers(&b, StreamLine::new(place)).is_empty(), "subscribers come again");
    w.wait_ns(100_000_000);
    assert_eq!((w.stat().segments, w.stat().frozen), (0, 0));
    w.ask(&b, &Request::StreamDelete { name: "s".into() });
    w.hang_up(&b);
    w.assert_empty();
}

/// Closes a stream in its ring, and asks the daemon to check it.
fn close(w: &mut World, client: &Client, (stream, id): (u32, u64), ring: &View) {
    let head: &StreamRing = ring.at(0).unwrap();
    head.closed.set(1);
    assert_eq!(w.ask(client, &Request::StreamClosed { stream: StreamLine::new(stream), id }), Reply::Done);
}

fn open_with_ring(w: &mut World, client: &Client, name: &str) -> ((u32, u64), View) {
    let (reply, lend) = w.ask_lent(client, &open(name));
    (stream(reply), w.view(lend[0].0))
}

fn there(client: &Client, name: &str) -> bool {
    client.find_key(&stream_key(name)).is_some()
}

#[test]
fn a_closed_stream_ends_when_nobody_has_used_it_for_a_while() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let (at, ring) = open_with_ring(&mut w, &a, "s");
    w.wait_ns(3 * STREAM_GRACE_NS);
    assert!(there(&b, "s"), "its producer has it open");
    let sheets = w.stat().bytes_sheets;
    let (stream, id) = at;
    assert_eq!(w.ask(&a, &Request::StreamClosed { stream: StreamLine::new(stream), id: id + 1 }), Reply::Done);
    assert_eq!(
        w.ask(&b, &Request::StreamClosed { stream: StreamLine::new(stream), id }),
        Reply::Done,
        "not its stream"
    );
    assert_eq!(w.ask(&a, &Request::StreamClosed { stream: StreamLine::new(stream), id }), Reply::Done);
    w.wait_ns(3 * STREAM_GRACE_NS);
    assert!(there(&b, "s"), "the ring does not say that it is closed");

    close(&mut w, &a, at, &ring);
    w.wait_ns(STREAM_GRACE_NS - 1);
    // A late subscriber keeps the stream while it is subscribed.
    assert!(matches!(w.ask(&b, &subscribe("s", CursorNo::new(0), false)), Reply::Stream { .. }));
    w.wait_ns(3 * STREAM_GRACE_NS);
    assert!(there(&b, "s"), "a subscriber reads it");
    assert_eq!(
        w.ask(&b, &Request::Unsubscribe { stream: StreamLine::new(stream), id, cursor: CursorNo::new(0) }),
        Reply::Done
    );
    w.wait_ns(STREAM_GRACE_NS - 1);
    assert!(there(&b, "s"));
    w.wait_ns(1);
    assert!(!there(&b, "s") && a.directory.streams[stream as usize].id.peek() == 0);
    w.wait_ns(1_000_000_000);
    assert!(w.stat().bytes_sheets < sheets, "its ring is gone");
    // The entry has another stream, which does not receive messages of the former one.
    let (again, other) = self::stream(w.ask(&a, &open("t")));
    assert!(again == stream && other > id);
    assert!(matches!(w.ask(&b, &subscribe("t", CursorNo::new(0), false)), Reply::Stream { .. }));
    assert_eq!(
        w.ask(&b, &Request::Unsubscribe { stream: StreamLine::new(stream), id, cursor: CursorNo::new(0) }),
        Reply::Done
    );
    assert_eq!(subscribers(&a, StreamLine::new(again)).len(), 1);
    w.hang_up(&a);
    w.wait_ns(3 * STREAM_GRACE_NS);
    assert!(there(&b, "t"), "its subscriber is there");
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn what_the_streams_of_the_dead_hold_goes_with_them() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    let (_, ring) = open_with_ring(&mut w, &a, "s");
    let entries: &[RingEntry] = ring.array(4096, 4).unwrap();
    entries[0].cell.set(Cell::new(1, lent.base).0);
    let (reply, _) = w.ask_lent(&b, &subscribe("s", CursorNo::new(0), false));
    stream(reply);
    // Producer and subscriber both disconnect, in either order, and send no message about it.
    w.hang_up(&a);
    w.wait_ns(2 * STREAM_GRACE_NS);
    assert_eq!((w.stat().segments, w.stat().frozen), (1, 1));
    w.hang_up(&b);
    let c = w.join(1);
    assert!(there(&c, "s"));
    w.wait_ns(STREAM_GRACE_NS);
    assert!(!there(&c, "s"));
    w.wait_ns(1_000_000_000);
    assert_eq!((w.stat().segments, w.stat().frozen), (0, 0));
    w.hang_up(&c);
    w.assert_empty();
}

#[test]
fn a_message_that_is_leased_outlives_its_stream() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    let value = Cell::new(1, lent.base);
    let (_, ring) = open_with_ring(&mut w, &a, "s");
    let entries: &[RingEntry] = ring.array(4096, 4).unwrap();
    entries[0].cell.set(value.0);
    b.lease(0, a.number(), value);
    w.hang_up(&a);
    w.wait_ns(2 * STREAM_GRACE_NS);
    assert!(!there(&b, "s"));
    assert_eq!(w.stat().segments, 1, "a subscriber leases it");
    b.release(0);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn streams_that_nobody_uses_make_room_for_new_ones_at_once() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    // The client opens many more streams than the maximum of four, while no time passes.
    for number in 0..100 {
        let name = format!("s{number}");
        let (at, ring) = open_with_ring(&mut w, &a, &name);
        assert!(there(&b, &name));
        close(&mut w, &a, at, &ring);
    }
    assert!((96..100).all(|number| there(&b, &format!("s{number}"))), "the oldest goes first");
    // A stream with a subscriber stays, however old.
    let (reply, _) = w.ask_lent(&b, &subscribe("s96", CursorNo::new(0), false));
    stream(reply);
    for number in 100..120 {
        let (at, ring) = open_with_ring(&mut w, &a, &format!("s{number}"));
        close(&mut w, &a, at, &ring);
    }
    assert!(there(&b, "s96") && !there(&b, "s97"));
    w.hang_up(&a);
    w.hang_up(&b);
    w.wait_ns(2 * STREAM_GRACE_NS);
    w.assert_empty();
}

/// The daemon ends at each step of retiring a stream, and the next daemon recovers.
#[test]
fn a_daemon_that_ends_while_it_retires_leaves_nothing() {
    for mode in [Mode::System, Mode::User] {
        for steps in 0..12 {
            let settings = || Settings { mode, ..settings() };
            let mut w = World::new(settings());
            let mut a = w.join(1);
            let lent = w.segment(&a);
            lent.write(lent.base, 1, None);
            let (_, ring) = open_with_ring(&mut w, &a, "s");
            let entries: &[RingEntry] = ring.array(4096, 4).unwrap();
            entries[0].cell.set(Cell::new(1, lent.base).0);
            let head: &StreamRing = ring.at(0).unwrap();
            head.closed.set(1);
            // The producer reports the close only to the next daemon, or this daemon is killed in between.
            if steps > 0 {
                let at = (0, a.directory.streams[0].id.peek());
                w.ask(&a, &Request::StreamClosed { stream: StreamLine::new(at.0), id: at.1 });
                w.dies_after = Some(steps - 1);
                w.wait_ns(STREAM_GRACE_NS);
                w.dies_after = None;
            }
            w.replace_daemon(settings());
            assert!(matches!(w.come_back(&mut a, Some(vec![lent.base])), Reply::Welcome(_)));
            w.wait_ns(2 * STREAM_GRACE_NS);
            assert!(!there(&a, "s"), "{mode:?}, killed after {steps}");
            let b = w.join(1);
            assert!(matches!(
                w.ask(&b, &subscribe("s", CursorNo::new(0), false)),
                Reply::Refused(Refusal::NotFound(_))
            ));
            w.hang_up(&a);
            w.hang_up(&b);
            w.assert_empty();
        }
    }
}

fn shared() -> World {
    let mut settings = Settings { uid_share: true, uid_sessions_max: 100, ..settings() };
    let lab = settings.namespaces.get_mut("lab").unwrap();
    lab.writers.push(Principal::Uid(2));
    lab.readers.push(Principal::Uid(3));
    (lab.limits.streams_max, lab.limits.lists_max, lab.limits.segments_max, lab.limits.members_max) = (12, 12, 12, 24);
    World::new(settings)
}

fn join_lab(w: &mut World, uid: u32) -> Client {
    let client = w.join_unacknowledged(uid, Some("lab"));
    w.say(client.conn, &Request::Ack);
    client
}

/// Returns the number of requests that succeed before the user has its share.
fn as_often(w: &mut World, client: &Client, most: u32, request: impl Fn(u32) -> Request) -> u32 {
    for number in 0..most {
        let (reply, _) = w.ask_lent(client, &request(number));
        if let Reply::Refused(Refusal::Limit { kind, what, setting, .. }) = &reply {
            assert!(kind.is_share(), "{kind}");
            assert!(what.contains(&format!("share of uid {}", client_uid(client))), "{what}");
            assert!(setting.contains("uid.share"), "{setting}");
            return number;
        }
        assert!(!matches!(reply, Reply::Refused(_)), "{reply:?}");
    }
    most
}

fn client_uid(client: &Client) -> u32 {
    ProcessWord(client.directory.members[client.number().index()].process.peek()).uid()
}

#[test]
fn no_user_takes_a_whole_table_of_a_shared_namespace() {
    let mut w = shared();
    let (a, b) = (join_lab(&mut w, 1), join_lab(&mut w, 2));
    a.words().cells[0].cell.set(Cell::new(1, SlotNo::new(0)).0);
    b.words().cells[0].cell.set(Cell::new(1, SlotNo::new(0)).0);
    let segment = |_| Request::Segment { bytes: 4096, slots_log2: 2 };
    let opened = |user: &'static str| move |number| open(&format!("{user}{number}"));
    let listed = |user: &'static str| {
        move |number| Request::ListAppend { list: format!("{user}{number}"), cells: vec![CellNo::new(0)] }
    };
    // The first user may have a half, and the second a third of the rest.
    assert_eq!(as_often(&mut w, &a, 100, segment), 6);
    assert_eq!(as_often(&mut w, &b, 100, segment), 2);
    assert_eq!(as_often(&mut w, &a, 100, opened("a")), 6);
    assert_eq!(as_often(&mut w, &b, 100, opened("b")), 2);
    assert_eq!(as_often(&mut w, &a, 100, listed("a")), 6);
    assert_eq!(as_often(&mut w, &b, 100, listed("b")), 2);
    // One stream has entries for 64 subscribers.
    assert_eq!(as_often(&mut w, &a, 100, |cursor| subscribe("a0", CursorNo::new(cursor as u16), false)), 32);
    assert_eq!(as_often(&mut w, &b, 100, |cursor| subscribe("a0", CursorNo::new(cursor as u16), false)), 10);
    let c = join_lab(&mut w, 3);
    assert_eq!(as_often(&mut w, &c, 100, |cursor| subscribe("a0", CursorNo::new(cursor as u16), false)), 5);
    // A user may open a stream again after deleting it.
    assert_eq!(w.ask(&a, &Request::StreamDelete { name: "a1".into() }), Reply::Deleted { existed: true });
    assert_eq!(w.ask(&a, &Request::ListDelete { list: "a1".into() }), Reply::Deleted { existed: true });
    assert!(matches!(w.ask(&b, &listed("b")(9)), Reply::Refused(Refusal::Limit { .. })), "others' do not help");
    // The user's own unused streams make room within its share.
    assert!(matches!(w.ask(&b, &open("b9")), Reply::Refused(Refusal::Limit { .. })));
    w.hang_up(&a);
    for uid in [1, 2] {
        let client = join_lab(&mut w, uid);
        for number in 0..100 {
            w.ask(&client, &Request::ListDelete { list: format!("a{number}") });
            w.ask(&client, &Request::ListDelete { list: format!("b{number}") });
        }
        w.hang_up(&client);
    }
    w.hang_up(&b);
    w.hang_up(&c);
    w.wait_ns(2 * STREAM_GRACE_NS);
    w.assert_empty();
}

#[test]
fn no_user_takes_all_numbers_of_clients_of_a_shared_namespace() {
    let mut w = shared();
    let mut clients = Vec::new();
    let counted = |w: &mut World, uid, clients: &mut Vec<crate::core::ConnId>| {
        for joined in 0.. {
            let conn = w.dial(uid, &[]);
            let hello = tensorlend_layout::wire::Hello { namespace: Some("lab".into()), ..super::world::hello() };
            w.say(conn, &Request::Hello(hello));
            match w.hear(conn).unwrap().0 {
                Reply::Refused(refusal) => {
                    assert!(refusal.to_string().contains(&format!("share of uid {uid} in the clients")), "{refusal}");
                    w.happen(crate::core::Event::HungUp { conn });
                    return joined;
                }
                Reply::Welcome(_) => w.say(conn, &Request::Ack),
                other => panic!("{other:?}"),
            }
            clients.push(conn);
        }
        unreachable!("a request is refused")
    };
    // The maximum is 24 clients. The last clients to join are readers, which count as well.
    assert_eq!(counted(&mut w, 1, &mut clients), 12);
    assert_eq!(counted(&mut w, 2, &mut clients), 4);
    assert_eq!(counted(&mut w, 3, &mut clients), 2);
    // A private namespace has one user.
    let own = w.join(1);
    assert_eq!(as_often(&mut w, &own, 4, |number| open(&format!("own{number}"))), 4);
    w.hang_up(&own);
    for conn in clients {
        w.happen(crate::core::Event::HungUp { conn });
    }
    w.wait_ns(2 * STREAM_GRACE_NS);
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
    assert!(matches!(full, Reply::Refused(Refusal::Limit { kind: LimitKind::Streams, .. })));
    let long = Request::StreamOpen { name: "s0".into(), capacity: u32::MAX, policy: Policy::Block };
    assert!(matches!(w.ask(&a, &long), Reply::Refused(Refusal::Bad(_))));
    for cursor in 0..64 {
        stream(w.ask(&a, &subscribe("s0", CursorNo::new(cursor), false)));
    }
    assert!(matches!(w.ask(&a, &subscribe("s0", CursorNo::new(64), false)), Reply::Refused(Refusal::Bad(_))));
    assert!(matches!(w.ask(&a, &subscribe("s0", CursorNo::new(256), false)), Reply::Refused(Refusal::Bad(_))));
    w.say(a.conn, &Request::StreamDelete { name: "s0".into() });
    (1..4).for_each(|i| w.say(a.conn, &Request::StreamDelete { name: format!("s{i}") }));
    w.hang_up(&a);
    w.assert_empty();
}

fn append(list: &str, cells: &[CellNo]) -> Request {
    Request::ListAppend { list: list.into(), cells: cells.to_vec() }
}

#[test]
fn lists_are_appended_to_by_many_and_ordered_by_one() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    for cell in 0..8 {
        a.words().cells[cell].cell.set(Cell::new(1, SlotNo::new(0)).0);
        b.words().cells[cell].cell.set(Cell::new(1, SlotNo::new(0)).0);
    }
    assert_eq!(w.ask(&a, &append("l", &[CellNo::new(0), CellNo::new(1)])), Reply::Appended { first: 0 });
    assert_eq!(w.ask(&b, &append("l", &[CellNo::new(5)])), Reply::Appended { first: 2 });
    let owner_word = a.find_key(&list_key("l")).unwrap();
    assert_eq!(owner_word.owner(), ClientNo::new(0));
    let entry = &a.directory.lists[owner_word.cell().index()];
    let id = entry.id.peek();
    assert_eq!(entry.end.peek(), 3);
    let item = |client: &Client, n| client.find_key(&item_key(id, n)).map(|h| (h.owner().get(), h.cell().get()));
    assert_eq!((item(&a, 0), item(&a, 1), item(&a, 2)), (Some((1, 0)), Some((1, 1)), Some((2, 5))));
    assert!(matches!(w.ask(&a, &append("l", &[CellNo::new(2), CellNo::new(9999)])), Reply::Refused(Refusal::Bad(_))));
    assert_eq!(entry.end.peek(), 3, "all of them or none");
    assert_eq!(w.ask(&a, &Request::ListRename { from: "l".into(), to: "m".into() }), Reply::Done);
    assert_eq!(
        (a.find_key(&list_key("l")), a.find_key(&list_key("m")).map(OwnerWord::cell)),
        (None, Some(owner_word.cell()))
    );
    assert_eq!(w.ask(&a, &append("m", &[CellNo::new(2)])), Reply::Appended { first: 3 });
    assert_eq!(w.ask(&b, &append("l", &[CellNo::new(6)])), Reply::Appended { first: 0 });
    let rename = Request::ListRename { from: "m".into(), to: "l".into() };
    assert_eq!(w.ask(&b, &rename), Reply::Done);
    assert_eq!(w.ask(&b, &Request::Notices), Reply::Notices { cells: vec![CellNo::new(6)], more: false });
    assert_eq!(w.ask(&b, &Request::ListDelete { list: "l".into() }), Reply::Deleted { existed: true });
    assert_eq!(w.ask(&b, &Request::ListDelete { list: "l".into() }), Reply::Deleted { existed: false });
    assert_eq!(
        w.ask(&a, &Request::Notices),
        Reply::Notices { cells: vec![CellNo::new(0), CellNo::new(1), CellNo::new(2)], more: false }
    );
    assert_eq!((w.stat().names, entry.id.peek()), (0, 0));
    assert_eq!(w.ask(&a, &append("l", &[CellNo::new(0)])), Reply::Appended { first: 0 });
    assert!(a.directory.lists[owner_word.cell().index()].id.peek() > id, "ids are never used again");
    w.ask(&b, &Request::ListDelete { list: "l".into() });
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn ephemeral_items_end_with_their_owners_and_take_their_list_along() {
    for restarts in [false, true] {
        let mut w = World::new(settings());
        let (mut a, mut b) = (w.join(1), w.join(1));
        for client in [&a, &b] {
            (0..4).for_each(|cell| client.words().cells[cell].cell.set(Cell::new(1, SlotNo::new(0)).0));
        }
        let door = |list: &str, cell| Request::ListAppendEphemeral { list: list.into(), cells: vec![cell] };
        assert_eq!(w.ask(&a, &door("door", CellNo::new(0))), Reply::Appended { first: 0 });
        assert_eq!(w.ask(&b, &door("door", CellNo::new(0))), Reply::Appended { first: 1 });
        // This request, too, fails as a whole.
        let wrong =
            Request::ListAppendEphemeral { list: "door".into(), cells: vec![CellNo::new(1), CellNo::new(9999)] };
        assert!(matches!(w.ask(&b, &wrong), Reply::Refused(Refusal::Bad(_))));
        w.ask(&a, &door("both", CellNo::new(2)));
        w.ask(&b, &append("both", &[CellNo::new(2)]));
        if restarts {
            w.replace_daemon(settings());
            assert!(matches!(w.come_back(&mut a, None), Reply::Welcome(_)));
            assert!(matches!(w.come_back(&mut b, None), Reply::Welcome(_)));
        }
        let is_there = |client: &Client, list: &str| client.find_key(&list_key(list)).is_some();
        w.hang_up(&a);
        let id = b.directory.lists[b.find_key(&list_key("door")).unwrap().cell().index()].id.peek();
        assert_eq!(b.find_key(&item_key(id, 0)), None);
        assert!(b.find_key(&item_key(id, 1)).is_some() && is_there(&b, "door") && is_there(&b, "both"));
        w.hang_up(&b);
        let c = w.join(1);
        assert!(!is_there(&c, "door"), "restarts: {restarts}");
        assert!(is_there(&c, "both"), "an item that lasts");
        w.ask(&c, &Request::ListDelete { list: "both".into() });
        w.hang_up(&c);
        w.assert_empty();
    }
}

#[test]
fn a_lists_items_outlive_their_producer_and_go_with_the_list() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    a.words().cells[0].cell.set(Cell::new(1, lent.base).0);
    w.ask(&a, &append("l", &[CellNo::new(0)]));
    w.hang_up(&a);
    assert_eq!(w.stat().segments, 1);
    assert_eq!(w.ask(&b, &Request::ListDelete { list: "l".into() }), Reply::Deleted { existed: true });
    w.wait_ns(100_000_000);
    assert_eq!((w.stat().segments, w.stat().frozen), (0, 0));
    w.hang_up(&b);
    w.assert_empty();
}
