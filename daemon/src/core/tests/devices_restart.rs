//! Device memory that outlives its daemon, and its holders.

use super::devices::{OnDevice, wish};
use super::world::{Client, DEVICE_SEGMENT, World, device, settings};
use crate::core::label::Label;
use crate::core::settings::{DeviceSettings, Mode, Settings};
use tensorlend_layout::number::CellNo;
use tensorlend_layout::wire::{Allocator, LendingId, Refusal, Reply, Request};
use tensorlend_layout::word::Cell;

const QUARANTINE_NS: u64 = 100_000_001;

fn system() -> Settings {
    Settings { mode: Mode::System, spare_segments: 0, ..settings() }
}

fn tells(w: &mut World, client: &Client, lendings: &[LendingId]) {
    let request = Request::Mapped { lendings: lendings.to_vec(), last: true };
    assert_eq!(w.ask(client, &request), Reply::Done);
}

fn returns(w: &mut World, client: &Client, lent: &OnDevice) {
    assert_eq!(w.ask(client, &Request::ReturnSegment { base: lent.base() }), Reply::Done);
}

#[test]
fn segments_are_lent_on_and_charged_as_before() {
    for mode in [Mode::System, Mode::User] {
        let settings = || Settings { mode, ..system() };
        let mut w = World::new(settings());
        let (mut a, mut b) = (w.join(1), w.join(1));
        let lent = w.publish_on_device(&a, "x", CellNo::new(0));
        w.replace_daemon(settings());
        assert_eq!(w.device_bytes(), (DEVICE_SEGMENT, DEVICE_SEGMENT));
        assert!(matches!(w.come_back(&mut a, Some(vec![lent.base()])), Reply::Welcome(_)));
        assert!(matches!(w.come_back(&mut b, Some(vec![])), Reply::Welcome(_)));
        let seen = w.on_device_of(&b, &Request::SegmentOf { owner: a.number(), slot: lent.base() });
        assert_eq!((seen.lending(), seen.reply.export), (lent.lending(), lent.reply.export));
        tells(&mut w, &a, &[lent.lending()]);
        tells(&mut w, &b, &[]);
        w.ask(&a, &Request::Delete { name: "x".into() });
        returns(&mut w, &a, &lent);
        w.unmap(&a, &lent);
        assert_eq!(w.device_bytes().1, DEVICE_SEGMENT, "lent to the reader by this daemon");
        w.unmap(&b, &lent);
        assert_eq!(w.device_bytes().1, 0);
        w.hang_up(&a);
        w.hang_up(&b);
        w.assert_empty();
    }
}

#[test]
fn until_all_have_told_each_is_taken_for_a_holder() {
    let mut w = World::new(system());
    let (mut a, mut b) = (w.join(1), w.join(1));
    let (lent, given_up) = (w.device_segment(&a), w.device_segment(&a));
    w.on_device_of(&b, &Request::SegmentOf { owner: a.number(), slot: given_up.base() });
    returns(&mut w, &a, &given_up);
    w.unmap(&a, &given_up);
    let label = w.stored.values().find(|label| matches!(label, Label::DeviceOrphaned { .. })).cloned();
    assert!(matches!(label, Some(Label::DeviceOrphaned { bytes: DEVICE_SEGMENT, uid: 1, .. })), "{label:?}");
    w.replace_daemon(system());
    assert_eq!(w.device_bytes().1, 2 * DEVICE_SEGMENT);
    w.come_back(&mut a, Some(vec![lent.base()]));
    returns(&mut w, &a, &lent);
    tells(&mut w, &a, &[]);
    assert_eq!(w.device_bytes().1, 2 * DEVICE_SEGMENT, "the other has not come back");
    w.come_back(&mut b, Some(vec![]));
    tells(&mut w, &b, &[given_up.lending()]);
    assert_eq!(w.device_bytes().1, DEVICE_SEGMENT, "a lending that no client reports has no holder");
    w.unmap(&b, &given_up);
    assert_eq!(w.device_bytes().1, 0);
    // Clients of the predecessor do not hold a new segment.
    let fresh = w.device_segment(&a);
    w.exit(a.conn);
    w.wait_ns(QUARANTINE_NS);
    assert_eq!((w.device_bytes().1, w.stat().segments), (0, 0), "{fresh:?}", fresh = fresh.lending());
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn who_does_not_come_back_departs_when_nobody_can_write_its_leases() {
    let mut w = World::new(system());
    let (a, mut b) = (w.join(1), w.join(1));
    let lent = w.device_segment(&a);
    w.replace_daemon(system());
    w.come_back(&mut b, Some(vec![]));
    tells(&mut w, &b, &[]);
    w.wait_ns(5_000_000_000);
    assert_eq!((w.stat().clients, w.stat().segments), (2, 1));
    w.loud.clear();
    w.wait_ns(1_100_000_000 - QUARANTINE_NS);
    w.wait_ns(2_000_000_000);
    assert_eq!((w.stat().clients, w.stat().frozen, w.device_bytes().1), (1, 0, 0), "{:?}", lent.lending());
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn one_that_was_about_to_depart_does_so_under_the_next_daemon() {
    let mut w = World::new(system());
    let (a, mut b) = (w.join(1), w.join(1));
    let lent = w.publish_on_device(&b, "x", CellNo::new(0));
    w.on_device_of(&a, &Request::SegmentOf { owner: b.number(), slot: lent.base() });
    a.lease(0, b.number(), Cell::new(1, lent.base()));
    w.hang_up(&a);
    assert!(w.awaited.contains(&a.conn));
    w.replace_daemon(system());
    w.come_back(&mut b, Some(vec![lent.base()]));
    tells(&mut w, &b, &[lent.lending()]);
    w.wait_ns(3_000_000_000);
    let give_back = Request::ReturnSegment { base: lent.base() };
    assert!(matches!(w.ask(&b, &give_back), Reply::Refused(Refusal::Bad(_))), "it is leased still");
    w.loud.clear();
    w.wait_ns(3_000_000_000);
    assert_eq!(w.stat().frozen, 0);
    w.ask(&b, &Request::Delete { name: "x".into() });
    assert_eq!(w.ask(&b, &give_back), Reply::Done);
    w.unmap(&b, &lent);
    assert_eq!(w.device_bytes().1, 0);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn blocks_of_a_pool_end_with_their_daemon_and_so_do_the_sessions_that_had_them() {
    let settings = || {
        let blocks = DeviceSettings { allocator: Allocator::Async, ..device() };
        Settings { devices: vec![blocks], ..system() }
    };
    let mut w = World::new(settings());
    let (mut a, mut b) = (w.join(1), w.join(1));
    let lent = w.on_device_of(&a, &wish(1000));
    assert_eq!(lent.reply.bytes, 1024);
    lent.write(lent.base(), 1);
    w.bind(&a, "x", CellNo::new(0), Cell::new(1, lent.base()));
    let host = w.segment(&a);
    host.write(host.base, 1, None);
    w.bind(&a, "host", CellNo::new(1), Cell::new(1, host.base));
    let geometry = b.directory.members[a.number().index()].geometry.peek();
    w.replace_daemon(settings());
    assert_eq!((w.device_bytes(), w.stat().segments), ((0, 0), 1));
    assert_ne!(b.directory.members[a.number().index()].geometry.peek(), geometry);
    assert!(b.find("x").is_none() && b.find("host").is_some());
    assert!(matches!(w.come_back(&mut a, None), Reply::Refused(Refusal::NotFound(_))), "whatever it says that it has");
    w.come_back(&mut b, Some(vec![]));
    w.unmap(&b, &lent);
    w.loud.clear();
    w.wait_ns(20_000_000_000);
    w.ask(&b, &Request::Delete { name: "host".into() });
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn memory_of_a_device_that_is_lent_no_more_is_given_up() {
    let mut w = World::new(system());
    let mut a = w.join(1);
    let lent = w.publish_on_device(&a, "x", CellNo::new(0));
    w.replace_daemon(Settings { devices: Vec::new(), ..system() });
    assert!(w.on_device.is_empty() && a.find("x").is_none());
    assert!(matches!(w.come_back(&mut a, Some(vec![lent.base()])), Reply::Refused(Refusal::NotFound(_))));
    w.loud.clear();
    w.wait_ns(20_000_000_000);
    assert_eq!((w.stat().clients, w.stat().frozen), (0, 0));
}

#[test]
fn devices_keep_their_places_in_a_directory() {
    let other = |byte| DeviceSettings { uuid: tensorlend_layout::Uuid([byte; 16]), ..device() };
    let mut w = World::new(Settings { devices: vec![other(3), device()], ..system() });
    let mut a = w.join(1);
    let lent = w.publish_on_device(&a, "x", CellNo::new(0));
    // One device was removed, and another added.
    w.replace_daemon(Settings { devices: vec![other(4), device()], ..system() });
    assert!(matches!(w.come_back(&mut a, Some(vec![lent.base()])), Reply::Welcome(_)));
    let seen = w.on_device_of(&a, &Request::SegmentOf { owner: a.number(), slot: lent.base() });
    assert_eq!((seen.reply.uuid, seen.lending()), (device().uuid, lent.lending()));
    let listed = &a.directory.head().devices;
    let at =
        |place: usize| tensorlend_layout::Uuid::from_words([listed[2 * place].peek(), listed[2 * place + 1].peek()]);
    assert_eq!([at(0), at(1), at(2)], [other(3).uuid, device().uuid, other(4).uuid]);
    w.ask(&a, &Request::Delete { name: "x".into() });
    w.exit(a.conn);
    w.wait_ns(QUARANTINE_NS);
    w.wait_ns(1);
    assert_eq!(w.stat().segments, 0);
}
