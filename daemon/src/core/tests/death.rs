use super::world::{Client, World, settings};
use crate::core::event::MemId;
use crate::core::label::Label;
use crate::core::settings::{Mode, Settings};
use tensorlend_layout::number::{CellNo, ClientNo, SlotNo};
use tensorlend_layout::wire::{Refusal, Reply, Request};
use tensorlend_layout::word::{Cell, Member, MemberState, OwnerWord};

fn delete(name: &str) -> Request {
    Request::Delete { name: name.into() }
}

#[test]
fn drafts_go_and_what_was_published_stays() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let (draft, published) = (w.segment(&a), w.segment(&a));
    draft.write(draft.base, 1, None);
    published.write(published.base, 1, None);
    w.bind(&a, "x", CellNo::new(0), Cell::new(1, published.base));
    w.bind(&a, "deleted", CellNo::new(1), Cell::DELETED);
    w.hang_up(&a);
    let stat = w.stat();
    assert_eq!((stat.segments, stat.names, stat.clients, stat.frozen), (1, 1, 1, 1));
    assert_eq!(Member(b.directory.members[1].member.peek()).state(), MemberState::Closed);
    assert_eq!(b.find("x").map(OwnerWord::owner), Some(ClientNo::new(1)));
    assert_eq!(b.find("deleted"), None);
    let of = |slot| Request::SegmentOf { owner: ClientNo::new(1), slot };
    assert!(matches!(w.ask(&b, &of(published.base)), Reply::Segment { .. }));
    assert!(matches!(w.ask(&b, &of(draft.base)), Reply::Refused(Refusal::NotFound(_))));
    assert!(matches!(w.ask(&b, &Request::LeasesOf { client: ClientNo::new(1) }), Reply::Refused(Refusal::NotFound(_))));
    assert_eq!(w.ask(&b, &delete("x")), Reply::Deleted { existed: true });
    w.wait_ns(100_000_000);
    let stat = w.stat();
    assert_eq!((stat.segments, stat.frozen), (0, 0));
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn a_chain_and_a_lease_keep_their_segments() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let (one, two, three) = (w.segment(&a), w.segment(&a), w.segment(&a));
    one.write(one.base, 7, Some(two.base + 1));
    // The daemon stops following a circular chain.
    two.write(two.base + 1, 1, Some(one.base));
    three.write(three.base, 3, None);
    w.bind(&a, "chain", CellNo::new(0), Cell::new(7, one.base));
    w.bind(&a, "gone", CellNo::new(1), Cell::new(3, three.base));
    b.lease(0, a.number(), Cell::new(3, three.base));
    w.hang_up(&a);
    assert_eq!(w.stat().segments, 3);
    w.bind(&b, "gone", CellNo::new(0), Cell::new(1, SlotNo::new(0)));
    w.wait_ns(100_000_000);
    assert_eq!(w.stat().segments, 3, "the lease holds the third");
    b.release(0);
    w.wait_ns(5_000_000_000);
    assert_eq!(w.stat().segments, 2);
    assert_eq!(w.core.alarm(), None, "names alone hold the rest: nothing to look at");
    assert_eq!(w.ask(&b, &delete("chain")), Reply::Deleted { existed: true });
    w.wait_ns(100_000_000);
    assert_eq!(w.stat().segments, 0);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn nothing_is_freed_before_the_memory_is_quiescent() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    w.loud.insert(lent.segment);
    w.hang_up(&a);
    w.wait_ns(60_000_000_000);
    assert_eq!((w.stat().segments, w.stat().frozen), (1, 1), "a process can still write it");
    let pause = w.core.alarm().unwrap() - w.now_ns;
    assert!(pause <= 10_000_000_000 && pause > 0);
    w.loud.clear();
    w.wait_ns(11_000_000_000);
    assert_eq!((w.stat().segments, w.stat().frozen), (0, 0));
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn a_request_that_hits_a_limit_looks_for_what_leases_held() {
    let mut s = settings();
    s.pool_bytes_max = 2 * super::world::SEGMENT;
    let mut w = World::new(s);
    let (a, b) = (w.join(1), w.join(1));
    let (one, two) = (w.segment(&a), w.segment(&a));
    b.lease(0, a.number(), Cell::new(1, one.base));
    b.lease(1, a.number(), Cell::new(1, two.base));
    w.hang_up(&a);
    assert_eq!(w.stat().segments, 2);
    let request = Request::Segment { bytes: super::world::SEGMENT, slots_log2: 4 };
    assert!(matches!(w.ask(&b, &request), Reply::Refused(Refusal::Limit { .. })));
    b.release(1);
    assert!(matches!(w.ask(&b, &request), Reply::Refused(_)), "not looked at every time");
    w.wait_ns(100_000_000);
    assert!(matches!(w.ask(&b, &request), Reply::Segment { .. }));
    b.release(0);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn leases_of_who_ended_do_not_count() {
    let mut w = World::new(settings());
    let (a, b, c) = (w.join(1), w.join(1), w.join(1));
    let lent = w.segment(&a);
    b.lease(0, a.number(), Cell::new(1, lent.base));
    w.hang_up(&a);
    assert_eq!(w.stat().segments, 1);
    w.hang_up(&b);
    w.wait_ns(1_000_000);
    assert_eq!(w.stat().segments, 0);
    w.hang_up(&c);
    w.assert_empty();
}

fn lease_table_of(w: &World, client: &Client) -> MemId {
    let its = |label: &Label| matches!(label, Label::Leases { owner, .. } if *owner == client.number());
    let found = w.stored.iter().find(|(_, label)| its(label));
    *found.expect("every lease table is stored").0
}

#[test]
fn the_leases_of_who_forked_count_until_its_children_end() {
    let mut w = World::new(settings());
    let (a, b, c) = (w.join(1), w.join(1), w.join(1));
    let lent = w.segment(&a);
    b.lease(0, a.number(), Cell::new(1, lent.base));
    b.table().inherited.set(1);
    w.loud.insert(lease_table_of(&w, &b));
    w.hang_up(&a);
    w.hang_up(&b);
    w.wait_ns(60_000_000_000);
    assert_eq!(w.stat().segments, 1, "a child of b reads");
    assert_eq!(w.stat().clients, 1);
    w.loud.clear();
    w.wait_ns(2_000_000_000);
    assert_eq!(w.stat().segments, 0);
    w.hang_up(&c);
    w.assert_empty();
}

#[test]
fn the_leases_of_who_forked_count_under_the_next_daemon() {
    let system = || Settings { mode: Mode::System, ..settings() };
    let mut w = World::new(system());
    let (mut a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    b.lease(0, a.number(), Cell::new(1, lent.base));
    b.table().inherited.set(1);
    let leases = lease_table_of(&w, &b);
    w.loud.insert(leases);
    w.hang_up(&b);
    w.replace_daemon(system());
    w.loud.insert(leases);
    w.come_back(&mut a, Some(vec![lent.base]));
    w.wait_ns(60_000_000_000);
    let give_back = Request::ReturnSegment { base: lent.base };
    assert!(matches!(w.ask(&a, &give_back), Reply::Refused(Refusal::Bad(_))), "a child of b reads");
    w.loud.clear();
    w.wait_ns(2_000_000_000);
    assert_eq!(w.ask(&a, &give_back), Reply::Done);
    w.hang_up(&a);
    w.assert_empty();
}

#[test]
fn who_forked_and_has_no_children_ends_at_once() {
    let mut w = World::new(settings());
    let (a, b, c) = (w.join(1), w.join(1), w.join(1));
    let lent = w.segment(&a);
    b.lease(0, a.number(), Cell::new(1, lent.base));
    b.table().inherited.set(1);
    w.hang_up(&a);
    w.hang_up(&b);
    w.wait_ns(1_000_000);
    assert_eq!(w.stat().segments, 0);
    w.hang_up(&c);
    w.assert_empty();
}

#[test]
fn a_private_namespace_waits_for_its_tensors() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    w.bind(&a, "x", CellNo::new(0), Cell::new(1, lent.base));
    w.hang_up(&a);
    assert_eq!(w.stat().names, 1);
    let b = w.join(1);
    assert_eq!(b.find("x").map(OwnerWord::cell), Some(CellNo::new(0)));
    assert_ne!(b.number(), a.number());
    w.ask(&b, &delete("x"));
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn system_mode_keeps_a_dead_clients_segments_for_its_namespace() {
    let mut s = settings();
    s.mode = Mode::System;
    s.spare_segments = 0;
    let mut w = World::new(s);
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    w.hang_up(&a);
    assert!(w.memory.contains_key(&lent.segment));
    assert_eq!(w.segment(&b).segment, lent.segment);
    w.hang_up(&b);
    w.assert_empty();
}
