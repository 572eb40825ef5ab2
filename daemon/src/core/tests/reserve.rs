//! The reserve: the daemon admits administrators beyond the limits.

use super::world::{World, hello, limits, settings};
use crate::core::settings::{NamespaceLimits, RESERVED_INSPECTIONS, RESERVED_SESSIONS, Settings};
use crate::core::{ConnId, Effect, Event};
use tensorlend_layout::raw;
use tensorlend_layout::wire::{
    Hello, Inspect, Inspected, LimitKind, PROTOCOL_VERSION, Refusal, Reply, Request, View, encode,
};

const ADMINISTRATOR: u32 = 9;

/// Connects as this user and says hello. Returns the connection if the daemon welcomes it.
fn enter(w: &mut World, uid: u32, gids: &[u32], namespace: Option<&str>) -> Option<ConnId> {
    let conn = w.dial(uid, gids);
    if w.closed.contains(&conn) {
        return None;
    }
    w.say(conn, &Request::Hello(Hello { namespace: namespace.map(Into::into), ..hello() }));
    match w.hear(conn)? {
        (Reply::Welcome(_), _) => {
            w.say(conn, &Request::Ack);
            Some(conn)
        }
        (Reply::Refused(Refusal::Limit { .. }), _) => None,
        other => panic!("{other:?}"),
    }
}

/// Users exhaust some resource, and the daemon still admits `RESERVED_SESSIONS` sessions of an administrator.
#[track_caller]
fn check(changed: Settings, namespace: Option<&str>) {
    let mut w = World::new(Settings { administrators: vec![ADMINISTRATOR], ..changed });
    let mut held: Vec<ConnId> = (1..50).map_while(|_| enter(&mut w, 1, &[], namespace)).collect();
    assert!(!held.is_empty() && held.len() < 49, "{}", held.len());
    assert_eq!(enter(&mut w, 2, &[50], namespace), None, "another user is refused");
    let mut ours: Vec<ConnId> = (0..50).map_while(|_| enter(&mut w, ADMINISTRATOR, &[50], namespace)).collect();
    assert!(ours.len() >= RESERVED_SESSIONS as usize && ours.len() < 50, "{}", ours.len());
    // A session of the reserve can request metrics.
    let conn = *ours.last().unwrap();
    w.say(conn, &Request::Stat);
    assert!(matches!(w.hear(conn), Some((Reply::Stat(_), _))));
    // A session of the reserve becomes free when it ends.
    w.happen(Event::HungUp { conn });
    w.wait_ns(1_000_000_000);
    *ours.last_mut().unwrap() = enter(&mut w, ADMINISTRATOR, &[50], namespace).expect("a place is free");
    held.append(&mut ours);
    for conn in held {
        w.happen(Event::HungUp { conn });
    }
    w.assert_empty();
}

#[test]
fn an_administrator_finds_a_place_when_sessions_descriptors_sheets_or_lines_have_run_out() {
    let few = NamespaceLimits { members_max: 3, ..limits() };
    let lab = |mut settings: Settings| {
        settings.namespaces.get_mut("lab").unwrap().limits = few;
        settings
    };
    check(lab(settings()), Some("lab"));
    check(Settings { descriptors_max: 30, uid_sessions_max: 100, ..settings() }, None);
    check(Settings { descriptors_max: 30, uid_sessions_max: 100, ..settings() }, Some("lab"));
    check(Settings { sheet_bytes_max: 2 << 20, uid_sessions_max: 100, ..settings() }, None);
}

#[test]
fn what_the_reserve_lets_in_gets_no_segment_beyond_the_limits() {
    let few = Settings { descriptors_max: 30, uid_sessions_max: 100, ..settings() };
    let mut w = World::new(Settings { administrators: vec![ADMINISTRATOR], ..few });
    while enter(&mut w, 1, &[], None).is_some() {}
    let conn = enter(&mut w, ADMINISTRATOR, &[], None).unwrap();
    w.say(conn, &Request::Segment { bytes: 4096, slots_log2: 0 });
    let refused = w.refusal(conn);
    assert!(matches!(refused, Refusal::Limit { kind: LimitKind::Descriptors, .. }), "{refused:?}");
}

#[test]
fn an_administrator_who_waits_for_a_directory_that_fails_has_a_try_of_its_own() {
    let mut w = World::new(Settings { administrators: vec![ADMINISTRATOR], ..settings() });
    let (other, ours) = (w.dial(1, &[]), w.dial(ADMINISTRATOR, &[50]));
    let hello = Request::Hello(Hello { namespace: Some("lab".into()), ..hello() });
    let packet = Event::Packet { conn: other, bytes: encode(&hello), descriptors: 0, truncated: false };
    let ordered = w.core.step(w.now_ns, packet).into_iter().find_map(|effect| match effect {
        Effect::Create { mem, reserved, .. } => Some((mem, reserved)),
        _ => None,
    });
    let Some((mem, false)) = ordered else { panic!("{ordered:?}") };
    w.say(ours, &hello);
    assert_eq!(w.hear(ours), None, "the directory is on order");
    w.happen(Event::Created { mem, made: Err("no memory".into()) });
    assert!(matches!(w.refusal(other), Refusal::Memory { .. }));
    assert!(matches!(w.hear(ours), Some((Reply::Welcome(_), _))), "with the reserve");
}

/// One step retries 64 requests at most.
#[test]
fn an_administrator_is_admitted_before_those_who_waited_longer() {
    let mut changed = Settings { administrators: vec![ADMINISTRATOR], uid_sessions_max: 200, ..settings() };
    changed.namespaces.get_mut("lab").unwrap().limits = NamespaceLimits { members_max: 200, ..limits() };
    let mut w = World::new(changed);
    let others: Vec<ConnId> = (0..100).map(|_| w.dial(1, &[])).collect();
    let ours = w.dial(ADMINISTRATOR, &[50]);
    let hello = Request::Hello(Hello { namespace: Some("lab".into()), ..hello() });
    let packet = Event::Packet { conn: others[0], bytes: encode(&hello), descriptors: 0, truncated: false };
    let ordered = w.core.step(w.now_ns, packet).into_iter().find_map(|effect| match effect {
        Effect::Create { mem, bytes, sheet, .. } => Some((mem, bytes, sheet?)),
        _ => None,
    });
    let (mem, bytes, plan) = ordered.expect("the first client has the directory made");
    for &conn in others[1..].iter().chain([&ours]) {
        w.say(conn, &hello);
    }
    let view = raw::View::anonymous(bytes as usize);
    plan.initialise(&view, view.bytes() as u64);
    w.memory.insert(mem, (bytes, Some(view.clone())));
    let effects = w.core.step(w.now_ns, Event::Created { mem, made: Ok(Some(view)) });
    let first = effects.iter().find_map(|effect| match effect {
        Effect::Create { reserved, .. } => Some(*reserved),
        _ => None,
    });
    assert_eq!(first, Some(true), "the first sheets are an administrator's");
    let events: Vec<Event> = effects.into_iter().filter_map(|effect| w.perform(effect)).collect();
    for event in events {
        w.happen(event);
    }
    w.wait_ns(1_000_000);
    for conn in others.into_iter().chain([ours]) {
        assert!(matches!(w.hear(conn), Some((Reply::Welcome(_), _))));
    }
}

/// Connections for metrics, while clients have all descriptors: each user has few of them, and all users together have a
/// fixed number.
#[test]
fn metrics_without_a_session_have_a_bounded_reserve_that_becomes_free() {
    let few = Settings { descriptors_max: 30, uid_sessions_max: 100, ..settings() };
    let mut w = World::new(few);
    let held: Vec<ConnId> = (1..50).map_while(|_| enter(&mut w, 1, &[], None)).collect();
    // It has the last descriptors that are not of the reserve.
    let last = w.dial(1, &[]);
    let own = Inspect { protocol_min: PROTOCOL_VERSION, protocol_max: PROTOCOL_VERSION, view: View::Health };
    let own = Request::Inspect(own);
    let inspects = |w: &mut World, uid: u32| {
        let conn = w.dial(uid, &[]);
        if w.closed.contains(&conn) {
            return None;
        }
        w.say(conn, &own);
        let Some((Reply::Inspected(Inspected::Health { stat, .. }), lend)) = w.hear(conn) else { panic!() };
        assert!(lend.is_empty() && stat.uids.iter().all(|it| it.uid == uid) && stat.namespaces.len() <= 1);
        Some(conn)
    };
    for round in 0..2 {
        let all: Vec<ConnId> =
            (1..20).flat_map(|uid| (0..9).map(move |_| uid)).filter_map(|uid| inspects(&mut w, uid)).collect();
        assert_eq!(all.len(), RESERVED_INSPECTIONS as usize, "in round {round}");
        let refused = Request::Segment { bytes: 4096, slots_log2: 0 };
        w.say(all[0], &refused);
        assert!(matches!(w.refusal(all[0]), Refusal::Violation(_)), "it has no session");
        w.wait_ns(20_000_000_000);
        assert!(all.iter().all(|conn| w.closed.contains(conn)), "nobody keeps the reserve");
    }
    for conn in held.into_iter().chain([last]) {
        w.happen(Event::HungUp { conn });
    }
    w.assert_empty();
}

/// A user at its limit of sessions has few connections for metrics, also before clients have all descriptors. So it can take
/// neither the descriptors of others nor the reserve.
#[test]
fn a_user_at_its_limit_takes_no_place_of_others() {
    let mut w = World::new(Settings { descriptors_max: 34, uid_sessions_max: 4, ..settings() });
    let mut held: Vec<ConnId> = (0..4).filter_map(|_| enter(&mut w, 1, &[], None)).collect();
    assert_eq!(held.len(), 4);
    let more: Vec<ConnId> = (0..9).map(|_| w.dial(1, &[])).collect();
    assert_eq!(more.iter().filter(|conn| !w.closed.contains(conn)).count(), 2);
    held.push(enter(&mut w, 2, &[], None).expect("another user has a place"));
    // Clients have all descriptors now. The first user's connections are not of the reserve.
    held.extend((3..9).map_while(|uid| enter(&mut w, uid, &[], None)));
    let inspects = |w: &mut World, uid: u32| Some(w.dial(uid, &[])).filter(|conn| !w.closed.contains(conn));
    let reserve: Vec<ConnId> = (20..40).filter_map(|uid| inspects(&mut w, uid)).collect();
    assert!(reserve.len() >= RESERVED_INSPECTIONS as usize, "{}", reserve.len());
    w.say(reserve[reserve.len() - 1], &Request::Hello(hello()));
    let refused = w.refusal(reserve[reserve.len() - 1]);
    assert!(matches!(refused, Refusal::Limit { kind: LimitKind::Descriptors, .. }), "{refused:?}");
    // The reserve is in addition to the descriptors of clients: an ended session makes room for another.
    w.happen(Event::HungUp { conn: held.pop().unwrap() });
    w.wait_ns(1_000_000);
    held.push(enter(&mut w, 60, &[], None).expect("room for a session"));
    for conn in held.into_iter().chain(more).chain(reserve) {
        w.happen(Event::HungUp { conn });
    }
    w.assert_empty();
}

#[test]
fn a_connection_for_metrics_that_ends_leaves_nothing_behind() {
    let mut w = World::new(Settings { uid_sessions_max: 1, ..settings() });
    let conn = enter(&mut w, 1, &[], None).unwrap();
    w.wait_ns(60_000_000_000);
    let before = w.core.alarm();
    for _ in 0..100 {
        let conn = w.dial(1, &[]);
        assert!(!w.closed.contains(&conn));
        w.happen(Event::HungUp { conn });
    }
    assert_eq!(w.core.alarm(), before, "no timer");
    w.happen(Event::HungUp { conn });
    w.assert_empty();
}

/// A request for memory counts as refused when the client gives up, and not while it tries again.
#[test]
fn a_refusal_of_memory_counts_when_the_client_gives_up() {
    let mut w = World::new(settings());
    let client = w.join(1);
    let too_long = Request::Segment { bytes: 1 << 40, slots_log2: 4 };
    let counted = |w: &World| w.stat().refusals.total();
    for round in 0..3 {
        for _ in 0..4 {
            assert!(matches!(w.ask(&client, &too_long), Reply::Refused(Refusal::Limit { .. })));
        }
        assert_eq!(counted(&w), round);
        for _ in 0..2 {
            assert_eq!(w.ask(&client, &Request::GaveUp), Reply::Done);
            assert_eq!(counted(&w), round + 1, "once");
        }
    }
    w.hang_up(&client);
    w.assert_empty();
}
