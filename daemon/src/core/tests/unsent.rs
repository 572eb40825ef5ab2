//! Replies whose descriptors cannot be sent: the request is refused, and its memory is returned.

use super::devices::wish;
use super::restart::{back, system};
use super::streams::subscribe;
use super::world::{Client, SEGMENT, World, settings};
use crate::core::Event;
use tensorlend_layout::number::CursorNo;
use tensorlend_layout::wire::{Policy, Refusal, Reply, Request};

fn requests(owner: &Client) -> Vec<Request> {
    let stream = |name: &str| Request::StreamOpen { name: name.into(), capacity: 4, policy: Policy::Block };
    let client = owner.number();
    let mut all = vec![
        Request::Segment { bytes: SEGMENT, slots_log2: 4 },
        wish(1),
        Request::GrowCells,
        stream("new"),
        stream("closed"),
        Request::LeasesOf { client },
        Request::CellsOf { client, part: 0 },
    ];
    for wake in [false, true] {
        all.push(subscribe("camera", CursorNo::new(3), wake));
    }
    all
}

impl World {
    /// Ends the clients and their processes, and asserts that nothing is left.
    fn ends_with(&mut self, clients: &[&Client]) {
        for client in clients {
            self.hang_up(client);
        }
        for conn in std::mem::take(&mut self.awaited) {
            self.happen(Event::Exited { conn });
        }
        self.assert_empty();
    }

    /// Asserts that a request is refused while no descriptor can be opened, leaves nothing, and then succeeds.
    fn is_refused_once(&mut self, client: &Client, request: &Request) {
        let before = self.stat();
        self.no_descriptors = true;
        let refused = self.ask(client, request);
        self.no_descriptors = false;
        assert!(matches!(refused, Reply::Refused(Refusal::Memory { .. })), "{request:?}: {refused:?}");
        assert!(!self.closed.contains(&client.conn), "{request:?}: the session continues");
        self.wait_ns(2_000_000_000);
        let after = self.stat();
        assert_eq!(
            (before.segments, before.bytes_sheets, before.bytes_in_use, before.devices[0].bytes_in_use),
            (after.segments, after.bytes_sheets, after.bytes_in_use, after.devices[0].bytes_in_use),
            "{request:?}"
        );
        let reply = self.ask(client, request);
        assert!(!matches!(reply, Reply::Refused(_)), "{request:?}: {reply:?}");
    }
}

#[test]
fn a_request_whose_descriptors_cannot_be_sent_is_refused_and_the_session_continues() {
    for mode in [settings(), system()] {
        let mut w = World::new(mode);
        let (owner, client) = (w.join(1), w.join(1));
        let camera = Request::StreamOpen { name: "camera".into(), capacity: 4, policy: Policy::Block };
        assert!(matches!(w.ask(&owner, &camera), Reply::Stream { .. }));
        for request in requests(&owner) {
            w.is_refused_once(&client, &request);
        }
        w.ends_with(&[&owner, &client]);
    }
}

#[test]
fn a_reader_that_did_not_receive_device_memory_does_not_hold_it() {
    let mut w = World::new(settings());
    let (owner, reader) = (w.join(1), w.join(1));
    let lent = w.device_segment(&owner);
    let request = Request::SegmentOf { owner: owner.number(), slot: lent.base() };
    w.no_descriptors = true;
    assert!(matches!(w.ask(&reader, &request), Reply::Refused(Refusal::Memory { .. })));
    w.no_descriptors = false;
    w.unmap(&owner, &lent);
    assert_eq!(w.ask(&owner, &Request::ReturnSegment { base: lent.base() }), Reply::Done);
    assert_eq!(w.device_bytes().1, 0, "no client holds it");
    // A reader that has it mapped holds it, although a repeated request was refused.
    let lent = w.device_segment(&owner);
    let request = Request::SegmentOf { owner: owner.number(), slot: lent.base() };
    assert!(matches!(w.ask(&reader, &request), Reply::DeviceSegment(_)));
    w.no_descriptors = true;
    assert!(matches!(w.ask(&reader, &request), Reply::Refused(Refusal::Memory { .. })));
    w.no_descriptors = false;
    w.unmap(&owner, &lent);
    assert_eq!(w.ask(&owner, &Request::ReturnSegment { base: lent.base() }), Reply::Done);
    assert_ne!(w.device_bytes().1, 0, "the reader holds it");
    w.ends_with(&[&reader, &owner]);
}

#[test]
fn a_client_that_cannot_continue_its_session_yet_asks_again() {
    for mode in [settings(), system()] {
        let mut w = World::new(mode.clone());
        let mut client = w.join(1);
        w.replace_daemon(mode);
        w.no_descriptors = true;
        let conn = w.dial(1, &[]);
        w.say(conn, &Request::Return(back(&client)));
        assert!(w.hear(conn).is_none() && w.closed.contains(&conn), "a refusal would end the session");
        w.no_descriptors = false;
        assert!(matches!(w.come_back(&mut client, None), Reply::Welcome(_)));
        w.segment(&client);
        w.ends_with(&[&client]);
    }
}

#[test]
fn a_session_whose_descriptors_cannot_be_sent_does_not_begin() {
    let mut w = World::new(settings());
    w.no_descriptors = true;
    let conn = w.dial(1, &[]);
    w.say(conn, &Request::Hello(super::world::hello()));
    assert!(matches!(w.hear(conn), Some((Reply::Refused(Refusal::Memory { .. }), _))));
    assert!(w.closed.contains(&conn));
    w.assert_empty();
}
