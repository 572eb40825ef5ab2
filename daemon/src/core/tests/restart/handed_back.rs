//! Clients hand their memory back to a daemon that has lost everything.

use super::*;

/// Clients that return their memory to a daemon that has lost everything.
impl World {
    fn lose_daemon(&mut self, settings: Settings) -> BTreeMap<MemId, (u64, Option<View>)> {
        let mut core = std::mem::replace(&mut self.core, Core::new(settings));
        core.leave();
        drop(core);
        self.stored.clear();
        self.sealed.clear();
        assert!(self.core.expect_clients(self.now_ns));
        self.happen(Event::Start);
        std::mem::take(&mut self.memory)
    }

    /// Hands a sheet of `before` back to the daemon as this item.
    fn bring(&mut self, conn: ConnId, client: &Client, item: Item, (magic, view): (Magic, &View)) -> Reply {
        let request = Request::HandBack {
            namespace: client.welcome.namespace.clone(),
            catalogue: client.number(),
            member: client.welcome.member,
            item,
        };
        let copied = magic == Magic::Directory;
        let own = Own { magic: Some(magic), bytes: view.bytes() as u64, view: Some(view.clone()), acked: true, copied };
        if let Item::Leases = item {
            // The client that owns this lease table lives.
            self.loud.insert(self.next_received());
        }
        self.say_bringing(conn, &request, own);
        self.hear(conn).expect("answered at once").0
    }
}

fn sheet(before: &BTreeMap<MemId, (u64, Option<View>)>, bytes: usize) -> View {
    let mut views = before.values().filter_map(|(_, view)| view.clone());
    views.find(|view| view.bytes() == bytes).expect("it was there")
}

#[test]
fn nobody_comes_in_between_by_bringing_something_in_anothers_name() {
    let settings = || Settings { spare_segments: 0, ..settings() };
    let mut w = World::new(settings());
    let a = w.join(1);
    w.bind(&a, "x", 0, Cell::new(1, 0));
    let before = w.lose_daemon(settings());
    // Another process tries to hand the objects back before the client itself does.
    let other = w.dial(2, &[]);
    let lab = w.dial(1, &[]);
    let names = a.welcome.namespace.clone();
    let false_claim =
        Request::HandBack { namespace: names, catalogue: 1, member: a.welcome.member, item: Item::Catalogue };
    let bytes = a.catalogue.bytes() as u64;
    let own = Own { magic: Some(Magic::Catalogue), bytes, view: None, acked: true, copied: false };
    w.say_bringing(other, &false_claim, own);
    assert!(matches!(w.refusal(other), Refusal::NotFound(_)), "another user may not");
    let stranger = w.connect(1, 999, &[]);
    let bytes = a.catalogue.bytes() as u64;
    let own = Own { magic: Some(Magic::Catalogue), bytes, view: None, acked: true, copied: false };
    w.say_bringing(stranger, &false_claim, own);
    assert!(matches!(w.hear(stranger), Some((Reply::Done, _))), "the directory decides later who it is");
    let directory = before.values().find_map(|(_, view)| view.clone().filter(|v| Directory::new(v).is_some()));
    assert_eq!(w.bring(lab, &a, Item::Directory, (Magic::Directory, &directory.expect("one is"))), Reply::Done);
    let catalogue = sheet(&before, a.catalogue.bytes());
    assert_eq!(w.bring(lab, &a, Item::Catalogue, (Magic::Catalogue, &catalogue)), Reply::Done);
    let leases = sheet(&before, a.leases.bytes());
    assert_eq!(w.bring(lab, &a, Item::Leases, (Magic::Leases, &leases)), Reply::Done);
    w.say(lab, &Request::Return(back(&a)));
    w.wait_ns(1_000);
    let answer = w.hear(lab);
    assert!(matches!(answer, Some((Reply::Welcome(_), _))), "it is the client's own that counts: {answer:?}");
    w.say(lab, &Request::Ack);
    assert_eq!((w.stat().clients, w.stat().names), (1, 1));
    w.happen(Event::HungUp { conn: stranger });
    w.loud.clear();
    w.happen(Event::HungUp { conn: lab });
    w.wait_ns(10_000_000_000);
    assert_eq!(w.stat().clients, 0);
}

#[test]
fn what_was_brought_and_nobody_waits_for_does_not_stay() {
    let settings = || Settings { spare_segments: 0, ..settings() };
    let mut w = World::new(settings());
    let a = w.join(1);
    let before = w.lose_daemon(settings());
    // A client that waits sets an earlier timer, and disconnects.
    let newcomer = w.dial(1, &[]);
    w.say(newcomer, &Request::Hello(hello()));
    let conn = w.dial(1, &[]);
    let catalogue = sheet(&before, a.catalogue.bytes());
    assert_eq!(w.bring(conn, &a, Item::Catalogue, (Magic::Catalogue, &catalogue)), Reply::Done);
    assert_eq!(w.memory.len(), 1);
    w.happen(Event::HungUp { conn: newcomer });
    w.happen(Event::HungUp { conn });
    w.wait_ns(3_000_000_000);
    assert!(w.memory.is_empty(), "{:?}", w.memory);
    w.assert_empty();
}

/// Each object that a client hands back is a descriptor of the daemon and counts as one.
#[test]
fn what_was_brought_is_charged_before_it_is_looked_at() {
    let few = || Settings { spare_segments: 0, descriptors_max: 8, ..settings() };
    let mut w = World::new(settings());
    let a = w.join(1);
    let before = w.lose_daemon(few());
    let conn = w.dial(1, &[]);
    drop(before);
    let brought = |w: &mut World, part| {
        let view = View::anonymous(length::cells(part) as usize);
        w.bring(conn, &a, Item::Cells { part }, (Magic::Cells, &view))
    };
    // The session itself has three descriptors.
    for part in 1..=5 {
        assert_eq!(brought(&mut w, part), Reply::Done);
    }
    assert!(matches!(brought(&mut w, 6), Reply::Refused(Refusal::Limit { .. })));
    w.wait_ns(3_000_000_000);
    w.assert_empty();
}

/// Returns a segment that a client claims to have had.
fn segment_of(bytes: u64) -> Own {
    Own { magic: None, bytes, view: None, acked: true, copied: false }
}

#[test]
fn what_was_brought_is_as_long_as_a_daemon_makes_it() {
    let settings = || Settings { spare_segments: 0, ..settings() };
    let mut w = World::new(settings());
    let a = w.join(1);
    let before = w.lose_daemon(settings());
    let refused = |w: &mut World, item, own| {
        let (namespace, member) = (a.welcome.namespace.clone(), a.welcome.member);
        let request = Request::HandBack { namespace, catalogue: a.number(), member, item };
        let conn = w.dial(1, &[]);
        w.say_bringing(conn, &request, own);
        let answer = w.hear(conn).expect("answered at once").0;
        w.happen(Event::HungUp { conn });
        assert!(matches!(answer, Reply::Done | Reply::Refused(Refusal::Bad(_))), "{answer:?}");
        answer != Reply::Done
    };
    let sheet_of = |magic, bytes| Own {
        magic: Some(magic),
        bytes,
        view: Some(View::anonymous(bytes as usize)),
        acked: true,
        copied: false,
    };
    let most = settings().pool_bytes_max;
    assert!(!refused(&mut w, Item::Segment { base: 0 }, segment_of(most)));
    for bytes in [0, most + 1, u64::MAX] {
        assert!(refused(&mut w, Item::Segment { base: 64 }, segment_of(bytes)), "{bytes}");
    }
    let of_a_kind = [
        (Item::Catalogue, Magic::Catalogue, length::CATALOGUE),
        (Item::Leases, Magic::Leases, length::LEASES),
        (Item::Cells { part: 1 }, Magic::Cells, length::cells(1)),
        (Item::Slots { base: 0 }, Magic::Slots, length::slots(64)),
        (Item::Ring { stream: 0, id: 1 }, Magic::Stream, length::ring(4)),
    ];
    for (item, magic, bytes) in of_a_kind {
        assert!(refused(&mut w, item, sheet_of(magic, bytes + 8)), "{item:?}");
        assert!(!refused(&mut w, item, sheet_of(magic, bytes)), "{item:?}");
    }
    assert!(refused(&mut w, Item::Cells { part: 200 }, sheet_of(Magic::Cells, length::cells(1))));
    // The daemon refuses a directory whose table word places the table outside the directory.
    let directory = before.values().find_map(|(_, view)| view.clone().filter(|v| Directory::new(v).is_some()));
    let directory = directory.expect("one is");
    let words = Directory::new(&directory).expect("it is one");
    let table = &words.head().table;
    let own = || Own { magic: Some(Magic::Directory), ..sheet_like(&directory) };
    let word = table.peek();
    table.set(u64::MAX);
    assert!(refused(&mut w, Item::Directory, own()));
    table.set(word);
    assert!(refused(&mut w, Item::Directory, Own { view: None, ..own() }), "its words are not there");
    assert!(!refused(&mut w, Item::Directory, own()));
    assert!(!refused(&mut w, Item::Directory, Own { view: None, ..own() }), "it is there already");
    w.wait_ns(3_000_000_000);
    w.loud.clear();
    w.assert_empty();
}

fn sheet_like(view: &View) -> Own {
    Own { magic: None, bytes: view.bytes() as u64, view: Some(view.clone()), acked: true, copied: true }
}

/// False claims of a client cost no more than it could have been lent; its own writable memory is charged.
#[test]
fn what_was_made_up_costs_no_more_than_there_is() {
    let settings = || Settings { spare_segments: 0, ..settings() };
    let most = settings().pool_bytes_max;
    let mut w = World::new(settings());
    let a = w.join(1);
    let lent = w.segment(&a);
    let before = w.lose_daemon(settings());
    let conn = w.dial(1, &[]);
    let directory = before.values().find_map(|(_, view)| view.clone().filter(|v| Directory::new(v).is_some()));
    assert_eq!(w.bring(conn, &a, Item::Directory, (Magic::Directory, &directory.expect("one is"))), Reply::Done);
    for (item, magic, bytes) in
        [(Item::Catalogue, Magic::Catalogue, a.catalogue.bytes()), (Item::Leases, Magic::Leases, a.leases.bytes())]
    {
        assert_eq!(w.bring(conn, &a, item, (magic, &sheet(&before, bytes))), Reply::Done);
    }
    // The client's own segment without its slots, and some that it was never lent.
    for (number, bytes) in [SEGMENT, most, most, most - SEGMENT, most].into_iter().enumerate() {
        let (namespace, member) = (a.welcome.namespace.clone(), a.welcome.member);
        let item = Item::Segment { base: lent.base + number as u32 * (1 << 20) };
        let request = Request::HandBack { namespace, catalogue: a.number(), member, item };
        w.loud.insert(w.next_received());
        w.say_bringing(conn, &request, segment_of(bytes));
        assert!(matches!(w.hear(conn), Some((Reply::Done, _))));
    }
    w.say(conn, &Request::Return(back(&a)));
    w.wait_ns(1_000);
    assert!(matches!(w.hear(conn), Some((Reply::Welcome(_), _))));
    w.say(conn, &Request::Ack);
    assert_eq!((w.stat().segments, w.stat().bytes_in_use), (0, most));
    w.loud.clear();
    w.happen(Event::HungUp { conn });
    w.wait_ns(20_000_000_000);
    w.assert_empty();
}

/// No contents of a directory that a client hands back stop the daemon.
#[test]
fn a_directory_with_made_up_words_stops_nobody() {
    for seed in 1..=1000 {
        let settings = || Settings { spare_segments: 0, ..system() };
        let mut w = World::new(settings());
        let (a, b) = (w.join(1), w.join(1));
        let lent = w.segment(&a);
        lent.write(lent.base, 1, None);
        for (cell, name) in ["x".to_owned(), "n".repeat(200), "m".repeat(120)].iter().enumerate() {
            w.bind(&a, name, cell as u32, Cell::new(1, lent.base));
        }
        a.words().cells[5].cell.set(Cell::new(1, lent.base).0);
        w.ask(&a, &Request::ListAppend { list: "l".into(), cells: vec![5] });
        w.ask(&a, &Request::StreamOpen { name: "s".into(), capacity: 4, policy: Policy::Error });
        w.ask(&b, &Request::Subscribe { name: "s".into(), cursor: 3, wake: false });
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
        w.bind(&c, "y", 0, Cell::new(1, 0));
        w.ask(&c, &Request::Delete { name: "y".into() });
        w.ask(&c, &Request::Delete { name: "n".repeat(200) });
        w.loud.clear();
        w.wait_ns(3_000_000_000);
        w.hang_up(&c);
    }
}
