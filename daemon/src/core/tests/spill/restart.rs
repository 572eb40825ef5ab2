//! Another daemon continues with segments that are in files.

use super::*;
use tensorlend_layout::number::ClientNo;

/// Returns three names, two of which are in files, and the client that has filled the pool since.
fn two_in_files(mode: Mode) -> (World, ClientNo, Vec<Lent>, Client) {
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
    // This is the state of a daemon that was killed after it had stored the file and before it removed the memory.
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

/// The daemon is killed after each effect of an event: each time, every value is in memory or in a file.
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
                Request::SegmentOf { owner, slot: lent[0].base }
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
