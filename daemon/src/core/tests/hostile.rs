//! Malicious clients, which cost the others nothing.

use super::accounts::figures;
use super::world::{Client, SEGMENT, World, limits, settings};
use crate::core::MemId;
use crate::core::settings::{Mode, NamespaceLimits, Settings};
use tensorlend_layout::number::{CellNo, SlotNo};
use tensorlend_layout::wire::{APPEND_MAX, LimitKind, Policy, Refusal, Reply, Request};
use tensorlend_layout::word::Cell;

const TWO: Request = Request::Segment { bytes: 2 * SEGMENT, slots_log2: 4 };

#[test]
fn an_abandoned_order_costs_until_it_has_come() {
    let mut w = World::new(Settings { pool_bytes_max: 3 * SEGMENT, spare_segments: 0, ..settings() });
    let (a, b) = (w.join(1), w.join(1));
    w.slow = true;
    w.say(a.conn, &TWO);
    w.hang_up(&a);
    assert_eq!(w.stat().bytes_in_use, 2 * SEGMENT);
    assert!(matches!(w.ask(&b, &TWO), Reply::Refused(Refusal::Limit { .. })));
    w.slow = false;
    w.finish();
    assert_eq!(w.stat().bytes_in_use, 0);
    assert!(matches!(w.ask(&b, &TWO), Reply::Segment { .. }));
    w.slow = true;
    w.hang_up(&b);
    let c = w.join(1);
    w.say(c.conn, &TWO);
    w.hang_up(&c);
    w.wait_ns(1_000_000_000);
    assert!(w.core.bytes() > 0, "the namespace is gone, its charge is not");
    w.finish();
    w.assert_empty();
}

#[test]
fn what_is_given_up_and_kept_mapped_costs_until_it_is_quiescent() {
    for mode in [Mode::User, Mode::System] {
        let mut w = World::new(Settings { mode, spare_segments: 0, ..settings() });
        let a = w.join(1);
        let lent = w.segment(&a);
        let sheets = w.stat().bytes_sheets;
        assert_eq!(figures(&mut w, &a).uids[0].bytes_returned_and_held, 0);
        w.loud.extend(w.memory.keys().copied().collect::<Vec<_>>());
        assert_eq!(w.ask(&a, &Request::ReturnSegment { base: lent.base }), Reply::Done);
        w.wait_ns(100_000_000_000);
        assert_eq!((w.stat().bytes_in_use, w.stat().bytes_sheets), (SEGMENT, sheets), "{mode:?}");
        let held = figures(&mut w, &a).uids[0].bytes_returned_and_held;
        assert!(held > SEGMENT, "the segment and its slot records: {held}");
        w.loud.clear();
        w.wait_ns(10_000_000_000);
        assert_eq!(w.stat().bytes_in_use, 0, "{mode:?}");
        assert_eq!(figures(&mut w, &a).uids[0].bytes_returned_and_held, 0);
        assert!(w.stat().bytes_sheets < sheets);
        w.hang_up(&a);
        w.assert_empty();
    }
}

#[test]
fn a_producer_whose_ring_is_taken_while_it_is_looked_at_is_buried_all_the_same() {
    let mut w = World::new(Settings { spare_segments: 0, ..settings() });
    let (a, b) = (w.join(1), w.join(1));
    let open = |capacity| Request::StreamOpen { name: "s".into(), capacity, policy: Policy::Block };
    assert!(matches!(w.ask(&a, &open(2)), Reply::Stream { .. }));
    w.late = true;
    w.hang_up(&a);
    // The catalogue is quiescent; the daemon is probing the ring.
    w.finish();
    assert!(matches!(w.ask_lent(&b, &open(4)).0, Reply::Stream { .. }));
    w.late = false;
    w.finish();
    w.wait_ns(1_000_000_000);
    assert_eq!((w.stat().clients, w.stat().frozen), (1, 0), "its sheets and its number come back");
    assert_eq!(w.ask(&b, &Request::StreamDelete { name: "s".into() }), Reply::Deleted { existed: true });
    w.hang_up(&b);
    w.assert_empty();
}

/// A world with memory for two segments, and a client that has returned a segment and still has it mapped.
fn returned(mode: Mode) -> (World, Client, MemId) {
    let mut w = World::new(Settings { mode, pool_bytes_max: 2 * SEGMENT, spare_segments: 0, ..settings() });
    let client = w.join(1);
    let lent = w.segment(&client);
    w.loud.insert(lent.segment);
    assert_eq!(w.ask(&client, &Request::ReturnSegment { base: lent.base }), Reply::Done);
    (w, client, lent.segment)
}

#[test]
fn who_asks_for_more_is_heard_when_it_has_unmapped_what_it_gave_back() {
    for mode in [Mode::User, Mode::System] {
        let (mut w, a, segment) = returned(mode);
        w.say(a.conn, &TWO);
        let heard = w.hear(a.conn);
        assert!(heard.is_none(), "it is given a moment: {heard:?}");
        w.wait_ns(1_000_000);
        w.loud.clear();
        w.wait_ns(1_000_000);
        assert!(matches!(w.hear(a.conn), Some((Reply::Segment { .. }, _))));
        w.say(a.conn, &Request::Ack);
        w.loud.insert(segment);
        w.hang_up(&a);
        w.assert_empty();
    }
}

#[test]
fn who_was_held_up_before_it_unmapped_is_heard_as_well() {
    for mode in [Mode::User, Mode::System] {
        let (mut w, a, _) = returned(mode);
        // No request waits for the segment for so long, and the daemon's next probe is much later.
        w.wait_ns(12_000_000);
        w.say(a.conn, &TWO);
        w.wait_ns(1_000_000);
        assert!(matches!(w.refusal(a.conn), Refusal::Limit { .. }), "it has it mapped still");
        w.loud.clear();
        w.say(a.conn, &TWO);
        w.wait_ns(1_000_000);
        assert!(matches!(w.hear(a.conn), Some((Reply::Segment { .. }, _))));
        w.say(a.conn, &Request::Ack);
        w.hang_up(&a);
        w.assert_empty();
    }
}

#[test]
fn a_request_waits_for_the_look_that_it_has_begun_however_late_its_answer_is() {
    for mode in [Mode::User, Mode::System] {
        let (mut w, a, _) = returned(mode);
        w.loud.clear();
        w.late = true;
        w.say(a.conn, &TWO);
        w.wait_ns(50_000_000);
        let heard = w.hear(a.conn);
        assert!(heard.is_none(), "the probe is in progress: {heard:?}");
        w.late = false;
        w.finish();
        w.wait_ns(1_000_000);
        assert!(matches!(w.hear(a.conn), Some((Reply::Segment { .. }, _))));
        w.say(a.conn, &Request::Ack);
        w.hang_up(&a);
        w.assert_empty();
    }
}

#[test]
fn a_request_looks_at_many_returned_segments_in_rounds() {
    const SEGMENTS: u64 = 200;
    for mode in [Mode::User, Mode::System] {
        let private = NamespaceLimits { segments_max: SEGMENTS as u32, ..limits() };
        let pool_bytes_max = SEGMENTS * SEGMENT;
        let mut w = World::new(Settings { mode, private, pool_bytes_max, spare_segments: 0, ..settings() });
        let a = w.join(1);
        let lent: Vec<_> = (0..SEGMENTS).map(|_| w.segment(&a)).collect();
        for it in &lent {
            w.loud.insert(it.segment);
            assert_eq!(w.ask(&a, &Request::ReturnSegment { base: it.base }), Reply::Done);
        }
        // By now the pauses between the daemon's own probes are long.
        w.wait_ns(100_000_000_000);
        w.late = true;
        w.say(a.conn, &TWO);
        let mut rounds = Vec::new();
        while !w.probes.is_empty() {
            rounds.push(w.probes.len());
            w.finish();
            assert_eq!(w.probes, [], "the loop does something else before the next round");
            w.wait_ns(500_000);
        }
        assert_eq!(rounds, [64, 64, 64, 8], "{mode:?}");
        assert!(matches!(w.refusal(a.conn), Refusal::Limit { .. }));
        w.late = false;
        w.loud.clear();
        w.say(a.conn, &TWO);
        w.wait_ns(1_000_000);
        assert!(matches!(w.hear(a.conn), Some((Reply::Segment { .. }, _))));
        w.say(a.conn, &Request::Ack);
        w.hang_up(&a);
        w.assert_empty();
    }
}

#[test]
fn a_session_counts_until_its_memory_is_quiescent() {
    let mut w = World::new(Settings { uid_sessions_max: 2, ..settings() });
    for _ in 0..2 {
        let a = w.join(1);
        let lent = w.segment(&a);
        w.loud.insert(lent.segment);
        w.hang_up(&a);
    }
    let conn = w.dial(1, &[]);
    w.say(conn, &Request::Hello(super::world::hello()));
    assert!(matches!(w.refusal(conn), Refusal::Limit { kind: LimitKind::Sessions, .. }));
    w.loud.clear();
    w.wait_ns(20_000_000_000);
    let b = w.join(1);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn readers_neither_announce_nor_claim() {
    let mut w = World::new(settings());
    let writer = w.join_unacknowledged(1, Some("lab"));
    let reader = w.join_unacknowledged(2, Some("lab"));
    for client in [&writer, &reader] {
        w.say(client.conn, &Request::Ack);
    }
    let record = &reader.words().cells[0];
    record.name_bytes.put(1);
    record.name[0].put(u64::from(b'x'));
    record.cell.set(Cell::new(1, SlotNo::new(0)).0);
    let hash = reader.directory.hash(b"x");
    reader.words().ring[0].put(hash >> 24 << 24);
    reader.words().claim.set(reader.directory.hash(b"y"));
    reader.words().ring_head.set(1);
    w.bind(&writer, "y", CellNo::new(1), Cell::new(1, SlotNo::new(0)));
    assert_eq!(writer.find("x"), None);
    w.hang_up(&reader);
    assert_eq!(writer.find("x"), None, "nor with its last breath");
    w.hang_up(&writer);
    w.assert_empty();
}

#[test]
fn a_segment_is_lent_again_to_the_same_user_only() {
    let mut w = World::new(Settings { mode: Mode::System, spare_segments: 0, ..settings() });
    let a = w.join_unacknowledged(1, Some("lab"));
    w.say(a.conn, &Request::Ack);
    let conn = w.dial(3, &[50]);
    let hello = tensorlend_layout::wire::Hello { namespace: Some("lab".into()), ..super::world::hello() };
    w.say(conn, &Request::Hello(hello));
    w.hear(conn);
    w.say(conn, &Request::Ack);
    let lent = w.segment(&a);
    assert_eq!(w.ask(&a, &Request::ReturnSegment { base: lent.base }), Reply::Done);
    w.wait_ns(10_000_000);
    w.say(conn, &Request::Segment { bytes: SEGMENT, slots_log2: 4 });
    let (_, other) = w.hear(conn).unwrap();
    assert_ne!(other[0].0, lent.segment);
    assert_eq!(w.segment(&a).segment, lent.segment);
    w.hang_up(&a);
    w.happen(crate::core::Event::HungUp { conn });
    w.assert_empty();
}

#[test]
fn announcements_are_taken_a_few_at_a_time() {
    let mut w = World::new(settings());
    let (a, b) = (w.announcer(1), w.join(1));
    for i in 0..200u32 {
        let name = format!("n{i:0>6}");
        let record = &a.words().cells[i as usize];
        record.name_bytes.put(7);
        record.name[0].put(tensorlend_layout::directory::key_word(name.as_bytes()));
        record.cell.set(Cell::new(1, SlotNo::new(0)).0);
        a.words().ring[i as usize].put(a.directory.hash(name.as_bytes()) >> 24 << 24 | u64::from(i));
    }
    a.words().ring_head.set(200);
    w.say(b.conn, &Request::Delete { name: "n000199".into() });
    assert!(w.hear(b.conn).is_none());
    assert_eq!(w.stat().names, 64);
    w.wait_ns(1_000_000);
    assert_eq!(w.hear(b.conn).unwrap().0, Reply::Deleted { existed: true });
    assert_eq!(w.stat().names, 199);
    for client in [&a, &b] {
        w.hang_up(client);
    }
}

#[test]
fn requests_have_a_size() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let names = vec![("x".to_owned(), CellNo::default()); 257];
    assert!(matches!(w.ask(&a, &Request::Tidy { names }), Reply::Refused(Refusal::Bad(why)) if why.contains("256")));
    let append = Request::ListAppend { list: "l".into(), cells: vec![CellNo::new(0); APPEND_MAX + 1] };
    assert!(matches!(w.ask(&a, &append), Reply::Refused(Refusal::Bad(why)) if why.contains("at most 1024 items")));
    w.hang_up(&a);
    w.assert_empty();
}

#[test]
fn an_acknowledgement_is_due_from_the_lending_on() {
    let mut w = World::new(settings());
    let (late, b) = (w.join_unacknowledged(1, None), w.join(1));
    w.wait_ns(4_900_000_000);
    w.say(b.conn, &Request::CellsOf { client: late.number(), part: 0 });
    assert!(w.hear(b.conn).is_none());
    w.wait_ns(101_000_000);
    assert!(matches!(w.hear(b.conn), Some((Reply::Refused(Refusal::NotFound(_)), _))));
    assert!(w.closed.contains(&late.conn));
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn a_claim_is_as_old_as_it_was_seen_and_not_as_its_asker() {
    let mut w = World::new(settings());
    let (a, b, c) = (w.join(1), w.join(1), w.join(1));
    a.words().claim.set(a.directory.hash(b"x"));
    w.say(c.conn, &Request::Bind { name: "x".into(), cell: CellNo::new(0) });
    w.wait_ns(900_000_000);
    a.words().claim.set(0);
    // Another client claims the name, and no request has waited for this client for 900 ms.
    b.words().claim.set(b.directory.hash(b"x"));
    w.wait_ns(900_000_000);
    assert!(w.hear(c.conn).is_none_or(|(reply, _)| matches!(reply, Reply::Bound { .. })));
    assert!(!w.closed.contains(&b.conn));
    for client in [&a, &b, &c] {
        w.hang_up(client);
    }
}

#[test]
fn a_list_of_many_dead_items_is_removed_by_its_living_ones() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    for cell in 0..6 {
        a.words().cells[cell].cell.set(Cell::DELETED.0);
    }
    w.ask(&a, &Request::ListAppend { list: "l".into(), cells: (0..6).map(CellNo::new).collect() });
    w.hang_up(&a);
    w.ask(&b, &Request::ListAppend { list: "l".into(), cells: vec![CellNo::new(3)] });
    w.bind(&b, "other", CellNo::new(4), Cell::new(1, SlotNo::new(0)));
    assert_eq!(w.stat().names, 3, "the list, its item, the other name");
    assert_eq!(w.ask(&b, &Request::ListDelete { list: "l".into() }), Reply::Deleted { existed: true });
    assert_eq!(w.stat().names, 1);
    assert_eq!(w.ask(&b, &Request::Notices), Reply::Notices { cells: vec![CellNo::new(3)], more: false });
    w.hang_up(&b);
    w.assert_empty();
}
