use super::world::{SEGMENT, World, hello, limits, settings};
use crate::core::settings::Settings;
use crate::core::{ConnId, Event};
use tensorlend_layout::number::{CellNo, ClientNo, CursorNo, SlotNo};
use tensorlend_layout::wire::{Hello, LimitKind, PROTOCOL_VERSION, Refusal, Refusals, Reply, Request, encode};
use tensorlend_layout::word::{Absorbed, Member, MemberState};

impl World {
    /// Returns the refusal that the daemon has sent.
    pub fn refusal(&mut self, conn: ConnId) -> Refusal {
        match self.hear(conn) {
            Some((Reply::Refused(refusal), _)) => refusal,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_client_joins_and_leaves_and_everything_comes_back() {
    let mut w = World::new(settings());
    let a = w.join(1);
    assert_eq!((a.number().get(), a.welcome.writer, a.welcome.user_mode), (1, true, true));
    assert_eq!(a.welcome.namespace, "uid:1");
    let member = Member(a.directory.members[1].member.peek());
    assert_eq!((member.0, member.state(), member.epoch()), (a.welcome.member, MemberState::Open, 1));
    assert_eq!(
        Absorbed(a.directory.members[1].absorbed.peek()).state(),
        MemberState::Vacant,
        "it may not announce yet"
    );
    assert_eq!(a.directory.present().map(ClientNo::get).collect::<Vec<_>>(), [1]);
    assert_eq!(a.directory.head().clients.peek(), 1);
    let b = w.join(1);
    assert_eq!(b.number(), ClientNo::new(2));
    let geometry = a.directory.members[2].geometry.peek();
    w.hang_up(&b);
    assert_eq!(Member(a.directory.members[2].member.peek()).state(), MemberState::Vacant);
    assert_eq!(a.directory.present().map(ClientNo::get).collect::<Vec<_>>(), [1]);
    let c = w.join(1);
    assert_eq!(c.number(), ClientNo::new(3), "numbers are used last-used-last");
    assert!(a.directory.members[2].geometry.peek() > geometry);
    w.hang_up(&a);
    w.hang_up(&c);
    w.assert_empty();
}

/// In system mode a client of the daemon's uid could open lent memory for writing.
#[test]
fn a_client_of_the_daemons_own_uid_learns_which_modes_admit_it() {
    let mut w = World::new(Settings { refused_uid: Some(1), ..settings() });
    let own = w.dial(1, &[]);
    w.say(own, &Request::Hello(hello()));
    let said = w.refusal(own).to_string();
    assert!(said.contains("mode = \"user\"") && said.contains("mode = \"system\""), "{said}");
    assert!(w.closed.contains(&own));
    let other = w.join(2);
    w.hang_up(&other);
    w.assert_empty();
}

#[test]
fn a_number_comes_round_with_a_new_epoch_and_geometry() {
    let mut w = World::new(settings());
    let keeper = w.join(1);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let c = w.join(1);
        let entry = &keeper.directory.members[c.number().index()];
        assert!(seen.insert((c.number(), Member(c.welcome.member).epoch())));
        assert!(seen.insert((ClientNo::new(c.number().get() + 1000), entry.geometry.peek() as u32)));
        w.hang_up(&c);
    }
    let many: Vec<_> = (0..5).map(|_| w.join(1)).collect();
    w.hang_up(&keeper);
    for c in &many {
        w.hang_up(c);
    }
    w.assert_empty();
}

#[test]
fn refusals_count_by_reason() {
    let mut w = World::new(settings());
    let conn = w.dial(3, &[]);
    w.say(conn, &Request::Hello(Hello { namespace: Some("lab".into()), ..hello() }));
    let client = w.join(1);
    let too_long = Request::Segment { bytes: 32 * SEGMENT, slots_log2: 4 };
    assert!(matches!(w.ask(&client, &too_long), Reply::Refused(Refusal::Limit { .. })));
    let gone = Request::SlotsOf { owner: client.number(), slot: SlotNo::new(7) };
    for _ in 0..2 {
        assert!(matches!(w.ask(&client, &gone), Reply::Refused(Refusal::NotFound(_))));
    }
    assert_eq!(w.ask(&client, &Request::GaveUp), Reply::Done);
    // The client expects that objects are gone.
    assert_eq!(w.stat().refusals, Refusals { limit: 1, invalid: 1, race: 0 });
    w.hang_up(&client);
    w.assert_empty();
}

#[test]
fn every_refusal_has_its_word() {
    let mut w = World::new(settings());
    let mut refused = |uid, gids: &[u32], hello: Hello| {
        let conn = w.dial(uid, gids);
        w.say(conn, &Request::Hello(hello));
        assert!(w.closed.contains(&conn));
        w.refusal(conn)
    };
    let new = Hello { protocol_min: PROTOCOL_VERSION + 1, protocol_max: u16::MAX, ..hello() };
    assert!(matches!(refused(1, &[], new), Refusal::Protocol { .. }));
    assert!(matches!(refused(1, &[], Hello { layout_version: 99, ..hello() }), Refusal::Layout { .. }));
    let lab = || Hello { namespace: Some("lab".into()), ..hello() };
    let none = || Hello { namespace: Some("none".into()), ..hello() };
    assert_eq!(refused(3, &[], lab()), Refusal::Namespace("lab".into()));
    assert_eq!(refused(1, &[], none()), Refusal::Namespace("none".into()));
    w.bytes_max = 4096;
    let conn = w.dial(1, &[]);
    w.say(conn, &Request::Hello(hello()));
    assert!(matches!(w.refusal(conn), Refusal::Memory { .. }));
    w.assert_empty();
}

#[test]
fn readers_read() {
    let mut w = World::new(settings());
    let writer = w.join_unacknowledged(1, Some("lab"));
    w.say(writer.conn, &Request::Ack);
    let reader = w.join_unacknowledged(2, Some("lab"));
    w.say(reader.conn, &Request::Ack);
    assert!(writer.welcome.writer && !reader.welcome.writer);
    let read_only = Reply::Refused(Refusal::ReadOnly("lab".into()));
    for request in [
        Request::Segment { bytes: 1, slots_log2: 1 },
        Request::GrowCells,
        Request::Bind { name: "x".into(), cell: CellNo::new(0) },
        Request::Delete { name: "x".into() },
        Request::ListAppend { list: "l".into(), cells: vec![] },
        Request::StreamOpen { name: "s".into(), capacity: 1, policy: tensorlend_layout::wire::Policy::Block },
    ] {
        assert_eq!(w.ask(&reader, &request), read_only);
    }
    assert!(matches!(w.ask(&reader, &Request::LeasesOf { client: writer.number() }), Reply::Sheet { .. }));
    assert_eq!(w.ask(&reader, &Request::Wait), Reply::Done);
    let by_group = w.dial(9, &[50]);
    w.say(by_group, &Request::Hello(Hello { namespace: Some("lab".into()), ..hello() }));
    assert!(matches!(w.hear(by_group), Some((Reply::Welcome(welcome), _)) if welcome.writer));
}

#[test]
fn rule_breakers_are_disconnected_and_nobody_else() {
    let mut w = World::new(settings());
    let bystander = w.join(1);
    let mut violation = |act: &dyn Fn(&mut World) -> crate::core::ConnId| {
        let conn = act(&mut w);
        let mut last = None;
        while let Some((reply, _)) = w.hear(conn) {
            last = Some(reply);
        }
        assert!(matches!(last, Some(Reply::Refused(Refusal::Violation(_)))), "{last:?}");
        assert!(w.closed.contains(&conn));
    };
    violation(&|w| {
        let conn = w.dial(1, &[]);
        w.say(conn, &Request::Ping);
        conn
    });
    violation(&|w| {
        let client = w.join(1);
        w.say(client.conn, &Request::Hello(hello()));
        client.conn
    });
    violation(&|w| {
        let client = w.join(1);
        w.say(client.conn, &Request::Ack);
        client.conn
    });
    violation(&|w| {
        let client = w.join_unacknowledged(1, None);
        w.say(client.conn, &Request::Ping);
        client.conn
    });
    violation(&|w| {
        let client = w.join(1);
        w.say_with(client.conn, &Request::Ping, 1);
        client.conn
    });
    violation(&|w| {
        let client = w.join(1);
        w.say_with(client.conn, &Request::SubscribePollable { name: "s".into(), cursor: CursorNo::new(0) }, 1);
        client.conn
    });
    violation(&|w| {
        let client = w.join(1);
        w.happen(Event::Packet { conn: client.conn, bytes: vec![0xFF; 3], descriptors: 0, truncated: false });
        client.conn
    });
    violation(&|w| {
        let client = w.join(1);
        let bytes = encode(&Request::Ping);
        w.happen(Event::Packet { conn: client.conn, bytes, descriptors: 0, truncated: true });
        client.conn
    });
    assert_eq!(w.ask(&bystander, &Request::Ping), Reply::Done);
    w.hang_up(&bystander);
    w.assert_empty();
}

#[test]
fn a_wake_descriptor_of_an_earlier_client_is_refused() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let bytes = encode(&Request::Subscribe { name: "s".into(), cursor: CursorNo::new(0), wake: true });
    w.happen(Event::Packet { conn: a.conn, bytes, descriptors: 1, truncated: false });
    assert!(matches!(w.refusal(a.conn), Refusal::Bad(_)));
    assert_eq!(w.ask(&a, &Request::Ping), Reply::Done);
}

#[test]
fn sessions_and_members_are_limited() {
    let mut w = World::new(settings());
    let clients: Vec<_> = (0..6).map(|_| w.join(1)).collect();
    let conn = w.dial(1, &[]);
    w.say(conn, &Request::Hello(hello()));
    assert!(matches!(w.refusal(conn), Refusal::Limit { kind: LimitKind::Sessions, .. }));
    let other = w.join(3);
    for c in &clients {
        w.hang_up(c);
    }
    w.hang_up(&other);
    w.assert_empty();

    let mut few = settings();
    few.private.members_max = 2;
    let mut w = World::new(few);
    let (a, b) = (w.join(1), w.join(1));
    let conn = w.dial(1, &[]);
    w.say(conn, &Request::Hello(hello()));
    assert!(matches!(w.refusal(conn), Refusal::Limit { kind: LimitKind::Members, .. }));
    w.hang_up(&a);
    let c = w.join(1);
    assert_eq!(c.number(), ClientNo::new(1));
    w.hang_up(&b);
    w.hang_up(&c);
    w.assert_empty();
    assert_eq!(limits().members_max, 8);
}

#[test]
fn a_newcomer_counts_from_its_acknowledgement_on() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let mute = w.join_unacknowledged(1, None);
    let request = Request::LeasesOf { client: mute.number() };
    assert_eq!(
        a.directory.present().map(ClientNo::get).collect::<Vec<_>>(),
        [a.number().get()],
        "no owner looks for its leases"
    );
    assert!(matches!(w.ask(&a, &request), Reply::Refused(Refusal::NotFound(_))), "and no request waits for them");
    w.say(mute.conn, &Request::Ack);
    assert_eq!(a.directory.present().map(ClientNo::get).collect::<Vec<_>>(), [a.number().get(), mute.number().get()]);
    assert!(matches!(w.ask(&a, &request), Reply::Sheet { member } if member == mute.welcome.member));
    let gone = w.join_unacknowledged(1, None);
    w.hang_up(&gone);
    assert_eq!(a.directory.present().count(), 2);
    w.hang_up(&a);
    w.hang_up(&mute);
    w.assert_empty();
}

#[test]
fn who_asks_for_a_sheet_that_is_not_mapped_yet_waits_for_it() {
    let mut w = World::new(settings());
    let a = w.join(1);
    let b = w.join_unacknowledged(1, None);
    w.say(a.conn, &Request::CellsOf { client: b.number(), part: 0 });
    assert!(w.hear(a.conn).is_none());
    w.say(b.conn, &Request::Ack);
    assert!(matches!(w.hear(a.conn), Some((Reply::Cells { part: 0, .. }, _))));
    w.say(a.conn, &Request::Ack);

    let c = w.join_unacknowledged(1, None);
    w.say(a.conn, &Request::CellsOf { client: c.number(), part: 0 });
    w.hang_up(&c);
    assert!(matches!(w.refusal(a.conn), Refusal::NotFound(_)));

    let d = w.join_unacknowledged(1, None);
    w.say(a.conn, &Request::CellsOf { client: d.number(), part: 0 });
    w.wait_ns(4_900_000_000);
    assert!(w.hear(a.conn).is_none());
    w.wait_ns(200_000_000);
    assert!(matches!(w.refusal(d.conn), Refusal::Violation(_)), "a client may delay others for a bounded time");
    assert!(matches!(w.refusal(a.conn), Refusal::NotFound(_)));
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}
