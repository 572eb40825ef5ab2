//! Segments that the daemon asks clients to let go of.

use super::*;
use tensorlend_layout::number::SegmentLine;
use tensorlend_layout::versions::Layout;

/// Returns true if the directory has the bit of this segment.
fn is_wanted(client: &Client, lent: &Lent) -> bool {
    use tensorlend_layout::word::RangeWord;
    let lines = client.directory.segments.iter().enumerate();
    let mut of_it = lines.filter(|(_, line)| RangeWord(line.range.peek()).is_lent());
    // Each test's segments belong to one client.
    let at = of_it.find(|(_, line)| RangeWord(line.range.peek()).base() == lent.base).expect("it is lent").0;
    client.directory.head().wants_out(SegmentLine::new(at as u32))
}

fn ask_for_room(w: &mut World, client: &Client) -> Option<Reply> {
    w.now_ns += 1_000_000_000;
    w.say(client.conn, &Request::Segment { bytes: SEGMENT, slots_log2: 4 });
    let (reply, lend) = w.hear(client.conn)?;
    if !lend.is_empty() {
        w.say(client.conn, &Request::Ack);
    }
    Some(reply)
}

#[test]
fn a_request_waits_until_readers_have_let_go() {
    let mut w = World::new(spilling(Mode::User));
    let (_, lent) = leave(&mut w, &["x", "y"]);
    let b = w.join(1);
    let rung = b.directory.head().wanted_out.read();
    assert_ne!(rung, 0, "clients can see that this daemon spills");
    w.held.extend(lent.iter().map(|l| l.segment));
    for _ in 0..2 {
        assert!(matches!(ask_for_room(&mut w, &b), Some(Reply::Segment { .. })));
    }
    assert!(!b.directory.head().wants_any_out());
    assert!(ask_for_room(&mut w, &b).is_none(), "it waits");
    assert!(lent.iter().all(|l| is_wanted(&b, l)));
    assert!(b.directory.head().wanted_out.read() != rung && w.wanted_woken == 1);
    w.wait_ns(50_000_000);
    assert!(w.hear(b.conn).is_none());
    w.held.remove(&lent[1].segment);
    w.wait_ns(20_000_000);
    assert!(matches!(w.hear(b.conn), Some((Reply::Segment { .. }, _))));
    w.say(b.conn, &Request::Ack);
    assert_eq!(w.in_files(), [lent[1].segment]);
    assert!(!is_wanted(&b, &lent[1]), "its bytes are in a file");
    w.hang_up(&b);
}

#[test]
fn clients_that_ignore_it_delay_a_request_once() {
    let mut w = World::new(spilling(Mode::User));
    let (owner, lent) = leave(&mut w, &["x", "y", "z"]);
    let b = w.join(1);
    w.held.extend(lent.iter().map(|l| l.segment));
    assert!(matches!(ask_for_room(&mut w, &b), Some(Reply::Segment { .. })));
    assert!(ask_for_room(&mut w, &b).is_none());
    w.wait_ns(400_000_000);
    assert!(matches!(w.refusal(b.conn), Refusal::Limit { .. }));
    assert!(matches!(ask_for_room(&mut w, &b), Some(Reply::Refused(Refusal::Limit { .. }))), "at once");
    // A segment that is lent to another reader is no longer wanted.
    let c = w.join(1);
    assert!(is_wanted(&b, &lent[0]));
    assert!(matches!(get(&mut w, &c, (owner, &lent[0])).0, Reply::Segment { .. }));
    assert!(!is_wanted(&b, &lent[0]) && is_wanted(&b, &lent[1]));
    for client in [&b, &c] {
        w.hang_up(client);
    }
}

#[test]
fn living_owners_are_asked_to_release() {
    let mut w = World::new(spilling(Mode::User));
    let (a, lent) = fill(&mut w, &["x", "y"]);
    let b = w.join(2);
    for _ in 0..2 {
        assert!(matches!(ask_for_room(&mut w, &b), Some(Reply::Segment { .. })));
    }
    assert!(ask_for_room(&mut w, &b).is_none(), "it waits");
    // Each user has a namespace of its own.
    assert!(lent.iter().all(|l| is_wanted(&a, l)));
    assert!(!b.directory.head().wants_any_out(), "the requester waits and cannot release");
    assert_eq!(w.ask(&a, &Request::ReleaseForSpill { base: lent[0].base }), Reply::Done);
    w.wait_ns(20_000_000);
    assert!(matches!(w.hear(b.conn), Some((Reply::Segment { .. }, _))));
    w.say(b.conn, &Request::Ack);
    assert_eq!(w.in_files(), [lent[0].segment]);
    for client in [&a, &b] {
        w.hang_up(client);
    }
}

/// The daemon does not ask an owner that waits for a reply, or whose layout has no such word.
#[test]
fn owners_that_cannot_release_are_not_asked() {
    let mut w = World::new(spilling(Mode::User));
    let (a, _) = fill(&mut w, &["x", "y", "z", "v"]);
    let asked = ask_for_room(&mut w, &a);
    assert!(matches!(asked, Some(Reply::Refused(Refusal::Limit { .. }))), "nobody else has memory: {asked:?}");

    let mut w = World::new(spilling(Mode::User));
    w.layout = Layout::OLDEST;
    fill(&mut w, &["x", "y", "z", "v"]);
    w.layout = Layout::CURRENT;
    let b = w.join(2);
    assert!(matches!(ask_for_room(&mut w, &b), Some(Reply::Refused(Refusal::Limit { .. }))));
}

#[test]
fn above_the_high_mark_readers_are_asked_first() {
    let mut w = World::new(marked());
    let (_, lent) = leave(&mut w, &["a", "b", "c"]);
    let b = w.join(1);
    w.held.extend(lent.iter().map(|l| l.segment));
    assert!(matches!(ask_for_room(&mut w, &b), Some(Reply::Segment { .. })));
    w.wait_ns(100_000_000);
    assert!(lent.iter().all(|l| is_wanted(&b, l)));
    w.held.clear();
    w.wait_ns(100_000_000);
    assert!(w.stat().bytes_spilled > 0);
}

/// A daemon of an earlier version changes the segments, but not these words.
#[test]
fn the_next_daemon_begins_without_wishes() {
    let mut w = World::new(Settings { mode: Mode::System, ..spilling(Mode::System) });
    leave(&mut w, &["x"]);
    let b = w.join(1);
    b.directory.head().want_out(SegmentLine::new(0), true);
    w.replace_daemon(Settings { mode: Mode::System, ..spilling(Mode::System) });
    assert!(!b.directory.head().wants_any_out());
}
