//! Clients that request too much, send half a message, or stay silent: all others continue, and everything of these
//! clients is freed when they are gone.

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tensorlend::{Client, DType};
use tensorlend_layout::catalogue::{Catalogue, RING};
use tensorlend_layout::number::{CellNo, ClientNo, CursorNo, SlotNo, StreamLine};
use tensorlend_layout::raw::Sheet;
use tensorlend_layout::wire::{PACKET_BYTES_MAX, Refusal, Reply, Request, decode, encode};
use tensorlend_layout::word::{Absorbed, Cell};
use tensorlend_os::memfd::{self, Access};
use tensorlend_os::packet;
use tensorlend_tests::hand::{self, Hand, dial, hello};
use tensorlend_tests::{Agent, Daemon, PATIENCE, budget, eventually, skip};

/// Checks that an agent can publish and read.
fn works(agent: &mut Agent, round: usize) {
    let sum = agent.ok(&format!("put honest/{} 5000 {round}", round % 7));
    assert!(agent.ok(&format!("sum honest/{}", round % 7)).ends_with(&sum));
    agent.ok("ping");
}

/// Returns the daemon's open descriptors, except segments and their slots: it keeps spare ones, and honest clients get
/// more. `None`: only root may list them.
fn open_files(daemon: &Daemon) -> Option<Vec<String>> {
    let files = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).ok()?;
    let target = |file: std::io::Result<std::fs::DirEntry>| std::fs::read_link(file.ok()?.path()).ok();
    let names = files.filter_map(|file| Some(target(file)?.to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.filter(|name| !name.contains("tensorlend-s")).collect();
    names.sort();
    Some(names)
}

/// Maximum number of counted descriptors that the daemon keeps for the next client, beginning at any time: of a catalogue and a lease
/// table.
const AHEAD: usize = 2;

/// The number of open descriptors before, which must be reached again.
struct Files(Option<usize>);

impl Files {
    fn of(daemon: &Daemon) -> Self {
        let open = open_files(daemon);
        if open.is_none() {
            skip("that the daemon's descriptors come back: only root may look at them");
        }
        Self(open.map(|names| names.len()))
    }

    fn return_to(&self, daemon: &Daemon) {
        let start = Instant::now();
        while let (Some(before), Some(now)) = (self.0, open_files(daemon)) {
            if now.len() <= before + AHEAD {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{before} before, and now {now:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn clients(watcher: &Client) -> (u32, u32) {
    let stat = watcher.stat().unwrap();
    (stat.clients, stat.frozen)
}

#[test]
fn a_flood_of_announcements() {
    let all = budget(200_000, 2_000_000);
    let daemon = Daemon::start("");
    let mut agent = daemon.agent();
    let flood = Hand::join_announcer(&daemon.socket(), None).unwrap();
    let member = &flood.directory.members[flood.welcome.client.index()];
    let mut state = 1u64;
    let (mut sent, mut round) = (0, 0);
    while sent < all {
        let absorbed = Absorbed(member.absorbed.read()).index();
        let room = absorbed + RING as u64 - sent;
        for _ in 0..room {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            flood.catalogue.ring[(sent % RING as u64) as usize].set(state);
            sent += 1;
        }
        flood.catalogue.ring_head.set(sent);
        // The flood ignores a full counter.
        let _ = rustix::io::write(&flood.wakeup, &1u64.to_ne_bytes());
        works(&mut agent, round);
        round += 1;
    }
    println!("{sent} announcements, during which an honest client did its {round} rounds");
    drop(flood);
    // The client claims all announcements at once, by setting the head of its ring.
    let liar = Hand::join_announcer(&daemon.socket(), None).unwrap();
    liar.catalogue.ring_head.set(all);
    let _ = rustix::io::write(&liar.wakeup, &1u64.to_ne_bytes());
    works(&mut agent, round);
    eventually("the end of who announces more than its ring holds", || {
        hand::ask(&liar.socket, &Request::Ping, &[]).is_err()
    });
    let watcher = daemon.client();
    eventually("the end of the floods", || clients(&watcher).0 == 2);
    drop(liar);
    eventually("their memory's return", || clients(&watcher) == (2, 0));
    assert_eq!(watcher.list("*").unwrap().len(), 7, "nothing of the flood became a name");
}

#[test]
fn a_name_that_is_squatted_on_is_had_all_the_same() {
    let daemon = Daemon::start("");
    let mut agent = daemon.agent();
    let squatter = Hand::join_announcer(&daemon.socket(), None).unwrap();
    squatter.catalogue.claim.set(squatter.directory.hash(b"wanted"));
    let sum = agent.ok("put wanted 5000 1");
    assert!(agent.ok("sum wanted").ends_with(&sum));
    // The squatter's claim blocked another client, so the daemon disconnected it.
    let word = packet::receive(&squatter.socket, RecvFlags::empty()).unwrap();
    assert!(matches!(decode(&word.bytes), Some(Reply::Refused(Refusal::Violation(_)))));
}

#[test]
fn a_member_that_never_acknowledges_keeps_no_writer_waiting() {
    let daemon = Daemon::start("");
    let client = daemon.client();
    let put = |round: u64| {
        // Large enough that the previous value's slot is reclaimed at once.
        let mut draft = client.create(DType::U64, &[1 << 17]).unwrap();
        draft.as_mut_slice::<u64>().unwrap()[0] = round;
        draft.publish("x").unwrap();
    };
    put(0);
    let mute: Vec<OwnedFd> = (0..8).map(|_| dial(&daemon.socket()).unwrap()).collect();
    for socket in &mute {
        let (reply, _sheets) = hand::ask(socket, &hello(None), &[]).unwrap();
        assert!(matches!(reply, Reply::Welcome(_)), "{reply:?}");
    }
    for round in 1..100 {
        put(round);
    }
    // The daemon disconnects a client that delays an acknowledgement for which another client waits.
    for socket in &mute {
        let heard = packet::receive(socket, RecvFlags::DONTWAIT).map(|packet| packet.bytes);
        assert_eq!(heard, Err(Errno::AGAIN), "a writer waited for a client that never acknowledged");
    }
    let held = client.memory().segment_bytes;
    assert!(held < 100 << 20, "the writer reused no slot: {held} bytes");
    // When one of these clients acknowledges, its leases take effect.
    for socket in &mute {
        packet::send(socket, &encode(&Request::Ack), &[], SendFlags::empty()).unwrap();
        assert_eq!(hand::ask(socket, &Request::Ping, &[]).unwrap().0, Reply::Done);
    }
    put(100);
}

/// Adds about 90,000 epoll watches to a socket, so that sending a message to it takes milliseconds. Returns `None` if
/// this machine allows too few.
fn watch_without_end(socket: &OwnedFd) -> Option<Vec<OwnedFd>> {
    const COPIES: usize = 300;
    const EPOLLS: usize = 300;
    let wanted = 2048;
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if maximum.is_some_and(|most| most < wanted) {
        skip(&format!("this process may open {maximum:?} files, and needs {wanted}"));
        return None;
    }
    // Tests of this file may share a process.
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let copies: Vec<OwnedFd> = (0..COPIES).map(|_| socket.try_clone().unwrap()).collect();
    let mut held = Vec::new();
    for _ in 0..EPOLLS {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for copy in &copies {
            if epoll::add(&epoll, copy, EventData::new_u64(0), EventFlags::IN).is_err() {
                skip("fs.epoll.max_user_watches allows too few watches");
                return None;
            }
        }
        held.push(epoll);
    }
    held.extend(copies);
    Some(held)
}

#[test]
fn who_has_its_socket_watched_without_end_is_disconnected() {
    let daemon = Daemon::start("");
    let (mut agent, client) = (daemon.agent(), daemon.client());
    let hostile = Hand::join(&daemon.socket(), None).unwrap();
    let Some(_watches) = watch_without_end(&hostile.socket) else { return };
    let refusals = client.stat().unwrap().refusals.total();
    let mut rounds = 0;
    eventually("the end of who makes the daemon slow", || {
        works(&mut agent, rounds);
        rounds += 1;
        hand::ask(&hostile.socket, &Request::Ping, &[]).is_err()
    });
    works(&mut agent, rounds);
    assert_eq!(client.stat().unwrap().refusals.total(), refusals + 1);
    eventually("its session's end", || clients(&client).0 == 2);
}

/// A client that ends each of its connections before it has cost too much, by a damaged packet, is noticed all the same.
#[test]
fn who_makes_one_message_slow_on_each_of_many_connections_is_banned() {
    let daemon = Daemon::start("");
    let mut agent = daemon.agent();
    let mut rounds = 0;
    eventually("a ban", || {
        let hostile = Hand::join(&daemon.socket(), None).unwrap();
        let Some(_watches) = watch_without_end(&hostile.socket) else { return true };
        packet::send(hostile.socket.as_fd(), &[255; 9], &[], SendFlags::empty()).unwrap();
        assert!(packet::receive(&hostile.socket, RecvFlags::empty()).is_ok());
        works(&mut agent, rounds);
        rounds += 1;
        daemon.log().contains("messages on its socket take too long")
    });
}

#[test]
fn whose_wake_descriptor_is_watched_without_end_is_woken_no_more() {
    let daemon = Daemon::start("");
    let (client, other) = (daemon.client(), daemon.client());
    let stream = client.stream("s").open().unwrap();
    let send = || stream.send(client.create(DType::U8, &[1]).unwrap()).unwrap();
    let mut honest = other.subscription("s").pollable().open().unwrap();
    let hostile = Hand::join(&daemon.socket(), None).unwrap();
    let (.., ours) = hostile.subscribe("s", 0).unwrap();
    let mut round = || {
        let mut byte = [0; 1];
        while matches!(rustix::net::recv(&ours, &mut byte, RecvFlags::empty()), Ok((_, 1..))) {}
        hostile.leases.cursors[0].parked.set(2);
        while honest.try_recv().unwrap().is_some() {}
        send();
        // The producer has written to the descriptors when it returns.
        let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&honest, PollFlags::IN)], Some(&minute)), Ok(1), "an honest one is woken");
        matches!(rustix::net::recv(&ours, &mut byte, RecvFlags::empty()), Ok((_, 1..)))
    };
    assert!(round(), "the producer wakes it");
    let Some(_watches) = watch_without_end(&ours) else { return };
    eventually("a producer that no longer uses the descriptor", || !round());
    assert!(!round());
    // The producer does not use another descriptor of the same session either.
    let (.., again) = hostile.subscribe("s", 1).unwrap();
    hostile.leases.cursors[1].parked.set(2);
    assert!(!round());
    assert_eq!(rustix::net::recv(&again, &mut [0; 1], RecvFlags::empty()).map(|_| ()), Err(Errno::AGAIN));
}

/// In user mode a client owns the memory that it is lent, and the kernel opens it for nobody else while the client has a write
/// lease (`F_SETLEASE`) on it.
#[test]
fn a_file_lease_on_a_segment_delays_only_who_asks_for_that_segment() {
    let daemon = Daemon::start("mode = \"user\"\n");
    let owner = Hand::join(&daemon.socket(), None).unwrap();
    let (base, segment) = owner.segment(1 << 20, 0, |lent| Ok((lent.base, lent.segment.try_clone()?))).unwrap();
    assert_eq!(owner.ask(&Request::Ping).unwrap().0, Reply::Done);
    assert!(memfd::hold_with_lease(&segment), "nobody else has it open");
    let (reader, other) = (Hand::join(&daemon.socket(), None).unwrap(), Hand::join(&daemon.socket(), None).unwrap());
    let request = Request::SegmentOf { owner: owner.welcome.client, slot: base };
    packet::send(&reader.socket, &encode(&request), &[], SendFlags::empty()).unwrap();
    for _ in 0..20 {
        assert_eq!(other.ask(&Request::Ping).unwrap().0, Reply::Done);
    }
    let early = packet::receive(&reader.socket, RecvFlags::DONTWAIT).map(|packet| packet.bytes);
    assert_eq!(early, Err(Errno::AGAIN), "it waits for the lease");
    drop(segment);
    let packet = packet::receive(&reader.socket, RecvFlags::empty()).unwrap();
    let reply: Option<Reply> = decode(&packet.bytes);
    assert!(matches!(reply, Some(Reply::Segment { .. })), "{reply:?}");
    assert_eq!(packet.descriptors.len(), 2);
}

/// The owner returns the segment and ends its file lease while the reply waits: the daemon may free the memory before it tries
/// again.
#[test]
fn a_reply_that_waits_for_a_file_lease_outlasts_the_return_of_its_segment() {
    let daemon = Daemon::start("mode = \"user\"\n");
    let owner = Hand::join(&daemon.socket(), None).unwrap();
    let (base, segment) = owner.segment(1 << 20, 0, |lent| Ok((lent.base, lent.segment.try_clone()?))).unwrap();
    assert_eq!(owner.ask(&Request::Ping).unwrap().0, Reply::Done);
    assert!(memfd::hold_with_lease(&segment), "nobody else has it open");
    let reader = Hand::join(&daemon.socket(), None).unwrap();
    let request = Request::SegmentOf { owner: owner.welcome.client, slot: base };
    packet::send(&reader.socket, &encode(&request), &[], SendFlags::empty()).unwrap();
    // After some tries the pause before the next one is longer than the daemon needs to free the segment.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(owner.ask(&Request::ReturnSegment { base }).unwrap().0, Reply::Done);
    drop(segment);
    let packet = packet::receive(&reader.socket, RecvFlags::empty()).unwrap();
    let reply: Option<Reply> = decode(&packet.bytes);
    assert!(matches!(reply, Some(Reply::Segment { .. })), "{reply:?}");
    packet::send(&reader.socket, &encode(&Request::Ack), &[], SendFlags::empty()).unwrap();
    assert_eq!(reader.ask(&Request::Ping).unwrap().0, Reply::Done, "its session continues");
}

#[test]
fn leases_for_ever_cost_their_producer_memory_and_nobody_time() {
    let daemon = Daemon::start("[pool]\nsegment_bytes = \"1MiB\"\nbytes_max = \"32MiB\"\n");
    let mut producer = daemon.agent();
    producer.ok("put x 100000 0");
    let holder = Hand::join(&daemon.socket(), None).unwrap();
    let (owner, _, cells, _) = holder.follow("x").unwrap();
    let cells = hand::map(&cells, Access::Read).unwrap();
    let catalogue: Sheet<Catalogue> = Sheet::new(cells).unwrap();
    let owner_word = holder.owner_word_of("x").unwrap();
    // Leases of who was shown no segment do not count.
    let slot = Cell(catalogue.cells[owner_word.cell().index()].cell.read()).slot();
    holder.segment_of(owner, slot).unwrap();
    holder.leases.shards_used.set(u64::MAX);
    holder.leases.high_water.iter().for_each(|high| high.set(64));
    let entries = holder.leases.entries.iter().flatten();
    // Leases every value and releases none.
    let refused = entries.enumerate().find_map(|(round, entry)| {
        let value = Cell(catalogue.cells[owner_word.cell().index()].cell.read());
        entry.set(value.lease(owner).0);
        producer.ask(&format!("put x 100000 {round}")).err()
    });
    let refused = refused.expect("what is leased is not used again, so that the pool comes to its end");
    assert!(refused.contains("pool.bytes_max"), "an error with a reason and a remedy: {refused}");
    drop(holder);
    let watcher = daemon.client();
    eventually("the holder's end", || clients(&watcher).0 == 2);
    for round in 0..500 {
        let sum = producer.ok(&format!("put x 100000 {round}"));
        assert!(producer.ok("sum x").ends_with(&sum));
    }
}

#[test]
fn silent_sockets_with_descriptors_in_flight() {
    let daemon = Daemon::start("[uid]\nsessions_max = 200\n");
    let watcher = daemon.client();
    let mut agent = daemon.agent();
    (0..7).for_each(|round| works(&mut agent, round));
    let before = Files::of(&daemon);
    let mut silent = Vec::new();
    for round in 0..60 {
        // The daemon sends it four descriptors, which it never receives.
        let socket = dial(&daemon.socket()).unwrap();
        packet::send(&socket, &encode(&hello(None)), &[], SendFlags::empty()).unwrap();
        silent.push(socket);
        works(&mut agent, round);
    }
    // Descriptors in flight to the daemon: sockets that are themselves in flight.
    for round in 0..60 {
        let socket = dial(&daemon.socket()).unwrap();
        let kind = SocketType::STREAM;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        packet::send(&ours, b"x", &[theirs.as_fd(), ours.as_fd()], SendFlags::empty()).unwrap();
        let request = Request::Subscribe { name: "nothing".into(), cursor: CursorNo::new(0), wake: true };
        for _ in 0..8 {
            let descriptors = [theirs.as_fd(), ours.as_fd(), theirs.as_fd(), ours.as_fd()];
            if packet::send(&socket, &encode(&request), &descriptors, SendFlags::DONTWAIT).is_err() {
                break;
            }
        }
        silent.push(socket);
        works(&mut agent, round);
    }
    let newcomer = daemon.client();
    newcomer.put("newcomer", &[1u8; 100]).unwrap();
    assert_eq!(agent.ok("delete newcomer"), "true");
    drop((silent, newcomer));
    eventually("the end of the silent", || clients(&watcher).0 == 2);
    before.return_to(&daemon);
}

#[test]
fn thousands_of_connects() {
    let connects: u64 = budget(3000, 10_000);
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let wanted = connects + 200;
    if maximum.is_some_and(|most| most < wanted) {
        skip(&format!("this process may open {maximum:?} files, and needs {wanted}"));
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let daemon = Daemon::start("");
    let watcher = daemon.client();
    let mut agent = daemon.agent();
    (0..7).for_each(|round| works(&mut agent, round));
    let before = Files::of(&daemon);
    let mut sockets: Vec<OwnedFd> = Vec::new();
    for round in 0..connects {
        // Each says hello, and the daemon refuses most; none of them hangs up.
        let socket = dial(&daemon.socket()).unwrap();
        let _ = packet::send(&socket, &encode(&hello(None)), &[], SendFlags::DONTWAIT);
        sockets.push(socket);
        if round % 100 == 0 {
            works(&mut agent, round as usize);
        }
    }
    if let Some(open) = open_files(&daemon) {
        println!("{} sockets at once, {} files open in the daemon", sockets.len(), open.len());
        eventually("the end of what the daemon refused", || open_files(&daemon).is_some_and(|open| open.len() < 1500));
    }
    drop(sockets);
    eventually("the end of all", || clients(&watcher) == (2, 0));
    before.return_to(&daemon);
    let newcomer = daemon.client();
    newcomer.put("newcomer", &[1u8; 100]).unwrap();
}

#[test]
fn half_sent_garbled_and_oversized_messages() {
    let daemon = Daemon::start("");
    let watcher = daemon.client();
    let mut agent = daemon.agent();
    let right = encode(&Request::Bind { name: "bound".into(), cell: CellNo::new(1) });
    let mut packets: Vec<Vec<u8>> = (0..right.len()).map(|end| right[..end].to_vec()).collect();
    packets.push([&right[..], b"and more"].concat());
    packets.extend(
        [PACKET_BYTES_MAX - 1, PACKET_BYTES_MAX, PACKET_BYTES_MAX + 1, 2 * PACKET_BYTES_MAX]
            .map(|bytes| vec![0; bytes]),
    );
    let mut state = 7u64;
    for bytes in 1..400 {
        packets.push(
            (0..bytes)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect(),
        );
    }
    // Well-formed requests with absurd contents.
    let whole = [
        Request::Ack,
        Request::Segment { bytes: u64::MAX, slots_log2: 255 },
        Request::Segment { bytes: 0, slots_log2: 0 },
        Request::ReturnSegment { base: SlotNo::new(u32::MAX) },
        Request::SegmentOf { owner: ClientNo::new(u16::MAX), slot: SlotNo::new(u32::MAX) },
        Request::CellsOf { client: ClientNo::new(0), part: 255 },
        Request::LeasesOf { client: ClientNo::new(0) },
        Request::Bind { name: "\0".repeat(60_000), cell: CellNo::new(u32::MAX) },
        Request::Delete { name: "x".repeat(60_000) },
        Request::Tidy { names: vec![("x".into(), CellNo::new(u32::MAX)); 1000] },
        Request::Rename { from: String::new(), to: String::new() },
        Request::StreamOpen { name: "s".into(), capacity: u32::MAX, policy: tensorlend::Policy::Block },
        Request::Subscribe { name: "s".into(), cursor: CursorNo::new(u16::MAX), wake: true },
        Request::SubscribePollable { name: "s".into(), cursor: CursorNo::new(u16::MAX) },
        Request::Unsubscribe { stream: StreamLine::new(u32::MAX), id: u64::MAX, cursor: CursorNo::new(u16::MAX) },
        Request::WakeDescriptor {
            stream: StreamLine::new(u32::MAX),
            subscriber: ClientNo::new(0),
            cursor: CursorNo::new(u16::MAX),
        },
        Request::ListAppend { list: "l".into(), cells: vec![CellNo::new(u32::MAX); 10_000] },
        Request::ListRename { from: "a".into(), to: "a".into() },
        hello(None),
    ];
    packets.extend(whole.iter().map(encode));
    let mut sent = 0;
    for (round, bytes) in packets.iter().enumerate() {
        for joined in [false, true] {
            // Send each packet once as the first message, and once as a joined client.
            let hand = joined.then(|| Hand::join(&daemon.socket(), None).unwrap());
            let socket =
                hand.as_ref().map_or_else(|| dial(&daemon.socket()).unwrap(), |hand| hand.socket.try_clone().unwrap());
            match packet::send(&socket, bytes, &[], SendFlags::empty()) {
                Ok(()) | Err(Errno::MSGSIZE | Errno::NOBUFS) => sent += 1,
                Err(error) => panic!("{error}"),
            }
            if round % 3 == 0 {
                let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Write);
            }
            // An acknowledgement without a cause ends the connection; all other requests get a response.
            if let Ok(packet) = packet::receive(&socket, RecvFlags::empty()) {
                let reply: Option<Reply> = decode(&packet.bytes);
                assert!(packet.bytes.is_empty() || reply.is_some(), "an answer that cannot be read");
            }
        }
        if round % 20 == 0 {
            works(&mut agent, round);
        }
    }
    println!("{sent} messages that make no sense, sent and answered");
    eventually("the end of all", || clients(&watcher) == (2, 0));
    assert!(watcher.stat().unwrap().names <= 8, "only what is honest has a name, and what a whole request asked for");
    assert!(watcher.create(DType::U8, &[10]).is_ok() && !daemon.log().contains("panicked"));
}

#[test]
fn who_asks_without_listening_and_wakes_without_pause() {
    let daemon = Daemon::start("");
    let watcher = daemon.client();
    let mut agent = daemon.agent();
    let deaf: Vec<Hand> = (0..8).map(|_| Hand::join(&daemon.socket(), None).unwrap()).collect();
    let mut asked = 0;
    for hand in &deaf {
        // Sends requests until both directions of the socket are full.
        let mut silence = 0;
        while silence < 100 {
            if packet::send(&hand.socket, &encode(&Request::Stat), &[], SendFlags::DONTWAIT).is_ok() {
                (asked, silence) = (asked + 1, 0);
            } else {
                silence += 1;
                std::thread::yield_now();
            }
        }
    }
    let over = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        for hand in &deaf[..2] {
            let over = &over;
            scope.spawn(move || {
                rustix::io::ioctl_fionbio(&hand.wakeup, true).unwrap();
                while !over.load(Ordering::Relaxed) {
                    if rustix::io::write(&hand.wakeup, &(1u64 << 40).to_ne_bytes()).is_err() {
                        let _ = rustix::io::read(&hand.wakeup, &mut [0; 8]);
                    }
                }
            });
        }
        let rounds = budget(100, 500);
        (0..rounds).for_each(|round| works(&mut agent, round));
        over.store(true, Ordering::Relaxed);
        rounds
    });
    println!("{asked} questions to whose answers nobody listened, {rounds} rounds of an honest client beside them");
    drop(deaf);
    eventually("the end of the deaf", || clients(&watcher) == (2, 0));
}
