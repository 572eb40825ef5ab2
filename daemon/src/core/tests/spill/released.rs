//! Segments that their owner has released are spilled while it lives.

use super::*;
use tensorlend_layout::number::SlotNo;

fn release_for_spill(w: &mut World, client: &Client, lent: &Lent) {
    assert_eq!(w.ask(client, &Request::ReleaseForSpill { base: lent.base }), Reply::Done);
}

const FOUR: [&str; 4] = ["a", "b", "c", "d"];

#[test]
fn what_its_owner_has_released_is_spilled_while_it_lives() {
    for mode in [Mode::User, Mode::System] {
        let mut settings = spilling(mode);
        settings.spill.as_mut().unwrap().uid_bytes_max = 3 * SEGMENT;
        let mut w = World::new(settings);
        let (a, lent) = fill(&mut w, &FOUR);
        let owner_word = a.find("a").unwrap();
        assert!(
            matches!(want(&mut w, &a), Reply::Refused(Refusal::Limit { .. })),
            "nothing is spilled that is not shelved"
        );
        release_for_spill(&mut w, &a, &lent[1]);
        release_for_spill(&mut w, &a, &lent[0]);
        assert!(w.files.is_empty(), "not before a request needs memory");
        assert!(matches!(want(&mut w, &a), Reply::Segment { .. }));
        assert_eq!(w.in_files(), [lent[0].segment], "the one lent first");
        assert_eq!(
            (a.find("a"), w.stat().bytes_spilled, w.stat().bytes_in_use),
            (Some(owner_word), SEGMENT, POOL * SEGMENT)
        );
        // A request of another client makes the daemon spill, too.
        let b = w.join(1);
        assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
        assert_eq!(w.in_files(), [lent[0].segment, lent[1].segment]);
        // The owner requests the spilled segment as any client does. The daemon spills other released segments to make room, if
        // there are any.
        assert!(matches!(get(&mut w, &a, (a.number(), &lent[0])).0, Reply::Refused(Refusal::Limit { .. })));
        release_for_spill(&mut w, &a, &lent[2]);
        let (reply, mem) = get(&mut w, &a, (a.number(), &lent[0]));
        assert!(matches!(reply, Reply::Segment { .. }) && mem != Some(lent[0].segment));
        assert_eq!(w.in_files(), [lent[1].segment, lent[2].segment]);
        // The owner returns a segment that is in a file, and one that is in memory.
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
    assert!(not_found(w.ask(&b, &Request::ReleaseForSpill { base: lent[0].base })));
    assert!(not_found(w.ask(&a, &Request::ReleaseForSpill { base: lent[0].base + 1 })));
    // A client that falsely reports a release and still holds the segment keeps it in memory: the kernel decides.
    release_for_spill(&mut w, &a, &lent[0]);
    w.held.insert(lent[0].segment);
    assert!(matches!(want(&mut w, &a), Reply::Refused(Refusal::Limit { .. })));
    assert!(w.files.is_empty());
    let mut w = World::new(Settings { spill: None, ..spilling(Mode::User) });
    let (a, lent) = fill(&mut w, &FOUR);
    let answer = w.ask(&a, &Request::ReleaseForSpill { base: lent[0].base });
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
        let bases: Vec<SlotNo> = lent.iter().map(|it| it.base).collect();
        release_for_spill(&mut w, &a, &lent[0]);
        release_for_spill(&mut w, &a, &lent[1]);
        let b = w.join(1);
        assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
        w.hang_up(&b);
        w.replace_daemon(spilling(mode));
        let released = bases[..2].to_vec();
        assert!(matches!(w.come_back_with(&mut a, Some(bases), released), Reply::Welcome(_)));
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
        let bases: Vec<SlotNo> = lent.iter().map(|it| it.base).collect();
        release_for_spill(&mut w, &a, &lent[0]);
        let b = w.join(1);
        assert!(matches!(want(&mut w, &b), Reply::Segment { .. }));
        w.hang_up(&b);
        w.stored.retain(|_, label| !matches!(label, Label::Spilled { .. }));
        w.replace_daemon(spilling(Mode::User));
        let released = if tells { vec![lent[0].base] } else { Vec::new() };
        let answer = w.come_back_with(&mut a, Some(bases), released);
        if !tells {
            assert!(matches!(answer, Reply::Refused(Refusal::NotFound(_))), "its segments do not exist");
            continue;
        }
        assert!(matches!(answer, Reply::Welcome(_)));
        assert_eq!((w.stat().bytes_spilled, w.stat().bytes_in_use), (0, 3 * SEGMENT));
        let (reply, _) = get(&mut w, &a, (a.number(), &lent[0]));
        let Reply::Refused(Refusal::Memory { reason, .. }) = reply else { panic!("it is lost: {reply:?}") };
        assert!(reason.contains("daemon was replaced"), "{reason}");
        // The daemon does not lend the segment's slot numbers again before the owner returns the segment.
        let new = w.segment(&a);
        assert_ne!(new.base, lent[0].base);
        assert_eq!(w.ask(&a, &Request::ReturnSegment { base: new.base }), Reply::Done);
        w.wait_ns(1_000_000_000);
        w.ask(&a, &Request::Delete { name: "b".into() });
        assert_eq!(w.ask(&a, &Request::ReturnSegment { base: lent[1].base }), Reply::Done);
        assert!(a.find("a").is_some(), "the owner must free it");
        // The owner's end removes the names that led to the lost segment.
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
    assert_eq!(w.stat().refusals.total(), 0);
}
