//! Queues: each item goes to one client, and comes back when that client ends without it.

use super::world::{Client, World, limits, settings};
use crate::core::settings::{Mode, NamespaceLimits, Settings};
use tensorlend_layout::name::item_key;
use tensorlend_layout::number::{CellNo, SlotNo};
use tensorlend_layout::wire::{
    APPEND_MAX, CLAIMS_MAX, QueueClaim, QueueItem, QueueReply, QueueRequest, Refusal, Reply, Request,
};
use tensorlend_layout::word::Cell;

fn large() -> Settings {
    let private = NamespaceLimits { names_max: 16 * 1024, ..limits() };
    Settings { mode: Mode::System, private, ..settings() }
}

/// Sends a request, and waits for the response for less than the time in which former clients assert their claims.
pub fn ask(w: &mut World, client: &Client, request: QueueRequest) -> Reply {
    w.say(client.conn, &Request::Queue(request));
    for _ in 0..100 {
        if let Some((reply, _)) = w.hear(client.conn) {
            return reply;
        }
        w.wait_ns(1_000_000);
    }
    panic!("no answer");
}

pub fn put_one(list: &str, cell: CellNo, max: u64) -> QueueRequest {
    QueueRequest::Put { list: list.into(), cells: vec![cell], max }
}

pub fn claim_one(list: &str) -> QueueRequest {
    QueueRequest::Claim { list: list.into(), done: Vec::new(), max: 1, wait: false }
}

/// Returns the claims that the client has received.
pub fn granted(w: &mut World, client: &Client) -> Option<Vec<QueueClaim>> {
    match w.hear(client.conn)?.0 {
        Reply::Queue(QueueReply::Claimed(claims)) => Some(claims),
        other => panic!("{other:?}"),
    }
}

pub fn put(w: &mut World, client: &Client, cell: CellNo) -> Reply {
    put_max(w, client, cell, 0)
}

pub fn put_max(w: &mut World, client: &Client, cell: CellNo, max: u64) -> Reply {
    client.words().cells[cell.index()].cell.set(Cell::new(1, SlotNo::new(0)).0);
    ask(w, client, put_one("q", cell, max))
}

pub fn claim(w: &mut World, client: &Client) -> Option<QueueClaim> {
    match ask(w, client, claim_one("q")) {
        Reply::Queue(QueueReply::Claimed(claims)) if claims.len() == 1 => Some(claims[0]),
        Reply::Queue(QueueReply::Empty) => None,
        other => panic!("{other:?}"),
    }
}

pub fn number(claim: Option<QueueClaim>) -> Option<u64> {
    claim.map(|claim| claim.item.number)
}

pub fn done(w: &mut World, client: &Client, claim: QueueClaim) -> bool {
    match ask(w, client, QueueRequest::Done(claim)) {
        Reply::Deleted { existed } => existed,
        other => panic!("{other:?}"),
    }
}

pub fn size(w: &mut World, client: &Client) -> (u64, u64) {
    match ask(w, client, QueueRequest::Size { list: "q".into() }) {
        Reply::Queue(QueueReply::Size { waiting, claimed }) => (waiting, claimed),
        other => panic!("{other:?}"),
    }
}

pub fn clear(w: &mut World, client: &Client) {
    w.ask(client, &Request::ListDelete { list: "q".into() });
}

#[test]
fn each_item_goes_to_one_client_until_it_is_done_or_given_back() {
    let mut w = World::new(settings());
    let (a, b, c) = (w.join(1), w.join(1), w.join(1));
    assert_eq!((claim(&mut w, &b), size(&mut w, &b)), (None, (0, 0)));
    (0..4).for_each(|cell| assert_eq!(put(&mut w, &a, CellNo::new(cell)), Reply::Appended { first: cell.into() }));
    let (first, second) = (claim(&mut w, &b).unwrap(), claim(&mut w, &c).unwrap());
    assert_eq!((first.item.number, second.item.number, size(&mut w, &a)), (0, 1, (2, 2)));
    // The client can confirm neither another client's claim nor an item that no client has claimed.
    assert!(
        !done(&mut w, &c, first)
            && !done(&mut w, &a, QueueClaim { item: QueueItem { number: 3, ..first.item }, ..first })
    );
    assert_eq!(ask(&mut w, &c, QueueRequest::GiveBack(first)), Reply::Done);
    assert_eq!(size(&mut w, &a), (2, 2));
    // A returned item precedes the later ones.
    assert_eq!(ask(&mut w, &b, QueueRequest::GiveBack(first)), Reply::Done);
    assert_eq!(ask(&mut w, &b, QueueRequest::GiveBack(first)), Reply::Done);
    assert!(!done(&mut w, &b, first), "the claim is over");
    assert_eq!(size(&mut w, &a), (3, 1));
    let again = claim(&mut w, &c).unwrap();
    assert_eq!(again.item, first.item);
    assert!(done(&mut w, &c, again) && !done(&mut w, &c, again));
    assert_eq!(a.find_key(&item_key(first.item.list, 0)), None);
    assert_eq!(w.ask(&a, &Request::Notices), Reply::Notices { cells: vec![CellNo::new(0)], more: false });
    assert!(done(&mut w, &c, second));
    assert_eq!((number(claim(&mut w, &b)), number(claim(&mut w, &b)), claim(&mut w, &b)), (Some(2), Some(3), None));
    w.core.check();
    clear(&mut w, &a);
    for client in [a, b, c] {
        w.hang_up(&client);
    }
    w.assert_empty();
}

#[test]
fn items_of_a_client_that_ends_wait_again_before_all_later_ones() {
    let mut w = World::new(settings());
    let (a, b, c) = (w.join(1), w.join(1), w.join(1));
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    for cell in 0..4 {
        a.words().cells[cell as usize].cell.set(Cell::new(1, lent.base).0);
        ask(&mut w, &a, put_one("q", CellNo::new(cell), 0));
    }
    let items: Vec<_> = (0..3).map(|_| claim(&mut w, &b).unwrap()).collect();
    assert!(done(&mut w, &b, items[1]));
    let wakes = w.wakes;
    w.ask(&c, &Request::Wait);
    c.table().parked.set(u64::MAX);
    w.hang_up(&b);
    assert!(w.wakes > wakes, "a consumer that waits learns of it");
    assert_eq!(size(&mut w, &a), (3, 0));
    let again: Vec<_> = (0..4).map(|_| claim(&mut w, &c)).collect();
    assert_eq!(again.iter().map(|&it| number(it)).collect::<Vec<_>>(), [Some(0), Some(2), Some(3), None]);
    // An item outlives the client that put it.
    w.hang_up(&a);
    assert!(done(&mut w, &c, again[0].unwrap()) && done(&mut w, &c, again[1].unwrap()));
    assert_eq!(size(&mut w, &c), (0, 1));
    w.core.check();
    clear(&mut w, &c);
    w.hang_up(&c);
    w.assert_empty();
}

#[test]
fn a_queue_with_a_maximum_refuses_items_while_that_many_wait() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    let full = Reply::Queue(QueueReply::Full);
    assert_eq!(put_max(&mut w, &a, CellNo::new(0), 2), Reply::Appended { first: 0 });
    assert_eq!(put_max(&mut w, &b, CellNo::new(0), 2), Reply::Appended { first: 1 });
    assert_eq!(
        (put_max(&mut w, &a, CellNo::new(1), 2), put_max(&mut w, &b, CellNo::new(1), 2)),
        (full.clone(), full.clone())
    );
    assert_eq!(w.stat().names, 3, "nothing was appended");
    let item = claim(&mut w, &b).unwrap();
    assert_eq!(put_max(&mut w, &a, CellNo::new(1), 2), Reply::Appended { first: 2 });
    assert_eq!(put_max(&mut w, &a, CellNo::new(2), 2), full);
    // A returned item waits again, even above the maximum.
    ask(&mut w, &b, QueueRequest::GiveBack(item));
    assert_eq!(size(&mut w, &a), (3, 0));
    clear(&mut w, &a);
    assert_eq!(put_max(&mut w, &a, CellNo::new(3), 2), Reply::Appended { first: 0 });
    clear(&mut w, &a);
    w.core.check();
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn producers_of_a_queue_share_one_maximum() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    assert_eq!(put_max(&mut w, &a, CellNo::new(0), 2), Reply::Appended { first: 0 });
    let refused = put_max(&mut w, &b, CellNo::new(0), 3);
    assert!(matches!(&refused, Reply::Refused(Refusal::Bad(why)) if why.contains("a maximum of 2")), "{refused:?}");
    assert_eq!(
        put_max(&mut w, &b, CellNo::new(0), 0),
        Reply::Appended { first: 1 },
        "a producer without a maximum has the queue's"
    );
    assert_eq!(put_max(&mut w, &b, CellNo::new(1), 0), Reply::Queue(QueueReply::Full));
    let claims: Vec<_> = (0..2).map(|_| claim(&mut w, &b).unwrap()).collect();
    assert!(matches!(put_max(&mut w, &b, CellNo::new(1), 3), Reply::Refused(_)), "claimed items may come back");
    assert!(claims.into_iter().all(|claim| done(&mut w, &b, claim)));
    assert_eq!(put_max(&mut w, &b, CellNo::new(1), 3), Reply::Appended { first: 2 }, "an empty queue has no maximum");
    w.core.check();
    clear(&mut w, &a);
    w.core.check();
    w.hang_up(&a);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn a_put_without_room_gives_the_queue_its_maximum() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    for cell in 0..2 {
        assert_eq!(put_max(&mut w, &a, CellNo::new(cell), 0), Reply::Appended { first: cell.into() });
    }
    let full = Reply::Queue(QueueReply::Full);
    assert_eq!((put_max(&mut w, &b, CellNo::new(0), 1), put_max(&mut w, &a, CellNo::new(2), 0)), (full.clone(), full));
}

#[test]
fn several_items_are_appended_together_or_not_at_all() {
    let mut w = World::new(settings());
    let (a, b, c) = (w.join(1), w.join(1), w.join(1));
    for cell in 0..6 {
        a.words().cells[cell].cell.set(Cell::new(1, SlotNo::new(0)).0);
    }
    let put = |cells: &[CellNo], max| QueueRequest::Put { list: "q".into(), cells: cells.to_vec(), max };
    assert_eq!(
        ask(&mut w, &a, put(&[CellNo::new(0), CellNo::new(1), CellNo::new(2)], 3)),
        Reply::Appended { first: 0 }
    );
    assert_eq!(ask(&mut w, &a, put(&[CellNo::new(3), CellNo::new(4)], 3)), Reply::Queue(QueueReply::Full));
    assert_eq!(size(&mut w, &a), (3, 0), "nothing was appended");
    // A producer that waits learns of a claim only when there is room for all of its items.
    w.ask(&c, &Request::Wait);
    c.table().parked.set(u64::MAX);
    let wakes = w.wakes;
    let first = claim(&mut w, &b).unwrap();
    assert_eq!(w.wakes, wakes, "there is room for one item");
    let second = claim(&mut w, &b).unwrap();
    assert_eq!(w.wakes, wakes + 1, "there is room for two items");
    assert_eq!(ask(&mut w, &a, put(&[CellNo::new(3), CellNo::new(4)], 3)), Reply::Appended { first: 3 });
    // With two refused requests, the smaller one counts.
    assert_eq!(ask(&mut w, &a, put(&[CellNo::new(5)], 3)), Reply::Queue(QueueReply::Full));
    assert_eq!(
        ask(&mut w, &a, put(&[CellNo::new(5), CellNo::new(5), CellNo::new(5)], 3)),
        Reply::Queue(QueueReply::Full)
    );
    c.table().parked.set(u64::MAX);
    let wakes = w.wakes;
    let third = claim(&mut w, &b).unwrap();
    assert_eq!(w.wakes, wakes + 1, "there is room for one item");
    for (cells, max) in [(0, 0), (4, 3), (4, 0), (APPEND_MAX + 1, 0)] {
        let refused = ask(&mut w, &a, put(&vec![CellNo::new(5); cells], max));
        assert!(matches!(&refused, Reply::Refused(Refusal::Bad(why)) if why.contains("1 to")), "{refused:?}");
    }
    // The third cell does not belong to the client: the whole request fails.
    let other = QueueRequest::Put { list: "other".into(), cells: vec![CellNo::new(5), CellNo::new(u32::MAX)], max: 0 };
    let refused = ask(&mut w, &a, other);
    assert!(matches!(refused, Reply::Refused(_)), "{refused:?}");
    assert_eq!(size(&mut w, &a), (2, 3));
    assert!([first, second, third].into_iter().all(|claim| done(&mut w, &b, claim)));
    w.core.check();
    clear(&mut w, &a);
    for client in [a, b, c] {
        w.hang_up(&client);
    }
    w.assert_empty();
}

#[test]
fn claims_follow_a_renamed_queue_and_end_with_a_cleared_one() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    (0..3).for_each(|cell| drop(put(&mut w, &a, CellNo::new(cell))));
    let (first, second) = (claim(&mut w, &b).unwrap(), claim(&mut w, &b).unwrap());
    w.ask(&a, &Request::ListRename { from: "q".into(), to: "r".into() });
    assert!(claim(&mut w, &b).is_none() && done(&mut w, &b, first));
    w.ask(&a, &Request::ListRename { from: "r".into(), to: "q".into() });
    assert_eq!(size(&mut w, &a), (1, 1));
    clear(&mut w, &a);
    w.core.check();
    put(&mut w, &a, CellNo::new(3));
    assert!(!done(&mut w, &b, second), "the former queue's item is gone");
    ask(&mut w, &b, QueueRequest::GiveBack(second));
    assert_eq!((size(&mut w, &a), number(claim(&mut w, &b))), ((1, 0), Some(0)));
    assert_eq!(size(&mut w, &a), (0, 1));
    // A value in memory that exists outlives its owner.
    let lent = w.segment(&a);
    lent.write(lent.base, 1, None);
    a.words().cells[3].cell.set(Cell::new(1, lent.base).0);
    // Ephemeral items end with their owner, claimed or not.
    a.words().cells[5].cell.set(Cell::new(1, SlotNo::new(0)).0);
    w.ask(&a, &Request::ListAppendEphemeral { list: "q".into(), cells: vec![CellNo::new(5)] });
    let item = claim(&mut w, &b).unwrap();
    w.hang_up(&a);
    assert!(!done(&mut w, &b, item));
    assert_eq!(size(&mut w, &b), (0, 1));
    w.core.check();
    clear(&mut w, &b);
    w.hang_up(&b);
    w.assert_empty();
}

#[test]
fn a_reader_claims_nothing_and_a_client_claims_no_more_than_it_can_hold() {
    let mut w = World::new(large());
    let mut join = |uid| {
        let client = w.join_unacknowledged(uid, Some("lab"));
        w.say(client.conn, &Request::Ack);
        client
    };
    let (writer, reader) = (join(1), join(2));
    let put_there = put_one("q", CellNo::new(0), 0);
    writer.words().cells[0].cell.set(Cell::new(1, SlotNo::new(0)).0);
    ask(&mut w, &writer, put_there.clone());
    for request in [claim_one("q"), put_there] {
        assert!(matches!(ask(&mut w, &reader, request), Reply::Refused(Refusal::ReadOnly(_))));
    }
    assert_eq!(size(&mut w, &reader), (1, 0));
    clear(&mut w, &writer);

    let a = w.join(3);
    for cell in &a.words().cells[..APPEND_MAX] {
        cell.cell.set(Cell::new(1, SlotNo::new(0)).0);
    }
    for _ in 0..5 {
        w.say(
            a.conn,
            &Request::ListAppend { list: "q".into(), cells: (0..APPEND_MAX as u32).map(CellNo::new).collect() },
        );
        while w.hear(a.conn).is_none() {
            w.wait_ns(1_000_000);
        }
    }
    (0..CLAIMS_MAX as u64).for_each(|n| assert_eq!(number(claim(&mut w, &a)), Some(n)));
    let refused = ask(&mut w, &a, claim_one("q"));
    assert!(matches!(&refused, Reply::Refused(Refusal::Bad(why)) if why.contains("4096")), "{refused:?}");
    w.core.check();
    // The claims of a deleted queue end with its items, in slices. A request for an item of another queue waits for that.
    clear(&mut w, &a);
    assert!(w.core.chores_left() > 0, "the items are removed in slices");
    w.core.check();
    a.words().cells[APPEND_MAX].cell.set(Cell::new(1, SlotNo::new(0)).0);
    let put_there = put_one("p", CellNo::new(APPEND_MAX as u32), 0);
    assert_eq!(ask(&mut w, &a, put_there), Reply::Appended { first: 0 });
    let claimed = ask(&mut w, &a, claim_one("p"));
    assert!(matches!(claimed, Reply::Queue(QueueReply::Claimed(_))), "{claimed:?}");
    w.core.check();
}

#[test]
fn a_returning_client_keeps_its_claims_before_another_gets_the_items() {
    for mode in [Mode::System, Mode::User] {
        let settings = || Settings { mode, ..settings() };
        let mut w = World::new(settings());
        let (mut a, mut b, c) = (w.join(1), w.join(1), w.join(1));
        (0..5).for_each(|cell| drop(put(&mut w, &a, CellNo::new(cell))));
        let items: Vec<_> = (0..3).map(|_| claim(&mut w, &b).unwrap()).collect();
        w.replace_daemon(settings());
        assert!(matches!(w.come_back(&mut a, None), Reply::Welcome(_)));
        // Two clients are missing: each may have claimed any item.
        w.say(a.conn, &Request::Queue(claim_one("q")));
        assert!(w.hear(a.conn).is_none());
        let unknown = QueueClaim { item: QueueItem { list: items[0].item.list + 99, number: 0 }, grant: 1 };
        let beyond = QueueClaim { item: QueueItem { number: 77, ..items[0].item }, grant: 2 };
        let claims = vec![items[0], items[2], items[2], unknown, beyond];
        assert!(matches!(w.come_back_claiming(&mut b, claims), Reply::Welcome(_)));
        assert!(w.hear(a.conn).is_none());
        // The last missing client has ended.
        w.loud.clear();
        w.wait_ns(4_000_000_000);
        let claimed = granted(&mut w, &a).expect("an item waits")[0];
        assert_eq!(claimed.item, items[1].item, "nobody asserted this claim");
        assert_eq!(number(claim(&mut w, &a)), Some(3));
        assert!(done(&mut w, &b, items[0]) && !done(&mut w, &b, items[1]));
        w.hang_up(&b);
        assert_eq!((number(claim(&mut w, &a)), number(claim(&mut w, &a))), (Some(2), Some(4)));
        w.core.check();
        drop(c);
    }
}

#[test]
fn an_old_claim_does_not_end_a_newer_one_of_the_same_client() {
    for mode in [Mode::System, Mode::User] {
        let settings = || Settings { mode, ..settings() };
        let mut w = World::new(settings());
        let (mut a, mut b) = (w.join(1), w.join(1));
        (0..2).for_each(|cell| drop(put(&mut w, &a, CellNo::new(cell))));
        let (first, old) = (claim(&mut w, &b).unwrap(), claim(&mut w, &b).unwrap());
        ask(&mut w, &b, QueueRequest::GiveBack(old));
        let before = claim(&mut w, &b).unwrap();
        assert_eq!(before.item, old.item);
        assert!(!done(&mut w, &b, old), "a claim that was given back is over");
        // The client asserts one of its two claims, and then claims the other item again.
        w.replace_daemon(settings());
        assert!(matches!(w.come_back(&mut a, None), Reply::Welcome(_)));
        assert!(matches!(w.come_back_claiming(&mut b, vec![first]), Reply::Welcome(_)));
        let after = claim(&mut w, &b).unwrap();
        assert_eq!(after.item, before.item);
        assert!(after.grant > before.grant && before.grant > old.grant, "{old:?} {before:?} {after:?}");
        for over in [old, before, QueueClaim { grant: after.grant + 1, ..after }] {
            assert!(!done(&mut w, &b, over));
            ask(&mut w, &b, QueueRequest::GiveBack(over));
        }
        assert_eq!(size(&mut w, &a), (0, 2));
        assert!(done(&mut w, &b, after) && done(&mut w, &b, first));
        w.core.check();
    }
}

/// After a restart the daemon has granted no item, so a client can give an item back while earlier ones wait.
#[test]
fn the_oldest_item_comes_first_after_a_restart_too() {
    for mode in [Mode::System, Mode::User] {
        let settings = || Settings { mode, ..settings() };
        let mut w = World::new(settings());
        let (mut a, mut b) = (w.join(1), w.join(1));
        (0..4).for_each(|cell| drop(put(&mut w, &a, CellNo::new(cell))));
        let claims: Vec<QueueClaim> = (0..3).map(|_| claim(&mut w, &b).unwrap()).collect();
        ask(&mut w, &b, QueueRequest::GiveBack(claims[1]));
        w.replace_daemon(settings());
        assert!(matches!(w.come_back(&mut a, None), Reply::Welcome(_)));
        assert!(matches!(w.come_back_claiming(&mut b, vec![claims[0], claims[2]]), Reply::Welcome(_)));
        ask(&mut w, &b, QueueRequest::GiveBack(claims[2]));
        let numbers: Vec<Option<u64>> = (0..4).map(|_| number(claim(&mut w, &a))).collect();
        assert_eq!(numbers, [Some(1), Some(2), Some(3), None]);
        ask(&mut w, &b, QueueRequest::GiveBack(claims[0]));
        assert_eq!((number(claim(&mut w, &a)), number(claim(&mut w, &a))), (Some(0), None));
        w.core.check();
    }
}

#[test]
fn items_do_not_wait_for_ever_for_a_client_that_does_not_return() {
    let mut w = World::new(large());
    let (mut a, b) = (w.join(1), w.join(1));
    (0..2).for_each(|cell| drop(put(&mut w, &a, CellNo::new(cell))));
    let earlier = claim(&mut w, &b).unwrap();
    w.replace_daemon(large());
    w.come_back(&mut a, None);
    w.say(a.conn, &Request::Queue(claim_one("q")));
    w.wait_ns(4_900_000_000);
    assert!(w.hear(a.conn).is_none(), "the client still runs");
    w.wait_ns(200_000_000);
    let later = granted(&mut w, &a).expect("an item waits")[0];
    assert_eq!(later.item, earlier.item);
    // The earlier claim of the client that returns too late has ended.
    let mut b = b;
    assert!(matches!(w.come_back_claiming(&mut b, vec![earlier]), Reply::Welcome(_)));
    assert!(!done(&mut w, &b, earlier) && done(&mut w, &a, later));
    w.core.check();
}

#[test]
fn a_new_daemon_passes_over_the_gaps_of_items_that_are_done() {
    let mut w = World::new(large());
    let (mut a, mut b) = (w.join(1), w.join(1));
    for cell in &a.words().cells[..APPEND_MAX] {
        cell.cell.set(Cell::new(1, SlotNo::new(0)).0);
    }
    for _ in 0..2 {
        w.say(
            a.conn,
            &Request::ListAppend { list: "q".into(), cells: (0..APPEND_MAX as u32).map(CellNo::new).collect() },
        );
        while w.hear(a.conn).is_none() {
            w.wait_ns(1_000_000);
        }
    }
    let first = claim(&mut w, &b).unwrap();
    for _ in 1..2 * APPEND_MAX - 1 {
        let item = claim(&mut w, &b).unwrap();
        assert!(done(&mut w, &b, item));
    }
    w.replace_daemon(large());
    w.come_back(&mut a, None);
    w.come_back_claiming(&mut b, vec![first]);
    assert_eq!(size(&mut w, &a), (1, 1));
    // This takes one step, because the daemon knows the gap.
    w.say(a.conn, &Request::Queue(claim_one("q")));
    let last = granted(&mut w, &a).expect("it searches no further")[0];
    assert_eq!((last.item.number, claim(&mut w, &a)), (2 * APPEND_MAX as u64 - 1, None));
    // A returned item has a number before the end of the gap.
    ask(&mut w, &b, QueueRequest::GiveBack(first));
    assert_eq!(number(claim(&mut w, &a)), Some(0));
    w.core.check();
}
