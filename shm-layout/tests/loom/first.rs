//! A first publication without the daemon: claim, look, announce; the daemon absorbs.

use crate::{OWNER, holds, live, reached, refuted, spawn, then_live};
use std::sync::Arc;
use tensorlend_layout::announce::Waiting;
use tensorlend_layout::catalogue::{Catalogue, RING};
use tensorlend_layout::describe::Model;
use tensorlend_layout::directory::{DirectoryHead, MemberEntry, NameEntry, bits};
use tensorlend_layout::leases::acquire;
use tensorlend_layout::number::{CellNo, ClientNo, SlotNo};
use tensorlend_layout::sync::{Ordering, fence};
use tensorlend_layout::word::{Absorbed, Cell, MemberState, OwnerKind, OwnerWord, Word};

/// Hash of the name.
const NAME: u64 = 5 << 24;

/// A client as the others see it.
struct Client {
    catalogue: Catalogue,
    member: MemberEntry,
}

impl Client {
    fn new() -> Self {
        let client = Self { catalogue: Model::model(), member: Model::model() };
        client.member.absorbed.set(Absorbed::new(MemberState::Open, 0).0);
        client
    }

    fn entry(&self, number: u64) -> &Word {
        &self.catalogue.ring[number as usize % RING]
    }

    /// The announcement of the name, if it waits in the ring: the absorbed word and the cell.
    fn announced(&self) -> Option<(Absorbed, CellNo)> {
        let waiting = Waiting::read(&self.catalogue, &self.member.absorbed).unwrap()?;
        waiting.cells(NAME).next().map(|cell| (waiting.absorbed, cell))
    }

    /// Daemon: takes one announcement over; true if there was one.
    fn absorb(&self, owner_word: &Word, owner_word_first: bool) -> bool {
        let absorbed = Absorbed(self.member.absorbed.peek());
        if self.catalogue.ring_head.read() <= absorbed.index() {
            return false;
        }
        let cell = self.entry(absorbed.index()).read() & 0xFF_FFFF;
        let next = Absorbed::new(MemberState::Open, absorbed.index() + 1).0;
        if !owner_word_first {
            self.member.absorbed.set(next);
        }
        owner_word.set(OwnerWord(owner_word.peek()).then_live(OWNER, CellNo::new(cell as u32)).0);
        if owner_word_first {
            self.member.absorbed.set(next);
        }
        true
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Claim {
    Right,
    Without,
    Unfenced,
    RingFirst,
    Ignored,
}

/// Claims, looks at the other, announces; true if the name is this client's.
fn publish(me: &Client, other: &Client, name: &NameEntry, how: Claim) -> bool {
    match how {
        Claim::Without => {}
        Claim::Unfenced => me.catalogue.claim.set(NAME),
        _ => me.catalogue.claim_name(NAME),
    }
    let claimed = || other.catalogue.claim.read() == NAME;
    let announced = || other.announced().is_some();
    let early = how == Claim::RingFirst && announced();
    let busy = claimed() | if how == Claim::RingFirst { early } else { announced() };
    let bound = matches!(OwnerWord(name.owner_word.read()).kind(), OwnerKind::Live | OwnerKind::Reserved);
    let mine = !busy && !bound;
    if mine {
        me.catalogue.announce(NAME, CellNo::new(0));
    }
    me.catalogue.unclaim();
    mine
}

/// The daemon binds the name for a third client that asked for it; true if it did.
fn bind(client: &Client, name: &NameEntry, how: Claim) -> bool {
    if how != Claim::Ignored {
        name.owner_word.set(OwnerWord(0).then_reserved().0);
        fence(Ordering::SeqCst);
        if client.catalogue.claim.read() == NAME {
            // Put off to the next turn of the daemon's loop.
            return false;
        }
    }
    if client.announced().is_some() {
        // Absorbed first; the request is then a takeover.
        return false;
    }
    name.owner_word.set(then_live(OwnerWord(0).then_reserved().0, ClientNo::new(3), 0));
    true
}

/// Two parties create the same name: at most one of them succeeds by itself.
fn created(how: Claim, with_daemon: bool) {
    let w = Arc::new(([Client::new(), Client::new()], NameEntry::model()));
    let other = {
        let w = w.clone();
        spawn(move || if with_daemon { bind(&w.0[0], &w.1, how) } else { publish(&w.0[1], &w.0[0], &w.1, how) })
    };
    let mine = publish(&w.0[0], &w.0[1], &w.1, how);
    let others = other.join().unwrap();
    if mine || others {
        reached();
    }
    assert!(!(mine && others), "two winners");
}

#[test]
fn a_name_is_created_once() {
    holds("two clients create a name", None, || created(Claim::Right, false));
    holds("a client and the daemon create a name", None, || created(Claim::Right, true));
    refuted("announced without a claim", "two winners", || created(Claim::Without, false));
    refuted("claim without a fence", "two winners", || created(Claim::Unfenced, false));
    refuted("ring read before the claim", "two winners", || created(Claim::RingFirst, false));
    refuted("daemon ignores claims", "two winners", || created(Claim::Ignored, true));
}

#[derive(Clone, Copy, PartialEq)]
enum Opened {
    Right,
    ListedLate,
    OpenedLate,
    LookedEarly,
}

/// The daemon makes client 0 an announcer, which announces a name after the daemon's reply; client 1, an announcer already,
/// creates the same name in the meantime.
fn opened(how: Opened) {
    struct World {
        head: DirectoryHead,
        clients: [Client; 2],
        /// Stands for the packet on the control socket.
        reply: Word,
        name: NameEntry,
    }
    let w = Arc::new(World {
        head: DirectoryHead::model(),
        clients: [Client::new(), Client::new()],
        reply: Word::new(0),
        name: NameEntry::model(),
    });
    w.head.announcers[0].set(1 << 1);
    w.clients[0].member.absorbed.set(Absorbed::new(MemberState::Vacant, 0).0);
    let daemon = {
        let w = w.clone();
        spawn(move || {
            let list = || drop(w.head.announcers[0].set_bits(1 << 0));
            let open = || w.clients[0].member.absorbed.set(Absorbed::new(MemberState::Open, 0).0);
            if how != Opened::ListedLate {
                list();
            }
            if how != Opened::OpenedLate {
                open();
            }
            w.reply.set(1);
            match how {
                Opened::ListedLate => list(),
                Opened::OpenedLate => open(),
                _ => {}
            }
        })
    };
    let publish = move |w: &World, me: usize| {
        let listed = || bits(&w.head.announcers, 64).any(|number| number.index() == 1 - me);
        let early = listed();
        w.clients[me].catalogue.claim_name(NAME);
        let other = &w.clients[1 - me];
        let busy = if how == Opened::LookedEarly { early } else { listed() } && {
            let claim = other.catalogue.claim.read();
            let waiting = Waiting::read(&other.catalogue, &other.member.absorbed).unwrap();
            waiting.is_some_and(|waiting| claim == NAME || waiting.cells(NAME).next().is_some())
        };
        if !busy {
            w.clients[me].catalogue.announce(NAME, CellNo::new(0));
        }
        w.clients[me].catalogue.unclaim();
        !busy
    };
    let other = {
        let w = w.clone();
        spawn(move || publish(&w, 1))
    };
    let mine = w.reply.read() == 1 && publish(&w, 0);
    let others = other.join().unwrap();
    daemon.join().unwrap();
    if mine {
        reached();
    }
    assert!(!(mine && others), "two winners");
}

#[test]
fn a_new_announcer_is_seen_by_every_later_claim() {
    holds("listed, opened, then told", Some(3), || opened(Opened::Right));
    refuted("told before it is listed", "two winners", || opened(Opened::ListedLate));
    refuted("told before it may announce", "two winners", || opened(Opened::OpenedLate));
    refuted("announcers listed before the claim's fence", "two winners", || opened(Opened::LookedEarly));
}

/// A client ends: its last announcement is absorbed, and it leaves the list of announcers. A look-up reads the list, then the
/// directory.
fn left(list_last: bool) {
    let w = Arc::new((Client::new(), NameEntry::model(), DirectoryHead::model()));
    w.2.announcers[0].set(1);
    w.0.catalogue.announce(NAME, CellNo::new(0));
    let daemon = {
        let w = w.clone();
        spawn(move || {
            let leave = || drop(w.2.announcers[0].clear_bits(1));
            if !list_last {
                leave();
            }
            w.0.absorb(&w.1.owner_word, true);
            w.0.member.absorbed.set(Absorbed::new(MemberState::Closed, 1).0);
            if list_last {
                leave();
            }
        })
    };
    let live = || OwnerWord(w.1.owner_word.read()).is_live();
    let announced = || bits(&w.2.announcers, 64).next().is_some() && w.0.announced().is_some();
    let found = live() || announced() || live();
    reached();
    assert!(found, "false miss");
    daemon.join().unwrap();
}

#[test]
fn an_announcer_leaves_behind_its_last_name() {
    holds("absorbed, closed, off the list", None, || left(true));
    refuted("off the list before the owner word", "false miss", || left(false));
}

/// A client ends while a list of names reads its ring, and then the directory.
fn listed(also_ending: bool) {
    let w = Arc::new((Client::new(), NameEntry::model()));
    w.0.catalogue.announce(NAME, CellNo::new(0));
    let daemon = {
        let w = w.clone();
        spawn(move || {
            w.0.member.absorbed.set(Absorbed::new(MemberState::Ending, 0).0);
            fence(Ordering::SeqCst);
            w.1.owner_word.set(live(OWNER, 0));
            w.0.member.absorbed.set(Absorbed::new(MemberState::Closed, 1).0);
        })
    };
    let (catalogue, absorbed) = (&w.0.catalogue, &w.0.member.absorbed);
    let waiting = if also_ending {
        Waiting::read_also_ending(catalogue, absorbed)
    } else {
        Waiting::read(catalogue, absorbed).unwrap_or(None)
    };
    let announced = waiting.is_some_and(|waiting| waiting.all_cells().next().is_some());
    reached();
    assert!(announced || OwnerWord(w.1.owner_word.read()).is_live(), "false miss");
    daemon.join().unwrap();
}

#[test]
fn a_list_has_the_last_names_of_a_client_that_is_ending() {
    holds("listed while the client ends", None, || listed(true));
    refuted("a ring is passed over while its client ends", "false miss", || listed(false));
}

/// A list copies the name of an announced cell while the daemon absorbs the announcement and the client uses the cell again.
fn copied(again: bool) {
    let w = Arc::new((Client::new(), NameEntry::model(), Word::new(1)));
    w.0.catalogue.announce(NAME, CellNo::new(0));
    let client = {
        let w = w.clone();
        spawn(move || {
            w.0.absorb(&w.1.owner_word, true);
            fence(Ordering::Release);
            w.2.put(2);
        })
    };
    let absorbed = &w.0.member.absorbed;
    if let Some(waiting) = Waiting::read_also_ending(&w.0.catalogue, absorbed)
        && waiting.all_cells().next().is_some()
    {
        let name = w.2.peek();
        if !again || waiting.still_waits(0, absorbed) {
            reached();
            assert_eq!(name, 1, "another name");
        }
    }
    client.join().unwrap();
}

#[test]
fn a_list_has_no_name_of_a_cell_that_is_used_again() {
    holds("name copied from a cell", None, || copied(true));
    refuted("name copied from a cell, absorbed not read again", "another name", || copied(false));
}

#[derive(Clone, Copy)]
struct Miss {
    directory_again: bool,
    owner_word_first: bool,
    absorbed_again: bool,
}

const CAREFUL: Miss = Miss { directory_again: true, owner_word_first: true, absorbed_again: true };

/// A look-up through directory, ring, directory: `Err` if something moved, else the cell or that the name is absent.
fn get(client: &Client, name: &NameEntry, lease: &Word, how: Miss) -> Result<Option<u32>, ()> {
    let owner_word = OwnerWord(name.owner_word.read());
    if owner_word.is_live() {
        let stands = acquire(lease, Cell::new(1, SlotNo::new(0)).lease(OWNER), &[(&name.owner_word, owner_word.0)]);
        lease.set(0);
        return if stands { Ok(Some(owner_word.cell().get())) } else { Err(()) };
    }
    if let Some((absorbed, cell)) = client.announced() {
        let route = [(&client.member.absorbed, absorbed.0)];
        let stands =
            acquire(lease, Cell::new(1, SlotNo::new(0)).lease(OWNER), &route[..usize::from(how.absorbed_again)]);
        lease.set(0);
        return if stands { Ok(Some(cell.get())) } else { Err(()) };
    }
    if how.directory_again && OwnerWord(name.owner_word.read()).is_live() { Err(()) } else { Ok(None) }
}

/// The daemon absorbs the announcement of a name while somebody looks for it; the producer then uses the entry again.
fn absorbed(how: Miss) {
    let w = Arc::new((Client::new(), NameEntry::model(), Word::new(0)));
    w.0.catalogue.announce(NAME, CellNo::new(0));
    let daemon = {
        let w = w.clone();
        spawn(move || {
            w.0.absorb(&w.1.owner_word, how.owner_word_first);
        })
    };
    reached();
    assert_ne!(get(&w.0, &w.1, &w.2, how), Ok(None), "false miss");
    daemon.join().unwrap();
}

#[test]
fn an_announced_name_is_never_missed() {
    holds("look-up during absorption", None, || absorbed(CAREFUL));
    refuted("no second look in the directory", "false miss", || absorbed(Miss { directory_again: false, ..CAREFUL }));
    refuted("absorbed stored before owner word", "false miss", || {
        absorbed(Miss { owner_word_first: false, ..CAREFUL })
    });
}

/// A name is announced, absorbed, and taken over by another cell (2); its entry and its cell go to another name, whose
/// values a get must not return. Two gets, one after the other: the value never goes back. 0 announced, 2 taken over.
fn life(how: Miss, gets: usize) {
    struct World {
        client: Client,
        name: NameEntry,
        leases: [Word; 2],
        first: Word,
        /// Value of cell 0; 9 is another name's.
        cell: Word,
    }
    let w = Arc::new(World {
        client: Client::new(),
        name: NameEntry::model(),
        leases: [Word::new(0), Word::new(0)],
        first: Word::new(0),
        cell: Word::new(1),
    });
    w.client.catalogue.announce(NAME, CellNo::new(0));
    let daemon = {
        let w = w.clone();
        spawn(move || {
            w.client.absorb(&w.name.owner_word, true);
            w.name.owner_word.set(then_live(live(OWNER, 0), ClientNo::new(2), 2));
            // The former owner learns that cell 0 is free, and binds it to another name.
            w.cell.set(9);
        })
    };
    let look = move |w: &World, who: usize| -> Option<u64> {
        let lease = &w.leases[who];
        let owner_word = OwnerWord(w.name.owner_word.read());
        if owner_word.is_live() {
            let value = if owner_word.cell() == CellNo::new(2) { 2 } else { w.cell.read() };
            let route = [(&w.name.owner_word, owner_word.0)];
            return acquire(lease, Cell::new(1, SlotNo::new(0)).lease(OWNER), &route).then_some(value);
        }
        let (absorbed, _) = w.client.announced()?;
        let value = w.cell.read();
        let route = [(&w.client.member.absorbed, absorbed.0)];
        acquire(lease, Cell::new(1, SlotNo::new(0)).lease(OWNER), &route[..usize::from(how.absorbed_again)])
            .then_some(value)
    };
    let reader = (gets == 2).then(|| {
        let w = w.clone();
        spawn(move || {
            let value = look(&w, 1);
            w.first.set(1);
            value
        })
    });
    let second = if gets == 1 || w.first.read() == 1 { look(&w, 0) } else { None };
    let first = reader.and_then(|r| r.join().unwrap());
    daemon.join().unwrap();
    for value in [first, second].into_iter().flatten() {
        reached();
        assert_ne!(value, 9, "another name's value");
    }
    if let (Some(first), Some(second)) = (first, second) {
        assert!(first <= second, "the value goes back");
    }
}

#[test]
fn an_announcement_is_no_route_once_it_is_absorbed() {
    holds("announce, absorb, take over, one get", None, || life(CAREFUL, 1));
    holds("announce, absorb, take over, two gets", Some(3), || life(CAREFUL, 2));
    refuted("absorbed not read again", "another name's value", || life(Miss { absorbed_again: false, ..CAREFUL }, 1));
}

/// Two clients and the daemon share the last places for names: never more are taken than there are.
fn room(fenced: bool, daemon_counts: bool) {
    let w = Arc::new(([Client::new(), Client::new()], Word::new(1)));
    let publish = move |w: &([Client; 2], Word), me: usize| {
        let (mine, other) = (&w.0[me], &w.0[1 - me]);
        let hash = NAME << me;
        if fenced {
            mine.catalogue.claim_name(hash);
        } else {
            mine.catalogue.claim.set(hash);
        }
        let others = u64::from(other.catalogue.claim.read() != 0)
            + Waiting::read(&other.catalogue, &other.member.absorbed).unwrap().map_or(0, |w| w.count());
        let fits = others < w.1.read();
        if fits {
            mine.catalogue.announce(hash, CellNo::new(0));
        }
        mine.catalogue.unclaim();
        u64::from(fits)
    };
    let second = {
        let w = w.clone();
        spawn(move || {
            if !daemon_counts {
                return publish(&w, 1);
            }
            // A request for a name of another kind.
            w.1.set(0);
            fence(Ordering::SeqCst);
            let client = &w.0[0];
            let announced = u64::from(client.catalogue.claim.read() != 0)
                + Waiting::read(&client.catalogue, &client.member.absorbed).unwrap().map_or(0, |w| w.count());
            if announced == 0 {
                return 1;
            }
            w.1.set(1);
            0
        })
    };
    let first = publish(&w, 0);
    let second = second.join().unwrap();
    if first + second > 0 {
        reached();
    }
    assert!(first + second <= 1, "more names than places");
}

#[test]
fn no_more_names_are_announced_than_find_a_place() {
    holds("two clients, one place", None, || room(true, false));
    holds("a client and the daemon, one place", None, || room(true, true));
    refuted("claims not fenced", "more names than places", || room(false, false));
    refuted("claim not fenced against the daemon", "more names than places", || room(false, true));
}
