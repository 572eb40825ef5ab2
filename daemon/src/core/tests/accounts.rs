//! Charges, and the memory that leases retain.

use super::announcing::{announce, fill};
use super::world::{Client, Lent, SEGMENT, World, hello, settings};
use crate::core::Event;
use crate::core::names::colliding::chosen_keys;
use crate::core::owners::Owners;
use crate::core::settings::{Principal, Settings};
use std::sync::Arc;
use tensorlend_layout::catalogue::SlotRecord;
use tensorlend_layout::directory::SEARCH_MAX;
use tensorlend_layout::number::{CellNo, CursorNo, SlotNo};
use tensorlend_layout::tensor::{SlotInfo, SlotKind};
use tensorlend_layout::wire::{LimitKind, NamespaceUse, Policy, Refusal, Reply, Request, Stat};
use tensorlend_layout::word::{Cell, SLOT_NONE};
use tensorlend_layout::{DType, Device};

const ONE: Request = Request::Segment { bytes: SEGMENT, slots_log2: 4 };
const SECOND: u64 = 1_000_000_000;

fn join(w: &mut World, uid: u32, namespace: &str) -> Client {
    let client = w.join_unacknowledged(uid, Some(namespace));
    w.say(client.conn, &Request::Ack);
    client
}

fn full(reply: Reply) -> LimitKind {
    match reply {
        Reply::Refused(Refusal::Limit { kind, .. }) => kind,
        other => panic!("{other:?}"),
    }
}

pub fn figures(w: &mut World, client: &Client) -> Stat {
    match w.ask(client, &Request::Stat) {
        Reply::Stat(stat) => *stat,
        other => panic!("{other:?}"),
    }
}

/// Writes a slot's record that claims `bytes` bytes.
pub fn write(lent: &Lent, slot: SlotNo, generation: u64, bytes: u64) {
    let records: &[SlotRecord] = lent.slots.array(4096, 16).unwrap();
    let info = SlotInfo {
        generation,
        kind: SlotKind::Tensor,
        dtype: DType::U8,
        device: Device::CPU,
        ndim: 0,
        strided: false,
        extended: false,
        early: false,
        metadata_bytes: 0,
        next: SLOT_NONE,
        data_offset: 0,
        data_bytes: bytes,
        byte_offset: 0,
        timestamp_ns: 0,
        sequence: 0,
        dims: [0; 4],
        metadata: [0; 4],
    };
    for (word, value) in records[(slot - lent.base) as usize].words.iter().zip(info.pack()) {
        word.set(value);
    }
}

#[test]
fn every_uid_finds_a_share_of_the_pool_and_of_the_sheets() {
    let mut w = World::new(Settings { uid_share: true, pool_bytes_max: 12 * SEGMENT, ..settings() });
    let a = w.join(1);
    let mut lent = 0;
    let met = loop {
        match w.ask(&a, &ONE) {
            Reply::Segment { .. } => lent += 1,
            refused => break full(refused),
        }
    };
    assert_eq!((lent, met), (6, LimitKind::PoolShare));
    let b = w.join(2);
    for _ in 0..2 {
        w.segment(&b);
    }
    assert_eq!(full(w.ask(&b, &ONE)), LimitKind::PoolShare);
    let c = w.join(3);
    w.segment(&c);
    let stat = figures(&mut w, &c);
    assert_eq!(stat.uids.len(), 1, "no user sees another's account");
    assert_eq!((stat.uids[0].uid, stat.uids[0].segments, stat.uids[0].sessions), (3, 1, 1));
    assert!(stat.uids[0].bytes > SEGMENT && stat.uids[0].bytes_max >= stat.uids[0].bytes, "{stat:?}");
    assert!(matches!(&stat.namespaces[..], [NamespaceUse { name, segments: 1, .. }] if name == "uid:3"), "{stat:?}");
    for client in [a, b, c] {
        w.hang_up(&client);
    }
    w.assert_empty();
}

#[test]
fn descriptors_of_sessions_segments_and_subscribers_are_counted_and_come_back() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let before = figures(&mut w, &a).uids[0].descriptors;
    w.segment(&a);
    w.ask(&a, &Request::StreamOpen { name: "s".into(), capacity: 4, policy: Policy::Block });
    assert_eq!(figures(&mut w, &a).uids[0].descriptors, before + 3, "a segment, its slots, a ring");
    w.say(a.conn, &Request::SubscribePollable { name: "s".into(), cursor: CursorNo::new(0) });
    assert!(matches!(w.hear(a.conn), Some((Reply::Stream { .. }, _))));
    w.say(a.conn, &Request::Ack);
    assert_eq!(figures(&mut w, &a).uids[0].descriptors, before + 4, "and a wake descriptor");
    w.ask(&a, &Request::StreamDelete { name: "s".into() });
    w.wait_ns(SECOND);
    assert_eq!(figures(&mut w, &a).uids[0].descriptors, before + 2);
    w.hang_up(&a);
    w.assert_empty();
}

/// Returns a producer whose segment is retained by another user's lease on a replaced value.
fn kept(mut settings: Settings) -> (World, Client, Client, Lent) {
    settings.namespaces.get_mut("lab").unwrap().writers.push(Principal::Uid(2));
    let mut w = World::new(settings);
    let (a, b) = (join(&mut w, 1, "lab"), join(&mut w, 2, "lab"));
    let lent = w.segment(&a);
    for slot in [lent.base, lent.base + 1] {
        write(&lent, slot, 1, SEGMENT / 2);
    }
    w.bind(&a, "x", CellNo::new(1), Cell::new(1, lent.base));
    b.lease(0, a.number(), Cell::new(1, lent.base));
    (w, a, b, lent)
}

#[test]
fn a_lease_on_what_a_name_leads_to_is_nobodys_fault() {
    let (mut w, a, b, _) = kept(Settings { pool_bytes_max: SEGMENT, lease_ns_max: Some(SECOND), ..settings() });
    for _ in 0..20 {
        assert_eq!(full(w.ask(&a, &ONE)), LimitKind::PoolBytes);
        w.wait_ns(SECOND);
    }
    assert_eq!(figures(&mut w, &b).uids[0].bytes_kept_by_leases, 0);
    assert_eq!(w.stat().sessions_revoked, 0);
}

#[test]
fn what_leases_keep_is_charged_to_their_holder_after_a_second() {
    let start = kept(settings());
    let used = |w: &mut World, c: &Client| figures(w, c).uids[0].bytes;
    let (mut w, a, b, _) = start;
    let (of_a, of_b) = (used(&mut w, &a), used(&mut w, &b));
    drop(w);
    // This limit leaves each user room for a quarter of a segment.
    let most = of_a.max(of_b + SEGMENT) + SEGMENT / 4;
    let (mut w, a, b, lent) = kept(Settings { uid_bytes_max: most, ..settings() });
    a.words().cells[1].cell.set(Cell::new(1, lent.base + 1).0);
    let half = Request::Segment { bytes: SEGMENT / 2, slots_log2: 2 };
    assert_eq!(full(w.ask(&a, &half)), LimitKind::UserBytes, "a lease of a moment moves nothing");
    w.wait_ns(2 * SECOND);
    assert_eq!(figures(&mut w, &b).uids[0].bytes_kept_by_leases, SEGMENT / 2);
    assert!(matches!(w.ask(&a, &half), Reply::Segment { .. }), "its holder stands for it");
    assert_eq!(full(w.ask(&b, &ONE)), LimitKind::UserBytes);
    b.release(0);
    w.wait_ns(SECOND);
    assert!(matches!(w.ask(&b, &half), Reply::Segment { .. }), "and no longer than the lease lasts");
    assert_eq!(figures(&mut w, &b).uids[0].bytes_kept_by_leases, 0);
    w.wait_ns(60 * SECOND);
    assert_eq!(w.core.alarm(), None, "no scan without a refusal");
    w.ask(&a, &Request::Delete { name: "x".into() });
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn revocation_is_off_by_default() {
    let (mut w, a, b, lent) = kept(Settings { pool_bytes_max: SEGMENT, ..settings() });
    a.words().cells[1].cell.set(Cell::new(1, lent.base + 1).0);
    for _ in 0..100 {
        assert_eq!(full(w.ask(&a, &ONE)), LimitKind::PoolBytes);
        w.wait_ns(SECOND);
    }
    assert!(!w.closed.contains(&b.conn));
    assert_eq!(w.stat().sessions_revoked, 0);
}

#[test]
fn who_keeps_most_for_too_long_is_ended_when_memory_is_short() {
    let settings = Settings { pool_bytes_max: SEGMENT, lease_ns_max: Some(SECOND), ..settings() };
    let (mut w, a, b, lent) = kept(settings);
    let c = join(&mut w, 2, "lab");
    write(&lent, lent.base + 2, 1, 4096);
    c.lease(0, a.number(), Cell::new(1, lent.base + 2));
    a.words().cells[1].cell.set(Cell::new(1, lent.base + 1).0);
    w.wait_ns(60 * SECOND);
    assert!(w.closed.is_empty(), "memory is not short");
    assert_eq!(full(w.ask(&a, &ONE)), LimitKind::PoolBytes);
    w.wait_ns(SECOND - 1);
    assert!(w.closed.is_empty(), "not long enough, as far as anybody knows");
    let member = b.directory.members[b.number().index()].member.peek();
    w.wait_ns(SECOND);
    assert!(matches!(w.refusal(b.conn), Refusal::Violation(why) if why.contains("uid.lease_ms_max")));
    assert!(w.closed.contains(&b.conn));
    assert_ne!(a.directory.members[b.number().index()].member.peek(), member, "its holder learns it");
    w.wait_ns(5 * SECOND);
    assert!(!w.closed.contains(&c.conn), "one session for each refusal");
    w.ask(&a, &ONE);
    assert!(w.closed.contains(&c.conn));
    assert_eq!(w.stat().sessions_revoked, 2);
    w.ask(&a, &Request::Delete { name: "x".into() });
    w.hang_up(&a);
    w.assert_empty();
}

#[test]
fn the_leases_of_a_dead_parent_end_when_memory_is_short() {
    let settings = Settings { pool_bytes_max: SEGMENT, lease_ns_max: Some(SECOND), ..settings() };
    let (mut w, a, b, lent) = kept(settings);
    a.words().cells[1].cell.set(Cell::new(1, lent.base + 1).0);
    b.table().inherited.set(1);
    let member = b.directory.members[b.number().index()].member.peek();
    w.loud.extend(w.memory.keys().copied().collect::<Vec<_>>());
    w.hang_up(&b);
    w.wait_ns(60 * SECOND);
    assert_eq!(b.directory.members[b.number().index()].member.peek(), member, "its children read");
    assert_eq!(full(w.ask(&a, &ONE)), LimitKind::PoolBytes);
    w.wait_ns(3 * SECOND);
    assert_ne!(b.directory.members[b.number().index()].member.peek(), member, "its children learn it");
    assert_eq!(w.stat().sessions_revoked, 1);
    w.loud.clear();
    w.ask(&a, &Request::Delete { name: "x".into() });
    w.hang_up(&a);
    w.wait_ns(20 * SECOND);
    w.assert_empty();
}

#[test]
fn the_leases_of_a_parent_and_its_children_end_in_one_step_when_memory_is_short() {
    let settings = Settings { pool_bytes_max: SEGMENT, lease_ns_max: Some(SECOND), ..settings() };
    let (mut w, a, b, lent) = kept(settings);
    a.words().cells[1].cell.set(Cell::new(1, lent.base + 1).0);
    b.table().inherited.set(1);
    let member = || a.directory.members[b.number().index()].member.peek();
    let before = member();
    w.loud.extend(w.memory.keys().copied().collect::<Vec<_>>());
    assert_eq!(full(w.ask(&a, &ONE)), LimitKind::PoolBytes);
    w.wait_ns(3 * SECOND);
    assert!(w.closed.contains(&b.conn));
    assert_ne!(member(), before, "the leases of the session that was ended do not count");
    assert_eq!(w.stat().sessions_revoked, 1);
    w.loud.clear();
    w.ask(&a, &Request::Delete { name: "x".into() });
    w.hang_up(&a);
    w.wait_ns(20 * SECOND);
    w.assert_empty();
}

#[test]
fn an_orphans_segment_counts_whole_and_comes_back_with_the_holders_end() {
    let settings = Settings { pool_bytes_max: SEGMENT, lease_ns_max: Some(SECOND), ..settings() };
    let (mut w, a, b, _) = kept(settings);
    let d = join(&mut w, 1, "lab");
    w.hang_up(&a);
    assert_eq!(w.ask(&d, &Request::Delete { name: "x".into() }), Reply::Deleted { existed: true });
    w.wait_ns(SECOND);
    assert_eq!(full(w.ask(&d, &ONE)), LimitKind::PoolBytes);
    assert_eq!(figures(&mut w, &b).uids[0].bytes_kept_by_leases, SEGMENT);
    w.wait_ns(2 * SECOND);
    assert!(w.closed.contains(&b.conn));
    assert!(matches!(w.ask(&d, &ONE), Reply::Segment { .. }));
    w.hang_up(&d);
    w.assert_empty();
}

#[test]
fn no_word_of_a_liar_makes_more_of_a_lease_than_its_segments() {
    let settings = Settings { pool_bytes_max: SEGMENT, ..settings() };
    let (mut w, a, b, lent) = kept(settings);
    // The records form a circular chain, and each claims the largest length.
    write(&lent, lent.base, 1, u64::MAX);
    let records: &[SlotRecord] = lent.slots.array(4096, 16).unwrap();
    records[0].words[2].set(u64::from(lent.base) + 1);
    records[1].words[2].set(u64::from(lent.base));
    a.words().cells[1].cell.set(Cell::DELETED.0);
    a.words().ring_head.set(u64::MAX / 2);
    // The holder's lease table contains random words.
    for (at, word) in b.table().entries.iter().flatten().enumerate() {
        word.set((at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }
    b.table().shards_used.set(u64::MAX);
    b.table().high_water.iter().for_each(|word| word.set(u64::MAX));
    b.lease(0, a.number(), Cell::new(1, lent.base));
    assert_eq!(full(w.ask(&b, &ONE)), LimitKind::PoolBytes);
    w.wait_ns(2 * SECOND);
    assert_eq!(figures(&mut w, &b).uids[0].bytes_kept_by_leases, SEGMENT);
    assert_eq!(w.stat().sessions_revoked, 0);
}

#[test]
fn a_user_who_chooses_names_that_collide_harms_no_other_user() {
    let mut settings = Settings { uid_share: true, ..settings() };
    settings.namespaces.get_mut("lab").unwrap().writers.push(Principal::Uid(2));
    let mut w = World::new(settings);
    let (hostile, honest) = (join(&mut w, 1, "lab"), join(&mut w, 2, "lab"));
    let hash = honest.directory.hash(b"model/weights");
    let mut names = chosen_keys(&hostile.directory, hash, 28).map(|key| String::from_utf8(key).unwrap());
    let refused = (0..).find_map(|cell| {
        hostile.words().cells[cell as usize].cell.set(Cell::new(1, SlotNo::new(0)).0);
        match w.ask(&hostile, &Request::Bind { name: names.next().unwrap(), cell: CellNo::new(cell) }) {
            Reply::Bound { .. } => None,
            refused => Some((cell, refused)),
        }
    });
    let Some((taken, Reply::Refused(Refusal::Bad(why)))) = refused else { panic!("{refused:?}") };
    assert!(u64::from(taken) > SEARCH_MAX && why.contains("collide"), "{taken}: {why}");
    w.bind(&honest, "model/weights", CellNo::new(0), Cell::new(1, SlotNo::new(0)));
    assert!(honest.find("model/weights").is_some());
}

#[test]
fn no_user_takes_all_names_of_a_shared_namespace() {
    let mut settings = Settings { uid_share: true, ..settings() };
    settings.namespaces.get_mut("lab").unwrap().writers.push(Principal::Uid(2));
    let mut w = World::new(settings);
    let (a, also_a) = (join(&mut w, 1, "lab"), join(&mut w, 1, "lab"));
    for client in [&a, &also_a] {
        w.let_announce(client);
    }
    let granted = |c: &Client| c.directory.members[c.number().index()].announce_until.peek();
    let (first, second) = (granted(&a), granted(&also_a));
    assert!(first > 0 && second > 0 && first + second <= 1024, "{first} {second}");
    // The client announces some names and requests others.
    let mut cell = 0;
    let met = loop {
        let name = format!("a{cell}");
        if cell % 3 == 0 && a.words().ring_head.peek() < granted(&a) {
            fill(&a.words().cells[cell as usize], &name);
            announce(&a, &name, CellNo::new(cell));
            w.happen(crate::core::Event::Woken { conn: a.conn });
        } else {
            a.words().cells[cell as usize].cell.set(Cell::new(1, SlotNo::new(0)).0);
            match w.ask(&a, &Request::Bind { name, cell: CellNo::new(cell) }) {
                Reply::Bound { .. } => {}
                refused => break full(refused),
            }
        }
        cell += 1;
    };
    assert_eq!(met, LimitKind::NameShare);
    let names = u64::from(cell);
    assert!(names <= 1024 && names + granted(&a) - a.words().ring_head.peek() + second == 1024, "{names}");
    assert_eq!(figures(&mut w, &a).uids[0].names, names);
    // Another user finds a third of the rest, and whatever becomes free.
    let b = join(&mut w, 2, "lab");
    for cell in 0..200 {
        w.bind(&b, &format!("b{cell}"), CellNo::new(cell), Cell::new(1, SlotNo::new(0)));
    }
    w.ask(&b, &Request::Delete { name: "a1".into() });
    assert!(
        matches!(w.ask(&a, &Request::Bind { name: "b0".into(), cell: CellNo::new(4000) }), Reply::Refused(_)),
        "b has come"
    );
    // The daemon ends a client that announces more than it was granted, and no other.
    a.words().ring_head.set(granted(&a) + 1);
    w.happen(crate::core::Event::Woken { conn: a.conn });
    assert!(w.closed.contains(&a.conn) && !w.closed.contains(&also_a.conn));
    w.bind(&b, "still", CellNo::new(201), Cell::new(1, SlotNo::new(0)));
}

#[test]
fn without_shares_and_at_owner_word_names_are_announced_as_they_come() {
    let mut w = World::new(Settings { uid_share: true, ..settings() });
    let a = w.join(1);
    assert_eq!(a.directory.members[1].announce_until.peek(), u64::MAX);
    let mut w = World::new(settings());
    let a = join(&mut w, 1, "lab");
    assert_eq!(a.directory.members[1].announce_until.peek(), u64::MAX);
}

/// All uids of a user's range count as that user, and have one share together.
#[test]
fn a_user_with_many_uids_has_one_share() {
    const MANY: std::ops::Range<u32> = 100_000..100_010;
    let owners = Arc::new(Owners::new([(MANY.start, 65_536, Some(1))]));
    let mut settings =
        Settings { uid_share: true, pool_bytes_max: 12 * SEGMENT, uid_sessions_max: 10, owners, ..settings() };
    let lab = settings.namespaces.get_mut("lab").unwrap();
    lab.writers.extend(MANY.chain([2]).map(Principal::Uid));
    (lab.limits.streams_max, lab.limits.members_max, lab.limits.segments_max) = (8, 64, 64);
    let mut w = World::new(settings);
    // The clients include one under the user's own uid.
    let many: Vec<Client> = MANY.skip(1).chain([1]).map(|uid| join(&mut w, uid, "lab")).collect();
    let lent: usize =
        many.iter().map(|c| (0..12).take_while(|_| matches!(w.ask(c, &ONE), Reply::Segment { .. })).count()).sum();
    assert_eq!(lent, 6, "a half, as for one");
    let conn = w.dial(MANY.start, &[]);
    w.say(conn, &Request::Hello(hello()));
    assert!(matches!(w.refusal(conn), Refusal::Limit { kind: LimitKind::Sessions, .. }));
    w.happen(Event::HungUp { conn });
    let open = |number: usize| Request::StreamOpen { name: format!("s{number}"), capacity: 2, policy: Policy::Block };
    let opened =
        many.iter().enumerate().take_while(|(at, c)| matches!(w.ask(c, &open(*at)), Reply::Stream { .. })).count();
    assert_eq!(opened, 4);
    let honest = join(&mut w, 2, "lab");
    assert!(matches!(w.ask(&honest, &open(100)), Reply::Stream { .. }));
    for _ in 0..2 {
        w.segment(&honest);
    }
    for client in many.iter().chain([&honest]) {
        w.hang_up(client);
    }
    w.assert_empty();
}
