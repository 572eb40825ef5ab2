//! Every request of a client that may not send it: before it has joined a namespace, as an observer, and as a reader.

use super::world::{Client, World, hello, settings};
use crate::core::ConnId;
use crate::core::session::requests::{Registration, Right, rule};
use std::collections::BTreeSet;
use tensorlend_layout::number::{CellNo, CursorNo, EntryNo, SlotNo, StreamLine};
use tensorlend_layout::wire::{
    Inspect, LendingId, NameAt, PROTOCOL_VERSION, Policy, QueueClaim, QueueItem, QueueRequest, Refusal, Reply, Request,
    Return, View, encode,
};

/// One request of each kind. Requests that change an object name an existing one, so only the missing right prevents
/// the change.
fn samples(writer: &Client) -> Vec<Request> {
    let (number, slot, name) = (writer.number(), 1, || "x".to_owned());
    let claim = QueueClaim { item: QueueItem { list: 1, number: 0 }, grant: 1 };
    let lending = LendingId { owner: number, base: SlotNo::new(1), since_ns: 1 };
    let back = Return {
        protocol_min: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        layout_version: hello().layout_version,
        layout_hash: hello().layout_hash,
        namespace: "lab".into(),
        client: number,
        member: writer.welcome.member,
        segments: None,
        released: vec![],
        cells: 0,
        claims: vec![],
    };
    let inspect = Inspect { protocol_min: PROTOCOL_VERSION, protocol_max: PROTOCOL_VERSION, view: View::Daemon };
    vec![
        Request::Hello(hello()),
        Request::Return(back),
        Request::HandBack,
        Request::Ack,
        Request::Segment { bytes: 4096, slots_log2: 4 },
        Request::ReturnSegment { base: SlotNo::new(1) },
        Request::SegmentOf { owner: number, slot: SlotNo::new(slot) },
        Request::GrowCells,
        Request::CellsOf { client: number, part: 0 },
        Request::LeasesOf { client: number },
        Request::Bind { name: name(), cell: CellNo::new(0) },
        Request::Delete { name: name() },
        Request::Tidy { names: vec![(name(), CellNo::new(0))] },
        Request::Rename { from: name(), to: "y".into() },
        Request::Notices,
        Request::Wait,
        Request::StreamOpen { name: "t".into(), capacity: 4, policy: Policy::Block },
        Request::Subscribe { name: "s".into(), cursor: CursorNo::new(0), wake: false },
        Request::Unsubscribe { stream: StreamLine::new(0), id: 1, cursor: CursorNo::new(0) },
        Request::WakeDescriptor { stream: StreamLine::new(0), subscriber: number, cursor: CursorNo::new(0) },
        Request::StreamDelete { name: "s".into() },
        Request::ListAppend { list: "l".into(), cells: vec![CellNo::new(1)] },
        Request::ListDelete { list: "l".into() },
        Request::ListRename { from: "l".into(), to: "m".into() },
        Request::Stat,
        Request::Ping,
        Request::BindFor { name: name(), cell: CellNo::new(0), ttl_ns: Some(1), ephemeral: false },
        Request::DeviceSegment { uuid: tensorlend_layout::device::Uuid([0; 16]), bytes: 4096, slots_log2: 4 },
        Request::Mapped { lendings: vec![lending], last: true },
        Request::Unmapped { lendings: vec![lending] },
        Request::ReleaseForSpill { base: SlotNo::new(1) },
        Request::SlotsOf { owner: number, slot: SlotNo::new(slot) },
        Request::StreamClosed { stream: StreamLine::new(0), id: 1 },
        Request::ListAppendEphemeral { list: "l".into(), cells: vec![CellNo::new(1)] },
        Request::ValuesOf { names: vec![NameAt { entry: EntryNo::new(1), owner_word: 0 }] },
        Request::Queue(QueueRequest::Put { list: "l".into(), cells: vec![CellNo::new(1)], max: 0 }),
        Request::Queue(QueueRequest::Claim { list: "l".into(), done: vec![], max: 1, wait: false }),
        Request::Queue(QueueRequest::Done(claim)),
        Request::Queue(QueueRequest::GiveBack(claim)),
        Request::Queue(QueueRequest::Size { list: "l".into() }),
        Request::Queue(QueueRequest::Stop),
        Request::Inspect(inspect),
        Request::SubscribePollable { name: "s".into(), cursor: CursorNo::new(0) },
        Request::GaveUp,
    ]
}

/// Returns the numbers of a request's kind, and of the kind of a request about a queue.
fn number(request: &Request) -> (u8, u8) {
    let bytes = encode(request);
    (bytes[0], if matches!(request, Request::Queue(_)) { bytes[1] } else { 0 })
}

#[test]
fn there_is_a_sample_of_each_request() {
    let mut w = World::new(settings());
    let writer = join(&mut w, 1);
    let numbers: BTreeSet<(u8, u8)> = samples(&writer).iter().map(number).collect();
    // A packet begins with the number of its kind. The fields of every kind can be zeros.
    let is_kind = |start: &[u8]| postcard::take_from_bytes::<Request>(&[start, &[0; 256]].concat()).is_ok();
    let queue = number(&Request::Queue(QueueRequest::Stop)).0;
    let kinds = (0..u8::MAX).take_while(|&kind| is_kind(&[kind])).filter(|&kind| kind != queue);
    let of_queue = (0..u8::MAX).take_while(|&kind| is_kind(&[queue, kind]));
    assert_eq!(numbers, kinds.map(|kind| (kind, 0)).chain(of_queue.map(|kind| (queue, kind))).collect());
}

fn join(w: &mut World, uid: u32) -> Client {
    let client = w.join_unacknowledged(uid, Some("lab"));
    w.say(client.conn, &Request::Ack);
    client
}

/// A namespace with a name, a stream and a list, and their writer.
fn lab(w: &mut World) -> Client {
    let writer = join(w, 1);
    let lent = w.segment(&writer);
    lent.write(lent.base, 1, None);
    w.bind(&writer, "x", CellNo::new(0), tensorlend_layout::word::Cell::new(1, lent.base));
    w.ask(&writer, &Request::StreamOpen { name: "s".into(), capacity: 4, policy: Policy::Block });
    writer
}

fn send(w: &mut World, conn: ConnId, request: &Request) -> Option<Reply> {
    w.say(conn, request);
    w.hear(conn).map(|(reply, _)| reply)
}

#[test]
fn before_it_has_joined_a_client_can_only_join_or_observe() {
    let mut w = World::new(settings());
    let writer = lab(&mut w);
    let before = w.stat();
    for request in samples(&writer) {
        // A user without access, then an observer. A member of another namespace has no connection to this one.
        for gids in [&[][..], &[90]] {
            let conn = w.dial(3, gids);
            let reply = send(&mut w, conn, &request);
            let is_violation = matches!(reply, Some(Reply::Refused(Refusal::Violation(_))));
            let is_first = matches!(rule(&request).registration, Registration::Before | Registration::Any);
            assert_eq!(is_violation, !is_first, "{request:?}: {reply:?}");
            match request {
                Request::Hello(_) => assert!(matches!(reply, Some(Reply::Welcome(_))), "its own namespace"),
                Request::Inspect(_) => {
                    assert_eq!(matches!(reply, Some(Reply::Inspected(_))), !gids.is_empty(), "{reply:?}");
                }
                _ => assert!(w.closed.contains(&conn), "{request:?}"),
            }
            if !w.closed.contains(&conn) {
                w.say(conn, &Request::Ack);
                w.happen(crate::core::Event::HungUp { conn });
            }
        }
    }
    let after = w.stat();
    assert_eq!(after.names, before.names);
}

#[test]
fn a_reader_changes_nothing() {
    let mut w = World::new(settings());
    let writer = lab(&mut w);
    let before = w.stat();
    for request in samples(&writer) {
        let reader = join(&mut w, 2);
        let reply = send(&mut w, reader.conn, &request);
        let refusal = match &reply {
            Some(Reply::Refused(refusal)) => Some(refusal),
            _ => None,
        };
        let is_violation = matches!(refusal, Some(Refusal::Violation(_)));
        // The client has no lending to acknowledge and no claim to stop.
        let is_out_of_turn = matches!(request, Request::Ack | Request::Queue(QueueRequest::Stop));
        let registration = rule(&request).registration;
        if !is_out_of_turn {
            let is_late = matches!(registration, Registration::Before | Registration::Never);
            assert_eq!(is_violation, is_late, "{request:?}: {reply:?}");
        }
        let is_refused = matches!(refusal, Some(Refusal::ReadOnly(_)));
        assert_eq!(is_refused, rule(&request).right == Right::Write, "{request:?}: {reply:?}");
        if !w.closed.contains(&reader.conn) {
            w.say(reader.conn, &Request::Ack);
            w.happen(crate::core::Event::HungUp { conn: reader.conn });
        }
    }
    let after = w.stat();
    assert_eq!((after.names, after.segments, after.bytes_in_use), (before.names, before.segments, before.bytes_in_use));
}

/// The rules, apart from the table: these requests, and no others, are for writers.
#[test]
fn writers_alone_may_take_memory_and_change_names() {
    let mut w = World::new(settings());
    let writer = lab(&mut w);
    let samples = samples(&writer);
    let of_writers: Vec<&Request> = samples.iter().filter(|it| rule(it).right == Right::Write).collect();
    let names: Vec<String> =
        of_writers.iter().map(|it| format!("{it:?}").split([' ', '{']).next().unwrap_or_default().to_owned()).collect();
    assert_eq!(
        names,
        [
            "Segment",
            "ReturnSegment",
            "GrowCells",
            "Bind",
            "Delete",
            "Tidy",
            "Rename",
            "StreamOpen",
            "StreamDelete",
            "ListAppend",
            "ListDelete",
            "ListRename",
            "BindFor",
            "DeviceSegment",
            "ReleaseForSpill",
            "ListAppendEphemeral",
            "Queue(Put",
            "Queue(Claim"
        ]
    );
}
