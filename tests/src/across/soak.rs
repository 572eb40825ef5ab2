//! Two nodes with a daemon and a gateway each, whose processes are killed and stopped while clients of both exchange
//! messages and tensors. `tensorlend-soak --gateways SECONDS` runs it.

use super::{STARTS, STREAMS};
use crate::filled::Random;
use crate::keeper::Service;
use crate::{PATIENCE, binary, free_address, signal};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NODES: [&str; 2] = ["a", "b"];

/// Exports and imports everything. One gateway waits for slow receivers of streams, the other drops messages.
const STREAM_POLICIES: [&str; 2] = ["block", "drop-oldest"];

/// Maximum pause between two faults.
const PAUSE_MAX_MS: u64 = 1500;

/// Maximum duration of most faults.
const FAULT_MAX_MS: u64 = 2000;

/// Maximum duration of a long fault, in which the other gateway closes the link.
const LONG_FAULT_MAX_MS: u64 = 15_000;

/// Time after a fault in which its consequences reach the subscribers.
const AFTERMATH: Duration = Duration::from_secs(2);

/// Options of zenoh: a lost link is opened again soon.
const ZENOH: &str = "{ transport: { link: { tx: { lease: 5000 } } }, scouting: { multicast: { enabled: false } }, \
     connect: { timeout_ms: -1, exit_on_failure: false, retry: { period_init_ms: 100, period_max_ms: 500 } } }";

/// A process that a fault can hit.
enum Process {
    Daemon(Service),
    /// The gateway or a client, with the command that starts it.
    Other {
        command: Command,
        child: Child,
    },
}

struct Target {
    label: String,
    process: Process,
    /// Number of the starts. Each producer gets another number.
    starts: u64,
    /// The end of the present fault, and the fault's number.
    fault: Option<(Instant, usize)>,
    is_stopped: bool,
}

struct Fault {
    what: String,
    began: Instant,
    ended: Option<Instant>,
}

/// A line of a process.
struct Line {
    at: Instant,
    label: String,
    text: String,
}

/// The counts of one process label.
#[derive(Default)]
struct Counts {
    /// The counts of the processes that have ended, and those of the present process.
    ended: [u64; 2],
    present: [u64; 2],
    gaps: u64,
    unknown_ends: u64,
    repeated: u64,
    wrong: u64,
    replaced: u64,
}

struct Soak {
    targets: Vec<Target>,
    faults: Vec<Fault>,
    counts: BTreeMap<String, Counts>,
    lines: Receiver<Line>,
    sender: Sender<Line>,
    folder: TempDir,
}

/// Runs the soak and prints a report in Markdown. Returns true if every message was received once or counted as lost, no
/// bytes were wrong, and no reader saw an older tensor.
///
/// # Panics
/// If a process does not start, or does not make progress after the last fault.
pub fn run(seconds: u64, seed: u64) -> bool {
    let (mut soak, mut random) = (Soak::start(), Random(seed));
    soak.wait_for_progress();
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        soak.begin_fault(&mut random);
        soak.watch(Duration::from_millis(random.below(PAUSE_MAX_MS)));
    }
    while soak.targets.iter().any(|target| target.fault.is_some()) {
        soak.watch(Duration::from_millis(100));
    }
    soak.wait_for_progress();
    soak.report(seconds, seed)
}

fn gateway(folder: &TempDir, at: usize, socket: &str, addresses: &[SocketAddr]) -> Command {
    let (own, other) = (addresses[at], addresses[1 - at]);
    let file = |ending: &str| folder.path().join(format!("{}.{ending}", NODES[at]));
    std::fs::write(file("json5"), ZENOH).expect("zenoh's file");
    let text = format!(
        "node = \"{}\"\nsocket = {socket:?}\nzenoh = \"{}\"\nlisten = [\"tcp/{own}\"]\nconnect = [\"tcp/{other}\"]\n\
         [[namespace]]\nexport = [\"*\"]\nimport = [\"*\"]\nstream_policy = \"{}\"\n",
        NODES[at],
        file("json5").display(),
        STREAM_POLICIES[at]
    );
    std::fs::write(file("toml"), text).expect("the gateway's file");
    let mut command = Command::new(binary("tensorlend-gateway"));
    command.arg("--config").arg(file("toml"));
    command
}

impl Soak {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("tensorlend-test-").tempdir().expect("a temporary folder");
        let (sender, lines) = channel();
        let addresses = [free_address(), free_address()];
        let mut soak = Self { targets: Vec::new(), faults: Vec::new(), counts: BTreeMap::new(), lines, sender, folder };
        let daemons = NODES.map(|_| Service::start("mode = \"user\"\n"));
        let sockets = [0, 1].map(|at| daemons[at].socket().display().to_string());
        for (node, daemon) in NODES.iter().zip(daemons) {
            soak.add(format!("daemon {node}"), Process::Daemon(daemon));
        }
        let path = soak.folder.path().display().to_string();
        for at in 0..NODES.len() {
            let (node, other, socket) = (NODES[at], NODES[1 - at], &sockets[at]);
            let command = gateway(&soak.folder, at, socket, &addresses);
            soak.add_command(format!("gateway {node}"), command);
            soak.add_worker(format!("producer {node}"), &["produce", socket, node, &path]);
            for (stream, _) in STREAMS {
                soak.add_worker(format!("{other}/{stream} at {node}"), &["subscribe", socket, other, stream, &path]);
            }
            soak.add_worker(format!("tensors of {other} at {node}"), &["read", socket, other]);
        }
        soak
    }

    fn add(&mut self, label: String, process: Process) {
        self.targets.push(Target { label, process, starts: 1, fault: None, is_stopped: false });
    }

    fn add_worker(&mut self, label: String, arguments: &[&str]) {
        let mut command = Command::new(binary("tensorlend-worker"));
        command.arg("across").args(arguments);
        self.add_command(label, command);
    }

    fn add_command(&mut self, label: String, mut command: Command) {
        self.counts.entry(label.clone()).or_default();
        let path = self.folder.path().join(label.replace(['/', ' '], "-"));
        let log = std::fs::File::create(path).expect("a log");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let child = spawn(&mut command, 1, &label, &self.sender);
        self.add(label, Process::Other { command, child });
    }

    /// Begins a fault of a process that has none: kills or stops it.
    fn begin_fault(&mut self, random: &mut Random) {
        let at = random.below(self.targets.len() as u64) as usize;
        // Half of the faults hit gateways.
        let gateways: Vec<usize> =
            (0..self.targets.len()).filter(|&at| self.targets[at].label.starts_with("gateway")).collect();
        let at = if random.below(2) == 0 { gateways[random.below(gateways.len() as u64) as usize] } else { at };
        let target = &mut self.targets[at];
        if target.fault.is_some() {
            return;
        }
        let max_ms = if random.below(10) == 0 { LONG_FAULT_MAX_MS } else { FAULT_MAX_MS };
        let end = Instant::now() + Duration::from_millis(random.below(max_ms));
        target.is_stopped = random.below(3) == 0;
        let what = if target.is_stopped { "stopped" } else { "killed" };
        match &mut target.process {
            process if target.is_stopped => signal(process.pid(), Signal::STOP),
            Process::Daemon(service) => service.end(Signal::KILL),
            Process::Other { child, .. } => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        target.fault = Some((end, self.faults.len()));
        self.faults.push(Fault { what: format!("{} {what}", target.label), began: Instant::now(), ended: None });
    }

    /// Ends faults, and reads the lines of the processes, for a time.
    fn watch(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            self.end_faults();
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(Duration::from_millis(20))) {
                Ok(line) => self.note(&line),
                Err(_) if left.is_zero() => return,
                Err(_) => {}
            }
        }
    }

    /// Ends the faults whose time is over, and starts processes again that have ended by themselves.
    fn end_faults(&mut self) {
        for target in &mut self.targets {
            match target.fault {
                Some((end, number)) if end <= Instant::now() => {
                    if target.is_stopped {
                        signal(target.process.pid(), Signal::CONT);
                    } else {
                        start_again(target, &mut self.counts, &self.sender);
                    }
                    (target.fault, target.is_stopped) = (None, false);
                    self.faults[number].ended = Some(Instant::now());
                }
                Some(_) => {}
                None => {
                    let Some(how) = target.process.ended() else { continue };
                    let what = format!("{} ended by itself ({how})", target.label);
                    println!("* {what}");
                    let now = Instant::now();
                    start_again(target, &mut self.counts, &self.sender);
                    self.faults.push(Fault { what, began: now, ended: Some(now) });
                }
            }
        }
    }

    fn note(&mut self, line: &Line) {
        let counts = self.counts.entry(line.label.clone()).or_default();
        let (kind, rest) = line.text.split_once(' ').unwrap_or((&line.text, ""));
        match kind {
            "count" => {
                let numbers: Vec<u64> = rest.split(' ').filter_map(|number| number.parse().ok()).collect();
                counts.present = [numbers[0], numbers[1]];
                return;
            }
            "gap" => counts.gaps += 1,
            "end" => counts.unknown_ends += 1,
            "repeated" => counts.repeated += 1,
            "replaced" => counts.replaced += 1,
            _ => counts.wrong += 1,
        }
        // A gap begins with the message before it.
        let silence = rest.split(' ').rev().skip_while(|word| *word != "ms").nth(1).and_then(|ms| ms.parse().ok());
        let since = line.at.checked_sub(Duration::from_millis(silence.unwrap_or(0)) + AFTERMATH);
        let is_cause = |fault: &&Fault| since.is_none_or(|since| fault.ended.is_none_or(|ended| ended >= since));
        let causes = self.faults.iter().filter(is_cause).map(|fault| {
            let ago = |at: Instant| format!("{:.1} s", line.at.saturating_duration_since(at).as_secs_f64());
            let until = fault.ended.map_or_else(|| "now".into(), |ended| format!("{} before", ago(ended)));
            format!("{} from {} before until {until}", fault.what, ago(fault.began))
        });
        println!("* {}: {}. Faults: {}", line.label, line.text, causes.collect::<Vec<_>>().join("; "));
    }

    /// Waits until every subscriber and reader has received more than now.
    fn wait_for_progress(&mut self) {
        let received = |counts: &Counts| counts.ended[0] + counts.present[0];
        let is_reader = |label: &str| label.contains(" at ");
        let before: BTreeMap<String, u64> =
            self.counts.iter().map(|(label, counts)| (label.clone(), received(counts))).collect();
        let start = Instant::now();
        while let Some(label) = before
            .iter()
            .find_map(|(label, before)| (is_reader(label) && received(&self.counts[label]) <= *before).then_some(label))
        {
            assert!(start.elapsed() < PATIENCE, "{label} makes no progress after all faults have ended");
            self.watch(Duration::from_millis(100));
        }
    }

    fn report(&self, seconds: u64, seed: u64) -> bool {
        println!(
            "\n| process | received | counted as lost | uncounted gaps | unknown ends | repeated | wrong or older values | clients replaced |"
        );
        println!("|---|--:|--:|--:|--:|--:|--:|--:|");
        let (mut gaps, mut repeated, mut wrong) = (0, 0, 0);
        for (label, counts) in &self.counts {
            let sum = |at: usize| counts.ended[at] + counts.present[at];
            if sum(0) + counts.gaps + counts.unknown_ends + counts.repeated + counts.wrong + counts.replaced == 0 {
                continue;
            }
            gaps += counts.gaps;
            repeated += counts.repeated;
            wrong += counts.wrong;
            println!(
                "| {label} | {} | {} | {} | {} | {} | {} | {} |",
                sum(0),
                sum(1),
                counts.gaps,
                counts.unknown_ends,
                counts.repeated,
                counts.wrong,
                counts.replaced
            );
        }
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for fault in &self.faults {
            *kinds.entry(&fault.what).or_default() += 1;
        }
        let mut text = String::new();
        for (what, count) in kinds {
            let _ = write!(text, "{count} times {what}, ");
        }
        println!("\n{seconds} s with {} faults (seed {seed}): {}.", self.faults.len(), text.trim_end_matches(", "));
        println!("Uncounted gaps: {gaps}. Repeated messages: {repeated}. Wrong or older values: {wrong}.");
        gaps + repeated + wrong == 0
    }
}

impl Process {
    fn pid(&self) -> u32 {
        match self {
            Self::Daemon(service) => service.pid(),
            Self::Other { child, .. } => child.id(),
        }
    }

    /// Returns how the process has ended; `None` if it runs.
    fn ended(&mut self) -> Option<String> {
        match self {
            Self::Daemon(service) => (!service.is_running()).then(|| "see its log".into()),
            Self::Other { child, .. } => {
                child.try_wait().expect("a child can be waited for").map(|status| status.to_string())
            }
        }
    }
}

fn start_again(target: &mut Target, counts: &mut BTreeMap<String, Counts>, sender: &Sender<Line>) {
    let counts = counts.entry(target.label.clone()).or_default();
    for (ended, present) in counts.ended.iter_mut().zip(&mut counts.present) {
        *ended += std::mem::take(present);
    }
    target.starts += 1;
    match &mut target.process {
        Process::Daemon(service) => service.start_again(),
        Process::Other { command, child } => *child = spawn(command, target.starts, &target.label, sender),
    }
}

/// Starts a process, and sends its lines.
fn spawn(command: &mut Command, starts: u64, label: &str, sender: &Sender<Line>) -> Child {
    let mut child = command.env(STARTS, starts.to_string()).spawn().expect("a process starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let (label, sender) = (label.to_owned(), sender.clone());
    std::thread::spawn(move || {
        lines
            .map_while(Result::ok)
            .try_for_each(|text| sender.send(Line { at: Instant::now(), label: label.clone(), text }))
    });
    child
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Self::Other { child, .. } = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
