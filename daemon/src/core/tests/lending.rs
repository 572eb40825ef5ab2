use super::super::effects::PROMPT_SEGMENT_BYTES_MAX;
use super::super::settings::Settings;
use super::world::{SEGMENT, World, settings};
use crate::core::settings::Mode;
use tensorlend_layout::header::{Magic, SheetHeader};
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::wire::{LimitKind, Refusal, Reply, Request};
use tensorlend_layout::word::{Cell, RangeWord};

const SEGMENT_REQUEST: Request = Request::Segment { bytes: SEGMENT, slots_log2: 4 };

fn limit(reply: Reply) -> LimitKind {
    match reply {
        Reply::Refused(Refusal::Limit { kind, .. }) => kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn segments_have_ranges_and_readers_get_them_after_the_writer() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let first = w.segment(&a);
    assert_eq!(first.base, SlotNo::new(0));
    let header: &SheetHeader = first.slots.at(0).unwrap();
    SheetHeader::check(&first.slots, Magic::Slots).unwrap();
    assert_eq!((header.owner.peek(), header.count.peek(), header.first.peek()), (1, 16, 0));
    assert!(w.sealed.contains(&first.segment), "user mode seals the segment");
    let big = w.ask(&a, &Request::Segment { bytes: 3 * SEGMENT + 1, slots_log2: 6 });
    assert!(
        matches!(big, Reply::Segment { bytes, base, slots_log2: 6, .. } if (bytes, base.get()) == (3 * SEGMENT + 4096, 64)),
        "{big:?}"
    );
    assert_eq!(w.segment(&a).base, SlotNo::new(16), "the gap is used");
    let range = RangeWord(a.directory.segments[0].range.peek());
    assert_eq!((range.is_lent(), range.owner().get(), range.base().get(), range.slots()), (true, 1, 0, 16));
    assert_eq!(a.directory.head().bytes_lent.peek(), 5 * SEGMENT + 4096);
    assert_eq!(a.directory.members[1].bytes.peek(), 5 * SEGMENT + 4096);
    let found = w.ask(&b, &Request::SegmentOf { owner: ClientNo::new(1), slot: SlotNo::new(100) });
    assert!(matches!(found, Reply::Segment { base, .. } if base.get() == 64));
    let none = w.ask(&b, &Request::SegmentOf { owner: ClientNo::new(1), slot: SlotNo::new(33) });
    assert!(matches!(none, Reply::Refused(Refusal::NotFound(_))));
    w.say(a.conn, &SEGMENT_REQUEST);
    w.say(b.conn, &Request::SegmentOf { owner: ClientNo::new(1), slot: SlotNo::new(32) });
    assert!(matches!(w.refusal(b.conn), Refusal::NotFound(_)), "its writer has not mapped it");
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn a_spare_is_lent_at_once_and_replaced() {
    let mut w = World::new(settings());
    assert_eq!(w.stat().bytes_spare, SEGMENT);
    let a = w.join(1);
    w.slow = true;
    w.segment(&a);
    assert_eq!((w.stat().bytes_spare, w.orders.len()), (0, 0));
    w.wait_ns(20_000_000);
    assert_eq!((w.stat().bytes_spare, w.orders.len()), (0, 1));
    w.say(a.conn, &SEGMENT_REQUEST);
    assert!(w.hear(a.conn).is_none());
    assert_eq!(w.orders.len(), 1, "the spare on its way is taken");
    w.wait_ns(20_000_000);
    assert_eq!(w.orders.len(), 2, "and another one ordered");
    w.finish();
    assert!(matches!(w.hear(a.conn), Some((Reply::Segment { .. }, _))));
    w.say(a.conn, &Request::Ack);
    assert_eq!(w.stat().bytes_spare, SEGMENT);
    w.slow = true;
    w.say(a.conn, &Request::Segment { bytes: 2 * SEGMENT, slots_log2: 4 });
    w.hang_up(&a);
    w.finish();
    w.slow = false;
    w.assert_empty();
}

#[test]
fn a_short_segment_does_not_wait_for_a_worker() {
    let mut w = World::new(settings());
    let a = w.join(1);
    w.slow = true;
    let waiting = w.orders.len();
    w.say(a.conn, &Request::Segment { bytes: PROMPT_SEGMENT_BYTES_MAX, slots_log2: 4 });
    assert!(matches!(w.hear(a.conn), Some((Reply::Segment { .. }, _))));
    w.say(a.conn, &Request::Ack);
    w.say(a.conn, &Request::Segment { bytes: PROMPT_SEGMENT_BYTES_MAX + 1, slots_log2: 4 });
    assert!(w.hear(a.conn).is_none());
    assert_eq!(w.orders.len(), waiting + 1);
    w.finish();
    assert!(matches!(w.hear(a.conn), Some((Reply::Segment { .. }, _))));
    w.say(a.conn, &Request::Ack);
    w.hang_up(&a);
    w.slow = false;
    w.assert_empty();
}

#[test]
fn limits_are_named_and_charges_come_back() {
    let mut s = settings();
    s.uid_bytes_max = 64 * SEGMENT;
    let mut w = World::new(s);
    let a = w.join(1);
    for _ in 0..16 {
        w.segment(&a);
    }
    assert_eq!(w.stat().bytes_spare, 0, "the spare went for it");
    assert_eq!(limit(w.ask(&a, &SEGMENT_REQUEST)), LimitKind::Segments);
    assert_eq!(w.ask(&a, &Request::ReturnSegment { base: SlotNo::new(0) }), Reply::Done);
    let two = Request::Segment { bytes: 2 * SEGMENT, slots_log2: 4 };
    assert_eq!(limit(w.ask(&a, &two)), LimitKind::PoolBytes);
    let huge = Request::Segment { bytes: 1 << 50, slots_log2: 4 };
    assert_eq!(limit(w.ask(&a, &huge)), LimitKind::UserBytes);
    assert!(matches!(w.ask(&a, &Request::Segment { bytes: u64::MAX, slots_log2: 4 }), Reply::Refused(_)));
    assert!(matches!(w.ask(&a, &Request::Segment { bytes: 1, slots_log2: 21 }), Reply::Refused(Refusal::Bad(_))));
    w.bytes_max = 8192;
    let more = w.ask(&a, &SEGMENT_REQUEST);
    assert!(
        matches!(more, Reply::Refused(Refusal::Memory { bytes: SEGMENT, .. })) || matches!(more, Reply::Segment { .. })
    );
    w.bytes_max = u64::MAX;
    w.hang_up(&a);
    w.assert_empty();
}

#[test]
fn no_memory_is_an_answer_and_nothing_is_lost() {
    let mut w = World::new(settings());
    let a = w.join(1);
    w.segment(&a);
    let before = (w.stat(), w.memory.len());
    w.bytes_max = 64 << 10;
    let request = Request::Segment { bytes: 2 * SEGMENT, slots_log2: 4 };
    let refused = w.ask(&a, &request);
    assert!(matches!(refused, Reply::Refused(Refusal::Memory { bytes, .. }) if bytes == 2 * SEGMENT));
    assert_eq!((w.stat().bytes_in_use, w.memory.len()), (before.0.bytes_in_use, before.1));
    w.bytes_max = u64::MAX;
    assert!(matches!(w.ask(&a, &request), Reply::Segment { .. }));
    w.hang_up(&a);
    w.assert_empty();
}

#[test]
fn a_segment_goes_back_unless_it_is_leased() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    let geometry = a.directory.members[1].geometry.peek();
    let back = Request::ReturnSegment { base: lent.base };
    for slot in [0, 3, (1 << 4) - 1] {
        b.lease(0, a.number(), Cell::new(1, lent.base + slot));
        assert!(
            matches!(w.ask(&a, &back), Reply::Refused(Refusal::Bad(why)) if why.contains("still leased")),
            "{slot}"
        );
    }
    // A lease on the next segment's first slot does not count.
    b.lease(0, a.number(), Cell::new(1, lent.base + (1 << 4)));
    assert_eq!(w.ask(&a, &back), Reply::Done);
    b.release(0);
    assert!(matches!(w.ask(&a, &back), Reply::Refused(Refusal::NotFound(_))));
    assert!(a.directory.members[1].geometry.peek() > geometry);
    assert!(!w.memory.contains_key(&lent.segment), "user mode frees it");
    assert!(!RangeWord(a.directory.segments[0].range.peek()).is_lent());
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn system_mode_lends_quiescent_segments_again_within_their_namespace() {
    let mut s = settings();
    s.mode = Mode::System;
    s.spare_segments = 0;
    let mut w = World::new(s);
    let (a, stranger) = (w.join(1), w.join(7));
    let lent = w.segment(&a);
    assert!(!w.sealed.contains(&lent.segment));
    w.loud.insert(lent.segment);
    assert_eq!(w.ask(&a, &Request::ReturnSegment { base: lent.base }), Reply::Done);
    w.wait_ns(2_000_000_000);
    assert_eq!(w.stat().bytes_in_use, SEGMENT, "a process may still write it, so it stays charged");
    let kept = lent.segment;
    let lent = w.segment(&a);
    assert_ne!(lent.segment, kept);
    w.loud.clear();
    assert_eq!(w.ask(&a, &Request::ReturnSegment { base: lent.base }), Reply::Done);
    w.wait_ns(10_000_000);
    assert!(w.memory.contains_key(&lent.segment));
    assert_ne!(w.segment(&stranger).segment, lent.segment);
    assert_eq!(w.segment(&a).segment, lent.segment);
    w.hang_up(&a);
    w.hang_up(&stranger);
    w.assert_empty();
}

#[test]
fn cells_come_in_parts() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    assert!(matches!(w.ask(&a, &Request::GrowCells), Reply::Cells { part: 1, .. }));
    assert!(matches!(w.ask(&b, &Request::CellsOf { client: ClientNo::new(1), part: 1 }), Reply::Cells { part: 1, .. }));
    assert!(matches!(
        w.ask(&b, &Request::CellsOf { client: ClientNo::new(1), part: 2 }),
        Reply::Refused(Refusal::NotFound(_))
    ));
    assert!(matches!(
        w.ask(&b, &Request::CellsOf { client: ClientNo::new(7), part: 0 }),
        Reply::Refused(Refusal::NotFound(_))
    ));
    for part in 2..=4 {
        assert_eq!(w.ask(&a, &Request::GrowCells), Reply::Cells { part, geometry: 1 });
    }
    assert_eq!(limit(w.ask(&a, &Request::GrowCells)), LimitKind::Cells);
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn a_small_segment_is_as_small_as_asked_for() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let most = SEGMENT / 8 * 7;
    for (asked, given) in [(1, 4096), (most, most), (most + 1, SEGMENT)] {
        let reply = w.ask(&a, &Request::Segment { bytes: asked, slots_log2: 4 });
        assert!(matches!(reply, Reply::Segment { bytes, .. } if bytes == given), "{asked}: {reply:?}");
    }
    w.hang_up(&a);
    w.assert_empty();
}

#[test]
fn the_last_numbers_are_for_those_who_publish_nothing() {
    let mut w = World::new(Settings { uid_sessions_max: 20, ..settings() });
    let publishers: Vec<_> = (0..7).map(|_| w.join(1)).collect();
    for publisher in &publishers {
        w.segment(publisher);
    }
    let last = w.join(1);
    assert_eq!(limit(w.ask(&last, &SEGMENT_REQUEST)), LimitKind::Members);
    w.segment(&publishers[0]);
    assert!(matches!(w.ask(&last, &Request::Delete { name: "x".into() }), Reply::Deleted { existed: false }));
    for client in publishers.iter().chain([&last]) {
        w.hang_up(client);
    }
    w.assert_empty();
}
