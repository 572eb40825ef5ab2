//! Segments that the daemon writes to files and recalls.

use super::world::{Answer, Client, Lent, SEGMENT, World, settings};
use crate::core::label::Label;
use crate::core::settings::{Mode, Settings, SpillMarks, SpillSettings};
use crate::core::{Effect, Event, MemId, Unwritten};
use tensorlend_layout::number::{CellNo, ClientNo};
use tensorlend_layout::wire::{Inspect, Inspected, LimitKind, PROTOCOL_VERSION, Refusal, Reply, Request, View, encode};
use tensorlend_layout::word::Cell;

const POOL: u64 = 4;

mod released;
mod restart;
mod wanted;

fn spilling(mode: Mode) -> Settings {
    let spill =
        SpillSettings { directory: "/nowhere".into(), bytes_max: 3 * SEGMENT, uid_bytes_max: 2 * SEGMENT, marks: None };
    Settings { mode, pool_bytes_max: POOL * SEGMENT, spare_segments: 0, spill: Some(spill), ..settings() }
}

impl World {
    /// Returns the memory that has been written to files.
    pub fn in_files(&self) -> Vec<MemId> {
        self.files.values().map(|&(mem, _)| mem).collect()
    }
}

/// Returns a client that has a value in a segment of its own under each of these names.
fn fill(w: &mut World, names: &[&str]) -> (Client, Vec<Lent>) {
    let client = w.join(1);
    let lent = names.iter().enumerate().map(|(cell, name)| {
        w.now_ns += 1000;
        let lent = w.segment(&client);
        lent.write(lent.base, 1, None);
        w.bind(&client, name, CellNo::new(cell as u32), Cell::new(1, lent.base));
        lent
    });
    let lent = lent.collect();
    (client, lent)
}

/// Does the same as [`fill`], with a client that ends afterwards.
fn leave(w: &mut World, names: &[&str]) -> (ClientNo, Vec<Lent>) {
    let (client, lent) = fill(w, names);
    w.hang_up(&client);
    (client.number(), lent)
}

fn want(w: &mut World, client: &Client) -> Reply {
    w.now_ns += 1_000_000_000;
    ask_patiently(w, client, &Request::Segment { bytes: SEGMENT, slots_log2: 4 }).0
}

/// Sends a request. A request that cannot be granted may first wait for clients to let go of memory.
fn ask_patiently(w: &mut World, client: &Client, request: &Request) -> Answer {
    w.say(client.conn, request);
    let mut answer = w.hear(client.conn);
    if answer.is_none() {
        w.wait_ns(1_000_000_000);
        answer = w.hear(client.conn);
    }
    let answer = answer.expect("answered");
    if !answer.1.is_empty() {
        w.say(client.conn, &Request::Ack);
    }
    answer
}

fn get(w: &mut World, client: &Client, (owner, lent): (ClientNo, &Lent)) -> (Reply, Option<MemId>) {
    w.now_ns += 1_000_000_000;
    let (reply, lend) = ask_patiently(w, client, &Request::SegmentOf { owner, slot: lent.base });
    (reply, lend.first().map(|&(mem, _)| mem))
}

#[test]
fn what_nobody_holds_goes_when_memory_is_short_and_comes_back() {
    for mode in [Mode::User, Mode::System] {
        let mut w = World::new(spilling(mode));
        let (owner, lent) = leave(&mut w, &["old", "new"]);
        let b = w.join(1);
        let owner_word = b.find("old").unwrap();
        assert_eq!(w.stat().bytes_spilled, 0);
        for _ in 0..POOL - 1 {
            assert!(matches!(want(&mut w, &b), Reply::Segment { .. }), "spilled for it");
        }
        assert_eq!((w.stat().bytes_spilled, w.stat().bytes_in_use), (SEGMENT, POOL * SEGMENT));
        assert_eq!(w.in_files(), [lent[0].segment], "the one lent first");
        assert_eq!(b.find("old"), Some(owner_word), "no shared word tells of it");

        // The daemon spills the other segment to make room for the requested one.
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
            w.bind(&client, &format!("v{number}"), CellNo::new(0), Cell::new(1, lent.base));
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
    // This deletion makes room for the recall.
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
    // The same happens during a recall.
    w.say(b.conn, &Request::Segment { bytes: SEGMENT, slots_log2: 4 });
    w.finish_spills();
    w.finish_spills();
    assert!(matches!(w.hear(b.conn), Some((Reply::Segment { .. }, _))), "{:?}", w.stat());
    w.say(b.conn, &Request::Ack);
    assert_eq!(w.in_files(), [lent[1].segment]);
    w.ask(&c, &Request::Delete { name: "z".into() });
    w.wait_ns(2_000_000_000);
    w.slow = true;
    w.say(c.conn, &Request::SegmentOf { owner, slot: lent[1].base });
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
    // The readers keep the segment longer than the daemon waits.
    w.wait_ns(1_000_000_000);
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

/// The folder and its free space are for administrators and observers, and in user mode for everybody.
#[test]
fn a_failure_names_the_folder_only_to_those_who_may_see_it() {
    for (mode, uid, is_shown) in
        [(Mode::System, 1, false), (Mode::System, 9, true), (Mode::System, 0, true), (Mode::User, 1, true)]
    {
        let mut w = World::new(spilling(mode));
        leave(&mut w, &["a", "b", "c", "d"]);
        let client = w.join(uid);
        w.now_ns += 1_000_000_000;
        let request = encode(&Request::Segment { bytes: SEGMENT, slots_log2: 4 });
        let packet = Event::Packet { conn: client.conn, bytes: request, descriptors: 0, truncated: false };
        let mut effects = w.core.step(w.now_ns, packet);
        let error = loop {
            let reply = effects.iter().find_map(|effect| match effect {
                Effect::Send { reply: Reply::Refused(refusal), .. } => Some(refusal.to_string()),
                _ => None,
            });
            if let Some(error) = reply {
                break error;
            }
            let file = effects.iter().find_map(|effect| match effect {
                Effect::Spill { file, .. } => Some(*file),
                _ => None,
            });
            let event = file.map_or(Event::Alarm, |file| {
                let written = Err(Unwritten { reason: "disk full".into(), place: "in /nowhere".into() });
                Event::Spilled { file, written }
            });
            w.now_ns += 100_000_000;
            effects = w.core.step(w.now_ns, event);
        };
        assert!(error.contains("cannot spill to disk (disk full"), "{error}");
        assert_eq!(error.contains("/nowhere"), is_shown, "{mode:?}, uid {uid}: {error}");
        let own = Inspect { protocol_min: PROTOCOL_VERSION, protocol_max: PROTOCOL_VERSION, view: View::Health };
        let Reply::Inspected(Inspected::Health { health, .. }) = w.ask(&client, &Request::Inspect(own)) else {
            panic!()
        };
        let reason = health.spill.expect("it fails").reason;
        assert!(reason.contains("disk full"), "{reason}");
        assert_eq!(reason.contains("/nowhere"), is_shown, "{mode:?}, uid {uid}: {reason}");
    }
}
