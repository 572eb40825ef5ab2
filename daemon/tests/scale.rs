//! The cost of many names: memory that the kernel has really allocated, by its own count.
//!
//! `TENSORLEND_TEST_NAMES=10000000` sets the number (some minutes, 3 GiB, and a release build). The default takes some
//! seconds, and is a number at which the table of names has just grown, where a name costs most.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::OwnedFd;
use tensorlend_daemon::{Config, embedded_with};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::number::CellNo;
use tensorlend_layout::wire::{Hello, Reply, Request, decode, encode};
use tensorlend_layout::word::OwnerWord;
use tensorlend_os::map;
use tensorlend_os::memfd::Access;
use tensorlend_os::packet::{receive, send};

fn say(socket: &OwnedFd, request: &Request) {
    send(socket, &encode(request), &[], SendFlags::empty()).unwrap();
}

fn ask(socket: &OwnedFd, request: &Request) -> (Reply, Vec<OwnedFd>) {
    say(socket, request);
    let packet = receive(socket, RecvFlags::empty()).unwrap();
    (decode(&packet.bytes).unwrap(), packet.descriptors)
}

fn length(fd: &OwnedFd) -> usize {
    rustix::fs::fstat(fd).unwrap().st_size as usize
}

fn bytes_held(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_blocks as u64 * 512
}

fn key(i: u32) -> String {
    format!("{i:0>32}")
}

/// The sheets of one client, mapped as it would map them.
#[derive(Default)]
struct Sheets {
    fds: Vec<OwnedFd>,
    views: Vec<tensorlend_layout::raw::View>,
}

impl Sheets {
    fn keep(&mut self, fd: OwnedFd) {
        self.views.push(map::sheet(&fd, length(&fd), Access::Write).unwrap());
        self.fds.push(fd);
    }

    fn bytes_held(&self) -> u64 {
        self.fds.iter().map(bytes_held).sum()
    }
}

#[test]
fn many_names_take_little_memory_and_give_it_back_to_others() {
    let asked = std::env::var("TENSORLEND_TEST_NAMES").ok().map(|n| n.parse().unwrap());
    let count: u32 = asked.unwrap_or(82_500);
    let config = format!("[pool]\nsheet_bytes_max = \"16GiB\"\n[namespace_default]\nnames_max = {}", count + 1);
    let broker = embedded_with(&Config::parse(&config).unwrap()).unwrap();
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(broker.socket()).unwrap()).unwrap();
    let hello = Hello::new(None, "scale");
    let (reply, mut fds) = ask(&socket, &Request::Hello(hello));
    assert!(matches!(reply, Reply::Welcome(_)), "{reply:?}");
    let mut cells = Sheets::default();
    let _leases = map::sheet(&fds[2], length(&fds[2]), Access::Write).unwrap();
    cells.keep(fds.swap_remove(1));
    let directory_fd = fds.swap_remove(0);
    let view = map::sheet(&directory_fd, length(&directory_fd), Access::Read).unwrap();
    let directory = Directory::new(&view).unwrap();
    say(&socket, &Request::Ack);
    // The daemon allocates the first parts of the directory after the welcome, one after the other. A long name needs the last.
    let long = || "x".repeat(200);
    let (reply, _) = ask(&socket, &Request::Bind { name: long(), cell: CellNo::new(0) });
    assert!(matches!(reply, Reply::Bound { .. }), "{reply:?}");
    ask(&socket, &Request::Delete { name: long() });
    ask(&socket, &Request::Notices);
    let before = bytes_held(&directory_fd);

    let mut granted = 4096;
    let mut owner_words = Vec::new();
    for i in 0..count {
        if i == granted {
            let (reply, mut fds) = ask(&socket, &Request::GrowCells);
            let Reply::Cells { part, .. } = reply else { panic!("{reply:?}") };
            cells.keep(fds.remove(0));
            say(&socket, &Request::Ack);
            granted += tensorlend_layout::catalogue::cells_count(part) as u32;
        }
        let (reply, _) = ask(&socket, &Request::Bind { name: key(i), cell: CellNo::new(i) });
        let Reply::Bound { entry, owner_word } = reply else { panic!("{reply:?}") };
        if i % 1000 == 0 {
            owner_words.push((i, entry, OwnerWord(owner_word)));
        }
    }
    let mut slots = Sheets::default();
    let mut left = count;
    while left > 0 {
        let slots_log2 = left.ilog2().clamp(12, 20) as u8;
        let (reply, mut fds) = ask(&socket, &Request::Segment { bytes: 4096, slots_log2 });
        assert!(matches!(reply, Reply::Segment { .. }), "{reply:?}");
        slots.keep(fds.remove(1));
        say(&socket, &Request::Ack);
        left = left.saturating_sub(1 << slots_log2);
    }

    let per_name = |bytes: u64| bytes as f64 / f64::from(count);
    let names = per_name(bytes_held(&directory_fd) - before);
    let catalogue = per_name(cells.bytes_held() + slots.bytes_held());
    println!("{count} names: {names:.1} bytes of directory and {catalogue:.1} of catalogue for each");
    assert!(names <= 160.0, "{names}");
    assert!(catalogue <= 256.0, "{catalogue}");
    for &(i, entry, owner_word) in &owner_words {
        let name = key(i);
        let found = directory.find(directory.hash(name.as_bytes()), name.as_bytes()).unwrap().unwrap();
        assert_eq!(
            (found.entry, found.owner_word, found.owner_word.cell().get()),
            (entry, owner_word, i),
            "names stay where they are"
        );
    }
    assert_eq!(directory.entries().filter(|(_, e)| OwnerWord(e.owner_word.read()).is_live()).count() as u32, count);

    let full = bytes_held(&directory_fd);
    for i in 0..count {
        assert_eq!(ask(&socket, &Request::Delete { name: key(i) }).0, Reply::Deleted { existed: false });
    }
    assert_eq!(directory.head().names_live.read(), 0);
    for i in 0..count.min(20_000) {
        let (reply, _) = ask(&socket, &Request::Bind { name: format!("again {i}"), cell: CellNo::new(i) });
        assert!(matches!(reply, Reply::Bound { .. }), "{reply:?}");
    }
    assert!(bytes_held(&directory_fd) <= full, "what was in use is used again");
}
