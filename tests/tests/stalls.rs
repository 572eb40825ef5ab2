//! Objects that one user shapes, and that the daemon or another user uses: no call on them may wait for that user.
//! docs/internals/security.md has the table of these calls.

#![allow(unsafe_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;
use tensorlend_layout::number::{CellNo, CursorNo};
use tensorlend_layout::wire::{Policy, Reply, Request, encode};
use tensorlend_os::packet;
use tensorlend_tests::hand::{Hand, ask, dial, hello};
use tensorlend_tests::users::{Programs, acting_as, as_user};
use tensorlend_tests::{Daemon, PATIENCE, eventually, skip, skip_without, skip_without_root};

const DAEMON: u32 = 64_001;
const ALICE: u32 = 64_002;
const MALLORY: u32 = 64_003;

/// A daemon in system mode, under a uid of its own. `None` if the test was skipped.
fn system_daemon(config: &str) -> Option<(Daemon, Programs)> {
    if skip_without_root() || skip_without("setpriv") {
        return None;
    }
    let programs = Programs::copy(&["tensorlendd"]);
    let daemon =
        Daemon::start_as(&format!("mode = \"system\"\n{config}"), |_| as_user(DAEMON, &programs.path("tensorlendd")));
    Some((daemon, programs))
}

/// Returns the reply to a request, and fails if none arrives: the daemon may be blocked.
fn ask_in_time(hand: &Hand, request: &Request) -> Reply {
    packet::send(&hand.socket, &encode(request), &[], SendFlags::empty()).unwrap();
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(&hand.socket, PollFlags::IN)], Some(&patience));
    assert_eq!(ready, Ok(1), "the daemon sends no reply");
    tensorlend_layout::wire::decode(&packet::receive(&hand.socket, rustix::net::RecvFlags::empty()).unwrap().bytes)
        .expect("a reply")
}

/// A page whose first access waits until this value is dropped (userfaultfd(2)). A page of a FUSE file, which any user may
/// have, waits in the same way.
struct SlowPage {
    faults: std::fs::File,
    page: usize,
}

impl SlowPage {
    const BYTES: usize = 4096;

    /// Returns `None` if this process may not handle faults of the kernel.
    fn new() -> Option<Self> {
        // Values of the kernel's interface, linux/userfaultfd.h.
        const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
        const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
        const UFFD_API: u64 = 0xaa;
        const MISSING: u64 = 1;
        // SAFETY: the calls make a descriptor and a private mapping, and read and write local arrays whose lengths the
        // request numbers contain. The mapping stays until the process ends.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
            if fd < 0 {
                return None;
            }
            let faults = std::fs::File::from_raw_fd(fd as i32);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(std::ptr::null_mut(), Self::BYTES, protection, kind, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            let mut api = [UFFD_API, 0, 0];
            let mut range = [page as u64, Self::BYTES as u64, MISSING, 0];
            let done = libc::ioctl(faults.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) == 0
                && libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER, range.as_mut_ptr()) == 0;
            done.then_some(Self { faults, page: page as usize })
        }
    }

    /// Waits until a thread waits for the page.
    fn is_awaited(&mut self) {
        self.faults.read_exact(&mut [0; 32]).expect("the kernel reports the fault");
    }
}

/// Writes to a file from the page. The kernel locks the file's inode, and then waits for the page.
fn write_from(page: usize, file: &OwnedFd) {
    // SAFETY: the page is mapped until the process ends, and the kernel only reads it.
    unsafe { libc::pwrite(file.as_raw_fd(), page as *const libc::c_void, SlowPage::BYTES, 0) };
}

#[test]
fn a_client_that_holds_the_lock_of_its_sheet_delays_nobody() {
    let Some((mut daemon, _programs)) = system_daemon("") else { return };
    let Some(mut page) = SlowPage::new() else {
        skip("this process may not use userfaultfd");
        return;
    };
    let (socket, descriptors) = acting_as(MALLORY, || {
        let socket = dial(&daemon.socket()).unwrap();
        let (reply, descriptors) = ask(&socket, &hello(None), &[]).unwrap();
        assert!(matches!(reply, Reply::Welcome(_)), "{reply:?}");
        (socket, descriptors)
    });
    let alice = acting_as(ALICE, || Hand::join(&daemon.socket(), None).unwrap());
    let catalogue = descriptors[1].try_clone().unwrap();
    let at = page.page;
    std::thread::scope(|scope| {
        scope.spawn(|| write_from(at, &catalogue));
        page.is_awaited();
        // The daemon records that the client has mapped its sheets.
        packet::send(&socket, &encode(&Request::Ack), &[], SendFlags::empty()).unwrap();
        for _ in 0..10 {
            assert_eq!(ask_in_time(&alice, &Request::Ping), Reply::Done);
        }
        // The daemon ends in order although the lock is held. It cannot free the sheet's pages.
        drop((socket, descriptors));
        assert_eq!(ask_in_time(&alice, &Request::Ping), Reply::Done);
        assert!(daemon.stop().success(), "{}", daemon.log());
        drop(page);
    });
}

/// Returns a socket whose close takes long: it has unsent bytes, and waits for its peer.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_mins(10))).unwrap();
    socket.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &socket, &[0; 4096]).is_ok() {}
    (socket.into(), peer)
}

/// Returns true if the kernel can refuse descriptors for a socket. Otherwise reports that the test was skipped.
fn can_refuse() -> bool {
    let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let can = packet::refuse_descriptors(one.as_fd()).unwrap();
    if !can {
        skip("the kernel is older than Linux 6.16 and delivers descriptors to the daemon");
    }
    can
}

/// A process that punches holes into a sheet delays each access through a mapping of this sheet, without a limit. A read(2)
/// does not wait.
#[test]
fn the_daemon_maps_no_memory_that_a_client_may_write() {
    let Some((mut daemon, _programs)) = system_daemon("") else { return };
    let use_all = || {
        let hand = Hand::join_announcer(&daemon.socket(), None).unwrap();
        hand.segment(1 << 20, 4, |lent| Ok(lent.base)).unwrap();
        assert!(matches!(ask_in_time(&hand, &Request::GrowCells), Reply::Cells { .. }));
        hand.acknowledge().unwrap();
        hand.stream("ring", 64).unwrap();
        assert!(matches!(
            ask_in_time(&hand, &Request::Bind { name: "x".into(), cell: CellNo::new(4096) }),
            Reply::Bound { .. }
        ));
        hand
    };
    let maps = |daemon: &Daemon| {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).unwrap();
        let maps: Vec<_> = maps.lines().filter_map(|line| Some(line.split_once("/memfd:")?.1.to_owned())).collect();
        assert!(maps.iter().any(|name| name.starts_with("tensorlend-directory")), "{maps:?}");
        maps.into_iter().filter(|name| !name.starts_with("tensorlend-directory")).collect::<Vec<_>>()
    };
    let hand = acting_as(MALLORY, use_all);
    assert_eq!(maps(&daemon), Vec::<String>::new());
    drop(hand);
    assert!(daemon.stop().success(), "{}", daemon.log());
}

#[test]
fn no_descriptor_of_a_client_reaches_the_daemon() {
    let Some((daemon, _programs)) = system_daemon("") else { return };
    if !can_refuse() {
        return;
    }
    let (evil, _peer) = lingering();
    // Memory made ahead comes and goes.
    let is_socket = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    let folder = format!("/proc/{}/fd", daemon.pid());
    let open = || std::fs::read_dir(&folder).unwrap().filter_map(Result::ok).filter(is_socket).count();
    let before = open();
    acting_as(MALLORY, || {
        for round in 0..200 {
            let socket = dial(&daemon.socket()).unwrap();
            let hello = encode(&hello(None));
            let sent = packet::send(&socket, &hello, &[evil.as_fd()], SendFlags::empty());
            assert_eq!(sent, Err(Errno::PERM), "before the handshake, round {round}");
        }
        let hand = Hand::join(&daemon.socket(), None).unwrap();
        for request in [Request::Ping, Request::Subscribe { name: "s".into(), cursor: CursorNo::new(0), wake: true }] {
            let sent = packet::send(&hand.socket, &encode(&request), &[evil.as_fd()], SendFlags::empty());
            assert_eq!(sent, Err(Errno::PERM), "{request:?}");
        }
    });
    eventually("the daemon's descriptors", || open() <= before);
}

#[test]
fn neither_end_of_a_wake_pair_takes_messages_from_the_wrong_side_or_descriptors() {
    let daemon = Daemon::start("mode = \"user\"\n");
    let producer = Hand::join(&daemon.socket(), None).unwrap();
    producer.stream("s", 4).unwrap();
    let subscriber = Hand::join(&daemon.socket(), None).unwrap();
    let (stream, _, wake) = subscriber.subscribe("s", 0).unwrap();
    let (evil, _peer) = lingering();
    for descriptors in [vec![], vec![evil.as_fd()]] {
        let sent = packet::send(&wake, &[1], &descriptors, SendFlags::DONTWAIT);
        assert_eq!(sent, Err(Errno::PIPE), "the producers' end receives nothing");
    }
    let request = Request::WakeDescriptor { stream, subscriber: subscriber.welcome.client, cursor: CursorNo::new(0) };
    let (reply, descriptors) = producer.ask(&request).unwrap();
    assert!(matches!(reply, Reply::Sheet { .. }), "{reply:?}");
    packet::send(&descriptors[0], &[1], &[], SendFlags::DONTWAIT).unwrap();
    assert_eq!(packet::take(&wake, &mut [0; 8]), Ok(1));
    if can_refuse() {
        let sent = packet::send(&descriptors[0], &[1], &[evil.as_fd()], SendFlags::DONTWAIT);
        assert_eq!(sent, Err(Errno::PERM), "the subscriber's end receives no descriptors");
    }
    // A shutdown cannot be undone, so the subscriber cannot fill the producers' end later.
    let sent = packet::send(&wake, &[1], &[], SendFlags::DONTWAIT);
    assert_eq!(sent, Err(Errno::PIPE));
}

/// A client of an earlier version of the protocol. From Linux 6.16 on, it cannot even send its wake descriptor.
#[test]
fn a_wake_descriptor_of_a_client_is_refused_with_the_reason() {
    let daemon = Daemon::start("mode = \"user\"\n");
    let producer = Hand::join(&daemon.socket(), None).unwrap();
    producer.stream("s", 4).unwrap();
    let subscriber = Hand::join(&daemon.socket(), None).unwrap();
    let (reply, _) =
        subscriber.ask(&Request::Subscribe { name: "s".into(), cursor: CursorNo::new(0), wake: true }).unwrap();
    let Reply::Refused(refusal) = reply else { panic!("{reply:?}") };
    assert!(refusal.to_string().contains("version"), "{refusal}");
    let (reply, _) =
        subscriber.ask(&Request::Subscribe { name: "s".into(), cursor: CursorNo::new(0), wake: false }).unwrap();
    assert!(matches!(reply, Reply::Stream { policy: Policy::DropOldest, .. }), "{reply:?}");
}

/// Descriptors in messages that nobody receives count for the daemon's user, and the kernel limits them for all clients together.
#[test]
fn a_client_that_acknowledges_what_it_has_not_received_is_disconnected() {
    let Some((daemon, _programs)) = system_daemon("") else { return };
    acting_as(MALLORY, || {
        let hand = Hand::join(&daemon.socket(), None).unwrap();
        let request = Request::LeasesOf { client: hand.welcome.client };
        packet::send(&hand.socket, &encode(&request), &[], SendFlags::empty()).unwrap();
        let is_there = || poll(&mut [PollFd::new(&hand.socket, PollFlags::IN)], Some(&Timespec::default())) == Ok(1);
        eventually("the reply", is_there);
        packet::send(&hand.socket, &encode(&Request::Ack), &[], SendFlags::empty()).unwrap();
        eventually("the end of the session", || {
            let mut polled = [PollFd::new(&hand.socket, PollFlags::IN)];
            poll(&mut polled, Some(&Timespec::default())).unwrap();
            polled[0].revents().contains(PollFlags::HUP)
        });
        assert!(daemon.log().contains("has received the last reply's descriptors"), "{}", daemon.log());
    });
}

#[test]
fn descriptors_that_ended_sessions_have_not_received_are_limited() {
    let Some((daemon, _programs)) = system_daemon("") else { return };
    acting_as(MALLORY, || {
        let mut sockets = Vec::new();
        let mut leave_unread = || {
            let socket = dial(&daemon.socket()).unwrap();
            // The daemon may have refused the user already.
            let _ = packet::send(&socket, &encode(&hello(None)), &[], SendFlags::empty());
            let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            assert_eq!(poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&patience)), Ok(1));
            // The welcome is in the queue. A second hello ends the session.
            let _ = packet::send(&socket, &encode(&hello(None)), &[], SendFlags::empty());
            sockets.push(socket);
        };
        for _ in 0..200 {
            leave_unread();
        }
        eventually("a refusal", || {
            leave_unread();
            let refused = Hand::join(&daemon.socket(), None).err();
            refused.is_some_and(|error| error.to_string().contains("not received"))
        });
        drop(sockets);
        eventually("a session of the same user", || Hand::join(&daemon.socket(), None).is_ok());
    });
    let alice = acting_as(ALICE, || Hand::join(&daemon.socket(), None).unwrap());
    assert_eq!(ask_in_time(&alice, &Request::Ping), Reply::Done);
}
