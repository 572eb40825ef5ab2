//! Segments of device memory: their lending, their holders and their release, and clients that end with work in flight.

use super::world::{Client, DEVICE_SEGMENT, World, device, settings};
use crate::core::settings::{DeviceSettings, Mode, NamespaceLimits, Settings};
use crate::core::{Event, Lending, MemId};
use tensorlend_layout::catalogue::SlotRecord;
use tensorlend_layout::number::{CellNo, ClientNo, SlotNo};
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::{Allocator, DeviceSegment, LendingId, LimitKind, Refusal, Reply, Request};
use tensorlend_layout::word::{Cell, Member, MemberState, SLOT_NONE};
use tensorlend_layout::{Uuid, wire::Export};

/// A moment longer than the quarantine of [`settings`].
const QUARANTINE_NS: u64 = 100_000_001;

pub struct OnDevice {
    pub reply: DeviceSegment,
    pub mem: MemId,
    pub slots: View,
}

impl OnDevice {
    pub fn lending(&self) -> LendingId {
        self.reply.lending
    }

    pub fn base(&self) -> SlotNo {
        self.reply.lending.base
    }

    /// Writes the words of a slot's record that the daemon reads.
    pub fn write(&self, slot: SlotNo, generation: u64) {
        let records: &[SlotRecord] = self.slots.array(4096, 16).unwrap();
        let record = &records[(slot - self.base()) as usize];
        record.words[0].set(generation << 24);
        record.words[2].set(SLOT_NONE.into());
    }
}

pub fn wish(bytes: u64) -> Request {
    Request::DeviceSegment { uuid: device().uuid, bytes, slots_log2: 4 }
}

impl World {
    pub fn device_segment(&mut self, client: &Client) -> OnDevice {
        self.on_device_of(client, &wish(1))
    }

    /// Requests a segment on a device.
    pub fn on_device_of(&mut self, client: &Client, request: &Request) -> OnDevice {
        match self.ask_lent(client, request) {
            (Reply::DeviceSegment(reply), lend) => {
                assert_eq!(lend[0].1, Lending::Device);
                OnDevice { reply, mem: lend[0].0, slots: self.view(lend[1].0) }
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn unmap(&mut self, client: &Client, lent: &OnDevice) {
        let lendings = vec![lent.lending()];
        assert_eq!(self.ask(client, &Request::Unmapped { lendings }), Reply::Done);
    }

    fn give_back(&mut self, client: &Client, lent: &OnDevice) {
        assert_eq!(self.ask(client, &Request::ReturnSegment { base: lent.base() }), Reply::Done);
    }

    pub fn device_bytes(&self) -> (u64, u64) {
        let stat = self.stat();
        (stat.devices[0].bytes, stat.devices[0].bytes_in_use)
    }

    /// Publishes a name in a fresh segment on a device.
    pub fn publish_on_device(&mut self, client: &Client, name: &str, cell: CellNo) -> OnDevice {
        let lent = self.device_segment(client);
        lent.write(lent.base(), 1);
        self.bind(client, name, cell, Cell::new(1, lent.base()));
        lent
    }
}

fn is_open(client: &Client, number: ClientNo) -> bool {
    Member(client.directory.members[number.index()].member.peek()).state() == MemberState::Open
}

#[test]
fn a_segment_is_listed_with_its_device_lent_and_shown() {
    for mode in [Mode::User, Mode::System] {
        let mut w = World::new(Settings { mode, ..settings() });
        let (a, b) = (w.join(1), w.join(1));
        assert_eq!(a.welcome.devices.len(), 1);
        assert_eq!((a.welcome.devices[0].uuid, a.welcome.devices[0].segment_bytes), (device().uuid, DEVICE_SEGMENT));
        let listed = &a.directory.head().devices;
        assert_eq!(Uuid::from_words([listed[0].peek(), listed[1].peek()]), device().uuid);
        let lent = w.publish_on_device(&a, "x", CellNo::new(0));
        assert_eq!(
            (lent.reply.uuid, lent.reply.bytes, lent.reply.export),
            (device().uuid, DEVICE_SEGMENT, Export::Allocation)
        );
        let line = a.directory.segments.iter().find(|line| line.place.peek() != 0).expect("it has a line");
        assert_eq!((line.place.peek(), line.since_ns.peek()), (Allocator::Pool.code(), lent.lending().since_ns));
        let seen = w.on_device_of(&b, &Request::SegmentOf { owner: a.number(), slot: lent.base() + 3 });
        assert_eq!((&seen.reply, seen.mem), (&lent.reply, lent.mem));
        // A host segment has other slots, and counts in other metrics.
        let host = w.segment(&a);
        assert_ne!(host.base, lent.base());
        let stat = w.stat();
        assert_eq!((stat.segments, stat.devices[0].segments, stat.device.as_str()), (2, 1, ""));
        assert_eq!(w.device_bytes(), (DEVICE_SEGMENT, DEVICE_SEGMENT));
        let Reply::Stat(stat) = w.ask(&a, &Request::Stat) else { panic!() };
        assert_eq!((stat.uids[0].device_bytes, stat.namespaces[0].device_bytes), (DEVICE_SEGMENT, DEVICE_SEGMENT));
        w.ask(&a, &Request::Delete { name: "x".into() });
        for client in [&a, &b] {
            w.exit(client.conn);
        }
        w.wait_ns(QUARANTINE_NS);
        w.assert_empty();
    }
}

#[test]
fn what_is_given_back_is_charged_until_its_last_holder_lets_go() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.device_segment(&a);
    w.on_device_of(&b, &Request::SegmentOf { owner: a.number(), slot: lent.base() });
    b.lease(0, a.number(), Cell::new(1, lent.base()));
    let give_back = Request::ReturnSegment { base: lent.base() };
    assert!(matches!(w.ask(&a, &give_back), Reply::Refused(Refusal::Bad(_))), "it is leased");
    b.release(0);
    let (rung, woken) = (a.directory.head().returned.read(), w.holders_woken);
    w.give_back(&a, &lent);
    assert_ne!(a.directory.head().returned.read(), rung);
    assert_eq!(w.holders_woken, woken + 1);
    assert!(a.directory.segments.iter().all(|line| line.range.peek() == 0));
    w.unmap(&b, &lent);
    w.wait_ns(1_000_000_000);
    assert_eq!(w.device_bytes(), (DEVICE_SEGMENT, DEVICE_SEGMENT), "its owner holds it still");
    w.unmap(&a, &lent);
    assert_eq!(w.device_bytes(), (DEVICE_SEGMENT, 0), "kept for the same user");
    w.unmap(&a, &lent);
    // The daemon lends the same memory again: reports about the former lending do not affect this one.
    let again = w.device_segment(&a);
    assert_eq!((again.mem, again.base()), (lent.mem, lent.base()));
    assert!(again.lending().since_ns > lent.lending().since_ns);
    w.unmap(&a, &lent);
    w.give_back(&a, &again);
    assert_eq!(w.device_bytes(), (DEVICE_SEGMENT, DEVICE_SEGMENT));
    w.unmap(&a, &again);
    w.hang_up(&a);
    w.hang_up(&b);
    assert!(w.awaited.is_empty(), "no client has any");
    w.assert_empty();
}

#[test]
fn idle_memory_goes_to_the_same_user_in_the_same_namespace() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(2));
    let lab = w.join_unacknowledged(1, Some("lab"));
    w.say(lab.conn, &Request::Ack);
    let lent = w.device_segment(&a);
    w.give_back(&a, &lent);
    w.unmap(&a, &lent);
    for other in [&b, &lab] {
        assert_ne!(w.device_segment(other).mem, lent.mem);
    }
    assert_eq!(w.device_segment(&a).mem, lent.mem);
    for client in [&a, &b, &lab] {
        w.exit(client.conn);
    }
    w.wait_ns(QUARANTINE_NS);
    w.assert_empty();
}

#[test]
fn limits_name_their_settings_and_come_back() {
    let of = |s: Settings, clients: &[u32], kind: LimitKind, setting: &str| {
        let mut w = World::new(s);
        let clients: Vec<Client> = clients.iter().map(|&uid| w.join(uid)).collect();
        let lent: Vec<OnDevice> = clients.iter().map(|client| w.device_segment(client)).collect();
        let last = clients.last().unwrap();
        let Reply::Refused(Refusal::Limit { kind: met, setting: named, .. }) = w.ask(last, &wish(1)) else {
            panic!("{setting}")
        };
        assert_eq!((met, &*named), (kind, setting));
        // Host memory has a limit of its own.
        w.segment(last);
        let lent = lent.last().unwrap();
        w.give_back(last, lent);
        w.unmap(last, lent);
        w.device_segment(last);
        for client in &clients {
            w.exit(client.conn);
        }
        w.wait_ns(QUARANTINE_NS);
        w.assert_empty();
    };
    let one = DEVICE_SEGMENT;
    of(Settings { uid_device_bytes_max: one, ..settings() }, &[1], LimitKind::UserDeviceBytes, "uid.device_bytes_max");
    let private = NamespaceLimits { device_bytes_max: one, ..settings().private };
    of(Settings { private, ..settings() }, &[1], LimitKind::NamespaceDeviceBytes, "namespace_default.device_bytes_max");
    let few = |segments: u64| vec![DeviceSettings { bytes_max: segments * one, ..device() }];
    of(Settings { devices: few(2), ..settings() }, &[1, 2], LimitKind::DeviceBytes, "cuda.bytes_max");
    let shared = "cuda.bytes_max, or set uid.share to false,";
    of(Settings { devices: few(3), uid_share: true, ..settings() }, &[1], LimitKind::DeviceShare, shared);
}

#[test]
fn longer_than_the_device_is_refused_and_so_is_what_its_driver_has_not() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let Reply::Refused(Refusal::Limit { kind, .. }) = w.ask(&a, &wish(4 * DEVICE_SEGMENT + 1)) else { panic!() };
    assert_eq!(kind, LimitKind::DeviceBytes);
    assert!(matches!(w.ask(&a, &wish(u64::MAX)), Reply::Refused(Refusal::Bad(_))));
    w.device_fails = Some("CUDA_ERROR_OUT_OF_MEMORY".into());
    let Reply::Refused(Refusal::Memory { bytes, reason }) = w.ask(&a, &wish(1)) else { panic!() };
    assert_eq!((bytes, reason.as_str()), (DEVICE_SEGMENT, "CUDA_ERROR_OUT_OF_MEMORY"));
    assert_eq!(w.device_bytes(), (0, 0));
    w.device_fails = None;
    let other = Request::DeviceSegment { uuid: Uuid([7; 16]), bytes: 1, slots_log2: 4 };
    assert!(matches!(w.ask(&a, &other), Reply::Refused(Refusal::NotFound(_))));
    w.hang_up(&a);
    w.assert_empty();

    let mut w = World::new(Settings { devices: Vec::new(), ..settings() });
    let a = w.join(1);
    let Reply::Refused(refusal) = w.ask(&a, &wish(1)) else { panic!() };
    assert!(refusal.to_string().contains(": there is none"), "{refusal}");
    assert_eq!(w.stat().device, "there is none");
    w.hang_up(&a);
    w.assert_empty();
}

#[test]
fn who_goes_while_it_is_made_leaves_nothing() {
    let mut w = World::new(settings());
    let a = w.join(1);
    w.slow = true;
    w.say(a.conn, &wish(1));
    w.hang_up(&a);
    assert!(w.awaited.is_empty(), "it was never lent");
    w.slow = false;
    w.finish();
    w.assert_empty();
}

#[test]
fn a_holder_that_ends_departs_with_its_process_and_a_quarantine() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let draft = w.device_segment(&a);
    let lent = w.publish_on_device(&a, "x", CellNo::new(0));
    let theirs = w.publish_on_device(&b, "y", CellNo::new(0));
    w.on_device_of(&a, &Request::SegmentOf { owner: b.number(), slot: theirs.base() });
    a.lease(0, b.number(), Cell::new(1, theirs.base()));
    w.hang_up(&a);
    w.wait_ns(20_000_000_000);
    // Its session is over and its leases count: the daemon frees no memory that its kernels may read or write.
    assert!(w.awaited.contains(&a.conn) && is_open(&b, a.number()));
    assert_eq!((w.stat().clients, w.stat().segments), (1, 3), "its draft is not freed");
    assert!(matches!(w.ask(&b, &Request::ReturnSegment { base: theirs.base() }), Reply::Refused(Refusal::Bad(_))));
    assert!(matches!(w.ask(&b, &Request::LeasesOf { client: a.number() }), Reply::Sheet { .. }));
    w.awaited.remove(&a.conn);
    w.happen(Event::Exited { conn: a.conn });
    w.wait_ns(QUARANTINE_NS - 2);
    assert!(is_open(&b, a.number()));
    w.wait_ns(2);
    assert!(!is_open(&b, a.number()));
    assert_eq!(w.stat().segments, 2, "the draft is freed, and the published value stays");
    assert!(!w.on_device.contains_key(&draft.mem) || w.device_bytes().1 == 2 * DEVICE_SEGMENT);
    assert!(b.find("x").is_some());
    let seen = w.on_device_of(&b, &Request::SegmentOf { owner: a.number(), slot: lent.base() });
    assert_eq!(seen.lending(), lent.lending());
    // No name leads to the segment any more, but a client has it mapped.
    w.ask(&b, &Request::Delete { name: "x".into() });
    w.wait_ns(1_000_000_000);
    assert_eq!((w.stat().frozen, w.device_bytes().1), (0, 2 * DEVICE_SEGMENT));
    w.unmap(&b, &lent);
    assert_eq!(w.device_bytes().1, DEVICE_SEGMENT);
    w.ask(&b, &Request::Delete { name: "y".into() });
    w.exit(b.conn);
    w.wait_ns(QUARANTINE_NS);
    w.assert_empty();
}

#[test]
fn who_has_let_go_of_everything_ends_at_once() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.publish_on_device(&a, "x", CellNo::new(0));
    w.unmap(&a, &lent);
    w.hang_up(&a);
    assert!(w.awaited.is_empty() && !is_open(&b, a.number()));
    assert_eq!(w.stat().segments, 1, "the published value stays");
    w.ask(&b, &Request::Delete { name: "x".into() });
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn a_process_that_cannot_be_watched_is_lent_no_device_memory() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let lent = w.publish_on_device(&a, "x", CellNo::new(0));
    w.watches = false;
    let b = w.join(1);
    let of = Request::SegmentOf { owner: a.number(), slot: lent.base() };
    for request in [wish(1), of] {
        let Reply::Refused(Refusal::Bad(why)) = w.ask(&b, &request) else { panic!() };
        assert!(why.contains("can watch"), "{why}");
    }
    w.segment(&b);
    w.hang_up(&b);
    w.watches = true;
    w.ask(&a, &Request::Delete { name: "x".into() });
    w.exit(a.conn);
    w.wait_ns(QUARANTINE_NS);
    w.assert_empty();
}

#[test]
fn one_who_breaks_a_rule_is_watched_before_it_is_hung_up_on() {
    let mut w = World::new(settings());
    let a = w.join(1);
    w.device_segment(&a);
    w.say(a.conn, &Request::Ack);
    assert!(w.closed.contains(&a.conn) && w.awaited.contains(&a.conn));
    w.exit(a.conn);
    w.wait_ns(QUARANTINE_NS);
    w.assert_empty();
}

#[test]
fn one_message_names_so_many_lendings_and_no_more() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let lending = LendingId { owner: ClientNo::new(1), base: SlotNo::new(0), since_ns: 7 };
    for (count, taken) in [(1024, true), (1025, false)] {
        let lendings = vec![lending; count];
        for request in [Request::Unmapped { lendings: lendings.clone() }, Request::Mapped { lendings, last: true }] {
            assert_eq!(w.ask(&a, &request) == Reply::Done, taken);
        }
    }
    w.hang_up(&a);
    w.assert_empty();
}
