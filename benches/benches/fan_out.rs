//! Streams compared with iceoryx2, in two ways: the slowest exchanges of two processes (part `tails`), and one producer with
//! several subscribers (part `fan_out`). The messages have 1 KiB, and no process touches their bytes. All ends poll, except
//! that tensorlend's ends in `tails` wait inside `borrow`, which sleeps after 25 us.
//!
//! In `fan_out` each subscriber is a thread with its own client, node or word, on a core of its own. A sample is the mean of
//! a batch of the time from a send until the producer has seen the acknowledgements of all subscribers. The floor is a word
//! that the producer writes and all subscribers poll. `TENSORLEND_PART` selects one part.

use iceoryx2::prelude::*;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, LazyLock};
use std::time::{Duration, Instant};
use tensorlend::{Client, DType};
use tensorlend_baselines::{Cores, Duel, Game, Meter, floors, pin, serve, unpin};
use tensorlend_benches::report::Report;
use tensorlend_benches::stats::Samples;
use tensorlend_benches::table::{Table, nanos, spread};

const PEER: &str = "__peer";
const BYTES: usize = 1 << 10;
const SUBSCRIBERS: [usize; 4] = [1, 2, 4, 8];

/// The cores that this process may use. Read before any thread is pinned to one of them.
static CORES: LazyLock<Vec<usize>> = LazyLock::new(|| {
    let set = sched_getaffinity(None).expect("the allowed cores");
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
});

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == PEER) {
        return serve(&words[1..]).expect("a party");
    }
    LazyLock::force(&CORES);
    let mut report = Report::begin("fan_out");
    let broker = tensorlend_daemon::embedded().expect("a broker starts");
    if wanted("tails") {
        tails(&mut report, broker.socket());
    }
    if wanted("fan_out") {
        fan_out(&mut report, broker.socket());
    }
    report.end();
}

fn wanted(part: &str) -> bool {
    std::env::var("TENSORLEND_PART").map_or(true, |it| it == part)
}

fn launch(words: &[String]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(PEER).args(words).stdin(Stdio::null());
    command
}

fn tails(report: &mut Report, socket: &Path) {
    let cores = Cores::find().expect("the cores");
    if cores.are_one() {
        return report.note("tails: left out, because two processes need two cores, and this one may use one");
    }
    let (rounds, exchanges) = if report.quick { (3, 2_000) } else { (25, 20_000) };
    let mut line = floors::cacheline(cores).expect("the floor");
    let mut ours = Duel::start(Game::StreamLoanEach, BYTES, cores, Some(socket), &launch).expect("two parties");
    let mut theirs = Duel::start(Game::IceoryxPollEach, BYTES, cores, None, &launch).expect("two parties");
    let (mut lines, mut samples) = (Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        line.measure(exchanges, &mut lines).expect("the floor");
        ours.measure(exchanges, &mut samples[0]).expect("exchanges");
        theirs.measure(exchanges, &mut samples[1]).expect("exchanges");
    }
    let mut table = Table::new(
        format!("One way, of {} exchanges each, half of a round trip", rounds * exchanges),
        &["", "p50", "p99", "p99.9", "p99.99", "max"],
    );
    let parts = [0.5, 0.99, 0.999, 0.9999, 1.0];
    let [ours, theirs] = samples.map(|mut samples| {
        samples.sort_unstable_by(f64::total_cmp);
        parts.map(|part| samples[((samples.len() - 1) as f64 * part).round() as usize])
    });
    let row = |name: &str, values: [String; 5]| std::iter::once(name.to_owned()).chain(values);
    table.row(row("tensorlend", ours.map(nanos)));
    table.row(row("iceoryx2", theirs.map(nanos)));
    table.row(row("tensorlend / iceoryx2", std::array::from_fn(|at| format!("{:.2}", ours[at] / theirs[at]))));
    report.table("tails", &table);
    let mut floor = Samples::default();
    floor.extend(lines);
    report.note(format!("a cache line, one way: {}", spread(&floor.summary())));
}

/// A counter in cache lines of its own. It is aligned to two lines, because the processor's prefetcher fetches pairs of lines.
#[repr(align(128))]
#[derive(Default)]
struct Count(AtomicU64);

impl Count {
    fn reaches(&self, count: u64) -> bool {
        self.0.load(Ordering::Acquire) >= count
    }
}

/// The state that the producer and its subscribers share.
struct Shared {
    /// The number of messages that each subscriber has received.
    received: Vec<Count>,
    /// Number of messages in the next batch; 0 ends the subscribers.
    batch: Count,
    /// Lets all begin a batch, and end it: they sleep in between.
    turn: Barrier,
}

type Send<'s> = Box<dyn FnMut() + 's>;

struct Group<'s> {
    shared: Arc<Shared>,
    send: Send<'s>,
    sent: u64,
    samples: Samples,
}

impl Group<'_> {
    /// Sends a batch, and adds the mean time of its messages.
    fn play(&mut self, messages: u64, count: bool) {
        self.shared.batch.0.store(messages, Ordering::Relaxed);
        self.shared.turn.wait();
        let mut start = Instant::now();
        // The first messages find subscribers that are not awake yet.
        let warm = messages / 10;
        for number in 0..messages {
            if number == warm {
                start = Instant::now();
            }
            (self.send)();
            self.sent += 1;
            for received in &self.shared.received {
                while !received.reaches(self.sent) {
                    std::hint::spin_loop();
                }
            }
        }
        let ns = start.elapsed().as_nanos() as f64 / (messages - warm) as f64;
        self.shared.turn.wait();
        if count {
            self.samples.push(ns);
        }
    }

    fn end(&self) {
        self.shared.batch.0.store(0, Ordering::Relaxed);
        self.shared.turn.wait();
    }
}

/// Starts subscribers, each on a core of its own. `join` makes one on its thread, which polls for a message and returns
/// whether there was one.
fn subscribers<'scope, P: FnMut() -> bool>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    count: usize,
    join: impl Fn() -> P + Copy + std::marker::Send + 'scope,
) -> Arc<Shared> {
    let received = (0..count).map(|_| Count::default()).collect();
    let shared = Arc::new(Shared { received, batch: Count::default(), turn: Barrier::new(count + 1) });
    for number in 0..count {
        let shared = shared.clone();
        scope.spawn(move || {
            pin(CORES[number + 1]).expect("a core");
            let mut poll = join();
            let own = &shared.received[number].0;
            let mut received = 0;
            // The first turn tells the producer that all have joined.
            shared.turn.wait();
            loop {
                shared.turn.wait();
                let batch = shared.batch.0.load(Ordering::Relaxed);
                if batch == 0 {
                    return;
                }
                for _ in 0..batch {
                    while !poll() {
                        std::hint::spin_loop();
                    }
                    received += 1;
                    own.store(received, Ordering::Release);
                }
                shared.turn.wait();
            }
        });
    }
    shared
}

fn fan_out(report: &mut Report, socket: &Path) {
    let cores = CORES.len();
    let (rounds, messages) = if report.quick { (3, 1_000) } else { (25, 10_000) };
    let head =
        ["subscribers", "a word (floor)", "tensorlend", "iceoryx2", "tensorlend / floor", "tensorlend / iceoryx2"];
    let mut table = Table::new("A message, until all have acknowledged it: median (least .. most)", &head);
    for count in SUBSCRIBERS {
        if count + 1 > cores {
            report.note(format!(
                "{count} subscribers: left out, because {} cores are needed, and {cores} are there",
                count + 1
            ));
            continue;
        }
        let samples = groups(count, rounds, messages, socket).map(|samples| samples.summary());
        let [floor, ours, theirs] = samples.map(|summary| summary.p50);
        table.row(
            [count.to_string()]
                .into_iter()
                .chain(samples.iter().map(spread))
                .chain([format!("{:.2}", ours / floor), format!("{:.2}", ours / theirs)]),
        );
    }
    report.table("fan_out", &table);
}

/// Measures the floor, tensorlend and iceoryx2 with this many subscribers, in turns.
fn groups(count: usize, rounds: usize, messages: u64, socket: &Path) -> [Samples; 3] {
    pin(CORES[0]).expect("a core");
    let word = Count::default();
    let client = Client::builder().socket(socket).connect().expect("a client connects");
    let stream = client.stream("fan_out").open().expect("the stream opens");
    let service = format!("tensorlend/fan_out/{}/{count}", std::process::id());
    let made = std::thread::scope(|scope| {
        let mut groups = [
            floor(scope, count, &word),
            ours(scope, count, socket, stream.sender(DType::U8, [BYTES]).expect("a sender")),
            theirs(scope, count, &service),
        ];
        for group in &groups {
            group.shared.turn.wait();
        }
        for round in 0..=rounds {
            for group in &mut groups {
                group.play(messages, round > 0);
            }
        }
        groups.map(|group| {
            group.end();
            group.samples
        })
    });
    unpin().expect("all cores");
    made
}

fn floor<'scope>(scope: &'scope std::thread::Scope<'scope, '_>, count: usize, word: &'scope Count) -> Group<'scope> {
    let shared = subscribers(scope, count, move || {
        let mut next = 1;
        move || {
            let found = word.reaches(next);
            next += u64::from(found);
            found
        }
    });
    let mut sent = 0;
    let send = move || {
        sent += 1;
        word.0.store(sent, Ordering::Release);
    };
    Group { shared, send: Box::new(send), sent: 0, samples: Samples::default() }
}

fn ours<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    count: usize,
    socket: &'scope Path,
    mut sender: tensorlend::Sender,
) -> Group<'scope> {
    let shared = subscribers(scope, count, move || {
        let client = Client::builder().socket(socket).connect().expect("a client connects");
        let mut messages = client.subscribe("fan_out").expect("a subscription");
        move || {
            let found = messages.try_borrow().expect("a message").is_some();
            let _keep = &client;
            found
        }
    });
    let send = move || _ = sender.loan().expect("a loan").send().expect("sent");
    Group { shared, send: Box::new(send), sent: 0, samples: Samples::default() }
}

fn theirs<'scope>(scope: &'scope std::thread::Scope<'scope, '_>, count: usize, name: &'scope str) -> Group<'scope> {
    set_log_level(LogLevel::Error);
    let open = move || {
        let node = NodeBuilder::new().create::<ipc::Service>().expect("a node");
        let service = node
            .service_builder(&name.try_into().expect("a name"))
            .publish_subscribe::<[u8]>()
            .max_publishers(1)
            .max_subscribers(count)
            .max_nodes(count + 1)
            .history_size(0)
            .subscriber_max_buffer_size(1)
            .enable_safe_overflow(true)
            .open_or_create()
            .expect("a service");
        (node, service)
    };
    let (node, service) = open();
    let publisher = service.publisher_builder().initial_max_slice_len(BYTES).create().expect("a publisher");
    let shared = subscribers(scope, count, move || {
        let (node, service) = open();
        let subscriber = service.subscriber_builder().create().expect("a subscriber");
        move || {
            let _keep = (&node, &service);
            subscriber.receive().expect("a message").is_some()
        }
    });
    let start = Instant::now();
    while service.dynamic_config().number_of_subscribers() < count {
        assert!(start.elapsed() < Duration::from_secs(30), "the subscribers do not come");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The next sample is loaned after a send, as tensorlend's sender prepares its next message.
    let loan = |publisher: &iceoryx2::port::publisher::Publisher<ipc::Service, [u8], ()>| {
        // SAFETY: any eight bits are a valid `u8`, and the kernel has zeroed the shared mapping.
        #[allow(unsafe_code)]
        unsafe {
            publisher.loan_slice_uninit(BYTES).expect("a loan").assume_init()
        }
    };
    let mut next = Some(loan(&publisher));
    let send = move || {
        let _keep = (&node, &service);
        if let Some(sample) = next.take() {
            sample.send().expect("sent");
        }
        next = Some(loan(&publisher));
    };
    Group { shared, send: Box::new(send), sent: 0, samples: Samples::default() }
}
