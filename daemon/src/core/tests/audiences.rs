//! Audiences: an owner scans the leases of the clients to which the daemon has shown its memory.

use super::world::{Client, World, settings};
use crate::core::settings::{Mode, Settings};
use tensorlend_layout::number::{ClientNo, CursorNo};
use tensorlend_layout::wire::{Policy, Reply, Request};

const NOBODY: [ClientNo; 0] = [];

fn audience(owner: &Client) -> Vec<ClientNo> {
    owner.directory.audience(owner.number()).collect()
}

/// Returns a client with this number; numbers are reused in turn.
fn join_as(w: &mut World, number: ClientNo) -> Client {
    for _ in 0..20 {
        let client = w.join(1);
        if client.number() == number {
            return client;
        }
        w.hang_up(&client);
    }
    panic!("number {number} does not come round");
}

#[test]
fn who_is_shown_something_is_listed_before_the_reply() {
    let mut w = World::new(settings());
    let (owner, by_segment, by_slots, by_stream, idle) = (w.join(1), w.join(1), w.join(1), w.join(1), w.join(1));
    let (number, slot) = (owner.number(), w.segment(&owner).base);
    w.ask(&owner, &Request::StreamOpen { name: "s".into(), capacity: 4, policy: Policy::Error });
    assert_eq!(audience(&owner), NOBODY);
    // Neither request lets the client lease a slot.
    w.ask(&idle, &Request::CellsOf { client: number, part: 0 });
    w.ask(&idle, &Request::LeasesOf { client: number });
    w.ask(&owner, &Request::SegmentOf { owner: number, slot });
    assert_eq!(audience(&owner), NOBODY);
    let requests = [
        (&by_segment, Request::SegmentOf { owner: number, slot }),
        (&by_slots, Request::SlotsOf { owner: number, slot }),
        (&by_stream, Request::Subscribe { name: "s".into(), cursor: CursorNo::new(0), wake: false }),
    ];
    for (asker, request) in &requests {
        w.say(asker.conn, request);
        assert!(audience(&owner).contains(&asker.number()), "{request:?} is not acknowledged yet");
        w.hear(asker.conn);
        w.say(asker.conn, &Request::Ack);
    }
    assert_eq!(audience(&owner), [2, 3, 4].map(ClientNo::new));
    assert_eq!(audience(&by_segment), NOBODY);
    w.hang_up(&by_slots);
    assert_eq!(audience(&owner), [2, 4].map(ClientNo::new), "a disconnected client leaves");
}

/// A disconnected reader's number goes to another client, and the owner's number to another owner.
#[test]
fn who_has_the_number_next_has_seen_nothing() {
    let mut w = World::new(settings());
    let (owner, reader) = (w.join(1), w.join(1));
    let (number, slot) = (owner.number(), w.segment(&owner).base);
    let request = Request::SegmentOf { owner: number, slot };
    assert!(matches!(w.ask(&reader, &request), Reply::Segment { .. }));
    w.hang_up(&reader);
    let next = join_as(&mut w, reader.number());
    assert_eq!(audience(&owner), NOBODY);
    assert!(matches!(w.ask(&next, &request), Reply::Segment { .. }));
    assert_eq!(audience(&owner), [next.number()]);
    w.hang_up(&owner);
    assert_eq!(audience(&join_as(&mut w, number)), NOBODY);
    w.core.check();
}

/// The next daemon knows an audience while its owner exists.
#[test]
fn an_audience_outlives_the_daemon() {
    let system = || Settings { mode: Mode::System, ..settings() };
    let mut w = World::new(system());
    let (owner, reader) = (w.join(1), w.join(1));
    let (number, slot) = (owner.number(), w.segment(&owner).base);
    w.ask(&reader, &Request::SegmentOf { owner: number, slot });
    w.replace_daemon(system());
    assert_eq!(audience(&owner), [reader.number()]);
}
