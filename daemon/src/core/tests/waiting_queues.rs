//! Claims that wait in the daemon: each item goes to one of them.

use super::queues::{ask, claim, claim_one, clear, done, granted, number, put, size};
use super::world::{Client, World, settings};
use crate::core::settings::{Mode, Settings};
use tensorlend_layout::number::{CellNo, SlotNo};
use tensorlend_layout::wire::{CLAIM_BATCH_MAX, QueueClaim, QueueReply, QueueRequest, Refusal, Reply, Request};
use tensorlend_layout::word::Cell;

fn claim_waiting(list: &str) -> QueueRequest {
    QueueRequest::Claim { list: list.into(), done: Vec::new(), max: 1, wait: true }
}

fn say(w: &mut World, client: &Client, request: QueueRequest) {
    w.say(client.conn, &Request::Queue(request));
}

fn received(w: &mut World, client: &Client) -> Option<u64> {
    granted(w, client).map(|claims| claims[0].item.number)
}

fn heard(w: &mut World, client: &Client) -> Option<Reply> {
    w.hear(client.conn).map(|(reply, _)| reply)
}

#[test]
fn each_item_goes_to_the_claim_that_has_waited_longest() {
    let mut w = World::new(settings());
    let (a, b, c) = (w.join(1), w.join(1), w.join(1));
    say(&mut w, &b, claim_waiting("q"));
    say(&mut w, &c, claim_waiting("q"));
    assert_eq!((received(&mut w, &b), received(&mut w, &c)), (None, None));
    put(&mut w, &a, CellNo::new(0));
    assert_eq!((received(&mut w, &b), received(&mut w, &c)), (Some(0), None));
    say(&mut w, &b, claim_waiting("q"));
    put(&mut w, &a, CellNo::new(1));
    assert_eq!((received(&mut w, &b), received(&mut w, &c)), (None, Some(1)));
    // One request appends items for several clients.
    say(&mut w, &c, claim_waiting("q"));
    for cell in [2, 3, 4] {
        a.words().cells[cell].cell.set(Cell::new(1, SlotNo::new(0)).0);
    }
    w.ask(&a, &Request::ListAppend { list: "q".into(), cells: vec![CellNo::new(2), CellNo::new(3), CellNo::new(4)] });
    assert_eq!((received(&mut w, &b), received(&mut w, &c)), (Some(2), Some(3)));
    assert_eq!(size(&mut w, &a), (1, 4));
    w.core.check();
}

#[test]
fn an_item_for_a_client_that_ends_goes_to_the_next_one_that_waits() {
    let mut w = World::new(settings());
    let (a, b, c, d) = (w.join(1), w.join(1), w.join(1), w.join(1));
    for client in [&b, &c, &d] {
        say(&mut w, client, claim_waiting("q"));
    }
    // The first consumer ends while it waits.
    w.hang_up(&b);
    put(&mut w, &a, CellNo::new(0));
    assert_eq!((received(&mut w, &c), received(&mut w, &d)), (Some(0), None));
    // The second consumer ends with its item, whether or not it has read the reply.
    w.hang_up(&c);
    assert_eq!(received(&mut w, &d), Some(0));
    assert_eq!(size(&mut w, &a), (0, 1));
    // A returned item also goes to a waiting consumer.
    say(&mut w, &a, claim_waiting("q"));
    w.hang_up(&d);
    assert_eq!(received(&mut w, &a), Some(0));
    w.core.check();
    clear(&mut w, &a);
    w.hang_up(&a);
    w.assert_empty();
}

#[test]
fn a_client_ends_its_wait_and_gets_one_reply() {
    let mut w = World::new(settings());
    let (a, b) = (w.join(1), w.join(1));
    say(&mut w, &b, claim_waiting("q"));
    say(&mut w, &b, QueueRequest::Stop);
    assert_eq!(heard(&mut w, &b), Some(Reply::Queue(QueueReply::Empty)));
    put(&mut w, &a, CellNo::new(0));
    assert_eq!((heard(&mut w, &b), size(&mut w, &a)), (None, (1, 0)));
    // The daemon granted the item before it read the end of the wait.
    assert_eq!(number(claim(&mut w, &b)), Some(0));
    say(&mut w, &b, claim_waiting("q"));
    put(&mut w, &a, CellNo::new(1));
    say(&mut w, &b, QueueRequest::Stop);
    assert_eq!((received(&mut w, &b), heard(&mut w, &b)), (Some(1), None));
    // A `Stop` without a wait changes nothing.
    say(&mut w, &a, QueueRequest::Stop);
    assert_eq!((heard(&mut w, &a), size(&mut w, &a)), (None, (0, 2)));
    // While it waits, a client may send nothing else.
    say(&mut w, &a, claim_waiting("other"));
    say(&mut w, &a, QueueRequest::Size { list: "q".into() });
    assert!(matches!(heard(&mut w, &a), Some(Reply::Refused(Refusal::Violation(_)))));
    assert!(w.closed.contains(&a.conn));
    w.core.check();
}

#[test]
fn claims_wait_for_a_name_whatever_list_it_leads_to() {
    let mut w = World::new(settings());
    let (a, b, c) = (w.join(1), w.join(1), w.join(1));
    put(&mut w, &a, CellNo::new(0));
    say(&mut w, &b, claim_waiting("r"));
    w.ask(&a, &Request::ListRename { from: "q".into(), to: "r".into() });
    assert_eq!(received(&mut w, &b), Some(0));
    say(&mut w, &c, claim_waiting("r"));
    clear(&mut w, &a);
    w.ask(&a, &Request::ListDelete { list: "r".into() });
    assert_eq!(heard(&mut w, &c), None);
    a.words().cells[1].cell.set(Cell::new(1, SlotNo::new(0)).0);
    w.ask(&a, &Request::ListAppend { list: "r".into(), cells: vec![CellNo::new(1)] });
    assert_eq!(received(&mut w, &c), Some(0));
    w.core.check();
}

#[test]
fn one_request_confirms_items_and_claims_the_next_ones() {
    let mut w = World::new(settings());
    let (a, b, c) = (w.join(1), w.join(1), w.join(1));
    (0..6).for_each(|cell| drop(put(&mut w, &a, CellNo::new(cell))));
    let theirs = claim(&mut w, &c).unwrap();
    let with = |done: Vec<QueueClaim>, max, wait| QueueRequest::Claim { list: "q".into(), done, max, wait };
    let numbers = |w: &mut World, client: &Client, request| match ask(w, client, request) {
        Reply::Queue(QueueReply::Claimed(claims)) => claims,
        other => panic!("{other:?}"),
    };
    let first = numbers(&mut w, &b, with(vec![], 2, true));
    assert_eq!(first.iter().map(|it| it.item.number).collect::<Vec<_>>(), [1, 2]);
    // The client cannot confirm another client's claim.
    let next = numbers(&mut w, &b, with(vec![first[0], theirs], 1, false));
    assert_eq!((next[0].item.number, size(&mut w, &a)), (3, (2, 3)));
    assert!(done(&mut w, &c, theirs) && !done(&mut w, &b, first[0]));
    // The client gets all items that exist. Then it waits, and its confirmation counts before the wait ends.
    let rest = numbers(&mut w, &b, with(vec![first[1]], 64, false));
    assert_eq!(rest.iter().map(|it| it.item.number).collect::<Vec<_>>(), [4, 5]);
    say(&mut w, &b, with(vec![next[0], rest[0]], 64, true));
    assert_eq!((heard(&mut w, &b), size(&mut w, &a)), (None, (0, 1)));
    w.hang_up(&b);
    assert_eq!((number(claim(&mut w, &c)), claim(&mut w, &c)), (Some(5), None));
    // A refused request confirms no item.
    let held = put(&mut w, &a, CellNo::new(6));
    assert_eq!(held, Reply::Appended { first: 6 });
    let sixth = claim(&mut w, &c).unwrap();
    for (done, max) in [(vec![sixth; CLAIM_BATCH_MAX + 1], 1), (vec![sixth], 0), (vec![sixth], 65)] {
        assert!(matches!(ask(&mut w, &c, with(done, max, true)), Reply::Refused(Refusal::Bad(_))));
    }
    assert!(done(&mut w, &c, sixth));
    w.core.check();
}

#[test]
fn a_claim_that_waits_after_a_restart_gets_the_first_item() {
    for mode in [Mode::System, Mode::User] {
        let settings = || Settings { mode, ..settings() };
        let mut w = World::new(settings());
        let (mut a, mut b) = (w.join(1), w.join(1));
        put(&mut w, &a, CellNo::new(0));
        let mine = claim(&mut w, &b).unwrap();
        w.replace_daemon(settings());
        assert!(matches!(w.come_back(&mut a, None), Reply::Welcome(_)));
        // Another client may have claimed the item, so the daemon reads no further packet until it knows.
        say(&mut w, &a, claim_waiting("q"));
        assert!(matches!(w.come_back_claiming(&mut b, vec![mine]), Reply::Welcome(_)));
        w.wait_ns(1_000_000);
        assert_eq!(heard(&mut w, &a), None);
        put(&mut w, &b, CellNo::new(0));
        assert_eq!(received(&mut w, &a), Some(1));
        assert!(done(&mut w, &b, mine));
        w.core.check();
    }
}

#[test]
fn a_step_answers_a_bounded_number_of_waiting_requests() {
    let mut limits = super::world::limits();
    limits.members_max = 100;
    let mut w = World::new(Settings { private: limits, uid_sessions_max: 200, ..settings() });
    let a = w.join(1);
    let waiting: Vec<_> = (0..80).map(|_| w.join(1)).collect();
    for client in &waiting {
        say(&mut w, client, claim_waiting("q"));
    }
    for cell in 0..80 {
        a.words().cells[cell].cell.set(Cell::new(1, SlotNo::new(0)).0);
    }
    w.ask(&a, &Request::ListAppend { list: "q".into(), cells: (0..80).map(CellNo::new).collect() });
    w.wait_ns(1);
    for (number, client) in (0..).zip(&waiting) {
        assert_eq!(received(&mut w, client), Some(number));
    }
    assert_eq!(ask(&mut w, &a, claim_one("q")), Reply::Queue(QueueReply::Empty));
    w.core.check();
}
