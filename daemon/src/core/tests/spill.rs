//! Segments that the daemon writes to files and recalls.

use super::world::{Client, Lent, SEGMENT, World, settings};
use crate::core::label::Label;
use crate::core::settings::{Mode, Settings, SpillMarks, SpillSettings};
use crate::core::{Event, MemId};
use tensorlend_layout::wire::{LimitKind, Refusal, Reply, Request};
use tensorlend_layout::word::Cell;

const POOL: u64 = 4;

fn spilling(mode: Mode) -> Settings {
    let spill =
        SpillSettings { directory: "/nowhere".into(), bytes_max: 3 * SEGMENT, uid_bytes_max: 2 * SEGMENT, marks: None };
    Settings { mode, pool_bytes_max: POOL * SEGMENT, spare_segments: 0, spill: Some(spill), ..settings() }
}

/// Returns a client that has a value in a segment of its own under each of these names.
fn fill(w: &mut World, names: &[&str]) -> (Client, Vec<Lent>) {
    let client = w.join(1);
    let lent = names.iter().enumerate().map(|(cell, name)| {
        w.now_ns += 1000;
        let lent = w.segment(&client);
        lent.write(lent.base, 1, None);
        w.bind(&client, name, cell as u32, Cell::new(1, lent.base));
        lent
    });
    let lent = lent.collect();
    (client, lent)
}

/// Does the same as [`fill`], with a client that ends afterwards.
fn leave(w: &mut World, names: &[&str]) -> (u16, Vec<Lent>) {
    let (client, lent) = fill(w, names);
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
        assert_eq!(w.in_files(), [lent[0].segment], "the one lent first");
        assert_eq!(b.find("old"), Some(home), "no shared word tells of it");

        // The daemon spills the other segment to make room for it.
        let (reply, mem) = get(&mut w, &b, (owner, &lent[0]));
        assert!(matches!(reply, Reply::Segment { bytes: SEGMENT, .. }));
        assert_ne!(mem, Some(lent[0].segment));
        assert_eq!(w.in_files(), [lent[1].segment]);
        assert_eq!(w.recalled, 1);
        // No file holds a deleted value.
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

    // The segment is lent while it is written: the reader has the values, and the daemon drops the file.
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
    assert_eq!(w.in_files(), [lent[1].segment]);
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
    let Reply::Refused(Refusal::Limit { kind, .. }) = want(&mut w, &b) else { panic!("the uid has no more room") };
    assert_eq!(kind, LimitKind::PoolBytes);
    assert_eq!(w.stat().bytes_spilled, 2 * SEGMENT);
    // Without a directory the daemon spills nothing.
    let mut w = World::new(Settings { spill: None, ..spilling(Mode::User) });
    leave(&mut w, &["a", "b", "c", "d"]);
    let b = w.join(1);
    assert!(matches!(want(&mut w, &b), Reply::Refused(Refusal::Limit { .. })));
}

/// A namespace's name is part of the settings' texts, and may be equal to one of them.
#[test]
fn a_full_table_spills_nothing_whatever_the_namespace_is_called() {
    for name in ["lab", "x.bytes_max"] {
        let mut settings = Settings { pool_bytes_max: 16 * SEGMENT, uid_sessions_max: 16, ..spilling(Mode::User) };
        let rule = settings.namespaces.remove("lab").unwrap();
        // One of the eight numbers is for clients that only read.
        let publishers = rule.limits.members_max - 1;
        settings.namespaces.insert(name.into(), rule);
        let mut w = World::new(settings);
        let join = |w: &mut World| {
            let client = w.join_unacknowledged(1, Some(name));
            w.say(client.conn, &Request::Ack);
            client
        };
        for number in 0..publishers {
            let client = join(&mut w);
            let lent = w.segment(&client);
            lent.write(lent.base, 1, None);
            w.bind(&client, &format!("v{number}"), 0, Cell::new(1, lent.base));
            w.hang_up(&client);
        }
        let last = join(&mut w);
        let Reply::Refused(Refusal::Limit { kind, .. }) = want(&mut w, &last) else { panic!("there is a number left") };
        assert_eq!((kind, w.stat().bytes_spilled), (LimitKind::Members, 0), "{name}");
    }
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
    // Room for the recall.
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
    assert!(w.files.is_empty(), "the file of a deleted value is removed");
    // The same during a recall.
    w.say(b.conn, &Request::Segment { bytes: SEGMENT, slots_log2: 4 });
    w.finish_spills();
    w.finish_spills();
    assert!(matches!(w.hear(b.conn), Some((Reply::Segment { .. }, _))), "{:?}", w.stat());
    w.say(b.conn, &Request::Ack);
    assert_eq!(w.in_files(), [lent[1].segment]);
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

/// Returns three names, two of which are in files, and the client that has filled the pool since.
fn two_in_files(mode: Mode) -> (World, u16, Vec<Lent>, Client) {
    let mut w = World::new(spilling(mode));
    let (owner, lent) = leave(&mut w, &["x", "y", "z"]);
    let b = w.join(1);
    for _ in 0..3 {
        assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
    }
    assert_eq!(w.in_files(), [lent[0].segment, lent[1].segment]);
    (w, owner, lent, b)
}

#[test]
fn what_is_in_files_outlives_the_daemon() {
    for mode in [Mode::User, Mode::System] {
        let (mut w, owner, lent, mut b) = two_in_files(mode);
        let before = w.stat();
        for _ in 0..2 {
            w.replace_daemon(spilling(mode));
            let after = w.stat();
            let figures = |s: &tensorlend_layout::wire::Stat| {
                (s.names, s.segments, s.frozen, s.bytes_in_use, s.pool_bytes, s.bytes_spilled, s.bytes_sheets)
            };
            assert_eq!(figures(&before), figures(&after));
            assert!(matches!(w.come_back(&mut b, None), Reply::Welcome(_)));
        }
        assert_eq!(w.in_files(), [lent[0].segment, lent[1].segment]);
        // The limits apply as before.
        let Reply::Refused(Refusal::Limit { kind, .. }) = want(&mut w, &b) else { panic!("the uid has no more room") };
        assert_eq!(kind, LimitKind::PoolBytes);
        assert!(b.find("x").is_some() && b.find("y").is_some());
        w.ask(&b, &Request::Delete { name: "z".into() });
        w.wait_ns(1_000_000_000);
        assert!(matches!(get(&mut w, &b, (owner, &lent[0])).0, Reply::Segment { .. }));
        assert_eq!((w.recalled, w.in_files()), (1, vec![lent[1].segment]));
        for name in ["x", "y"] {
            w.ask(&b, &Request::Delete { name: name.into() });
        }
        w.wait_ns(1_000_000_000);
        assert!(w.files.is_empty());
        w.loud.clear();
        w.hang_up(&b);
        w.assert_empty();
        assert!(w.stored.is_empty(), "{:?}", w.stored);
    }
}

/// If both the memory and the file of a segment survive, the daemon uses the memory: the file was not removed yet.
#[test]
fn of_memory_and_file_the_memory_counts() {
    let (mut w, owner, lent, mut b) = two_in_files(Mode::System);
    // As if the daemon had been killed between storing the file and removing the memory.
    let namespace = w.stored.values().next().unwrap().namespace();
    let mem = lent[0].segment;
    w.memory.insert(mem, (SEGMENT, None));
    w.stored.insert(mem, Label::Segment { namespace, owner, base: lent[0].base });
    w.replace_daemon(spilling(Mode::System));
    assert_eq!(w.in_files(), [lent[1].segment], "one of them is dropped");
    assert_eq!(w.stat().bytes_spilled, SEGMENT);
    assert!(matches!(w.come_back(&mut b, None), Reply::Welcome(_)));
    assert_eq!(get(&mut w, &b, (owner, &lent[0])).1, Some(mem));
    assert_eq!(w.recalled, 0);
    // The file of a freed segment is removed, and so is one of another length.
    let file = *w.files.keys().next().unwrap();
    w.files.get_mut(&file).unwrap().1 += 4096;
    w.replace_daemon(spilling(Mode::System));
    assert!(w.files.is_empty());
    assert!(w.stat().bytes_spilled == 0 && b.find("y").is_none(), "its value is lost");
    assert!(b.find("x").is_some());
    for name in ["x", "z"] {
        let c = w.join(1);
        w.ask(&c, &Request::Delete { name: name.into() });
        w.hang_up(&c);
    }
    w.loud.clear();
    w.wait_ns(10_000_000_000);
    w.assert_empty();
}

/// The daemon is killed after each effect of an event: every value is in memory or in a file.
#[test]
fn between_any_two_steps_one_of_them_is_kept() {
    for back in [false, true] {
        for done in 0.. {
            let mut w = World::new(spilling(Mode::System));
            let (owner, lent) = leave(&mut w, &["x", "y"]);
            let b = w.join(1);
            assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
            assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
            w.now_ns += 1_000_000_000;
            if back {
                assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
                w.ask(&b, &Request::Delete { name: "y".into() });
                w.wait_ns(1_000_000_000);
            }
            (w.slow, w.slow_spill) = (true, true);
            let asked = if back {
                Request::SegmentOf { catalogue: owner, slot: lent[0].base }
            } else {
                Request::Segment { bytes: SEGMENT, slots_log2: 4 }
            };
            w.say(b.conn, &asked);
            w.dies_after = Some(done);
            w.finish_spills();
            w.finish();
            let whole = w.dies_after.take().is_some_and(|left| left > 0);
            (w.slow, w.slow_spill) = (false, false);
            w.replace_daemon(spilling(Mode::System));
            w.loud.clear();
            w.wait_ns(60_000_000_000);
            let c = w.join(1);
            assert!(c.find("x").is_some(), "after {done} things, back: {back}");
            assert!(matches!(get(&mut w, &c, (owner, &lent[0])).0, Reply::Segment { .. }), "after {done}: {back}");
            for name in ["x", "y"] {
                w.ask(&c, &Request::Delete { name: name.into() });
            }
            w.hang_up(&c);
            w.assert_empty();
            assert!(w.stored.is_empty() && w.files.is_empty(), "{:?}", w.stored);
            if whole {
                assert!(done > 2, "it was killed in between");
                break;
            }
        }
    }
}

/// Returns settings that spill from above three quarters of the pool down to half of it.
fn marked() -> Settings {
    let mut settings = spilling(Mode::User);
    settings.spill.as_mut().unwrap().marks = Some(SpillMarks { high_percent: 75, low_percent: 50 });
    settings
}

#[test]
fn above_the_high_mark_it_spills_down_to_the_low_one() {
    let mut w = World::new(marked());
    let (owner, lent) = leave(&mut w, &["a", "b", "c"]);
    assert!(w.files.is_empty(), "it is not above the mark");
    let b = w.join(1);
    assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
    assert_eq!(w.in_files(), [lent[0].segment, lent[1].segment], "no request was refused");
    assert_eq!(w.stat().bytes_in_use, 2 * SEGMENT);
    // Between the marks the daemon spills nothing.
    assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
    assert_eq!(w.files.len(), 2);
    // A segment that a reader requests comes back, and is not the first to be spilled again.
    let (reply, mem) = get(&mut w, &b, (owner, &lent[0]));
    assert!(matches!(reply, Reply::Segment { .. }));
    assert_eq!(w.in_files(), [lent[1].segment, lent[2].segment]);
    // A holder keeps it in memory; the daemon wakes up for occasional probes only.
    w.held.extend(mem);
    assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
    let before = w.core.alarm();
    w.wait_ns(60_000_000_000);
    assert_eq!(w.files.len(), 2, "the uid has no more room in files either: {before:?}");
    for name in ["a", "b", "c"] {
        w.ask(&b, &Request::Delete { name: name.into() });
    }
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn what_is_held_is_looked_at_again_later() {
    let mut w = World::new(marked());
    let (_, lent) = leave(&mut w, &["a", "b", "c"]);
    w.held.extend(lent.iter().map(|l| l.segment));
    let b = w.join(1);
    assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
    assert!(w.files.is_empty());
    w.held.clear();
    w.wait_ns(8_000_000_000);
    assert!(w.files.is_empty(), "not at once");
    w.wait_ns(4_000_000_000);
    assert_eq!(w.files.len(), 2);
    for name in ["a", "b", "c"] {
        w.ask(&b, &Request::Delete { name: name.into() });
    }
    w.hang_up(&b);
    w.assert_empty();
}

fn release_for_spill(w: &mut World, client: &Client, lent: &Lent) {
    assert_eq!(w.ask(client, &Request::Shelve { base: lent.base }), Reply::Done);
}

const FOUR: [&str; 4] = ["a", "b", "c", "d"];

#[test]
fn what_its_owner_has_released_is_spilled_while_it_lives() {
    for mode in [Mode::User, Mode::System] {
        let mut settings = spilling(mode);
        settings.spill.as_mut().unwrap().uid_bytes_max = 3 * SEGMENT;
        let mut w = World::new(settings);
        let (a, lent) = fill(&mut w, &FOUR);
        let home = a.find("a").unwrap();
        assert!(
            matches!(want(&mut w, &a), Reply::Refused(Refusal::Limit { .. })),
            "nothing is spilled that is not shelved"
        );
        release_for_spill(&mut w, &a, &lent[1]);
        release_for_spill(&mut w, &a, &lent[0]);
        assert!(w.files.is_empty(), "not before a request needs memory");
        assert!(matches!(want(&mut w, &a), Reply::Segment { .. }));
        assert_eq!(w.in_files(), [lent[0].segment], "the one lent first");
        assert_eq!((a.find("a"), w.stat().bytes_spilled, w.stat().bytes_in_use), (Some(home), SEGMENT, POOL * SEGMENT));
        // Another client's request counts as well.
        let b = w.join(1);
        assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
        assert_eq!(w.in_files(), [lent[0].segment, lent[1].segment]);
        // The owner reads it as any client does; the daemon spills others for it, if there are any.
        assert!(matches!(get(&mut w, &a, (a.number(), &lent[0])).0, Reply::Refused(Refusal::Limit { .. })));
        release_for_spill(&mut w, &a, &lent[2]);
        let (reply, mem) = get(&mut w, &a, (a.number(), &lent[0]));
        assert!(matches!(reply, Reply::Segment { .. }) && mem != Some(lent[0].segment));
        assert_eq!(w.in_files(), [lent[1].segment, lent[2].segment]);
        // The owner returns it, from a file and from memory.
        for at in [0, 1] {
            w.ask(&a, &Request::Delete { name: FOUR[at].into() });
            assert_eq!(w.ask(&a, &Request::ReturnSegment { base: lent[at].base }), Reply::Done);
        }
        w.wait_ns(1_000_000_000);
        assert_eq!(w.in_files(), [lent[2].segment]);
        // After the owner's end others read its values from a file, as from memory.
        w.hang_up(&a);
        assert!(matches!(get(&mut w, &b, (a.number(), &lent[2])).0, Reply::Segment { .. }));
        for name in ["c", "d"] {
            w.ask(&b, &Request::Delete { name: name.into() });
        }
        w.wait_ns(60_000_000_000);
        assert!(w.files.is_empty());
        w.hang_up(&b);
        w.assert_empty();
    }
}

#[test]
fn nobody_releases_segments_of_others_or_without_reason() {
    let mut w = World::new(spilling(Mode::User));
    let (a, lent) = fill(&mut w, &FOUR);
    let b = w.join(1);
    let not_found = |reply| matches!(reply, Reply::Refused(Refusal::NotFound(_)));
    assert!(not_found(w.ask(&b, &Request::Shelve { base: lent[0].base })));
    assert!(not_found(w.ask(&a, &Request::Shelve { base: lent[0].base + 1 })));
    // A client that falsely reports a release and still holds the segment keeps it in memory: the kernel decides.
    release_for_spill(&mut w, &a, &lent[0]);
    w.held.insert(lent[0].segment);
    assert!(matches!(want(&mut w, &a), Reply::Refused(Refusal::Limit { .. })));
    assert!(w.files.is_empty());
    let mut w = World::new(Settings { spill: None, ..spilling(Mode::User) });
    let (a, lent) = fill(&mut w, &FOUR);
    let answer = w.ask(&a, &Request::Shelve { base: lent[0].base });
    assert!(matches!(answer, Reply::Refused(Refusal::Limit { kind: LimitKind::Spill, .. })), "{answer:?}");
}

/// A client that falsely releases many segments uses up no tries of others; segments that count elsewhere are not spilled.
#[test]
fn a_liar_and_a_neighbour_stand_in_nobodys_way() {
    let mut settings = Settings { pool_bytes_max: 84 * SEGMENT, ..spilling(Mode::User) };
    settings.private.segments_max = 128;
    settings.spill.as_mut().unwrap().bytes_max = 84 * SEGMENT;
    settings.spill.as_mut().unwrap().uid_bytes_max = 84 * SEGMENT;
    let mut w = World::new(settings);
    let liar = w.join(1);
    let held: Vec<Lent> = (0..80).map(|_| w.segment(&liar)).collect();
    for lent in &held {
        release_for_spill(&mut w, &liar, lent);
        w.held.insert(lent.segment);
    }
    w.now_ns += 1_000_000;
    let (_, cold) = leave(&mut w, &FOUR);
    let b = w.join(1);
    assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
    assert_eq!(w.in_files(), [cold[0].segment], "half of the tries are his, and then it is another's turn");
    // At the limit of one namespace, segments of other namespaces stay in memory.
    let mut settings = spilling(Mode::System);
    (settings.uid_bytes_max, settings.pool_bytes_max) = (4 * SEGMENT, 16 * SEGMENT);
    let mut w = World::new(settings);
    leave(&mut w, &["a", "b"]);
    let other = w.join(2);
    let kind = loop {
        match want(&mut w, &other) {
            Reply::Segment { .. } => {}
            Reply::Refused(Refusal::Limit { kind, .. }) => break kind,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(kind, LimitKind::UserBytes);
    assert!(w.files.is_empty(), "segments of another uid make no room");
}

/// The owner ends, frees the segment, or returns it during the write.
#[test]
fn an_owner_that_ends_on_the_way_is_waited_for() {
    for give_back in [false, true] {
        let mut w = World::new(spilling(Mode::System));
        let (a, lent) = fill(&mut w, &FOUR);
        let b = w.join(1);
        release_for_spill(&mut w, &a, &lent[0]);
        w.slow_spill = true;
        w.now_ns += 1_000_000_000;
        w.say(b.conn, &Request::Segment { bytes: SEGMENT, slots_log2: 4 });
        assert!(w.hear(b.conn).is_none());
        if give_back {
            w.ask(&a, &Request::Delete { name: "a".into() });
            assert_eq!(w.ask(&a, &Request::ReturnSegment { base: lent[0].base }), Reply::Done);
        } else {
            // The client may still write, as far as the daemon knows.
            w.loud.insert(lent[0].segment);
            w.hang_up(&a);
        }
        w.finish_spills();
        assert!(w.files.is_empty(), "give_back: {give_back}");
        w.loud.clear();
        w.slow_spill = false;
        w.wait_ns(60_000_000_000);
        match w.hear(b.conn) {
            Some((Reply::Segment { .. }, _)) => w.say(b.conn, &Request::Ack),
            Some((Reply::Refused(Refusal::Limit { .. }), _)) if !give_back => {
                assert!(matches!(want(&mut w, &b), Reply::Segment { .. }), "it is known to be quiet now");
                assert_eq!(w.files.len(), 1);
            }
            other => panic!("{other:?}, give_back: {give_back}"),
        }
        if give_back {
            w.hang_up(&a);
        }
        for name in FOUR {
            w.ask(&b, &Request::Delete { name: name.into() });
        }
        w.hang_up(&b);
        w.wait_ns(60_000_000_000);
        w.assert_empty();
    }
}

/// If the fd store has the file, its owner continues with it, and its segments count as released as the owner reports.
#[test]
fn released_segments_outlive_the_daemon() {
    for mode in [Mode::User, Mode::System] {
        let mut w = World::new(spilling(mode));
        let (mut a, lent) = fill(&mut w, &FOUR);
        let bases: Vec<u32> = lent.iter().map(|it| it.base).collect();
        release_for_spill(&mut w, &a, &lent[0]);
        release_for_spill(&mut w, &a, &lent[1]);
        let b = w.join(1);
        assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
        w.hang_up(&b);
        w.replace_daemon(spilling(mode));
        let shelved = bases[..2].to_vec();
        assert!(matches!(w.come_back_with(&mut a, Some(bases), shelved), Reply::Welcome(_)));
        assert_eq!((w.in_files(), w.stat().bytes_spilled), (vec![lent[0].segment], SEGMENT));
        for _ in 0..2 {
            assert!(matches!(want(&mut w, &a), Reply::Segment { .. }), "the other one goes");
        }
        assert_eq!(w.in_files(), [lent[0].segment, lent[1].segment]);
        w.ask(&a, &Request::Delete { name: "d".into() });
        assert_eq!(w.ask(&a, &Request::ReturnSegment { base: lent[3].base }), Reply::Done);
        w.wait_ns(1_000_000_000);
        assert!(matches!(get(&mut w, &a, (a.number(), &lent[0])).0, Reply::Segment { .. }));
    }
}

/// Without an fd store, readers lose the file's values. The owner continues with the segments that it reports as released, and
/// with no others.
#[test]
fn only_released_segments_may_be_lost() {
    for tells in [true, false] {
        let mut w = World::new(spilling(Mode::User));
        let (mut a, lent) = fill(&mut w, &FOUR);
        let bases: Vec<u32> = lent.iter().map(|it| it.base).collect();
        release_for_spill(&mut w, &a, &lent[0]);
        let b = w.join(1);
        assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
        w.hang_up(&b);
        w.stored.retain(|_, label| !matches!(label, Label::Spilled { .. }));
        w.replace_daemon(spilling(Mode::User));
        let shelved = if tells { vec![lent[0].base] } else { Vec::new() };
        let answer = w.come_back_with(&mut a, Some(bases), shelved);
        if !tells {
            assert!(matches!(answer, Reply::Refused(Refusal::NotFound(_))), "its segments do not exist");
            continue;
        }
        assert!(matches!(answer, Reply::Welcome(_)));
        assert_eq!((w.stat().bytes_spilled, w.stat().bytes_in_use), (0, 3 * SEGMENT));
        let (reply, _) = get(&mut w, &a, (a.number(), &lent[0]));
        let Reply::Refused(Refusal::Memory { reason, .. }) = reply else { panic!("it is lost: {reply:?}") };
        assert!(reason.contains("daemon was replaced"), "{reason}");
        // The daemon does not lend its numbers again before the owner returns them.
        let new = w.segment(&a);
        assert_ne!(new.base, lent[0].base);
        assert_eq!(w.ask(&a, &Request::ReturnSegment { base: new.base }), Reply::Done);
        w.wait_ns(1_000_000_000);
        w.ask(&a, &Request::Delete { name: "b".into() });
        assert_eq!(w.ask(&a, &Request::ReturnSegment { base: lent[1].base }), Reply::Done);
        assert!(a.find("a").is_some(), "the owner must free it");
        // The owner's end removes the names that led there.
        w.loud.clear();
        w.hang_up(&a);
        w.wait_ns(60_000_000_000);
        assert!(a.find("a").is_none() && a.find("c").is_some());
        let b = w.join(1);
        for name in ["c", "d"] {
            w.ask(&b, &Request::Delete { name: name.into() });
        }
        w.hang_up(&b);
        w.wait_ns(60_000_000_000);
        w.assert_empty();
        assert!(w.stored.is_empty(), "{:?}", w.stored);
    }
}

/// The marks spill released segments, too, but not while their owner is about to unmap them.
#[test]
fn above_the_high_mark_released_segments_are_spilled_a_little_later() {
    let mut w = World::new(marked());
    let (a, lent) = fill(&mut w, &FOUR);
    w.held.insert(lent[0].segment);
    release_for_spill(&mut w, &a, &lent[0]);
    release_for_spill(&mut w, &a, &lent[1]);
    assert!(w.files.is_empty());
    w.held.clear();
    w.wait_ns(100_000_000);
    assert_eq!(w.in_files(), [lent[0].segment, lent[1].segment], "down to the low mark");
    assert_eq!(w.stat().refusals, 0);
}
