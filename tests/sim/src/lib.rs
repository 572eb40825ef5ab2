//! The broker's core in a world that is made up: simulated clients, clock, kernel and deaths, all from one seed.
//!
//! A *schedule* is one such world, some hundred steps long. In each step something happens that may happen: a packet
//! arrives (late, and in any order between connections), the kernel answers (or has no memory, or a disk no room), an honest client takes
//! one step of its protocol over its shared words, a liar writes nonsense or asks for it, somebody dies, time passes. In half
//! of the schedules the daemon itself is killed, perhaps in the middle of what one event causes: another one gets what its keeper
//! had, or what clients bring back, and nothing that was published may be lost but what the documents say is. After
//! each step the checks compare what the core shows with what the world knows. At the end the faults
//! stop, everybody honest must have been answered, and when all are gone every byte must have come back.
//!
//! The core under test is the one that `tensorlendd` runs: it has no clock, descriptor or thread of its own, so that the
//! same seed gives the same schedule, to the last word.
//!
//! [`Flaw`] breaks the world's side of the bargain, to show that the checks can fail.

mod back;
mod checks;
mod cleanup;
mod client;
mod effects;
mod liar;
mod packets;
mod reload;
mod restart;
mod rng;
mod sim;
mod spill;
mod steps;

pub use packets::packets;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// What a schedule is made from.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Everything follows from it.
    pub seed: u64,
    /// Steps before the faults stop.
    pub steps: u32,
    /// What is broken on purpose.
    pub flaw: Option<Flaw>,
    /// Whether to note what happens.
    pub trace: bool,
}

impl Plan {
    /// An ordinary schedule.
    pub fn new(seed: u64) -> Self {
        Self { seed, steps: 250, flaw: None, trace: false }
    }
}

/// A broken daemon, as far as its shell can break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It looks at other lease tables than those that clients write: as if it did not look before it frees.
    BlindToLeases,
    /// It takes everybody's memory for quiet.
    TrustsTheLoud,
    /// It loses one descriptor in eight that it should close.
    KeepsDescriptors,
    /// It loses one answer in thirty.
    LosesAnswers,
    /// Its keeper loses one descriptor in eight.
    LosesWhatIsKept,
    /// It gives to its keeper what it has lent already.
    LendsBeforeItKeeps,
    /// Its keeper never forgets.
    ForgetsNothing,
    /// It takes clients that have not come back for gone.
    TakesTheAwayForGone,
    /// What it reads from a file is not what it wrote.
    ReadsOtherBytes,
    /// It shows segments to readers before it lists them.
    ListsReadersLate,
}

/// What a schedule did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Events that the core took in.
    pub events: u64,
    /// Packets among them.
    pub packets: u64,
    /// Words that liars wrote.
    pub lies: u64,
    /// Leases that honest clients took.
    pub leases: u64,
    /// Values that honest clients published.
    pub puts: u64,
    /// Names among them that were announced.
    pub announced: u64,
    /// Segments that were taken from clients.
    pub segments_freed: u64,
    /// Segments of a device that were lent.
    pub on_device: u64,
    /// Clients that ended and departed when their processes did.
    pub departures: u64,
    /// Clients that joined.
    pub joined: u64,
    /// Daemons that were killed.
    pub restarts: u64,
    /// Clients that went on at another daemon.
    pub returns: u64,
    /// How often limits changed.
    pub reloads: u64,
    /// Segments that went to files.
    pub spilled: u64,
    /// Segments of which their owners, who lived, have let go.
    pub shelved: u64,
    /// Segments that came back.
    pub recalled: u64,
    /// Streams that ended after their producers had closed them.
    pub streams_ended: u64,
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
        self.shelved += more.shelved;
        self.recalled += more.recalled;
        self.streams_ended += more.streams_ended;
        self.sliced += more.sliced;
    }
}

/// A schedule that broke an invariant, or the core.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its seed: it replays.
    pub seed: u64,
    /// What was found, and where in the code.
    pub what: String,
    /// What happened before, if it was noted.
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
    /// The panic of this thread's schedule. `None`: no schedule runs here.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static TRACE: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Runs one schedule.
///
/// # Errors
/// If an invariant does not hold, or the core panics.
pub fn run(plan: Plan) -> Result<Done, Failure> {
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
    let done = catch_unwind(AssertUnwindSafe(|| sim::Sim::new(plan).run()));
    let what = PANIC.take().unwrap_or_default();
    done.map_err(|_| Failure { seed: plan.seed, what, trace: TRACE.take() })
}

/// Plays the schedule that these bytes choose: for a fuzzer.
///
/// # Panics
/// If an invariant does not hold.
pub fn play(choices: &[u8]) {
    let steps = (choices.len() as u32 / 2).clamp(20, 1000);
    sim::Sim::with_rng(Plan { steps, ..Plan::new(0) }, rng::Rng::of(choices)).run();
}

/// Runs a schedule again and notes what happens in it.
pub fn explain(plan: Plan) -> Option<Failure> {
    run(Plan { trace: true, ..plan }).err()
}

pub(crate) fn note(line: String) {
    TRACE.with_borrow_mut(|trace| trace.push(line));
}
