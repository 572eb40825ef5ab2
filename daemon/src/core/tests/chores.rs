//! Long work in slices: the cost of a step is counted in units, and no step exceeds its maximum.

use super::accounts::{figures, write};
use super::world::{Client, SEGMENT, World, limits, settings};
use crate::core::chores::{PAUSE_NS, UNITS};
use crate::core::settings::{Mode, NamespaceLimits, Settings};
use crate::core::{Effect, Event};
use tensorlend_layout::catalogue::SlotRecord;
use tensorlend_layout::name::{item_key, list_key};
use tensorlend_layout::number::{CellNo, SlotNo};
use tensorlend_layout::wire::{APPEND_MAX, Refusal, Reply, Request};
use tensorlend_layout::word::{Cell, SLOT_NONE};

const CELLS: u32 = 4096;
const ITEMS: u64 = 3 * CELLS as u64;
/// The maximum cost of a step, with the cost of its last action.
const MOST: u32 = UNITS + 64;

fn large(names_max: u32) -> Settings {
    let private = NamespaceLimits { names_max, ..limits() };
    Settings { mode: Mode::System, private, ..settings() }
}

/// Sends a request and waits for the response: the table of names grows in steps.
fn ask(w: &mut World, client: &Client, request: &Request) -> Reply {
    w.say(client.conn, request);
    for _ in 0..100 {
        if let Some((reply, _)) = w.hear(client.conn) {
            return reply;
        }
        w.wait_ns(PAUSE_NS);
    }
    panic!("{request:?} is not answered");
}

/// Appends cells by as few requests as possible. Returns the number of the first item of each.
fn append_cells(w: &mut World, client: &Client, list: &str, cells: &[CellNo], ephemeral: bool) -> Vec<u64> {
    let requests = cells.chunks(APPEND_MAX).map(|cells| {
        let (list, cells) = (list.to_owned(), cells.to_vec());
        if ephemeral { Request::ListAppendEphemeral { list, cells } } else { Request::ListAppend { list, cells } }
    });
    let first_of = |request| match ask(w, client, &request) {
        Reply::Appended { first } => first,
        other => panic!("{other:?}"),
    };
    requests.map(first_of).collect()
}

fn append(w: &mut World, client: &Client, list: &str, ephemeral: bool) -> Vec<u64> {
    append_cells(w, client, list, &(0..CELLS).map(CellNo::new).collect::<Vec<_>>(), ephemeral)
}

fn fill(w: &mut World, client: &Client, list: &str, value: Cell) {
    for cell in &client.words().cells[..CELLS as usize] {
        cell.cell.set(value.0);
    }
    for _ in 0..3 {
        append(w, client, list, false);
    }
}

fn delete(w: &mut World, client: &Client, list: &str) {
    let reply = w.ask(client, &Request::ListDelete { list: list.into() });
    assert_eq!(reply, Reply::Deleted { existed: true });
}

/// Returns the number of names after each slice until nothing changes any more. Each slice spends its maximum.
fn slices(w: &mut World) -> Vec<u64> {
    let mut names = vec![w.stat().names];
    for _ in 0..200 {
        w.wait_ns(PAUSE_NS);
        assert!(w.core.units_spent() <= MOST, "{} units", w.core.units_spent());
        names.push(w.stat().names);
        if w.core.alarm().is_none_or(|at| at > w.now_ns + PAUSE_NS) {
            return names;
        }
    }
    panic!("it does not end: {names:?}");
}

fn id_of(client: &Client, list: &str) -> u64 {
    let owner_word = client.find_key(&list_key(list)).expect("it is there");
    client.directory.lists[owner_word.cell().index()].id.peek()
}

#[test]
fn a_long_list_is_gone_at_once_and_its_items_go_in_slices() {
    let mut w = World::new(large(20_000));
    let (a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    fill(&mut w, &a, "l", Cell::new(1, lent.base));
    w.bind(&b, "kept", CellNo::new(0), Cell::new(1, SlotNo::new(0)));
    let id = id_of(&a, "l");
    delete(&mut w, &b, "l");
    assert!(w.core.units_spent() <= MOST);
    assert!(w.stat().names > ITEMS / 2, "few of them are gone");
    assert_eq!(a.find_key(&list_key("l")), None);
    assert!(a.directory.lists.iter().all(|line| line.id.peek() != id));
    // The daemon serves others, and the next list of this name has items of its own.
    w.bind(&b, "x", CellNo::new(1), Cell::new(1, SlotNo::new(0)));
    assert_eq!(
        w.ask(&b, &Request::ListAppend { list: "l".into(), cells: vec![CellNo::new(2), CellNo::new(3)] }),
        Reply::Appended { first: 0 }
    );
    let next = id_of(&a, "l");
    assert_ne!(next, id);
    let left = slices(&mut w);
    assert!(left.windows(2).all(|pair| pair[0] - pair[1] <= u64::from(MOST / 4)), "{left:?}");
    assert!(left.len() as u64 > ITEMS * 4 / u64::from(UNITS), "{left:?}");
    assert_eq!(w.stat().names, 5, "two names, a list and its items");
    assert!((0..2).all(|number| a.find_key(&item_key(next, number)).is_some()));
    assert!((0..ITEMS).all(|number| a.find_key(&item_key(id, number)).is_none()));
    let mut told = 0;
    while let Reply::Notices { cells, more } = w.ask(&a, &Request::Notices) {
        told += cells.len();
        if !more {
            break;
        }
    }
    assert_eq!(told, CELLS as usize, "its owner learns of every cell");
}

#[test]
fn a_list_of_which_little_is_left_ends_in_slices_too() {
    let mut w = World::new(large(40_000));
    let (a, b, c) = (w.join(1), w.join(1), w.join(1));
    fill(&mut w, &b, "other", Cell::new(1, SlotNo::new(0)));
    for _ in 0..4 {
        append(&mut w, &a, "l", true);
    }
    w.ask(&c, &Request::ListAppend { list: "l".into(), cells: vec![CellNo::new(7), CellNo::new(8)] });
    w.hang_up(&a);
    slices(&mut w);
    assert_eq!(w.stat().names, ITEMS + 4);
    delete(&mut w, &c, "l");
    assert!(w.core.units_spent() <= MOST);
    let left = slices(&mut w);
    assert!(left.len() as u64 > ITEMS * 2 / u64::from(UNITS), "all entries are looked at: {left:?}");
    assert_eq!(w.stat().names, ITEMS + 1);
    assert_eq!(
        w.ask(&c, &Request::Notices),
        Reply::Notices { cells: vec![CellNo::new(7), CellNo::new(8)], more: false }
    );
}

/// Names of a deleted list refuse no request: a request for a name waits until one is free.
#[test]
fn nobody_is_refused_for_items_that_are_going() {
    let mut w = World::new(large(ITEMS as u32 + 1));
    let (a, b) = (w.join(1), w.join(1));
    fill(&mut w, &a, "l", Cell::new(1, SlotNo::new(0)));
    b.words().cells[0].cell.set(Cell::new(1, SlotNo::new(0)).0);
    let bind = Request::Bind { name: "x".into(), cell: CellNo::new(0) };
    assert!(matches!(w.ask(&b, &bind), Reply::Refused(Refusal::Limit { .. })));
    delete(&mut w, &a, "l");
    // The client appends as many items as before, while most of the old ones still exist.
    for number in 0..3 {
        assert_eq!(append(&mut w, &a, "l", false)[0], number * u64::from(CELLS));
    }
    // No deleted items are left, so the request is refused at once.
    assert!(matches!(w.ask(&b, &bind), Reply::Refused(Refusal::Limit { .. })));
}

#[test]
fn a_daemon_that_comes_in_between_takes_the_rest_of_the_items_out() {
    let mut w = World::new(large(20_000));
    let (mut a, b) = (w.join(1), w.join(1));
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    fill(&mut w, &a, "l", Cell::new(1, lent.base));
    w.bind(&a, "kept", CellNo::new(9), Cell::new(1, lent.base));
    let id = id_of(&a, "l");
    delete(&mut w, &b, "l");
    w.wait_ns(2 * PAUSE_NS);
    assert!(w.stat().names > ITEMS / 2);
    w.replace_daemon(large(20_000));
    assert!(matches!(w.come_back(&mut a, Some(vec![lent.base])), Reply::Welcome(_)));
    assert_eq!(w.stat().names, 1);
    assert_eq!(
        w.ask(&a, &Request::ListAppend { list: "l".into(), cells: vec![CellNo::new(2)] }),
        Reply::Appended { first: 0 }
    );
    assert_ne!(id_of(&a, "l"), id);
}

#[test]
fn what_a_client_with_many_names_leaves_is_looked_through_in_slices() {
    let mut w = World::new(large(20_000));
    let (a, b) = (w.join(1), w.join(1));
    let (named, leased, renamed, unused) = (w.segment(&a), w.segment(&a), w.segment(&a), w.segment(&a));
    for lent in [&named, &leased, &renamed] {
        lent.write(lent.base, 1, None);
    }
    let value = Cell::new(1, named.base);
    w.bind(&a, "low", CellNo::new(0), value);
    fill(&mut w, &a, "l", value);
    let from = w.bind(&a, "from", CellNo::new(1), Cell::new(1, renamed.base));
    // All items that are bound to this cell lead to the segment, too. The test is not about them.
    a.words().cells[2].cell.set(Cell::new(1, leased.base).0);
    b.lease(0, a.number(), Cell::new(1, leased.base));
    let segment = |slot| Request::SegmentOf { owner: from.owner(), slot };
    w.hang_up(&a);
    assert!(w.core.units_spent() <= MOST);
    assert_eq!(w.stat().segments, 4, "it has only begun");
    // The name moves from an entry that the survey has not read yet to one that it has read.
    assert_eq!(w.ask(&b, &Request::Delete { name: "low".into() }), Reply::Deleted { existed: true });
    assert_eq!(w.ask(&b, &Request::Rename { from: "from".into(), to: "to".into() }), Reply::Done);
    delete(&mut w, &b, "l");
    let left = slices(&mut w);
    assert!(left.len() as u64 > ITEMS * 4 / u64::from(UNITS), "{left:?}");
    w.wait_ns(20_000_000_000);
    assert_eq!((w.stat().segments, w.stat().names), (2, 1));
    for lent in [&renamed, &leased] {
        assert!(matches!(w.ask(&b, &segment(lent.base)), Reply::Segment { .. }));
    }
    assert!(matches!(w.ask(&b, &segment(unused.base)), Reply::Refused(Refusal::NotFound(_))));
    b.release(0);
    w.ask(&b, &Request::Delete { name: "to".into() });
    w.wait_ns(60_000_000_000);
    w.hang_up(&b);
    w.assert_empty();
}

/// A renamed name is the only one that leads to its segment.
#[test]
fn a_name_that_is_renamed_during_the_look_keeps_its_memory() {
    let mut w = World::new(large(20_000));
    let (a, b) = (w.join(1), w.join(1));
    let (named, renamed) = (w.segment(&a), w.segment(&a));
    for lent in [&named, &renamed] {
        lent.write(lent.base, 1, None);
    }
    w.bind(&a, "low", CellNo::new(4000), Cell::new(1, named.base));
    a.words().cells[1].cell.set(Cell::new(1, named.base).0);
    for _ in 0..3 {
        append_cells(&mut w, &a, "l", &vec![CellNo::new(1); CELLS as usize], false);
    }
    let from = w.bind(&a, "from", CellNo::new(4001), Cell::new(1, renamed.base));
    w.hang_up(&a);
    assert_eq!(w.ask(&b, &Request::Delete { name: "low".into() }), Reply::Deleted { existed: true });
    assert_eq!(w.ask(&b, &Request::Rename { from: "from".into(), to: "to".into() }), Reply::Done);
    slices(&mut w);
    assert_eq!(w.stat().segments, 2);
    let segment = Request::SegmentOf { owner: from.owner(), slot: renamed.base };
    assert!(matches!(w.ask(&b, &segment), Reply::Segment { .. }), "a name leads to it");
}

#[test]
fn a_chain_as_long_as_a_segment_is_followed_in_slices() {
    const SLOTS: u32 = 1 << 14;
    let mut w = World::new(large(2048));
    let (a, b) = (w.join(1), w.join(1));
    let (Reply::Segment { base, .. }, lend) = w.ask_lent(&a, &Request::Segment { bytes: 4096, slots_log2: 14 }) else {
        panic!("not lent");
    };
    let slots = w.view(lend[1].0);
    let records: &[SlotRecord] = slots.array(4096, SLOTS as usize).unwrap();
    for (at, record) in (1..).zip(records) {
        record.words[2].set(if at < SLOTS { base + at } else { SLOT_NONE }.into());
    }
    records[0].words[0].set(1 << 24);
    w.bind(&a, "x", CellNo::new(0), Cell::new(1, base));
    b.lease(0, a.number(), Cell::new(1, base));
    w.hang_up(&a);
    let steps = slices(&mut w).len() as u32;
    assert!(steps >= 2 * SLOTS / UNITS, "{steps}: once for the name, once for the lease");
    assert_eq!(w.stat().segments, 1);
    b.release(0);
    w.ask(&b, &Request::Delete { name: "x".into() });
    w.wait_ns(60_000_000_000);
    w.hang_up(&b);
    w.assert_empty();
}

fn kept_bytes(w: &mut World, client: &Client) -> u64 {
    figures(w, client).uids[0].bytes_kept_by_leases
}

/// The daemon finds a lease on a replaced value, however many names the owner has.
#[test]
fn what_leases_keep_of_an_owner_with_many_names_is_looked_for_in_slices() {
    let mut w = World::new(Settings { pool_bytes_max: 2 * SEGMENT, ..large(20_000) });
    let (a, b) = (w.join(1), w.join(1));
    let (lent, other) = (w.segment(&a), w.segment(&a));
    lent.write(lent.base, 1, None);
    write(&other, other.base, 1, SEGMENT / 2);
    fill(&mut w, &a, "l", Cell::new(1, lent.base));
    w.bind(&a, "x", CellNo::new(0), Cell::new(1, other.base));
    b.lease(0, a.number(), Cell::new(1, lent.base));
    b.lease(1, a.number(), Cell::new(9, other.base));
    assert_eq!(kept_bytes(&mut w, &b), 0);
    let reply = w.ask(&b, &Request::Segment { bytes: SEGMENT, slots_log2: 4 });
    assert!(matches!(reply, Reply::Refused(Refusal::Limit { .. })));
    assert!(w.core.units_spent() <= 2 * MOST);
    assert_eq!((w.core.chores_left(), kept_bytes(&mut w, &b)), (1, 0), "it has only begun");
    let mut steps = 0;
    while w.core.chores_left() > 0 {
        w.wait_ns(PAUSE_NS);
        assert!(w.core.units_spent() <= 2 * MOST);
        steps += 1;
    }
    assert!(steps > ITEMS * 2 / u64::from(2 * UNITS), "{steps}");
    assert_eq!(kept_bytes(&mut w, &b), SEGMENT / 2, "of the two one was replaced");
    b.release(1);
    w.wait_ns(1_000_000_000);
    assert_eq!(kept_bytes(&mut w, &b), 0);
}

/// Returns the number of replies in each step that sent any, until nothing is due any more.
fn replies_by_step(w: &mut World) -> Vec<usize> {
    let mut replies = Vec::new();
    while let Some(at) = w.core.alarm().filter(|&at| at <= w.now_ns + PAUSE_NS) {
        w.now_ns = w.now_ns.max(at);
        let effects = w.core.step(w.now_ns, Event::Alarm);
        let sent = effects.iter().filter(|effect| matches!(effect, Effect::Send { .. })).count();
        replies.extend((sent > 0).then_some(sent));
        for effect in effects {
            assert!(w.perform(effect).is_none(), "nothing is made");
        }
    }
    replies
}

#[test]
fn many_who_wait_for_one_name_are_answered_in_slices() {
    const CLIENTS: usize = 200;
    let mut w = World::new(Settings {
        uid_sessions_max: 1000,
        private: NamespaceLimits { members_max: 300, ..limits() },
        ..settings()
    });
    let claimant = w.announcer(1);
    let others: Vec<Client> = (0..CLIENTS).map(|_| w.join(1)).collect();
    claimant.words().claim.set(claimant.directory.hash(b"x"));
    for client in &others {
        client.words().cells[0].cell.set(Cell::new(1, SlotNo::new(0)).0);
        w.say(client.conn, &Request::Bind { name: "x".into(), cell: CellNo::new(0) });
        assert_eq!(w.hear(client.conn), None, "a client is about to publish it");
    }
    claimant.words().claim.set(0);
    let replies = replies_by_step(&mut w);
    assert!(replies.iter().all(|&sent| sent <= 64), "{replies:?}");
    assert_eq!(replies.iter().sum::<usize>(), CLIENTS);
    assert!(others.iter().all(|client| matches!(w.hear(client.conn), Some((Reply::Bound { .. }, _)))));
    assert_eq!(w.core.alarm().filter(|&at| at <= w.now_ns), None, "nothing is left to try");
}
