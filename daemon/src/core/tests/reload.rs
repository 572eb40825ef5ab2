//! Changes of limits while clients are connected.

use super::world::{Client, SEGMENT, World, hello, limits, settings};
use crate::core::Event;
use crate::core::settings::{NamespaceLimits, NamespaceRule, Principal, RESERVED_SESSIONS, Settings};
use std::collections::BTreeMap;
use tensorlend_layout::number::CellNo;
use tensorlend_layout::wire::{Hello, LimitKind, Policy, Refusal, Reply, Request};
use tensorlend_layout::word::Cell;

const ONE: Request = Request::Segment { bytes: SEGMENT, slots_log2: 4 };

fn reload(w: &mut World, settings: Settings) {
    w.happen(Event::Reload(Box::new(settings)));
}

/// Returns the limit that refuses a segment.
fn refused(w: &mut World, client: &Client) -> String {
    match w.ask(client, &ONE) {
        Reply::Refused(Refusal::Limit { setting, .. }) => setting,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_smaller_limit_takes_nothing_away_and_gives_no_more() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let lent: Vec<_> = (0..4).map(|_| w.segment(&a)).collect();
    lent[0].write(lent[0].base, 1, None);
    let owner_word = w.bind(&a, "x", CellNo::new(0), Cell::new(1, lent[0].base));

    reload(&mut w, Settings { pool_bytes_max: 2 * SEGMENT, ..settings() });
    let stat = w.stat();
    assert_eq!((stat.segments, stat.pool_bytes, stat.bytes_spare), (4, 4 * SEGMENT, 0), "{stat:?}");
    assert!(lent.iter().all(|it| w.memory.contains_key(&it.segment)));
    assert_eq!(a.find("x"), Some(owner_word));
    assert!(matches!(w.ask(&a, &ONE), Reply::Refused(Refusal::Limit { setting, .. }) if setting == "pool.bytes_max"));
    // A returned segment counts against the new limit.
    for it in &lent[1..] {
        assert!(matches!(w.ask(&a, &Request::ReturnSegment { base: it.base }), Reply::Done));
    }
    w.wait_ns(1_000_000_000);
    w.segment(&a);
    assert!(matches!(w.ask(&a, &ONE), Reply::Refused(_)));

    reload(&mut w, settings());
    w.segment(&a);
    assert!(matches!(w.ask(&a, &Request::Delete { name: "x".into() }), Reply::Deleted { .. }));
    w.hang_up(&a);
    reload(&mut w, Settings { spare_segments: 0, ..settings() });
    w.wait_ns(60_000_000_000);
    assert_eq!(w.stat().pool_bytes, 0, "no spare is wanted any more");
}

#[test]
fn limits_of_users_and_namespaces_count_at_once() {
    let mut w = World::new(settings());
    let a = w.join(1);
    w.segment(&a);
    reload(&mut w, Settings { uid_bytes_max: SEGMENT, ..settings() });
    assert_eq!(refused(&mut w, &a), "uid.bytes_max");
    let private = NamespaceLimits { bytes_max: SEGMENT, ..limits() };
    reload(&mut w, Settings { private, ..settings() });
    assert_eq!(refused(&mut w, &a), "namespace_default.bytes_max");
    assert_eq!(a.directory.head().bytes_max.peek(), SEGMENT, "observers see it");
    reload(&mut w, Settings { uid_sessions_max: 1, ..settings() });
    let conn = w.dial(1, &[]);
    w.say(conn, &Request::Hello(hello()));
    assert!(matches!(w.refusal(conn), Refusal::Limit { kind: LimitKind::Sessions, .. }));
    reload(&mut w, settings());
    w.segment(&a);
    let b = w.join(1);
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}

/// A directory keeps its sizes, which its clients have received.
#[test]
fn sizes_stay_until_a_namespace_is_made_anew() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let private = NamespaceLimits { streams_max: 1, members_max: 2, ..limits() };
    reload(
        &mut w,
        Settings { private, segment_bytes: 2 * SEGMENT, mode: crate::core::settings::Mode::System, ..settings() },
    );
    for name in ["s", "t", "u", "v"] {
        let open = Request::StreamOpen { name: name.into(), capacity: 8, policy: Policy::Block };
        assert!(matches!(w.ask(&a, &open), Reply::Stream { .. }), "{name}");
    }
    for name in ["s", "t", "u", "v"] {
        assert!(matches!(w.ask(&a, &Request::StreamDelete { name: name.into() }), Reply::Deleted { .. }));
    }
    let b = w.join(1);
    let c = w.join(1);
    assert_eq!((c.welcome.segment_bytes, c.welcome.user_mode), (SEGMENT, true));
    for client in [&a, &b, &c] {
        w.hang_up(client);
    }
    w.wait_ns(60_000_000_000);
    let a = w.join(1);
    assert_eq!(a.directory.streams.len(), 1);
    assert_eq!(a.directory.members.len(), 3 + RESERVED_SESSIONS as usize);
    w.hang_up(&a);
    w.assert_empty();
}

#[test]
fn who_may_come_in_changes_for_newcomers_alone() {
    let mut w = World::new(settings());
    let a = w.join_unacknowledged(1, Some("lab"));
    w.say(a.conn, &Request::Ack);
    let knocks = |w: &mut World, uid| {
        let conn = w.dial(uid, &[]);
        w.say(conn, &Request::Hello(Hello { namespace: Some("lab".into()), ..hello() }));
        match w.hear(conn) {
            Some((Reply::Welcome(welcome), _)) => {
                w.happen(Event::HungUp { conn });
                Some(welcome.writer)
            }
            Some((Reply::Refused(Refusal::Namespace(_)), _)) => None,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((knocks(&mut w, 1), knocks(&mut w, 2), knocks(&mut w, 3)), (Some(true), Some(false), None));
    let rule = NamespaceRule { readers: Vec::new(), writers: vec![Principal::Uid(3)], limits: limits() };
    reload(&mut w, Settings { namespaces: BTreeMap::from([("lab".into(), rule)]), ..settings() });
    assert_eq!((knocks(&mut w, 1), knocks(&mut w, 2), knocks(&mut w, 3)), (None, None, Some(true)));
    w.segment(&a);
    let limits = NamespaceLimits { bytes_max: SEGMENT, ..limits() };
    let rule = NamespaceRule { readers: Vec::new(), writers: vec![Principal::Uid(3)], limits };
    reload(&mut w, Settings { namespaces: BTreeMap::from([("lab".into(), rule)]), ..settings() });
    assert_eq!(refused(&mut w, &a), "namespace.lab.bytes_max");
    // A client of a namespace that the configuration does not name any more keeps its limits.
    reload(&mut w, Settings { namespaces: BTreeMap::new(), ..settings() });
    assert_eq!(refused(&mut w, &a), "namespace.lab.bytes_max");
    assert_eq!(knocks(&mut w, 3), None);
    w.hang_up(&a);
    w.assert_empty();
}

/// A request that waits for memory during a reload is answered, and a namespace in construction has the new limits.
#[test]
fn what_is_under_way_is_finished() {
    let mut w = World::new(settings());
    let a = w.join(1);
    w.wait_ns(1_000_000_000);
    w.slow = true;
    // The daemon lends its spare segment.
    w.segment(&a);
    w.say(a.conn, &Request::Segment { bytes: 3 * SEGMENT, slots_log2: 4 });
    assert!(w.hear(a.conn).is_none());
    let private = NamespaceLimits { bytes_max: 1 << 30, ..limits() };
    reload(&mut w, Settings { pool_bytes_max: SEGMENT, spare_segments: 0, private, ..settings() });
    w.finish();
    w.finish();
    assert!(matches!(w.hear(a.conn), Some((Reply::Segment { .. }, _))));
    w.say(a.conn, &Request::Ack);
    assert_eq!(a.directory.head().bytes_max.peek(), 1 << 30);
    w.slow = false;
    w.hang_up(&a);
    w.wait_ns(60_000_000_000);
    assert_eq!((w.stat().pool_bytes, w.memory.len()), (0, 0));
}
