//! Random clients that obey some rules and break others: the core neither panics nor loses a byte.

use super::streams::subscribe;
use super::world::{World, settings};
use crate::core::settings::Mode;
use crate::core::{ConnId, Event};
use proptest::prelude::*;
use std::collections::BTreeSet;
use tensorlend_layout::number::{CellNo, ClientNo, CursorNo, EntryNo, SlotNo, StreamLine};
use tensorlend_layout::wire::{Hello, LendingId, NameAt, Policy, QueueClaim, QueueItem, QueueRequest, Reply, Request};

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..6u8).prop_map(|i| format!("n{i}")),
        (0..3u8).prop_map(|i| format!("{i}{}", "x".repeat(150))),
        Just(String::new()),
    ]
}

/// A past lending; its time is filled in when the message is sent.
fn lending() -> impl Strategy<Value = LendingId> {
    (0..9u16, 0..4u32).prop_map(|(number, n)| LendingId {
        owner: ClientNo::new(number),
        base: SlotNo::new(n << 4),
        since_ns: 0,
    })
}

fn request() -> impl Strategy<Value = Request> {
    let cell = 0..6u32;
    let number = 0..9u16;
    prop_oneof![
        8 => Just(Request::Ack),
        2 => Just(Request::Hello(super::world::hello())),
        1 => Just(Request::Hello(Hello { namespace: Some("lab".into()), ..super::world::hello() })),
        3 => (0..4u64, 0..8u8).prop_map(|(n, slots_log2)| Request::Segment { bytes: n << 20, slots_log2 }),
        3 => (0..12u64, 0..5u8).prop_map(|(n, slots_log2)| Request::DeviceSegment { uuid: super::world::device().uuid, bytes: n << 20, slots_log2 }),
        1 => prop::collection::vec(lending(), 0..3).prop_map(|lendings| Request::Unmapped { lendings }),
        1 => (prop::collection::vec(lending(), 0..3), any::<bool>()).prop_map(|(lendings, last)| Request::Mapped { lendings, last }),
        2 => (0..64u32).prop_map(|n| Request::ReturnSegment { base: SlotNo::new(n & !15) }),
        1 => Just(Request::GrowCells),
        2 => (number.clone(), 0..64u32).prop_map(|(number, slot)| Request::SegmentOf { owner: ClientNo::new(number), slot: SlotNo::new(slot) }),
        2 => (number.clone(), 0..64u32).prop_map(|(number, slot)| Request::SlotsOf { owner: ClientNo::new(number), slot: SlotNo::new(slot) }),
        2 => prop::collection::vec((0..64u32, any::<u64>()), 0..4).prop_map(|names| Request::ValuesOf {
            names: names.into_iter().map(|(entry, owner_word)| NameAt { entry: EntryNo::new(entry), owner_word }).collect()
        }),
        2 => (number.clone(), 0..3u8).prop_map(|(number, part)| Request::CellsOf { client: ClientNo::new(number), part }),
        2 => number.clone().prop_map(|number| Request::LeasesOf { client: ClientNo::new(number) }),
        6 => (name(), cell.clone()).prop_map(|(name, cell)| Request::Bind { name, cell: CellNo::new(cell) }),
        3 => (name(), cell.clone(), prop::option::of(0u64..20_000_000), any::<bool>()).prop_map(
            |(name, cell, ttl_ns, ephemeral)| Request::BindFor { name, cell: CellNo::new(cell), ttl_ns, ephemeral }
        ),
        2 => name().prop_map(|name| Request::Delete { name }),
        1 => (name(), cell.clone()).prop_map(|(name, cell)| Request::Tidy { names: vec![(name, CellNo::new(cell))] }),
        2 => (name(), name()).prop_map(|(from, to)| Request::Rename { from, to }),
        1 => Just(Request::Notices),
        1 => Just(Request::Wait),
        2 => (name(), 0..9u32).prop_map(|(name, capacity)| Request::StreamOpen { name, capacity, policy: Policy::Block }),
        2 => (name(), 0..3u16, any::<bool>()).prop_map(|(name, cursor, wake)| subscribe(&name, CursorNo::new(cursor), wake)),
        1 => (0..3u32, 0..5u64, 0..3u16).prop_map(|(stream, id, cursor)| Request::Unsubscribe { stream: StreamLine::new(stream), id, cursor: CursorNo::new(cursor) }),
        1 => (0..3u32, number, 0..3u16).prop_map(|(stream, number, cursor)| Request::WakeDescriptor { stream: StreamLine::new(stream), subscriber: ClientNo::new(number), cursor: CursorNo::new(cursor) }),
        1 => name().prop_map(|name| Request::StreamDelete { name }),
        2 => (name(), prop::collection::vec(cell, 0..4)).prop_map(|(list, cells)| Request::ListAppend { list, cells: cells.into_iter().map(CellNo::new).collect() }),
        1 => name().prop_map(|list| Request::ListDelete { list }),
        1 => (name(), name()).prop_map(|(from, to)| Request::ListRename { from, to }),
        8 => queue(name(), 0..3u32).prop_map(Request::Queue),
        1 => Just(Request::Ping),
    ]
}

fn queue(name: impl Strategy<Value = String>, cell: std::ops::Range<u32>) -> impl Strategy<Value = QueueRequest> {
    let claim = (0..6u64, 0..8u64, 0..8u64)
        .prop_map(|(list, number, grant)| QueueClaim { item: QueueItem { list, number }, grant });
    (name, cell, 0..4u64, claim, 0..10u8).prop_map(|(list, cell, max, claim, kind)| match kind {
        0 | 1 => QueueRequest::Put { list, cells: (cell..3).map(CellNo::new).take(1 + kind as usize).collect(), max },
        2 | 3 => QueueRequest::Claim { list, done: vec![claim; max as usize], max: max as u8, wait: kind == 3 },
        8 | 9 => QueueRequest::Stop,
        4 | 5 => QueueRequest::Done(claim),
        6 => QueueRequest::GiveBack(claim),
        _ => QueueRequest::Size { list },
    })
}

#[derive(Clone, Debug)]
enum Step {
    Dial(u32),
    /// The client's next correct message: a hello, an acknowledgement if one is due, or the request.
    Proper(usize, Request),
    /// The request, correct or not.
    Rude(usize, Request),
    HangUp(usize),
    Scribble(usize, usize, u64),
    Wait(u64),
    Slow(bool),
    Finish,
    Poor(bool),
    Broken(bool),
    Exit(usize),
    Loud(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..4u32).prop_map(Step::Dial),
        40 => (any::<usize>(), request()).prop_map(|(c, r)| Step::Proper(c, r)),
        1 => (any::<usize>(), request()).prop_map(|(c, r)| Step::Rude(c, r)),
        3 => any::<usize>().prop_map(Step::HangUp),
        6 => (any::<usize>(), 0..400usize, prop_oneof![any::<u64>(), 0..64u64, (0..99u64).prop_map(|n| 1 << 24 | n)])
            .prop_map(|(m, at, v)| Step::Scribble(m, at, v)),
        2 => (0..3_000_000_000u64).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(Step::Slow),
        2 => Just(Step::Finish),
        1 => any::<bool>().prop_map(Step::Poor),
        1 => any::<bool>().prop_map(Step::Broken),
        2 => any::<usize>().prop_map(Step::Exit),
        1 => any::<bool>().prop_map(Step::Loud),
    ]
}

fn play(mode: Mode, steps: Vec<Step>) {
    let mut s = settings();
    s.mode = mode;
    s.pool_bytes_max = 8 << 20;
    s.private.names_max = 512;
    s.uid_share = mode == Mode::System;
    s.lease_ns_max = (mode == Mode::System).then_some(200_000_000);
    let mut w = World::new(s);
    // Connections, each with the acknowledgements that the last response requires.
    let mut conns: Vec<(ConnId, bool, bool)> = Vec::new();
    let mut lent: Vec<LendingId> = Vec::new();
    for step in steps {
        let pick = |i: usize, conns: &[(ConnId, bool, bool)]| (!conns.is_empty()).then(|| i % conns.len());
        match step {
            Step::Dial(uid) => conns.push((w.dial(uid, &[]), false, false)),
            Step::Proper(i, mut request) => {
                let Some(i) = pick(i, &conns) else { continue };
                let (conn, joined, due) = conns[i];
                if due {
                    request = Request::Ack;
                } else if !joined {
                    request = Request::Hello(super::world::hello());
                } else if matches!(request, Request::Ack | Request::Hello(_)) {
                    request = Request::Ping;
                }
                conns[i].1 = true;
                conns[i].2 = false;
                if let Request::Unmapped { lendings } | Request::Mapped { lendings, .. } = &mut request {
                    for it in lendings {
                        let mut lent = lent.iter().filter(|lent| (lent.owner, lent.base) == (it.owner, it.base));
                        it.since_ns = lent.next().map_or(0, |lent| lent.since_ns);
                    }
                }
                if joined && !due {
                    w.say_with(conn, &Request::Queue(QueueRequest::Stop), 0);
                }
                // The daemon closes a connection on which it has not answered the last request.
                if !w.closed.contains(&conn) {
                    w.say(conn, &request);
                }
            }
            Step::Rude(i, request) => {
                let Some(i) = pick(i, &conns) else { continue };
                w.say_with(conns[i].0, &request, i % 2);
            }
            Step::HangUp(i) => {
                let Some(i) = pick(i, &conns) else { continue };
                let (conn, ..) = conns.swap_remove(i);
                w.happen(Event::HungUp { conn });
            }
            Step::Scribble(m, at, value) => {
                // A random sheet of a client, never the daemon's.
                let sheets: Vec<_> = w.memory.values().filter_map(|(_, view)| view.clone()).collect();
                let mine = |v: &&tensorlend_layout::raw::View| {
                    let head: &tensorlend_layout::header::SheetHeader = v.at(0).unwrap();
                    head.owner.peek() != 0
                };
                let sheets: Vec<_> = sheets.iter().filter(mine).collect();
                if !sheets.is_empty() {
                    let view = sheets[m % sheets.len()];
                    let words = view.bytes() / 8 - 8;
                    // Most of these words are in use: they are after the header, or in the arrays.
                    let place = 8 + (at % 200 + (at / 200) * (36864 / 8)) % words;
                    let word: &tensorlend_layout::word::Word = view.at(place * 8).unwrap();
                    word.set(value);
                }
            }
            Step::Wait(ns) => w.wait_ns(ns),
            Step::Slow(slow) => w.slow = slow,
            Step::Finish => w.finish(),
            Step::Poor(poor) => w.bytes_max = if poor { 100_000 } else { u64::MAX },
            Step::Broken(broken) => w.device_fails = broken.then(|| "lost".into()),
            Step::Exit(i) => {
                let awaited: Vec<ConnId> = w.awaited.iter().copied().collect();
                if let Some(&conn) = awaited.get(i % awaited.len().max(1)) {
                    w.exit(conn);
                }
            }
            Step::Loud(loud) => w.loud = if loud { w.memory.keys().copied().collect() } else { BTreeSet::new() },
        }
        for (conn, _, due) in &mut conns {
            while let Some((reply, lend)) = w.hear(*conn) {
                if let Reply::DeviceSegment(it) = reply {
                    lent.push(it.lending);
                }
                *due = !lend.is_empty();
            }
        }
        conns.retain(|(conn, ..)| !w.closed.contains(conn));
    }
    w.bytes_max = u64::MAX;
    w.device_fails = None;
    w.slow = false;
    w.loud.clear();
    w.finish();
    for (conn, ..) in conns {
        w.happen(Event::HungUp { conn });
    }
    for conn in w.awaited.clone() {
        w.exit(conn);
    }
    // Sessions count until the memory of the ended clients is quiescent.
    w.wait_ns(25_000_000_000);
    for (uid, namespace) in [(1, None), (2, None), (3, None), (1, Some("lab"))] {
        let last = w.join_unacknowledged(uid, namespace);
        w.say(last.conn, &Request::Ack);
        for name in (0..6).map(|i| format!("n{i}")).chain((0..3).map(|i| format!("{i}{}", "x".repeat(150)))) {
            w.ask(&last, &Request::Delete { name: name.clone() });
            w.ask(&last, &Request::StreamDelete { name: name.clone() });
            w.ask(&last, &Request::ListDelete { list: name });
        }
        w.hang_up(&last);
    }
    w.assert_empty();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_every_charge_comes_back(
        system in any::<bool>(),
        steps in prop::collection::vec(step(), 0..250),
    ) {
        play(if system { Mode::System } else { Mode::User }, steps);
    }
}
