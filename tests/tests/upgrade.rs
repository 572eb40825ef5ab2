//! Programs of two builds, whose layouts of shared memory differ, while daemons of both builds replace each other.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;
use std::path::Path;
use tensorlend::{Client, Error, Refusal};
use tensorlend_layout::versions::{LAYOUTS, Layout};
use tensorlend_layout::wire::{Hello, PROTOCOL_OLDEST, PROTOCOL_VERSION, Reply, Request, decode, encode};
use tensorlend_tests::filled::value;
use tensorlend_tests::hand::{ask, dial, hello};
use tensorlend_tests::stored::{Machine, end};
use tensorlend_tests::traffic::{ITEM_BITS, ITEM_ROUNDS, LIST, NAMES, QUEUE, TAKEN, latest, name, stored};
use tensorlend_tests::{Agent, Build, PATIENCE, budget, eventually, skip_without_next};

/// Rounds of each client under each daemon.
const ROUNDS: u64 = 20;

/// The layout's version that a session has if client and daemon are of these builds.
fn common(client: Build, daemon: Build) -> String {
    let newest = Layout::CURRENT.version;
    (if (client, daemon) == (Build::Next, Build::Next) { newest + 1 } else { newest }).to_string()
}

fn rounds(agent: &mut Agent) -> u64 {
    agent.ok("rounds").parse().unwrap()
}

/// A client of each build. They use each other's names, items of a list and a queue, and streams.
struct Clients {
    agents: [(Build, Agent); 2],
}

impl Clients {
    fn start(machine: &Machine) -> Self {
        let mut agents = [Build::Current, Build::Next].map(|build| (build, machine.agent_of(build)));
        for (me, (_, agent)) in agents.iter_mut().enumerate() {
            agent.ok(&format!("traffic {me} {}", 1 - me));
        }
        Self { agents }
    }

    /// Waits until both clients have used this daemon.
    fn use_daemon(&mut self, daemon: Build) {
        for (build, agent) in &mut self.agents {
            eventually("the client's session with this daemon", || agent.ok("layout") == common(*build, daemon));
            let before = rounds(agent);
            eventually("the client's progress", || rounds(agent) >= before + ROUNDS);
        }
    }

    /// Ends the use. Checks every name, and every item of the list.
    fn end(mut self, machine: &Machine) {
        let ends: Vec<u64> =
            self.agents.iter_mut().map(|(_, agent)| agent.ok("end-traffic").parse().unwrap()).collect();
        let client = machine.client();
        for (me, &rounds) in (0..).zip(&ends) {
            assert_eq!(number(&client, &latest(me)), rounds - 1);
            for at in 0..NAMES {
                let expected = stored(at, rounds);
                let found = client.exists(&name(me, at)).unwrap().then(|| number(&client, &name(me, at)));
                assert_eq!(found, expected, "name {at} of client {me} after {rounds} rounds");
            }
        }
        assert_eq!(of_each(&items(&client, LIST)), all_items(&ends), "all items, once, in their order");
        // The clients take each other's items, so the list of taken items has no order.
        let mut taken = items(&client, TAKEN);
        assert!(!taken.is_empty(), "the clients took items from the queue");
        let queue = client.queue(QUEUE).unwrap();
        assert_eq!(queue.claimed().unwrap(), 0, "the clients confirmed what they took");
        while queue.waiting().unwrap() > 0 {
            let item = queue.get(PATIENCE).unwrap();
            taken.push(value(item.value().tensor().unwrap()).unwrap());
            assert!(item.done().unwrap());
        }
        taken.sort_unstable();
        assert_eq!(of_each(&taken), all_items(&ends), "each item of the queue was delivered once");
    }
}

fn items(client: &Client, list: &str) -> Vec<u64> {
    client.get_all(list).unwrap().iter().map(|item| value(item.tensor().unwrap()).unwrap()).collect()
}

/// The numbers of each client's items, in the order of `items`.
fn of_each(items: &[u64]) -> [Vec<u64>; 2] {
    assert!(items.iter().all(|item| item >> ITEM_BITS <= 1), "an item of no client");
    [0, 1].map(|me| {
        items.iter().filter(|&item| item >> ITEM_BITS == me).map(|item| item & ((1 << ITEM_BITS) - 1)).collect()
    })
}

/// The numbers of all items that clients have made in this number of rounds.
fn all_items(rounds: &[u64]) -> [Vec<u64>; 2] {
    [0, 1].map(|me| (0..rounds[me].div_ceil(ITEM_ROUNDS)).collect())
}

fn number(client: &Client, name: &str) -> u64 {
    value(&client.get(name).unwrap_or_else(|error| panic!("{name}: {error}"))).unwrap()
}

/// Replaces the daemon by each build in turn, while a client of each build works.
fn upgrades_and_downgrades(mut machine: Machine, count: u64) {
    let mut dead = machine.agent_of(Build::Next);
    let sum = dead.ok("put of-the-dead 3000000 7");
    if machine.store.is_some() {
        dead.kill();
    }
    let mut holder = machine.agent();
    holder.ok("put held 100000 3");
    holder.ok("hold held");
    let held = holder.ok("held held");
    let mut clients = Clients::start(&machine);
    clients.use_daemon(machine.build);
    for round in 0..count {
        let build = if machine.build == Build::Current { Build::Next } else { Build::Current };
        machine.replace_daemon(build);
        clients.use_daemon(build);
        holder.ok(&format!("put held 100000 {round}"));
        assert_eq!(holder.ok("held held"), held, "a lease keeps its value");
        // New clients of both builds.
        assert!(machine.agent_of(Build::Current).ok("sum of-the-dead").ends_with(&sum));
        assert!(machine.agent_of(Build::Next).ok("sum of-the-dead").ends_with(&sum));
        if build == Build::Next {
            // The former daemon has appended to the list, and does not know the added word.
            let socket = machine.path("socket");
            let words = machine.agent_of(Build::Next).ok(&format!("added-words {} {LIST}", socket.display()));
            let (end, cursors) = words.split_once(' ').unwrap();
            assert!(end.parse::<u64>().unwrap() > 0);
            assert_eq!(cursors, "1 1", "one subscriber of each build");
        }
    }
    clients.end(&machine);
}

#[test]
fn clients_of_both_builds_continue_with_daemons_of_both_builds() {
    if skip_without_next() {
        return;
    }
    for mode in ["user", "system"] {
        upgrades_and_downgrades(Machine::start(mode), budget(10, 50));
    }
}

#[test]
fn clients_of_both_builds_continue_by_the_store_that_the_first_daemon_started() {
    if skip_without_next() {
        return;
    }
    let mut machine = Machine::with_own_store("user");
    machine.start_daemon();
    upgrades_and_downgrades(machine, budget(4, 20));
}

/// The daemon of this build does not know this layout.
#[test]
fn layouts_out_of_the_range_are_refused() {
    let mut machine = Machine::with_own_store("user");
    machine.start_daemon();
    let offer = |layout| {
        let Request::Hello(hello) = hello(None) else { unreachable!("a hello") };
        let socket = dial(&machine.path("socket")).unwrap();
        ask(&socket, &Request::Hello(hello.in_layout(layout)), &[]).unwrap().0
    };
    for &known in LAYOUTS {
        assert!(matches!(offer(known), Reply::Welcome(_)), "{known:?}");
    }
    let Layout { version, hash } = Layout::CURRENT;
    let beyond = Layout { version: version + 2, hash };
    let before = Layout { version: Layout::OLDEST.version - 1, hash };
    let other = Layout { version, hash: hash ^ 1 };
    for unknown in [beyond, before, other] {
        let Reply::Refused(refusal @ Refusal::Layout { .. }) = offer(unknown) else { panic!("{unknown:?}") };
        let text = refusal.to_string();
        let Layout { version: offered, hash: offered_hash } = unknown;
        for part in [
            format!("the daemon's shared memory has format {version} ({hash:016x})"),
            format!("{offered} ({offered_hash:016x})"),
            "install matching versions".into(),
        ] {
            assert!(text.contains(&part), "{part} in {text}");
        }
    }
}

/// The message of a client that continues its session. Later versions of the protocol added fields at its end.
fn return_of(protocols: (u16, u16), Layout { version, hash }: Layout, rest: &[u8]) -> Vec<u8> {
    let session = ("upgrade", 1u16, 7u64, Some([0u32; 0]), [0u32; 0], 0u8);
    [encode(&(1u32, protocols, (version, hash), session)), rest.to_vec()].concat()
}

/// A running client of another version learns both versions, and so does the log. The daemon cannot decode the messages.
#[test]
fn running_clients_of_other_versions_learn_both_versions() {
    let mut machine = Machine::with_own_store("user");
    machine.start_daemon();
    let Layout { version, hash } = Layout::CURRENT;
    let old = Layout { version: 4, hash: 7 };
    let new = Layout { version: version + 2, hash: 9 };
    let layouts = |client: Layout| Refusal::Layout {
        daemon_version: version,
        daemon_hash: hash,
        client_version: client.version,
        client_hash: client.hash,
    };
    let protocols = |(client_min, client_max)| Refusal::Protocol { daemon: PROTOCOL_VERSION, client_min, client_max };
    let later = (PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 2);
    for (packet, expected, code) in [
        // The message has no claims before version 4 of the protocol.
        (return_of((3, 3), old, &[]), layouts(old), "TL-0906"),
        (return_of((3, 3), Layout::OLDEST, &[]), protocols((3, 3)), "TL-0905"),
        (return_of(later, new, &[0, 1, 2, 3]), layouts(new), "TL-0906"),
        (return_of(later, Layout::CURRENT, &[0, 1, 2, 3]), protocols(later), "TL-0905"),
        (
            [encode(&hello(None)), vec![1]].concat(),
            Refusal::Violation("a damaged or oversized packet".into()),
            "TL-0106",
        ),
    ] {
        let socket = dial(&machine.path("socket")).unwrap();
        tensorlend_os::packet::send(&socket, &packet, &[], SendFlags::empty()).unwrap();
        let reply = tensorlend_os::packet::receive(&socket, RecvFlags::empty()).unwrap();
        let Some(Reply::Refused(refusal)) = decode(&reply.bytes) else { panic!("{packet:?}") };
        assert_eq!((refusal.code(), &refusal), (code, &expected));
        let text = if code == "TL-0106" { "damaged".to_owned() } else { refusal.to_string() };
        let log = machine.log();
        let line = log.lines().rfind(|line| line.contains(&text)).unwrap_or_else(|| panic!("{text}: {log}"));
        let (pid, uid) = (std::process::id(), rustix::process::getuid());
        for part in [format!("pid={pid}"), format!("uid={uid}")] {
            assert!(line.contains(&part), "{part}: {line}");
        }
    }
}

/// A stand-in for a daemon of another version, at this path. Gives `reply` the packets of all clients.
fn stand_in(path: &Path, reply: impl Fn(&[u8]) -> Refusal + Send + 'static) {
    let listener =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let _ = std::fs::remove_file(path);
    rustix::net::bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&listener, 4).unwrap();
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        loop {
            let socket = rustix::net::accept(&listener).unwrap();
            let packet = tensorlend_os::packet::receive(&socket, RecvFlags::empty()).unwrap();
            let reply = encode(&Reply::Refused(reply(&packet.bytes)));
            let _ = tensorlend_os::packet::send(&socket, &reply, &[], SendFlags::empty());
        }
    });
}

/// A daemon of an older protocol takes the place of the client's daemon, and cannot decode the client's message.
#[test]
fn a_running_client_reports_an_older_daemon() {
    let mut machine = Machine::with_own_store("user");
    machine.start_daemon();
    let mut agent = machine.agent();
    agent.ok("put x 100 3");
    agent.ok("stream s 4");
    end(&mut machine.daemon, Signal::TERM);
    stand_in(&machine.path("socket"), |packet| match decode(packet) {
        Some(Request::Hello(Hello { protocol_min: client_min, protocol_max: client_max, .. })) => {
            Refusal::Protocol { daemon: 3, client_min, client_max }
        }
        _ => Refusal::Violation("a damaged or oversized packet".into()),
    });
    let socket = machine.path("socket");
    let new = Client::builder().socket(&socket).connect().unwrap_err();
    assert_eq!(new.code(), "TL-0905");
    let refusal = Refusal::Protocol { daemon: 3, client_min: PROTOCOL_OLDEST, client_max: PROTOCOL_VERSION };
    // The session ends when the client has met the new daemon. Until then, it may publish without a daemon.
    let mut error = String::new();
    eventually("the end of the session", || {
        agent.tell("put x 100 4");
        agent.answer().map_err(|it| error = it).is_err()
    });
    for request in ["put x 100 5", "sum x", "delete x", "put new 100 3", "send s 7"] {
        assert!(error.contains(&refusal.to_string()), "{error}");
        agent.tell(request);
        error = agent.answer().unwrap_err();
    }
    assert!(error.contains(&refusal.to_string()), "{error}");
}

/// A daemon whose layout is older than the range: the client does not try a second time.
#[test]
fn a_client_reports_a_daemon_out_of_its_range() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    stand_in(&path, |packet| {
        let Some(Request::Hello(hello)) = decode(packet) else { panic!("a hello") };
        Refusal::Layout {
            daemon_version: Layout::OLDEST.version - 1,
            daemon_hash: 7,
            client_version: hello.layout_version,
            client_hash: hello.layout_hash,
        }
    });
    let refused = Client::builder().socket(&path).connect().unwrap_err();
    assert!(matches!(refused, Error::Refused { refusal: Refusal::Layout { .. }, .. }), "{refused}");
    assert_eq!(refused.code(), "TL-0906");
}
