//! Measurements of the daemon: the times of joining, of the first segment and of making segments, and the cost of names
//! in memory and time. `cargo bench -p tensorlend-daemon`; `TENSORLEND_NAMES=10000000` sets the number of names,
//! `TENSORLEND_HUGE_PAGES=advise` their pages.
//!
//! Each result is a median with the minimum and the maximum of its runs. It asserts nothing: machines differ.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tensorlend_daemon::{Config, Embedded, embedded_with};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::number::CellNo;
use tensorlend_layout::random::splitmix64;
use tensorlend_layout::wire::{Hello, Reply, Request, Welcome, decode, encode};
use tensorlend_os::map;
use tensorlend_os::memfd::Access;
use tensorlend_os::packet::{receive, send};

const SEGMENT: u64 = 64 << 20;

struct Client {
    socket: OwnedFd,
    welcome: Welcome,
    directory_fd: OwnedFd,
    directory: Directory,
    _keep: Vec<tensorlend_layout::raw::View>,
}

fn length(fd: &OwnedFd) -> usize {
    rustix::fs::fstat(fd).unwrap().st_size as usize
}

impl Client {
    fn join(broker: &Embedded) -> Self {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(broker.socket()).unwrap()).unwrap();
        let hello = Hello::new(None, "figures");
        let (reply, mut fds) = ask(&socket, &Request::Hello(hello));
        let Reply::Welcome(welcome) = reply else { panic!("{reply:?}") };
        let view = map::sheet(&fds[0], length(&fds[0]), Access::Read).unwrap();
        let keep = fds[1..].iter().map(|fd| map::sheet(fd, length(fd), Access::Write).unwrap()).collect();
        say(&socket, &Request::Ack);
        let directory = Directory::new(&view).unwrap();
        Self { socket, welcome, directory_fd: fds.swap_remove(0), directory, _keep: keep }
    }

    /// Requests a segment; returns the time until the response and until it is mapped.
    fn segment(&self, bytes: u64) -> (Duration, Duration, map::Segment) {
        let start = Instant::now();
        let (reply, fds) = ask(&self.socket, &Request::Segment { bytes, slots_log2: 10 });
        let answered = start.elapsed();
        let Reply::Segment { bytes, .. } = reply else { panic!("{reply:?}") };
        let segment = map::segment(&fds[0], bytes as usize, Access::Write, false).unwrap();
        let _slots = map::sheet(&fds[1], length(&fds[1]), Access::Write).unwrap();
        say(&self.socket, &Request::Ack);
        (answered, start.elapsed(), segment)
    }

    fn bytes_held(&self) -> u64 {
        rustix::fs::fstat(&self.directory_fd).unwrap().st_blocks as u64 * 512
    }
}

fn say(socket: &OwnedFd, request: &Request) {
    send(socket, &encode(request), &[], SendFlags::empty()).unwrap();
}

fn ask(socket: &OwnedFd, request: &Request) -> (Reply, Vec<OwnedFd>) {
    say(socket, request);
    let packet = receive(socket, RecvFlags::empty()).unwrap();
    (decode(&packet.bytes).unwrap(), packet.descriptors)
}

fn broker(config: &str) -> Embedded {
    embedded_with(&Config::parse(config).unwrap()).unwrap()
}

fn show(what: &str, mut runs: Vec<f64>, unit: &str) {
    runs.sort_by(f64::total_cmp);
    let (least, greatest) = (runs[0], runs[runs.len() - 1]);
    println!("{what:<58} {:>9.2} {unit} ({least:.2} to {greatest:.2})", runs[runs.len() / 2]);
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn joining() {
    let mut first = Vec::new();
    let mut later = Vec::new();
    for _ in 0..10 {
        let broker = broker("");
        let start = Instant::now();
        let keep = Client::join(&broker);
        first.push(milliseconds(start.elapsed()));
        for _ in 0..20 {
            let start = Instant::now();
            drop(Client::join(&broker));
            later.push(milliseconds(start.elapsed()));
        }
        drop(keep);
    }
    show("join, the namespace's first client", first, "ms");
    show("join, a later client", later, "ms");
}

fn first_segments() {
    let (mut answers, mut ready) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let broker = broker("[pool]\nbytes_max = \"1GiB\"");
        let client = Client::join(&broker);
        // The daemon prepares the spare segment in the meantime.
        std::thread::sleep(Duration::from_millis(300));
        let (answered, mapped, segment) = client.segment(SEGMENT);
        answers.push(milliseconds(answered));
        let start = Instant::now();
        touch(&segment);
        ready.push(milliseconds(mapped + start.elapsed()));
    }
    show("first segment of 64 MiB from a warm spare, answered", answers, "ms");
    show("the same, mapped and its first byte written", ready, "ms");
}

#[allow(unsafe_code)]
fn touch(segment: &map::Segment) {
    // SAFETY: the segment is mapped writable, at least a page long, and nobody else has it.
    unsafe { segment.start().write_volatile(1) };
}

fn growth() {
    for (what, bytes, count) in [("64 MiB", SEGMENT, 8), ("512 MiB", 512 << 20, 1)] {
        let mut speeds = Vec::new();
        for _ in 0..5 {
            let broker = broker("[pool]\nbytes_max = \"1GiB\"\nspare_segments = 0");
            let client = Client::join(&broker);
            let start = Instant::now();
            let keep: Vec<_> = (0..count).map(|_| client.segment(bytes).2).collect();
            speeds.push((bytes * count) as f64 / 1e6 / start.elapsed().as_secs_f64());
            drop(keep);
        }
        show(&format!("pool grown cold by segments of {what}"), speeds, "MB/s");
    }
}

/// The effect of other page sizes. Where the kernel has none, ordinary pages are used instead.
fn pages() {
    let bytes: u64 = 512 << 20;
    for pages in ["never", "advise", "2M"] {
        let (mut speeds, mut first, mut reads) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..5 {
            let broker = broker(&format!("[pool]\nbytes_max = \"1GiB\"\nspare_segments = 0\nhuge_pages = \"{pages}\""));
            let client = Client::join(&broker);
            let (_, mapped, segment) = client.segment(bytes);
            speeds.push(bytes as f64 / 1e6 / mapped.as_secs_f64());
            let start = Instant::now();
            let mut sum = (0..bytes as usize).step_by(4096).map(|at| read(&segment, at)).sum::<u64>();
            first.push(start.elapsed().as_secs_f64() * 1e9 / (bytes / 4096) as f64);
            let start = Instant::now();
            let mut at = 1usize;
            for _ in 0..1_000_000 {
                at = (at * 1_103_515_245 + 12345) % bytes as usize / 64 * 64 + (sum as usize & 1);
                sum += read(&segment, at & !7);
            }
            reads.push(start.elapsed().as_secs_f64() * 1e9 / 1e6);
            assert_eq!(sum, 0, "a fresh segment is zeroed");
        }
        show(&format!("huge_pages = {pages:?}: grown cold by 512 MiB"), speeds, "MB/s");
        show("  a client's first read of each 4 KiB", first, "ns");
        show("  a read anywhere in it after that", reads, "ns");
    }
}

#[allow(unsafe_code)]
fn read(segment: &map::Segment, at: usize) -> u64 {
    assert!(at < segment.bytes());
    // SAFETY: inside the mapping, and nobody else has the segment.
    u64::from(unsafe { segment.start().add(at).read_volatile() })
}

fn names() {
    let count: u32 = std::env::var("TENSORLEND_NAMES").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let most = count.max(512);
    let most = std::env::var("TENSORLEND_NAMES_MAX").ok().and_then(|n| n.parse().ok()).unwrap_or(most);
    let pages = std::env::var("TENSORLEND_HUGE_PAGES").unwrap_or_else(|_| "never".into());
    let broker = broker(&format!(
        "[pool]\nsheet_bytes_max = \"12GiB\"\nhuge_pages = {pages:?}\n[namespace_default]\nnames_max = {most}"
    ));
    let client = Client::join(&broker);
    let key = |i: u32| format!("{i:0>32}");
    let mut cells = 4096;
    let mut keep = Vec::new();
    let mut slowest = Duration::ZERO;
    let (mut at_thousand, before) = (None, client.bytes_held());
    let start = Instant::now();
    let mut binding = Duration::ZERO;
    for i in 0..count {
        if i == cells {
            let (reply, fds) = ask(&client.socket, &Request::GrowCells);
            assert!(matches!(reply, Reply::Cells { .. }), "{reply:?}");
            keep.push(map::sheet(&fds[0], length(&fds[0]), Access::Write).unwrap());
            say(&client.socket, &Request::Ack);
            cells += ((length(&fds[0]) - 4096) / record_bytes()) as u32;
        }
        let asked = Instant::now();
        let (reply, _) = ask(&client.socket, &Request::Bind { name: key(i), cell: CellNo::new(i) });
        assert!(matches!(reply, Reply::Bound { .. }), "{reply:?}");
        let took = asked.elapsed();
        binding += took;
        slowest = slowest.max(took);
        if i == 999 {
            at_thousand = Some(find(&client, 1000, key));
        }
    }
    let per = |bytes: u64| bytes as f64 / f64::from(count);
    println!("{count} names of 32 bytes bound in {:.1} s, the slowest in {slowest:.1?}", start.elapsed().as_secs_f64());
    println!("  a bind: {:.2} us", binding.as_secs_f64() * 1e6 / f64::from(count));
    println!("  bytes of the directory a name: {:.1} ({before} at first)", per(client.bytes_held() - before));
    let cells_bytes: u64 = std::iter::once(size_of::<tensorlend_layout::catalogue::Catalogue>() as u64)
        .chain(keep.iter().map(|v| v.bytes() as u64))
        .sum();
    println!("  bytes of cells a name: {:.1}", per(cells_bytes));
    if let Some((hit, miss)) = at_thousand {
        println!("  look-up among 1000: {hit:.1} ns, in vain {miss:.1} ns");
    }
    let (hit, miss) = find(&client, count, key);
    println!("  look-up among {count}: {hit:.1} ns, in vain {miss:.1} ns");
    assert_eq!(client.welcome.namespace, broker_namespace());
}

fn record_bytes() -> usize {
    size_of::<tensorlend_layout::catalogue::CellRecord>()
}

fn broker_namespace() -> String {
    format!("uid:{}", rustix::process::getuid().as_raw())
}

/// Returns the nanoseconds of looking up existing and missing names, in random order: medians of five rounds.
fn find(client: &Client, count: u32, key: impl Fn(u32) -> String) -> (f64, f64) {
    let d = &client.directory;
    let looks = 200_000u32;
    let mut seed = 1u64;
    let mut random = || (splitmix64(&mut seed) % u64::from(count)) as u32;
    let there: Vec<String> = (0..looks).map(|_| key(random())).collect();
    let not: Vec<String> = (0..looks).map(|_| key(count + random())).collect();
    let round = |keys: &[String], want: bool| {
        let start = Instant::now();
        for key in keys {
            let found = d.find(d.hash(key.as_bytes()), key.as_bytes()).unwrap();
            assert_eq!(found.is_some(), want);
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(looks)
    };
    let median = |keys: &[String], want| {
        let mut rounds: Vec<f64> = (0..5).map(|_| round(keys, want)).collect();
        rounds.sort_by(f64::total_cmp);
        rounds[2]
    };
    (median(&there, true), median(&not, false))
}

fn main() {
    // `cargo test` builds it and must not run it.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let only = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    for (name, part) in
        [("join", joining as fn()), ("segment", first_segments), ("growth", growth), ("pages", pages), ("names", names)]
    {
        if only.as_deref().is_none_or(|wanted| wanted == name) {
            part();
        }
    }
}
