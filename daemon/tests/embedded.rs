//! The daemon over real sockets and real memory, with hand-made messages.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use tensorlend_daemon::{Config, Embedded, embedded, embedded_with};
use tensorlend_layout::catalogue::Catalogue;
use tensorlend_layout::directory::Directory;
use tensorlend_layout::header::Magic;
use tensorlend_layout::leases::{LeaseTable, acquire};
use tensorlend_layout::number::{CellNo, SlotNo};
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::{Hello, PROTOCOL_VERSION, Refusal, Reply, Request, Welcome, decode, encode};
use tensorlend_layout::word::{Cell, OwnerWord};
use tensorlend_os::map;
use tensorlend_os::memfd::Access;
use tensorlend_os::packet::{receive, send};

struct Client {
    socket: OwnedFd,
    welcome: Welcome,
    directory: Directory,
    catalogue: View,
    leases: View,
    /// Keeps the mappings that the seal concerns.
    segments: Vec<map::Segment>,
}

fn dial(broker: &Embedded) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(broker.socket()).unwrap()).unwrap();
    socket
}

fn hear(socket: &OwnedFd) -> Option<(Reply, Vec<OwnedFd>)> {
    let packet = receive(socket, RecvFlags::empty()).unwrap();
    (!packet.bytes.is_empty()).then(|| (decode(&packet.bytes).unwrap(), packet.descriptors))
}

fn say(socket: &OwnedFd, request: &Request) {
    send(socket, &encode(request), &[], SendFlags::empty()).unwrap();
}

fn hello() -> Hello {
    Hello::new(None, "test")
}

fn length(fd: &OwnedFd) -> usize {
    rustix::fs::fstat(fd).unwrap().st_size as usize
}

impl Client {
    fn join(broker: &Embedded) -> Self {
        let socket = dial(broker);
        say(&socket, &Request::Hello(hello()));
        let (reply, fds) = hear(&socket).unwrap();
        let Reply::Welcome(welcome) = reply else { panic!("{reply:?}") };
        let [directory, catalogue, leases, _wakeup] = &fds[..] else { panic!("four descriptors") };
        assert!(map::sheet(directory, length(directory), Access::Write).is_err(), "the directory is the daemon's");
        let view = map::sheet(directory, length(directory), Access::Read).unwrap();
        let catalogue = map::sheet(catalogue, size_of::<Catalogue>(), Access::Write).unwrap();
        let leases = map::sheet(leases, size_of::<LeaseTable>(), Access::Write).unwrap();
        say(&socket, &Request::Ack);
        let directory = Directory::new(&view).unwrap();
        Self { socket, welcome, directory, catalogue, leases, segments: Vec::new() }
    }

    fn ask(&self, request: &Request) -> (Reply, Vec<OwnedFd>) {
        say(&self.socket, request);
        hear(&self.socket).unwrap()
    }

    fn words(&self) -> &Catalogue {
        self.catalogue.at(0).unwrap()
    }

    fn segment(&mut self) -> SlotNo {
        let request = Request::Segment { bytes: self.welcome.segment_bytes, slots_log2: 4 };
        let (reply, fds) = self.ask(&request);
        let Reply::Segment { bytes, base, slots_log2: 4, .. } = reply else { panic!("{reply:?}") };
        assert_eq!((bytes, length(&fds[0]) as u64), (self.welcome.segment_bytes, bytes));
        self.segments.push(map::segment(&fds[0], bytes as usize, Access::Write, false).unwrap());
        let slots = map::sheet(&fds[1], length(&fds[1]), Access::Write).unwrap();
        tensorlend_layout::header::SheetHeader::check(&slots, Magic::Slots).unwrap();
        say(&self.socket, &Request::Ack);
        base
    }

    fn publish(&self, name: &str, cell: u32, value: Cell) -> OwnerWord {
        self.words().cells[cell as usize].cell.set(value.0);
        let (reply, _) = self.ask(&Request::Bind { name: name.into(), cell: CellNo::new(cell) });
        let Reply::Bound { owner_word, .. } = reply else { panic!("{reply:?}") };
        OwnerWord(owner_word)
    }

    fn find(&self, name: &str) -> Option<OwnerWord> {
        let found = self.directory.find(self.directory.hash(name.as_bytes()), name.as_bytes()).unwrap();
        found.map(|f| f.owner_word).filter(|h| h.is_live())
    }
}

fn small() -> Embedded {
    embedded_with(&Config::parse("[pool]\nsegment_bytes = \"1MiB\"").unwrap()).unwrap()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_mins(5), "{what} did not come to be");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn errors_print_their_text_in_debug_format() {
    let config = Config::parse("pools = 1").unwrap_err();
    assert_eq!(format!("{config:?}"), config.to_string());
    let error = tensorlend_daemon::EmbeddedError::from(config);
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(error.to_string().starts_with("cannot start an embedded daemon: the configuration is wrong: "), "{error}");
}

#[test]
fn a_name_outlives_its_producer_and_its_drafts_do_not() {
    let broker = small();
    let mut producer = Client::join(&broker);
    let base = producer.segment();
    let spare = producer.segment();
    let owner_word = producer.publish("pressure", 5, Cell::new(1, base));
    assert_eq!((owner_word.owner(), owner_word.cell().get()), (producer.welcome.client, 5));
    let number = producer.welcome.client;

    let consumer = Client::join(&broker);
    assert_eq!(consumer.find("pressure"), Some(owner_word));
    let (reply, fds) = consumer.ask(&Request::SegmentOf { owner: number, slot: base + 3 });
    assert!(matches!(reply, Reply::Segment { slots_log2: 4, .. }), "{reply:?}");
    assert!(map::segment(&fds[0], 4096, Access::Write, false).is_err(), "lent for reading");
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fds[0]));
    if let Ok(again) = rustix::fs::open(path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()) {
        assert!(map::segment(&again, 4096, Access::Write, false).is_err(), "sealed before others see it");
    }
    say(&consumer.socket, &Request::Ack);

    drop(producer);
    let (reply, _) = consumer.ask(&Request::Ping);
    assert_eq!(reply, Reply::Done);
    assert_eq!(consumer.find("pressure"), Some(owner_word), "the name stays");
    let stat = || match consumer.ask(&Request::Stat).0 {
        Reply::Stat(stat) => *stat,
        other => panic!("{other:?}"),
    };
    eventually("the unused segment comes back", || stat().segments == 1);
    assert_ne!(base, spare);
    let (reply, _) = consumer.ask(&Request::SegmentOf { owner: number, slot: spare });
    assert!(matches!(reply, Reply::Refused(Refusal::NotFound(_))), "{reply:?}");
    let (reply, _) = consumer.ask(&Request::CellsOf { client: number, part: 0 });
    assert!(matches!(reply, Reply::Cells { part: 0, .. }));
    say(&consumer.socket, &Request::Ack);
    drop(consumer);

    let third = Client::join(&broker);
    assert_eq!(third.find("pressure"), Some(owner_word));
    // A lease keeps memory that a delete would free.
    let table: &LeaseTable = third.leases.at(0).unwrap();
    let shard = tensorlend_layout::leases::Shard::new(table, 0);
    assert!(acquire(shard.free_entry().unwrap(), Cell::new(1, base).lease(number), &[]));
    assert_eq!(third.ask(&Request::Delete { name: "pressure".into() }).0, Reply::Deleted { existed: true });
    assert_eq!(third.find("pressure"), None);
    let segments = |c: &Client| match c.ask(&Request::Stat).0 {
        Reply::Stat(stat) => stat.segments,
        other => panic!("{other:?}"),
    };
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(segments(&third), 1);
    table.entries[0][0].set(0);
    eventually("the segment comes back after the lease", || segments(&third) == 0);
}

#[test]
fn strangers_are_refused_and_rule_breakers_disconnected() {
    let broker = small();
    let refusal = |hello: Hello| {
        let socket = dial(&broker);
        say(&socket, &Request::Hello(hello));
        let (reply, _) = hear(&socket).unwrap();
        assert!(hear(&socket).is_none(), "hung up");
        match reply {
            Reply::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    };
    let old = Hello { protocol_min: PROTOCOL_VERSION + 1, protocol_max: PROTOCOL_VERSION + 2, ..hello() };
    assert!(matches!(refusal(old), Refusal::Protocol { .. }));
    assert!(matches!(refusal(Hello { layout_hash: 1, ..hello() }), Refusal::Layout { .. }));
    let lab = Hello { namespace: Some("lab".into()), ..hello() };
    assert_eq!(refusal(lab), Refusal::Namespace("lab".into()));

    let socket = dial(&broker);
    say(&socket, &Request::Ping);
    assert!(matches!(hear(&socket).unwrap().0, Reply::Refused(Refusal::Violation(_))));
    let client = Client::join(&broker);
    send(&client.socket, &[0xFF; 9], &[], SendFlags::empty()).unwrap();
    assert!(matches!(hear(&client.socket).unwrap().0, Reply::Refused(Refusal::Violation(_))));
    let client = Client::join(&broker);
    say(&client.socket, &Request::GrowCells);
    say(&client.socket, &Request::Ping);
    assert!(matches!(hear(&client.socket).unwrap().0, Reply::Cells { part: 1, .. }));
    assert!(matches!(hear(&client.socket).unwrap().0, Reply::Refused(Refusal::Violation(_))));
}

#[test]
fn brokers_live_side_by_side_and_leave_nothing() {
    let paths: Vec<_> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                s.spawn(|| {
                    let broker = small();
                    let client = Client::join(&broker);
                    client.publish("x", 0, Cell::new(1, SlotNo::new(0)));
                    broker.socket().to_owned()
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for path in paths {
        assert!(!path.parent().unwrap().exists());
    }
    drop(embedded().unwrap());
}

/// Far longer than a busy machine takes to respond. Nobody waits for its end: the peer hangs up before.
const LINGER: Duration = Duration::from_mins(10);

#[test]
fn a_descriptor_whose_last_close_sleeps_keeps_nobody_waiting() {
    let broker = small();
    let bystander = Client::join(&broker);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for hangs_up in [false, true] {
        // Unsent bytes and a long linger: the last close blocks until the peer, which reads nothing, has them.
        let lingering = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_peer, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&lingering, Some(LINGER)).unwrap();
        lingering.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &lingering, &[0; 4096]).is_ok() {}
        let client = Client::join(&broker);
        // While the segment is being made, the next packet stays in the queue. So the daemon's close is the last one.
        say(&client.socket, &Request::Segment { bytes: 64 << 20, slots_log2: 4 });
        let sent = send(&client.socket, &encode(&Request::Ping), &[lingering.as_fd()], SendFlags::empty());
        if sent == Err(rustix::io::Errno::PERM) {
            tensorlend_os::skip::skip("from Linux 6.16 on, the kernel delivers no descriptors to the daemon");
            return;
        }
        sent.unwrap();
        drop(lingering);
        let client = (!hangs_up).then_some(client);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(500) {
            let asked = Instant::now();
            assert_eq!(bystander.ask(&Request::Ping).0, Reply::Done);
            // A daemon that blocks in this close would respond only after the linger.
            assert!(asked.elapsed() < LINGER / 2, "{:?}", asked.elapsed());
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(client);
    }
}

#[test]
fn an_idle_broker_sleeps() {
    let broker = small();
    let client = Client::join(&broker);
    let wakeups = || match client.ask(&Request::Stat).0 {
        Reply::Stat(stat) => stat.wakeups,
        other => panic!("{other:?}"),
    };
    // Once the spare segment is ready, only the request itself wakes the daemon.
    eventually("a third of a second without a wake-up", || {
        let before = wakeups();
        std::thread::sleep(Duration::from_millis(300));
        wakeups() - before <= 1
    });
}

/// The remains of a killed process: a socket without a listener.
#[test]
fn the_folder_of_a_killed_broker_is_removed_by_the_next_one() {
    let running = small();
    let base = running.socket().parent().unwrap().parent().unwrap();
    let dead = tempfile::Builder::new().prefix("tensorlend-embedded-").tempdir_in(base).unwrap().keep();
    drop(std::os::unix::net::UnixListener::bind(dead.join("tensorlend.sock")).unwrap());
    // A folder that a daemon has just created.
    let fresh = tempfile::Builder::new().prefix("tensorlend-embedded-").tempdir_in(base).unwrap();
    let kept = tempfile::Builder::new().prefix("tensorlend-embedded-").tempdir_in(base).unwrap();
    std::fs::write(kept.path().join("tensorlend.sock"), "no socket").unwrap();
    let next = small();
    // The daemon of another test may be removing the folder.
    eventually("the end of the folder", || !dead.exists());
    assert!(running.socket().exists() && next.socket().exists() && fresh.path().exists() && kept.path().exists());
    drop(Client::join(&running));
}
