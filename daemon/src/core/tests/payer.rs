//! Namespaces whose clients pay for their segments.

use super::world::{Client, SEGMENT, World, limits, settings};
use crate::core::effect::Effect;
use crate::core::settings::{Mode, NamespaceLimits, Payer, Settings, SpillSettings};
use crate::core::{Event, MemId};
use tensorlend_layout::number::{CellNo, SlotNo};
use tensorlend_layout::wire::{LimitKind, Refusal, Reply, Request, encode};
use tensorlend_layout::word::Cell;

const ONE: Request = Request::Segment { bytes: SEGMENT, slots_log2: 4 };

fn paid_by(payer: Payer, mode: Mode) -> Settings {
    Settings { mode, private: NamespaceLimits { payer, ..limits() }, ..settings() }
}

/// Requests a segment. Returns the memory, and the bytes that the daemon allocates for it. The daemon allocates nothing for
/// memory that exists.
fn lent(w: &mut World, client: &Client) -> (MemId, Option<u64>) {
    let packet = Event::Packet { conn: client.conn, bytes: encode(&ONE), descriptors: 0, truncated: false };
    let effects = w.core.step(w.now_ns, packet);
    let allocated = effects.iter().find_map(|effect| match effect {
        Effect::Create { bytes_first, sheet: None, .. } => Some(*bytes_first),
        _ => None,
    });
    let events: Vec<Event> = effects.into_iter().filter_map(|effect| w.perform(effect)).collect();
    for event in events {
        w.happen(event);
    }
    let Some((Reply::Segment { .. }, lend)) = w.hear(client.conn) else { panic!("a segment") };
    w.say(client.conn, &Request::Ack);
    (lend[0].0, allocated)
}

#[test]
fn a_client_that_pays_gets_new_memory_without_pages() {
    for mode in [Mode::User, Mode::System] {
        let mut w = World::new(paid_by(Payer::Client, mode));
        let (a, b) = (w.join(1), w.join(1));
        assert_eq!(w.stat().bytes_spare, SEGMENT, "other namespaces may use a spare segment");
        let (first, allocated) = lent(&mut w, &a);
        assert_eq!((allocated, w.stat().bytes_spare), (Some(0), SEGMENT), "{mode:?}");
        // The next client may belong to another cgroup, so the daemon frees returned segments.
        assert_eq!(w.ask(&a, &Request::ReturnSegment { base: SlotNo::new(0) }), Reply::Done);
        w.wait_ns(1_000_000_000);
        assert_eq!((w.stat().pool_bytes, w.memory.contains_key(&first)), (SEGMENT, false), "{mode:?}");
        // The same holds for the segments of clients that have ended.
        let (second, _) = lent(&mut w, &a);
        w.hang_up(&a);
        w.wait_ns(1_000_000_000);
        assert!(!w.memory.contains_key(&second), "{mode:?}");
        assert_eq!(lent(&mut w, &b).1, Some(0));
        w.hang_up(&b);
        w.assert_empty();
    }
}

#[test]
fn a_full_pool_refuses_a_client_that_pays_after_it_has_freed_unused_segments() {
    let mut w = World::new(Settings { pool_bytes_max: 2 * SEGMENT, ..paid_by(Payer::Client, Mode::System) });
    let a = w.join(1);
    lent(&mut w, &a);
    assert_eq!(lent(&mut w, &a).1, Some(0), "instead of the spare segment");
    let refused = w.ask(&a, &ONE);
    assert!(matches!(refused, Reply::Refused(Refusal::Limit { kind: LimitKind::PoolBytes, .. })), "{refused:?}");
    w.hang_up(&a);
}

#[test]
fn a_reload_applies_to_new_segments() {
    let mut w = World::new(paid_by(Payer::Daemon, Mode::System));
    let a = w.join(1);
    let (first, _) = lent(&mut w, &a);
    assert_eq!(w.ask(&a, &Request::ReturnSegment { base: SlotNo::new(0) }), Reply::Done);
    w.wait_ns(1_000_000_000);
    assert!(w.memory.contains_key(&first), "an idle segment");
    w.happen(Event::Reload(Box::new(paid_by(Payer::Client, Mode::System))));
    let (second, allocated) = lent(&mut w, &a);
    assert_eq!((second == first, allocated), (false, Some(0)), "pages of the daemon stay with the daemon");
    w.happen(Event::Reload(Box::new(paid_by(Payer::Daemon, Mode::System))));
    assert_eq!(lent(&mut w, &a).0, first);
    w.hang_up(&a);
}

/// The daemon would pay for a segment that it reads back from a file. So a client could move its memory to the daemon's cgroup.
#[test]
fn segments_for_which_clients_pay_are_not_spilled() {
    for mode in [Mode::User, Mode::System] {
        let spill = SpillSettings {
            directory: "/nowhere".into(),
            bytes_max: 8 * SEGMENT,
            uid_bytes_max: 8 * SEGMENT,
            marks: None,
        };
        let mut w = World::new(Settings {
            pool_bytes_max: 2 * SEGMENT,
            spare_segments: 0,
            spill: Some(spill),
            ..paid_by(Payer::Client, mode)
        });
        let (a, b) = (w.join(1), w.join(1));
        for (cell, name) in ["x", "y"].into_iter().enumerate() {
            let lent = w.segment(&a);
            lent.write(lent.base, 1, None);
            w.bind(&a, name, CellNo::new(cell as u32), Cell::new(1, lent.base));
        }
        let refused = w.ask(&a, &Request::ReleaseForSpill { base: SlotNo::new(0) });
        let Reply::Refused(Refusal::Limit { kind: LimitKind::Spill, setting, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(setting, "namespace_default.charge");
        w.hang_up(&a);
        w.wait_ns(1_000_000_000);
        let refused = w.ask(&b, &ONE);
        assert!(matches!(refused, Reply::Refused(Refusal::Limit { kind: LimitKind::PoolBytes, .. })), "{refused:?}");
        assert!(w.files.is_empty(), "{mode:?}");
    }
}
