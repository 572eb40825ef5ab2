//! The daemon ends between any two steps, and another daemon continues.

use super::world::{Client, SEGMENT, World, settings};
use crate::core::label::{Label, Preserved};
use crate::core::settings::{Mode, Settings};
use crate::core::{Core, Event, MemId};
use std::collections::BTreeSet;
use tensorlend_layout::directory::Directory;
use tensorlend_layout::name::{list_key, stream_key};
use tensorlend_layout::number::{CellNo, ClientNo, CursorNo, SlotNo};
use tensorlend_layout::wire::{PROTOCOL_VERSION, Policy, QueueClaim, Refusal, Reply, Request, Return};
use tensorlend_layout::word::{Absorbed, Cell, Member, MemberState, OwnerWord, Word};
use tensorlend_layout::{LAYOUT_HASH, LAYOUT_VERSION};

pub fn system() -> Settings {
    Settings { mode: Mode::System, ..settings() }
}

/// Returns the client's request to continue its session.
pub fn back(client: &Client) -> Return {
    Return {
        protocol_min: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        layout_version: LAYOUT_VERSION,
        layout_hash: LAYOUT_HASH,
        namespace: client.welcome.namespace.clone(),
        client: client.number(),
        member: client.welcome.member,
        segments: None,
        released: Vec::new(),
        cells: 0,
        claims: Vec::new(),
    }
}

impl World {
    /// Replaces the daemon by a new one, which receives the preserved descriptors.
    pub fn replace_daemon(&mut self, settings: Settings) {
        let user_mode = settings.mode == Mode::User;
        let mut core = std::mem::replace(&mut self.core, Core::new(settings));
        core.leave();
        drop(core);
        self.now_ns += 1_000_000;
        let memory = std::mem::take(&mut self.memory);
        let on_device = std::mem::take(&mut self.on_device);
        let files = std::mem::take(&mut self.files);
        self.awaited.clear();
        let preserved: Vec<Preserved> = std::mem::take(&mut self.stored)
            .into_iter()
            .map(|(mem, label)| {
                if let Label::DeviceSegment { bytes, .. } | Label::DeviceOrphaned { bytes, .. } = label {
                    assert_eq!(on_device[&mem], bytes, "its label says how long it is");
                    self.on_device.insert(mem, bytes);
                    self.stored.insert(mem, label.clone());
                    return Preserved { label, mem, view: None, bytes, acked: true, copied: false };
                }
                if let Label::Spilled { .. } = label {
                    self.files.insert(mem, files[&mem]);
                    self.stored.insert(mem, label.clone());
                    return Preserved { label, mem, view: None, bytes: files[&mem].1, acked: true, copied: false };
                }
                let (bytes, view) = memory[&mem].clone();
                self.memory.insert(mem, (bytes, view.clone()));
                self.stored.insert(mem, label.clone());
                if let Label::Leases { .. } = label {
                    // The client that owns this lease table is alive.
                    self.loud.insert(mem);
                }
                let copied = user_mode && matches!(label, Label::Directory { .. });
                Preserved { label, mem, view, bytes, acked: self.sealed.contains(&mem), copied }
            })
            .collect();
        let effects = self.core.restore(self.now_ns, preserved);
        let events: Vec<Event> = effects.into_iter().filter_map(|effect| self.perform(effect)).collect();
        for event in events {
            self.happen(event);
        }
        self.happen(Event::Start);
    }

    pub fn come_back(&mut self, client: &mut Client, segments: Option<Vec<SlotNo>>) -> Reply {
        self.come_back_with(client, segments, Vec::new())
    }

    /// Returns to a new daemon like [`World::come_back`], with some segments released for spill.
    pub fn come_back_with(
        &mut self,
        client: &mut Client,
        segments: Option<Vec<SlotNo>>,
        released: Vec<SlotNo>,
    ) -> Reply {
        let back = Return { segments, released, ..back(client) };
        self.come_back_saying(client, back)
    }

    /// Returns to a new daemon, with claims on items of queues.
    pub fn come_back_claiming(&mut self, client: &mut Client, claims: Vec<QueueClaim>) -> Reply {
        let back = Return { claims, ..back(client) };
        self.come_back_saying(client, back)
    }

    fn come_back_saying(&mut self, client: &mut Client, back: Return) -> Reply {
        client.conn = self.dial(1, &[]);
        self.say(client.conn, &Request::Return(back));
        let (reply, lend) = self.hear(client.conn).expect("answered");
        if !lend.is_empty() {
            self.say(client.conn, &Request::Ack);
            let its = |label: &Label| matches!(label, Label::Leases { owner, .. } if *owner == client.welcome.client);
            let leases: Vec<MemId> = self.stored.iter().filter(|(_, label)| its(label)).map(|(&mem, _)| mem).collect();
            self.loud.retain(|mem| !leases.contains(mem));
        }
        reply
    }
}

#[test]
fn names_streams_and_lists_are_there_after_it_and_everything_comes_back() {
    for mode in [Mode::System, Mode::User] {
        let settings = || Settings { mode, ..settings() };
        let mut w = World::new(settings());
        let (mut a, mut b) = (w.join(1), w.join(1));
        let lent = w.segment(&a);
        let value = Cell::new(1, lent.base);
        lent.write(lent.base, 1, None);
        let owner_word = w.bind(&a, "x", CellNo::new(0), value);
        let long = "n".repeat(200);
        w.bind(&a, &long, CellNo::new(1), value);
        a.words().cells[2].cell.set(value.0);
        w.ask(&a, &Request::ListAppend { list: "l".into(), cells: vec![CellNo::new(2)] });
        w.ask(&a, &Request::StreamOpen { name: "s".into(), capacity: 4, policy: Policy::Error });
        w.ask(&b, &Request::Subscribe { name: "s".into(), cursor: CursorNo::new(3), wake: false });
        w.ask(&b, &Request::Wait);
        w.bind(&a, "gone", CellNo::new(3), value);
        w.ask(&b, &Request::Delete { name: "gone".into() });
        let before = w.stat();

        w.replace_daemon(settings());
        let after = w.stat();
        let figures = |s: &tensorlend_layout::wire::Stat| {
            (s.names, s.segments, s.clients, s.frozen, s.bytes_in_use, s.bytes_sheets)
        };
        assert_eq!(figures(&before), figures(&after));
        assert_eq!(a.find("x"), Some(owner_word), "a name stays where it was");
        assert_eq!(a.find(&long).map(OwnerWord::cell), Some(CellNo::new(1)));
        assert_eq!(a.find("gone"), None);
        assert!(a.find_key(&list_key("l")).is_some() && a.find_key(&stream_key("s")).is_some());

        assert!(matches!(w.come_back(&mut a, Some(vec![lent.base])), Reply::Welcome(_)));
        assert!(matches!(w.come_back(&mut b, None), Reply::Welcome(_)));
        // Everything continues: ids are not reused, cells and segments are not lent twice, the name can be taken over.
        b.words().cells[0].cell.set(Cell::new(1, SlotNo::new(0)).0);
        let moved = w.bind(&b, "x", CellNo::new(0), Cell::new(1, SlotNo::new(0)));
        assert_eq!((moved.owner(), moved.version()), (b.number(), owner_word.version() + 1));
        a.words().cells[4].cell.set(value.0);
        let Reply::Appended { first } =
            w.ask(&a, &Request::ListAppend { list: "l".into(), cells: vec![CellNo::new(4)] })
        else {
            panic!()
        };
        assert_eq!(first, 1);
        let Reply::Stream { policy, .. } =
            w.ask(&b, &Request::Subscribe { name: "s".into(), cursor: CursorNo::new(4), wake: false })
        else {
            panic!()
        };
        assert_eq!(policy, Policy::Error);
        assert_ne!(w.segment(&a).base, lent.base);
        w.ask(&a, &Request::StreamDelete { name: "s".into() });
        w.ask(&a, &Request::ListDelete { list: "l".into() });
        for name in ["x", &long] {
            w.ask(&a, &Request::Delete { name: name.into() });
        }
        w.hang_up(&a);
        w.hang_up(&b);
        w.assert_empty();
    }
}

#[test]
fn who_does_not_come_back_ends_with_his_process_and_leaves_his_tensors() {
    let mut w = World::new(system());
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    w.bind(&a, "x", CellNo::new(0), Cell::new(1, lent.base));
    w.hang_up(&b);
    w.replace_daemon(system());
    w.wait_ns(3_000_000_000);
    assert_eq!(w.stat().clients, 1, "it is there, and may come back");
    w.loud.clear();
    w.wait_ns(3_000_000_000);
    assert_eq!((w.stat().clients, w.stat().frozen, w.stat().names), (0, 1, 1));
    let c = w.join(1);
    assert!(c.find("x").is_some());
    w.ask(&c, &Request::Delete { name: "x".into() });
    w.hang_up(&c);
    w.assert_empty();
}

#[test]
fn somebody_else_cannot_come_back_in_a_clients_place() {
    let mut w = World::new(system());
    let mut a = w.join(1);
    w.replace_daemon(system());
    let conn = w.dial(2, &[]);
    let says = |member| Request::Return(Return { member, ..back(&a) });
    let (own, other) = (says(a.welcome.member), says(a.welcome.member + 1));
    w.say(conn, &own);
    assert!(matches!(w.refusal(conn), Refusal::NotFound(_)));
    let conn = w.dial(1, &[]);
    w.say(conn, &other);
    assert!(matches!(w.refusal(conn), Refusal::NotFound(_)));
    assert!(matches!(w.come_back(&mut a, None), Reply::Welcome(_)));
    let first = a.conn;
    assert!(matches!(w.come_back(&mut a, None), Reply::Refused(Refusal::NotFound(_))), "one of them");
    w.happen(Event::HungUp { conn: first });
    w.assert_empty();
}

#[test]
fn in_user_mode_nothing_moves_before_all_are_back() {
    let mut w = World::new(settings());
    let (mut a, mut b) = (w.join(1), w.join(1));
    w.replace_daemon(settings());
    assert!(matches!(w.come_back(&mut a, None), Reply::Welcome(_)));
    a.words().cells[0].cell.set(Cell::new(1, SlotNo::new(0)).0);
    w.say(a.conn, &Request::Bind { name: "x".into(), cell: CellNo::new(0) });
    assert!(w.hear(a.conn).is_none(), "one still reads the old directory");
    assert!(matches!(w.come_back(&mut b, None), Reply::Welcome(_)));
    assert!(matches!(w.hear(a.conn), Some((Reply::Bound { .. }, _))));
    // If one client is stopped, the daemon does not wait for it for ever.
    w.replace_daemon(settings());
    assert!(matches!(w.come_back(&mut a, None), Reply::Welcome(_)));
    w.say(a.conn, &Request::Delete { name: "x".into() });
    w.wait_ns(4_000_000_000);
    assert!(w.hear(a.conn).is_none());
    w.wait_ns(2_000_000_000);
    assert!(matches!(w.hear(a.conn), Some((Reply::Deleted { .. }, _))));
    assert_eq!(w.stat().clients, 2);
    w.loud.clear();
    w.hang_up(&a);
    w.assert_empty();
}

#[test]
fn what_was_lent_at_the_very_end_is_taken_back() {
    let mut w = World::new(system());
    let mut a = w.join(1);
    // The response may be in flight, or was never received.
    w.say(a.conn, &Request::Segment { bytes: 1 << 20, slots_log2: 4 });
    let unborn = w.join_unacknowledged(1, None);
    w.replace_daemon(system());
    assert_eq!(Member(a.directory.members[unborn.number().index()].member.peek()).state(), MemberState::Vacant);
    assert_eq!(w.stat().segments, 1);
    assert!(matches!(w.come_back(&mut a, Some(vec![])), Reply::Welcome(_)));
    assert_eq!(w.stat().segments, 0);
    w.loud.clear();
    w.hang_up(&a);
    w.assert_empty();
}

/// If some preserved descriptors are missing, their objects are lost, and all others survive.
#[test]
fn what_is_missing_takes_nothing_else_with_it() {
    let mut w = World::new(system());
    let (a, b) = (w.join(1), w.join(1));
    for client in [&a, &b] {
        let lent = w.segment(client);
        lent.write(lent.base, 1, None);
        w.bind(client, &format!("of {}", client.number()), CellNo::new(0), Cell::new(1, lent.base));
        let name = format!("s{}", client.number());
        w.ask(client, &Request::StreamOpen { name, capacity: 1, policy: Policy::Block });
    }
    let preserved: Vec<MemId> = w.stored.keys().copied().collect();
    let (now_ns, memory, labels) = (w.now_ns, w.memory.clone(), w.stored.clone());
    for missing in preserved {
        if matches!(labels[&missing], Label::Directory { .. }) {
            continue;
        }
        // The rounds share words: a word that one round removes is missing in the next. Only the daemon's conclusions matter
        // here.
        (w.now_ns, w.memory, w.stored) = (now_ns, memory.clone(), labels.clone());
        w.stored.remove(&missing);
        w.replace_daemon(system());
        let stat = w.stat();
        assert!(stat.clients + stat.frozen <= 2 && stat.segments <= 2 && stat.names <= 4, "{missing:?}: {stat:?}");
    }
    w.hang_up(&a);
    w.hang_up(&b);
    w.loud.clear();
    w.wait_ns(10_000_000_000);
    assert_eq!(w.stat().clients, 0);
}

#[test]
fn the_log_counts_names_whose_memory_is_lost() {
    let mut w = World::new(system());
    let (a, b) = (w.join(1), w.join(1));
    let lost = w.segment(&b);
    for (client, lent) in [(&a, w.segment(&a)), (&b, w.segment(&b)), (&b, lost)] {
        for number in 0..2 {
            let slot = lent.base + number;
            lent.write(slot, 1, None);
            w.bind(client, &format!("{slot} of {}", client.number()), CellNo::new(slot.get()), Cell::new(1, slot));
        }
    }
    assert!(matches!(w.ask(&a, &Request::GrowCells), Reply::Cells { part: 1, .. }));
    assert!(matches!(
        w.ask(&a, &Request::Bind { name: "beyond".into(), cell: CellNo::new(4096) }),
        Reply::Bound { .. }
    ));
    assert!(!log_of(|| w.replace_daemon(system())).contains("lost"));
    w.stored.retain(|_, label| !matches!(label, Label::Cells { .. }));
    assert!(log_of(|| w.replace_daemon(system())).contains("names lost at the restart: 1;"));
    let lost = w.stored.iter().find(|(_, label)| matches!(label, Label::Segment { owner, .. } if *owner == b.number()));
    let lost = *lost.unwrap().0;
    w.stored.remove(&lost);
    assert!(log_of(|| w.replace_daemon(system())).contains("names lost at the restart: 3;"));
    // Without its catalogue, a client has no names.
    w.stored.retain(|_, label| !matches!(label, Label::Catalogue { owner, .. } if *owner == a.number()));
    let log = log_of(|| w.replace_daemon(system()));
    assert!(log.contains("names lost at the restart: 5;"), "three of this client, and two of the lost segment: {log}");
    w.stored.retain(|_, label| !matches!(label, Label::Directory { .. }));
    let log = log_of(|| w.replace_daemon(system()));
    assert!(log.contains("all names of namespace number"), "{log}");
}

/// A daemon that is killed while it renames a list onto another list leaves both names on the renamed one.
#[test]
fn a_list_that_was_being_renamed_has_its_new_name_whichever_came_first() {
    for (from, to) in [("first", "second"), ("second", "first")] {
        let mut w = World::new(system());
        let a = w.join(1);
        let lent = w.segment(&a);
        for (cell, list) in (0..).zip(["first", "second"]) {
            lent.write(lent.base + cell, 1, None);
            a.words().cells[cell as usize].cell.set(Cell::new(1, lent.base + cell).0);
            let append = Request::ListAppend { list: list.into(), cells: vec![CellNo::new(cell)] };
            assert_eq!(w.ask(&a, &append), Reply::Appended { first: 0 });
        }
        let d = a.directory.clone();
        let find = |list: &str| d.find(d.hash(&list_key(list)), &list_key(list)).unwrap();
        let (renamed, replaced) = (find(from).unwrap().owner_word, find(to).unwrap());
        d.lists[renamed.cell().index()].key_hash.set(d.hash(&list_key(to)));
        let owner_word = replaced.owner_word.then_live(ClientNo::new(0), renamed.cell());
        d.names[replaced.entry.index()].owner_word.set(owner_word.0);
        w.replace_daemon(system());
        let place = |list: &str| find(list).map(|it| it.owner_word).filter(|it| it.is_live()).map(OwnerWord::cell);
        assert_eq!((place(from), place(to)), (None, Some(renamed.cell())), "{from} to {to}");
    }
}

/// Returns the warnings that this step logs.
fn log_of(step: impl FnOnce()) -> String {
    // While there is only one subscriber, `tracing` asks the thread that first reaches a log call whether anybody wants it, and
    // keeps the answer for all threads. Threads of other tests would say no.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
    let (reader, writer) = std::io::pipe().unwrap();
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
    tracing::subscriber::with_default(log.with_writer(move || writer.try_clone().unwrap()).finish(), step);
    std::io::read_to_string(reader).unwrap()
}

#[test]
fn who_hangs_up_before_he_has_the_directory_may_come_again() {
    let mut w = World::new(settings());
    let (mut a, mut b) = (w.join(1), w.join(1));
    w.replace_daemon(settings());
    assert!(matches!(w.come_back(&mut a, None), Reply::Welcome(_)));
    a.words().cells[0].cell.set(Cell::new(1, SlotNo::new(0)).0);
    w.say(a.conn, &Request::Bind { name: "x".into(), cell: CellNo::new(0) });
    let conn = w.dial(1, &[]);
    w.say(conn, &Request::Return(back(&b)));
    assert!(matches!(w.hear(conn), Some((Reply::Welcome(_), _))));
    assert!(w.hear(a.conn).is_none(), "it may still read the old directory");
    w.happen(Event::HungUp { conn });
    assert_eq!(w.stat().clients, 2);
    assert!(matches!(w.come_back(&mut b, None), Reply::Welcome(_)));
    assert!(matches!(w.hear(a.conn), Some((Reply::Bound { .. }, _))));
    w.ask(&a, &Request::Delete { name: "x".into() });
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn who_has_more_than_the_daemon_knows_cannot_continue() {
    let mut w = World::new(system());
    let mut a = w.join(1);
    let lent = w.segment(&a);
    let lost: Vec<MemId> =
        w.stored.iter().filter(|(_, label)| matches!(label, Label::Segment { .. })).map(|(&mem, _)| mem).collect();
    w.stored.remove(&lost[0]);
    w.replace_daemon(system());
    assert!(matches!(w.come_back(&mut a, Some(vec![lent.base])), Reply::Refused(Refusal::NotFound(_))));
    w.loud.clear();
    w.assert_empty();
}

#[test]
fn who_holds_a_claim_and_does_not_come_back_holds_nobody_up() {
    let mut w = World::new(system());
    let (a, mut b) = (w.announcer(1), w.join(1));
    a.words().claim.set(a.directory.hash(b"x"));
    w.replace_daemon(system());
    assert!(matches!(w.come_back(&mut b, None), Reply::Welcome(_)));
    b.words().cells[0].cell.set(Cell::new(1, SlotNo::new(0)).0);
    w.say(b.conn, &Request::Bind { name: "x".into(), cell: CellNo::new(0) });
    w.wait_ns(3_000_000_000);
    assert!(matches!(w.hear(b.conn), Some((Reply::Bound { .. }, _))));
}

#[test]
fn a_request_to_bind_that_is_asked_twice_takes_effect_once() {
    let mut w = World::new(system());
    let (mut a, mut b) = (w.join(1), w.join(1));
    let first = w.bind(&a, "x", CellNo::new(0), Cell::new(1, SlotNo::new(0)));
    w.replace_daemon(system());
    assert!(matches!(w.come_back(&mut a, None), Reply::Welcome(_)));
    assert!(matches!(w.come_back(&mut b, None), Reply::Welcome(_)));
    let taken = w.bind(&b, "x", CellNo::new(0), Cell::new(1, SlotNo::new(0)));
    assert_eq!(taken.version(), first.version() + 1);
    assert!(matches!(w.ask(&a, &Request::Bind { name: "x".into(), cell: CellNo::new(0) }), Reply::Bound { .. }));
    assert_eq!(b.find("x"), Some(taken), "it is not undone");
}

/// A returned segment that its client still has mapped stays charged under the next daemon and the one after it.
#[test]
fn what_lingers_is_charged_after_it_too() {
    for mode in [Mode::System, Mode::User] {
        let settings = || Settings { mode, spare_segments: 0, ..settings() };
        let mut w = World::new(settings());
        let mut a = w.join(1);
        let lent = w.segment(&a);
        let slots = w.stored.iter().find(|(_, label)| matches!(label, Label::Slots { .. })).map(|(&mem, _)| mem);
        w.loud.extend([lent.segment, slots.expect("they are kept")]);
        assert_eq!(w.ask(&a, &Request::ReturnSegment { base: lent.base }), Reply::Done);
        let before = w.stat();
        assert_eq!((before.segments, before.bytes_in_use), (0, SEGMENT));
        for _ in 0..2 {
            w.replace_daemon(settings());
            let after = w.stat();
            assert_eq!((after.bytes_in_use, after.bytes_sheets), (SEGMENT, before.bytes_sheets), "{mode:?}");
        }
        assert!(matches!(w.come_back(&mut a, Some(vec![])), Reply::Welcome(_)));
        // A segment with the same numbers has a different label.
        let again = w.segment(&a);
        assert_eq!(again.base, lent.base);
        w.replace_daemon(settings());
        assert_eq!((w.stat().segments, w.stat().bytes_in_use), (1, 2 * SEGMENT));
        // Its namespace has ended, and the segment is still orphaned.
        w.loud.retain(|mem| w.memory[mem].1.is_none());
        w.wait_ns(60_000_000_000);
        assert_eq!((w.stat().clients, w.stat().bytes_in_use, w.stat().bytes_sheets), (0, SEGMENT, 0), "{mode:?}");
        w.replace_daemon(settings());
        assert_eq!((w.stat().clients, w.stat().bytes_in_use), (0, SEGMENT));
        w.loud.clear();
        w.assert_empty();
    }
}

/// Memory that is orphaned after a restart has a label of its own, next to the older ones, and labels stay short.
#[test]
fn what_is_given_up_has_a_short_label_of_its_own() {
    let settings = || Settings { spare_segments: 0, ..system() };
    let mut w = World::new(settings());
    let mut a = w.join(1);
    for round in 1..=3 {
        let lent = w.segment(&a);
        w.loud.insert(lent.segment);
        assert_eq!(w.ask(&a, &Request::ReturnSegment { base: lent.base }), Reply::Done);
        // The machine may have been running for years.
        w.now_ns += 1 << 60;
        w.replace_daemon(settings());
        assert!(matches!(w.come_back(&mut a, Some(vec![])), Reply::Welcome(_)));
        let given_up = w.stored.values().filter(|label| matches!(label, Label::Orphaned { segment: true, .. }));
        let texts: BTreeSet<String> = given_up.map(Label::to_string).collect();
        assert_eq!(texts.len(), round, "{texts:?}");
        // Ids count from 1 on: each return adds two at most, for a segment and its slots.
        assert!(texts.iter().all(|text| text.len() == "tl.gs.1.1.1".len()), "{texts:?}");
    }
    w.loud.clear();
    w.hang_up(&a);
    w.assert_empty();
}

/// The daemon ended while it took back a segment: no line leads to it, and its client has it mapped.
#[test]
fn what_no_line_leads_to_is_charged_until_it_is_quiescent() {
    let settings = || Settings { spare_segments: 0, ..system() };
    let mut w = World::new(settings());
    let a = w.join(1);
    let lent = w.segment(&a);
    w.loud.insert(lent.segment);
    let preserved = w.stored.clone();
    assert_eq!(w.ask(&a, &Request::ReturnSegment { base: lent.base }), Reply::Done);
    // The daemon did not remove it from the fd store either.
    w.stored.insert(lent.segment, preserved[&lent.segment].clone());
    w.replace_daemon(settings());
    assert_eq!((w.stat().segments, w.stat().bytes_in_use), (0, SEGMENT));
    assert!(!w.stored.values().any(|label| matches!(label, Label::Segment { .. })), "not free: {:?}", w.stored);
    w.loud.clear();
    w.assert_empty();
}

/// The daemon is killed between the two stores that make an announcer: the next daemon follows the word.
#[test]
fn a_half_made_announcer_is_none() {
    let mut w = World::new(system());
    let (a, b) = (w.announcer(1), w.announcer(1));
    let head = a.directory.head();
    // One client has the bit without the word, and the other the word without the bit.
    a.directory.members[a.number().index()].absorbed.set(Absorbed::new(MemberState::Vacant, 0).0);
    head.announcers[0].clear_bits(1 << b.number().get());
    w.replace_daemon(system());
    assert_eq!(a.directory.announcers().collect::<Vec<_>>(), [b.number()]);
}

/// A session that returns counts twice until it is back. So at its limit of sessions, a user's connections are over the limit.
#[test]
fn all_sessions_of_a_user_at_its_limit_come_back_at_once_and_stay() {
    let few = || Settings { uid_sessions_max: 6, ..system() };
    let mut w = World::new(few());
    let mut clients: Vec<Client> = (0..6).map(|_| w.join(1)).collect();
    w.replace_daemon(few());
    for client in &mut clients {
        client.conn = w.dial(1, &[]);
    }
    for client in &clients {
        assert!(!w.closed.contains(&client.conn));
        w.say(client.conn, &Request::Return(back(client)));
        assert!(matches!(w.hear(client.conn), Some((Reply::Welcome(_), _))));
        w.say(client.conn, &Request::Ack);
    }
    w.loud.clear();
    w.wait_ns(60_000_000_000);
    for client in clients {
        assert_eq!(w.ask(&client, &Request::Ping), Reply::Done);
        w.hang_up(&client);
    }
    w.assert_empty();
}

/// No contents of a stored directory stop the next daemon.
#[test]
fn a_directory_with_made_up_words_stops_nobody() {
    for seed in 1..=1000 {
        let settings = || Settings { spare_segments: 0, ..system() };
        let mut w = World::new(settings());
        let (a, b) = (w.join(1), w.join(1));
        let lent = w.segment(&a);
        lent.write(lent.base, 1, None);
        for (cell, name) in ["x".to_owned(), "n".repeat(200), "m".repeat(120)].iter().enumerate() {
            w.bind(&a, name, CellNo::new(cell as u32), Cell::new(1, lent.base));
        }
        a.words().cells[5].cell.set(Cell::new(1, lent.base).0);
        w.ask(&a, &Request::ListAppend { list: "l".into(), cells: vec![CellNo::new(5)] });
        w.ask(&a, &Request::StreamOpen { name: "s".into(), capacity: 4, policy: Policy::Error });
        w.ask(&b, &Request::Subscribe { name: "s".into(), cursor: CursorNo::new(3), wake: false });
        let mut random = seed;
        let mut next = move || {
            // xorshift64
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let view = w.memory.values().find_map(|(_, view)| view.clone().filter(|v| Directory::new(v).is_some()));
        let view = view.expect("one is");
        let words: &[Word] = view.array(0, view.bytes() / 8).expect("as long");
        // Words in use, except those with the offsets of the tables.
        let used: Vec<&Word> = words.iter().skip(64).filter(|word| word.peek() != 0).collect();
        for _ in 0..=next() % 8 {
            let value = match next() % 4 {
                0 => next(),
                1 => u64::MAX,
                2 => next() % 64,
                _ => used[next() as usize % used.len()].peek() ^ 1 << (next() % 64),
            };
            used[next() as usize % used.len()].set(value);
        }
        w.replace_daemon(settings());
        let c = w.join(1);
        w.bind(&c, "y", CellNo::new(0), Cell::new(1, SlotNo::new(0)));
        w.ask(&c, &Request::Delete { name: "y".into() });
        w.ask(&c, &Request::Delete { name: "n".repeat(200) });
        w.loud.clear();
        w.wait_ns(3_000_000_000);
        w.hang_up(&c);
    }
}
