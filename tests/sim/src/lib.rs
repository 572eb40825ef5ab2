//! A deterministic simulation of the daemon's core: clients, clock, kernel and deaths are simulated, all from one seed.
//!
//! A *schedule* is one simulated world of some hundred steps. In each step one possible event happens: a packet arrives
//! (late, and in any order between connections), the kernel completes an order (or has no memory, or the disk no room),
//! an honest client takes one step of its protocol over its shared words, a liar writes or requests nonsense, a process
//! dies, time passes. In half of the schedules the daemon itself is killed, perhaps in the middle of one event's
//! effects. The next daemon gets the descriptors of the fd store; no published value
//! may be lost except as documented. After each step the checks compare the core's visible state with the world's. At
//! the end the faults stop, every honest client must have got its responses, and when all clients are gone every byte
//! must have been freed.
//!
//! The core under test is that of `tensorlendd`: it has no clock, descriptor or thread of its own, so the same seed
//! always gives the same schedule.
//!
//! [`Flaw`] breaks the simulated shell on purpose, to show that the checks can fail.

mod back;
mod checks;
mod cleanup;
mod client;
mod cuts;
mod effects;
#[cfg(feature = "crash-points")]
pub mod explore;
mod liar;
mod packets;
mod queues;
mod reload;
mod restart;
mod rng;
mod sim;
mod spill;
mod steps;

pub use cuts::Words;
pub use packets::packets;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// The parameters of a schedule.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The source of all random choices.
    pub seed: u64,
    /// Steps before the faults stop.
    pub steps: u32,
    /// A deliberate fault.
    pub flaw: Option<Flaw>,
    /// Whether to record events.
    pub trace: bool,
}

impl Plan {
    /// Returns an ordinary schedule.
    pub fn new(seed: u64) -> Self {
        Self { seed, steps: 250, flaw: None, trace: false }
    }
}

/// A fault of the daemon that its shell can cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The daemon shows its core other lease tables than those that clients write, so that the core sees no leases.
    BlindToLeases,
    /// The daemon reports all memory as quiescent.
    TrustsTheLoud,
    /// The daemon fails to close one descriptor in eight.
    KeepsDescriptors,
    /// The daemon loses one response in thirty.
    LosesAnswers,
    /// The daemon's fd store loses one descriptor in eight.
    LosesWhatIsKept,
    /// The daemon stores a descriptor only after lending it.
    LendsBeforeItKeeps,
    /// The daemon's fd store never removes a descriptor.
    ForgetsNothing,
    /// The daemon reports disconnected clients as gone.
    TakesTheAwayForGone,
    /// It reads other bytes from a file than it wrote.
    ReadsOtherBytes,
    /// The daemon shows segments to readers before it lists the readers.
    ListsReadersLate,
    /// The daemon answers a request for an item with the latest claim that it has granted.
    GrantsAgain,
    /// The daemon stores these words before all others of a step. The exhaustive search only.
    StoresEarly(Words),
    /// The daemon stores these words after all others of a step. The exhaustive search only.
    StoresLate(Words),
}

/// Counters of a schedule.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Events that the core processed.
    pub events: u64,
    /// Number of packets among the events.
    pub packets: u64,
    /// Words that liars wrote.
    pub lies: u64,
    /// Leases that honest clients took.
    pub leases: u64,
    /// Values that honest clients published.
    pub puts: u64,
    /// Names among them that were announced.
    pub announced: u64,
    /// Segments that were taken back from clients.
    pub segments_freed: u64,
    /// Segments of a device that were lent.
    pub on_device: u64,
    /// Clients that ended, and whose members were removed when their processes exited.
    pub departures: u64,
    pub joined: u64,
    /// Daemons that were killed.
    pub restarts: u64,
    /// Clients that reconnected to another daemon.
    pub returns: u64,
    /// Changes of limits.
    pub reloads: u64,
    /// Segments spilled to files.
    pub spilled: u64,
    /// Segments that live owners released for spill.
    pub released: u64,
    /// Segments read back from files.
    pub recalled: u64,
    /// Streams that ended after their producers had closed them.
    pub streams_ended: u64,
    /// Items of queues that were claimed.
    pub claims: u64,
    /// Items among them that went to a client whose request waited.
    pub handed_over: u64,
    /// Items of queues that were confirmed.
    pub confirmed: u64,
    /// Steps after which the core had chores left.
    pub sliced: u64,
}

impl std::ops::AddAssign for Done {
    fn add_assign(&mut self, more: Self) {
        self.events += more.events;
        self.packets += more.packets;
        self.lies += more.lies;
        self.leases += more.leases;
        self.puts += more.puts;
        self.announced += more.announced;
        self.segments_freed += more.segments_freed;
        self.on_device += more.on_device;
        self.departures += more.departures;
        self.joined += more.joined;
        self.restarts += more.restarts;
        self.returns += more.returns;
        self.reloads += more.reloads;
        self.spilled += more.spilled;
        self.released += more.released;
        self.recalled += more.recalled;
        self.streams_ended += more.streams_ended;
        self.claims += more.claims;
        self.handed_over += more.handed_over;
        self.confirmed += more.confirmed;
        self.sliced += more.sliced;
    }
}

/// A schedule that broke an invariant, or the core.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed of the failed schedule, which replays it.
    pub seed: u64,
    /// The violated invariant, and its place in the code.
    pub what: String,
    /// The recorded events before the failure.
    pub trace: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        write!(f, "seed {}: {}", self.seed, self.what)
    }
}

thread_local! {
    /// The message of a panic in this thread's schedule. `None`: no schedule runs here.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static TRACE: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Runs one schedule.
///
/// # Errors
/// If an invariant does not hold, or the core panics.
pub fn run(plan: Plan) -> Result<Done, Failure> {
    guarded(plan.seed, || sim::Sim::new(plan).run())
}

/// Does work of this seed, and returns a panic within it as a failure.
fn guarded<T>(seed: u64, work: impl FnOnce() -> T) -> Result<T, Failure> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let ours = PANIC.with_borrow_mut(|panic| {
                if let Some(text) = panic {
                    *text = info.to_string();
                }
                panic.is_some()
            });
            if !ours {
                before(info);
            }
        }));
    });
    PANIC.set(Some(String::new()));
    TRACE.take();
    let done = catch_unwind(AssertUnwindSafe(work));
    let what = PANIC.take().unwrap_or_default();
    done.map_err(|_| Failure { seed, what, trace: TRACE.take() })
}

/// Runs the schedule that these bytes select, for a fuzzer.
///
/// # Panics
/// If an invariant does not hold.
pub fn play(choices: &[u8]) {
    let steps = (choices.len() as u32 / 2).clamp(20, 1000);
    sim::Sim::with_rng(Plan { steps, ..Plan::new(0) }, rng::Rng::of(choices)).run();
}

/// Runs a schedule again and records its events.
pub fn explain(plan: Plan) -> Option<Failure> {
    run(Plan { trace: true, ..plan }).err()
}

pub(crate) fn note(line: String) {
    TRACE.with_borrow_mut(|trace| trace.push(line));
}
