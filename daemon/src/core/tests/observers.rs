//! Observers: they see names, sizes and holders of all namespaces, and get nothing else.

use super::world::{World, hello, settings};
use tensorlend_layout::number::{CellNo, ClientNo, CursorNo, EntryNo, StreamLine};

use crate::core::settings::{Principal, Settings};
use crate::core::{ConnId, Event};
use tensorlend_layout::wire::{
    Hello, Holds, Inspect, Inspected, NameAt, PROTOCOL_VERSION, Policy, QueueRequest, Refusal, Reply, Request, View,
    encode,
};
use tensorlend_layout::word::Cell;

fn inspect(view: View) -> Request {
    Request::Inspect(Inspect { protocol_min: PROTOCOL_VERSION, protocol_max: PROTOCOL_VERSION, view })
}

fn shown(w: &mut World, conn: ConnId, view: View) -> Inspected {
    w.say(conn, &inspect(view));
    match w.hear(conn) {
        Some((Reply::Inspected(shown), lend)) => {
            assert_eq!(lend, [], "an observer gets no descriptor");
            shown
        }
        other => panic!("{other:?}"),
    }
}

fn names(w: &mut World, conn: ConnId, namespace: &str) -> Vec<(String, Holds)> {
    match shown(w, conn, View::Names { namespace: namespace.into(), from: EntryNo::new(0) }) {
        Inspected::Names { names, next: None } => names.into_iter().map(|it| (it.name, it.holds)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_observer_sees_names_sizes_and_holders_of_all_namespaces() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(2));
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    let value = Cell::new(1, lent.base);
    w.bind(&a, "weights", CellNo::new(0), value);
    a.lease(0, a.number(), value);
    a.lease(1, a.number(), value);
    let watcher = w.dial(3, &[90]);
    let Inspected::Namespaces(all) = shown(&mut w, watcher, View::Namespaces { after: String::new() }) else {
        panic!()
    };
    assert_eq!(all.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["uid:1", "uid:2"]);
    let Inspected::Daemon(stat) = shown(&mut w, watcher, View::Daemon) else { panic!() };
    assert_eq!(
        (stat.clients, stat.uids.len(), stat.namespaces.len()),
        (2, 3, 2),
        "the observer is a user, and no client"
    );
    let seen = names(&mut w, watcher, "uid:1");
    let Holds::Value { client, lease, .. } = seen[0].1 else { panic!("{seen:?}") };
    assert_eq!(
        (seen.len(), seen[0].0.as_str(), client, lease),
        (1, "weights", a.number(), value.lease(ClientNo::new(1)).0)
    );
    let leases = View::Leases { namespace: "uid:1".into(), from: ClientNo::new(0) };
    let Inspected::Leases { leases, next: None, truncated: false } = shown(&mut w, watcher, leases) else { panic!() };
    assert_eq!((leases.len(), leases[0].holder, leases[0].lease, leases[0].count), (1, a.number(), lease, 2));
    let clients = View::Clients { namespace: "uid:2".into(), from: ClientNo::new(0) };
    let Inspected::Clients { clients, next: None } = shown(&mut w, watcher, clients) else { panic!() };
    assert_eq!(
        (clients[0].uid, clients[0].pid, clients[0].command.as_str(), clients[0].connected),
        (2, 102, "test", true)
    );
    assert_eq!(names(&mut w, watcher, "none"), [], "a namespace may be closed between two requests");
    let Inspected::Streams { streams, next: None } =
        shown(&mut w, watcher, View::Streams { namespace: "uid:2".into(), from: StreamLine::new(0) })
    else {
        panic!()
    };
    assert_eq!(streams, []);
    drop(b);
}

/// The names of a namespace come in several responses, none of which is long.
#[test]
fn long_listings_come_in_parts() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    for cell in 0..300 {
        w.bind(&a, &format!("name {cell}"), CellNo::new(cell), Cell::new(1, lent.base));
    }
    let watcher = w.dial(9, &[]);
    let (mut from, mut all, mut parts) = (Some(EntryNo::default()), std::collections::BTreeSet::new(), 0);
    while let Some(at) = from {
        let view = View::Names { namespace: "uid:1".into(), from: at };
        let Inspected::Names { names, next } = shown(&mut w, watcher, view) else { panic!() };
        assert!(next.is_none_or(|next| next > at), "it goes on");
        all.extend(names.into_iter().map(|it| it.name));
        (from, parts) = (next, parts + 1);
    }
    assert_eq!((all.len(), parts > 1), (300, true), "{parts} parts");
}

#[test]
fn others_see_nothing_and_a_reload_ends_the_right() {
    let mut w = World::new(settings());
    let a = w.join(1);
    for uid in [1, 2, 3] {
        let conn = w.dial(uid, &[]);
        w.say(conn, &inspect(View::Daemon));
        assert_eq!(w.refusal(conn), Refusal::NotObserver);
        assert!(w.closed.contains(&conn));
    }
    assert_eq!(w.ask(&a, &inspect(View::Daemon)), Reply::Refused(Refusal::NotObserver), "a client is no observer");
    let watcher = w.dial(9, &[]);
    shown(&mut w, watcher, View::Daemon);
    w.happen(Event::Reload(Box::new(Settings { observers: vec![Principal::Uid(8)], ..settings() })));
    w.say(watcher, &inspect(View::Daemon));
    assert_eq!(w.refusal(watcher), Refusal::NotObserver);
    w.hang_up(&a);
    w.assert_empty();
}

/// Every request that reads, writes, waits or takes something ends the connection of an observer.
#[test]
fn an_observer_cannot_get_put_delete_subscribe_or_wait() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    w.bind(&a, "weights", CellNo::new(0), Cell::new(1, lent.base));
    let (number, slot) = (a.number(), lent.base);
    let name = || "weights".to_owned();
    let requests = [
        Request::SegmentOf { owner: number, slot },
        Request::SlotsOf { owner: number, slot },
        Request::CellsOf { client: number, part: 0 },
        Request::LeasesOf { client: number },
        Request::ValuesOf { names: vec![NameAt { entry: EntryNo::new(1), owner_word: a.find("weights").unwrap().0 }] },
        Request::Segment { bytes: 4096, slots_log2: 4 },
        Request::ReturnSegment { base: slot },
        Request::GrowCells,
        Request::Bind { name: name(), cell: CellNo::new(0) },
        Request::BindFor { name: name(), cell: CellNo::new(0), ttl_ns: Some(1), ephemeral: false },
        Request::Delete { name: name() },
        Request::Rename { from: name(), to: "mine".into() },
        Request::StreamOpen { name: "s".into(), capacity: 4, policy: Policy::Block },
        Request::Subscribe { name: "s".into(), cursor: CursorNo::new(0), wake: false },
        Request::StreamDelete { name: "s".into() },
        Request::ListAppend { list: "l".into(), cells: vec![CellNo::new(0)] },
        Request::ListDelete { list: "l".into() },
        Request::Queue(QueueRequest::Claim { list: "l".into(), done: Vec::new(), max: 1, wait: false }),
        Request::Wait,
        Request::Notices,
        Request::Stat,
        Request::Ack,
    ];
    let before = w.stat();
    for request in requests {
        let watcher = w.dial(9, &[]);
        shown(&mut w, watcher, View::Daemon);
        w.say(watcher, &request);
        assert!(matches!(w.refusal(watcher), Refusal::Violation(_)), "{request:?}");
        assert!(w.closed.contains(&watcher), "{request:?}");
    }
    let after = w.stat();
    assert_eq!((after.bytes_sheets, after.bytes_in_use, after.names), (before.bytes_sheets, before.bytes_in_use, 1));
    assert!(a.find("weights").is_some());
    // The right covers the namespaces' state, and no membership.
    let stranger = w.dial(9, &[]);
    w.say(stranger, &Request::Hello(Hello { namespace: Some("lab".into()), ..hello() }));
    assert_eq!(w.refusal(stranger), Refusal::Namespace("lab".into()));
}

/// An observer has the sessions of its uid, and takes nothing of others.
#[test]
fn an_observer_exhausts_no_limit_of_others() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let most = settings().uid_sessions_max as usize;
    let watchers: Vec<ConnId> = (0..most).map(|_| w.dial(9, &[])).collect();
    for &conn in &watchers {
        shown(&mut w, conn, View::Daemon);
    }
    let more = w.dial(9, &[]);
    w.say(more, &inspect(View::Daemon));
    assert!(matches!(w.refusal(more), Refusal::Limit { .. }), "its own limit");
    let b = w.join(2);
    let stat = w.stat();
    assert_eq!((stat.clients, stat.frozen), (2, 0), "observers are no clients");
    for conn in watchers {
        w.happen(Event::HungUp { conn });
    }
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}

/// Names and positions in a request are an allegation.
#[test]
fn impossible_positions_are_the_end_of_a_listing() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let watcher = w.dial(9, &[]);
    let namespace = || "uid:1".to_owned();
    for view in [
        View::Clients { namespace: namespace(), from: ClientNo::new(u16::MAX) },
        View::Names { namespace: namespace(), from: EntryNo::new(u32::MAX) },
        View::Leases { namespace: namespace(), from: ClientNo::new(u16::MAX) },
        View::Streams { namespace: namespace(), from: StreamLine::new(u32::MAX) },
    ] {
        match shown(&mut w, watcher, view) {
            Inspected::Clients { next, .. } | Inspected::Leases { next, .. } => assert_eq!(next, None),
            Inspected::Names { next, .. } => assert_eq!(next, None),
            Inspected::Streams { next, .. } => assert_eq!(next, None),
            other => panic!("{other:?}"),
        }
    }
    let bytes = encode(&inspect(View::Namespaces { after: "x".repeat(60_000) }));
    w.happen(Event::Packet { conn: watcher, bytes, descriptors: 0, truncated: false });
    assert_eq!(w.hear(watcher).map(|(reply, _)| reply), Some(Reply::Inspected(Inspected::Namespaces(Vec::new()))));
    w.hang_up(&a);
    w.happen(Event::HungUp { conn: watcher });
    w.assert_empty();
}
