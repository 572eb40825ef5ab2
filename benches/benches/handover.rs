//! A tensor on a device, created by one process and read by another: the hand-over, the first access to a segment, and
//! copies. Two processes besides the daemon; the floor is memory that both have mapped by hand.
#![allow(unsafe_code)]

#[path = "handover/peer.rs"]
mod peer;

use peer::{Copied, Order, Turn, Way};
use rustix::io::{FdFlags, fcntl_setfd};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use tensorlend_benches::gpu::{about, first_device};
use tensorlend_benches::report::Report;
use tensorlend_benches::stats::{Samples, Summary};
use tensorlend_benches::table::{Table, bytes as size, digits, nanos, spread, times};
use tensorlend_benches::worker::{Role, Worker};
use tensorlend_cuda::{Allocation, Device};
use tensorlend_daemon::{Bytes, Config, Embedded, embedded_with};

fn main() {
    if let Some(role) = Role::mine() {
        return peer::work(role);
    }
    let mut report = Report::begin("handover");
    match first_device() {
        Ok(device) => measure(&mut report, &device),
        Err(why) => report.note(format!("Not measured: {why}")),
    }
    report.end();
}

fn broker(device: &Device, segment_bytes: u64) -> Embedded {
    let mut config = Config::default();
    config.cuda.devices = vec!["all".into()];
    config.cuda.allow_fake = device.is_fake();
    config.cuda.segment_bytes = Some(Bytes(segment_bytes));
    config.cuda.bytes_max = device.is_fake().then_some(Bytes(3 << 30));
    // Measured memory must not be reused.
    config.cuda.idle_bytes_max = Bytes(0);
    config.pool.bytes_max = Some(Bytes(4 << 30));
    embedded_with(&config).expect("a broker starts")
}

struct Pair {
    producer: Worker,
    consumer: Worker,
}

fn measure(report: &mut Report, device: &Device) {
    report.value("device", about(device));
    let sizes: &[u64] =
        if report.quick { &[1 << 10, 1 << 20, 4 << 20] } else { &[1 << 10, 1 << 20, 16 << 20, 256 << 20] };
    let largest = sizes.iter().copied().max().expect("there are sizes").next_multiple_of(2 << 20);
    let main = broker(device, largest.max(256 << 20).min(device.bytes_total() / 16).next_multiple_of(2 << 20));
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    let mailbox = folder.path().join("mailbox");
    let floor =
        Allocation::create(device, largest).and_then(|allocation| allocation.export()).expect("memory for the floor");
    fcntl_setfd(floor.as_fd(), FdFlags::empty()).expect("a descriptor can be inherited");
    let args = [
        main.socket().display().to_string(),
        mailbox.display().to_string(),
        floor.as_raw_fd().to_string(),
        largest.to_string(),
    ];
    let start = |role: &str| Worker::start(role, &args);
    let mut pair = Pair { producer: start("producer"), consumer: start("consumer") };
    hand_over(report, device, &mut pair, sizes);
    copies(report, device, &mut pair, sizes);
    imports(report, device, &mut pair);
}

fn hand_over(report: &mut Report, device: &Device, pair: &mut Pair, sizes: &[u64]) {
    let mut head = vec!["bytes"];
    head.extend(Way::ALL.map(Way::label));
    head.extend(["stream / floor", "early / floor"]);
    let what = "made by a kernel, handed over, read by another's kernel, answered";
    let title = format!("{}: {what}: median (least .. most)", about(device));
    let mut whole = Table::new(title, &head);
    let head =
        ["bytes", "way", "made and published", "published to lease in hand", "read", "answer seen", "the first round"];
    let mut parts = Table::new("Parts of it: medians", &head);
    let mut all = Vec::new();
    for &bytes in sizes {
        let rounds = if report.quick {
            5
        } else if bytes > 64 << 20 {
            60
        } else {
            300
        };
        let mut found = Vec::new();
        for way in Way::ALL {
            let order = Order::Turns { way, bytes, rounds };
            pair.producer.ask::<()>(&Order::Ready { way });
            pair.consumer.ask::<()>(&Order::Ready { way });
            pair.consumer.tell(&order);
            pair.producer.tell(&order);
            let made: Vec<Turn> = pair.producer.answer();
            pair.consumer.answer::<()>();
            // This turn allocates and maps the memory.
            let (first, made) = made.split_first().expect("there was one");
            let median = |of: fn(&Turn) -> f64| samples(made.iter().map(of)).p50;
            let summary = samples(made.iter().map(|turn| turn.seen - turn.begin));
            parts.row([
                size(bytes),
                way.label().to_owned(),
                nanos(median(|t| t.published - t.begin)),
                nanos(median(|t| t.got - t.published)),
                nanos(median(|t| t.done - t.got)),
                nanos(median(|t| t.seen - t.done)),
                nanos(first.seen - first.begin),
            ]);
            all.push(serde_json::json!({ "bytes": bytes, "way": way.label(), "ns": summary }));
            found.push(summary);
        }
        let (floor, stream, early) = (found[0].p50, found[1].p50, found[3].p50);
        let mut cells = vec![size(bytes)];
        cells.extend(found.iter().map(spread));
        cells.extend([times(stream / floor), times(early / floor)]);
        whole.row(cells);
    }
    report.table("hand_over", &whole);
    report.table("parts", &parts);
    report.value("hand_over_samples", all);
}

fn copies(report: &mut Report, device: &Device, pair: &mut Pair, sizes: &[u64]) {
    let title = format!("{}: copies in GB/s: median (least .. most)", about(device));
    let mut table = Table::new(title, &["bytes", "from", "to", "how", "GB/s"]);
    let mut all = Vec::new();
    for &bytes in sizes.iter().filter(|bytes| **bytes >= 1 << 20) {
        let rounds = if report.quick {
            3
        } else if bytes > 64 << 20 {
            12
        } else {
            40
        };
        let made: Vec<Copied> = pair.producer.ask(&Order::HostCopies { bytes, rounds });
        let read: Vec<Copied> = pair.consumer.ask(&Order::DeviceCopies { bytes, rounds });
        for copied in made.into_iter().chain(read) {
            let rates = samples(copied.ns.iter().map(|ns| bytes as f64 / ns));
            let cell = format!("{} ({} .. {})", digits(rates.p50), digits(rates.min), digits(rates.max));
            table.row([size(bytes), copied.from.clone(), copied.to.clone(), copied.how.clone(), cell]);
            all.push(serde_json::json!({ "bytes": bytes, "copy": copied }));
        }
    }
    report.table("copies", &table);
    report.value("copies_samples", all);
}

fn imports(report: &mut Report, device: &Device, pair: &mut Pair) {
    let sizes: &[u64] = if report.quick { &[2 << 20, 16 << 20] } else { &[2 << 20, 256 << 20, 4 << 30] };
    let head = ["segment", "create with a new segment", "create, later", "first lease of a segment", "later leases"];
    let title = format!("{}: what a segment costs when it is new to a process: median (least .. most)", about(device));
    let mut table = Table::new(title, &head);
    for &segment in sizes {
        let broker = broker(device, segment);
        let socket = broker.socket().display().to_string();
        let count = if segment > 1 << 30 { 3 } else { 5 };
        let [mut created, mut again, mut first, mut later]: [Samples; 4] = Default::default();
        for number in 0..count {
            let (socket, name) = (PathBuf::from(&socket), format!("segment {number}"));
            let ns: [f64; 2] =
                pair.producer.ask(&Order::Publish { socket: socket.clone(), name: name.clone(), bytes: segment });
            created.push(ns[0]);
            again.push(ns[1]);
            let ns: Vec<f64> = pair.consumer.ask(&Order::Lease { socket, name });
            first.push(ns[0]);
            later.extend(ns[1..].iter().copied());
        }
        pair.consumer.ask::<()>(&Order::Leave);
        pair.producer.ask::<()>(&Order::Leave);
        let mut cells = vec![size(segment)];
        cells.extend([created, again, first, later].map(|samples| spread(&samples.summary())));
        table.row(cells);
    }
    report.table("segments", &table);
}

fn samples(values: impl IntoIterator<Item = f64>) -> Summary {
    let mut samples = Samples::default();
    samples.extend(values);
    samples.summary()
}
