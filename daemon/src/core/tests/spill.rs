//! Segments that go to files and come back.

use super::world::{Client, Lent, SEGMENT, World, settings};
use crate::core::settings::{Mode, Settings, SpillSettings};
use crate::core::{Event, MemId};
use tensorlend_layout::wire::{Refusal, Reply, Request};
use tensorlend_layout::word::Cell;

const POOL: u64 = 4;

fn spilling(mode: Mode) -> Settings {
    let spill = SpillSettings { directory: "/nowhere".into(), bytes_max: 3 * SEGMENT, uid_bytes_max: 2 * SEGMENT };
    Settings { mode, pool_bytes_max: POOL * SEGMENT, spare_segments: 0, spill: Some(spill), ..settings() }
}

/// A client that leaves a value in a segment of its own under each of these names.
fn leave(w: &mut World, names: &[&str]) -> (u16, Vec<Lent>) {
    let client = w.join(1);
    let lent = names.iter().enumerate().map(|(cell, name)| {
        w.now_ns += 1000;
        let lent = w.segment(&client);
        lent.write(lent.base, 1, None);
        w.bind(&client, name, cell as u32, Cell::new(1, lent.base));
        lent
    });
    let lent = lent.collect();
    w.hang_up(&client);
    (client.number(), lent)
}

fn want(w: &mut World, client: &Client) -> Reply {
    w.now_ns += 1_000_000_000;
    w.ask(client, &Request::Segment { bytes: SEGMENT, slots_log2: 4 })
}

fn get(w: &mut World, client: &Client, (owner, lent): (u16, &Lent)) -> (Reply, Option<MemId>) {
    w.now_ns += 1_000_000_000;
    let (reply, lend) = w.ask_lent(client, &Request::SegmentOf { catalogue: owner, slot: lent.base });
    (reply, lend.first().map(|&(mem, _)| mem))
}

#[test]
fn what_nobody_holds_goes_when_memory_is_short_and_comes_back() {
    for mode in [Mode::User, Mode::System] {
        let mut w = World::new(spilling(mode));
        let (owner, lent) = leave(&mut w, &["old", "new"]);
        let b = w.join(1);
        let home = b.find("old").unwrap();
        assert_eq!(w.stat().bytes_spilled, 0);
        for _ in 0..POOL - 1 {
            assert!(matches!(want(&mut w, &b), Reply::Segment { .. }), "spilled for it");
        }
        assert_eq!((w.stat().bytes_spilled, w.stat().bytes_in_use), (SEGMENT, POOL * SEGMENT));
        assert_eq!(w.files.keys().copied().collect::<Vec<_>>(), [lent[0].segment], "the one lent first");
        assert_eq!(b.find("old"), Some(home), "no shared word tells of it");

        // For its memory the other one goes.
        let (reply, mem) = get(&mut w, &b, (owner, &lent[0]));
        assert!(matches!(reply, Reply::Segment { bytes: SEGMENT, .. }));
        assert_ne!(mem, Some(lent[0].segment));
        assert_eq!(w.files.keys().copied().collect::<Vec<_>>(), [lent[1].segment]);
        assert_eq!(w.recalled, 1);
        // What is deleted is in no file any more.
        assert_eq!(w.ask(&b, &Request::Delete { name: "new".into() }), Reply::Deleted { existed: true });
        assert_eq!(w.ask(&b, &Request::Delete { name: "old".into() }), Reply::Deleted { existed: true });
        w.wait_ns(1_000_000_000);
        assert_eq!((w.stat().bytes_spilled, w.files.len()), (0, 0));
        w.hang_up(&b);
        w.assert_empty();
    }
}

#[test]
fn what_is_held_or_lent_meanwhile_stays() {
    let mut w = World::new(spilling(Mode::User));
    let (owner, lent) = leave(&mut w, &["x", "y"]);
    let b = w.join(1);
    w.held.extend(lent.iter().map(|l| l.segment));
    assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
    assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
    assert!(
        matches!(want(&mut w, &b), Reply::Refused(Refusal::Limit { .. })),
        "each is tried once, and then it is as ever"
    );
    assert_eq!((w.stat().bytes_spilled, w.stat().spill_failures), (0, 0));

    // Lent while it is written: its reader has what was written before, and the file goes.
    w.held.clear();
    w.slow_spill = true;
    w.now_ns += 1_000_000_000;
    let c = w.join(1);
    w.say(b.conn, &Request::Segment { bytes: SEGMENT, slots_log2: 4 });
    assert!(w.hear(b.conn).is_none(), "it waits");
    assert!(matches!(get(&mut w, &c, (owner, &lent[0])).0, Reply::Segment { .. }));
    w.held.insert(lent[0].segment);
    w.finish_spills();
    w.finish_spills();
    assert!(matches!(w.hear(b.conn), Some((Reply::Segment { .. }, _))), "the next one went");
    w.say(b.conn, &Request::Ack);
    assert_eq!(w.files.keys().copied().collect::<Vec<_>>(), [lent[1].segment]);
    for client in [&b, &c] {
        w.hang_up(client);
    }
}

#[test]
fn limits_of_spilling_are_kept() {
    let mut w = World::new(spilling(Mode::User));
    leave(&mut w, &["a", "b", "c", "d"]);
    let b = w.join(1);
    for _ in 0..2 {
        assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
    }
    let Reply::Refused(Refusal::Limit { setting, .. }) = want(&mut w, &b) else { panic!("the uid has no more room") };
    assert_eq!(setting, "pool.bytes_max");
    assert_eq!(w.stat().bytes_spilled, 2 * SEGMENT);
    // Without a directory nothing changes.
    let mut w = World::new(Settings { spill: None, ..spilling(Mode::User) });
    leave(&mut w, &["a", "b", "c", "d"]);
    let b = w.join(1);
    assert!(matches!(want(&mut w, &b), Reply::Refused(Refusal::Limit { .. })));
}

#[test]
fn a_file_that_cannot_be_read_is_told_and_tried_again() {
    let mut w = World::new(spilling(Mode::User));
    let (owner, lent) = leave(&mut w, &["x", "y", "z"]);
    let b = w.join(1);
    for _ in 0..2 {
        assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
    }
    assert_eq!(w.files.len(), 1);
    // Room for it.
    assert_eq!(w.ask(&b, &Request::Delete { name: "z".into() }), Reply::Deleted { existed: true });
    w.wait_ns(1_000_000_000);
    w.bytes_max = 0;
    let (reply, _) = get(&mut w, &b, (owner, &lent[0]));
    assert!(matches!(reply, Reply::Refused(Refusal::Memory { .. })), "{reply:?}");
    assert_eq!((w.stat().spill_failures, w.stat().bytes_spilled), (1, SEGMENT));
    w.bytes_max = u64::MAX;
    assert!(matches!(get(&mut w, &b, (owner, &lent[0])).0, Reply::Segment { .. }));
    assert_eq!((w.stat().bytes_spilled, w.files.len()), (0, 0));
    for name in ["x", "y"] {
        w.ask(&b, &Request::Delete { name: name.into() });
    }
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn what_is_deleted_on_its_way_leaves_nothing() {
    let mut w = World::new(spilling(Mode::User));
    let (owner, lent) = leave(&mut w, &["x", "y", "z"]);
    let b = w.join(1);
    w.slow_spill = true;
    assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
    w.now_ns += 1_000_000_000;
    w.say(b.conn, &Request::Segment { bytes: SEGMENT, slots_log2: 4 });
    assert!(w.hear(b.conn).is_none());
    let c = w.join(1);
    assert_eq!(w.ask(&c, &Request::Delete { name: "x".into() }), Reply::Deleted { existed: true });
    w.wait_ns(2_000_000_000);
    w.finish_spills();
    assert!(matches!(w.hear(b.conn), Some((Reply::Segment { .. }, _))));
    w.say(b.conn, &Request::Ack);
    assert!(w.files.is_empty(), "the file of what was deleted is gone");
    // And on its way back.
    w.say(b.conn, &Request::Segment { bytes: SEGMENT, slots_log2: 4 });
    w.finish_spills();
    w.finish_spills();
    assert!(matches!(w.hear(b.conn), Some((Reply::Segment { .. }, _))), "{:?}", w.stat());
    w.say(b.conn, &Request::Ack);
    assert_eq!(w.files.keys().copied().collect::<Vec<_>>(), [lent[1].segment]);
    w.ask(&c, &Request::Delete { name: "z".into() });
    w.wait_ns(2_000_000_000);
    w.slow = true;
    w.say(c.conn, &Request::SegmentOf { catalogue: owner, slot: lent[1].base });
    assert!(w.hear(c.conn).is_none());
    assert_eq!(w.ask(&b, &Request::Delete { name: "y".into() }), Reply::Deleted { existed: true });
    w.wait_ns(2_000_000_000);
    w.finish();
    assert!(matches!(w.hear(c.conn), Some((Reply::Refused(Refusal::NotFound(_)), _))));
    assert!(w.files.is_empty());
    for client in [&b, &c] {
        w.happen(Event::HungUp { conn: client.conn });
    }
    w.assert_empty();
}
