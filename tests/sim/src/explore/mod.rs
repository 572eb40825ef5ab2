//! The exhaustive search: every trace of a small world up to a depth, with a kill of the daemon at every place.
//!
//! A trace is a sequence of choices (`Choice`). After each of them the checks of the simulation must hold, and the sequential model
//! must allow what a new client sees. In each step the daemon is also killed before each of its stores and effects, with
//! and without the requesting client, and the next daemon is killed at each place of its start. The search goes on from
//! the states after a restart.
//!
//! The search runs each trace again from its beginning, because the daemon's core has no copy; a trace takes some hundred
//! microseconds. It is a search in breadth over hashed states, not `stateright`: that library needs states that can be
//! cloned and compared, and would hold one whole world for each.

mod clients;
mod model;
mod state;
mod visible;
mod world;

use crate::cuts::Cuts;
use crate::{Failure, Flaw, Plan, guarded, note};
use clients::Choice;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tensorlend_daemon::core::settings::Mode;
use world::{CLIENTS, World};

/// A part of the choices. The traces of one family are explored together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Names: publications of all kinds, lifetimes, deletions, renames.
    Names,
    /// Renames of names whose owner has ended, the most that a few choices allow.
    Renames,
    /// Lists and queues.
    Lists,
    /// Streams.
    Streams,
    /// Segments, leases, and the names in them.
    Memory,
    /// All choices.
    All,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 6] = [Self::Names, Self::Renames, Self::Lists, Self::Streams, Self::Memory, Self::All];

    fn of_client(self, a: usize) -> Vec<Choice> {
        use Choice::{
            Announce, Append, AppendEphemeral, Claim, Delete, Dies, Done, Ephemeral, Expiring, GiveBack, Grow,
            GrowFails, Lease, ListDelete, ListRename, Open, Put, Rename, Send, Shrink, StreamDelete, Subscribe, Tend,
        };
        let names = [
            Put(a, 0),
            Put(a, 1),
            Announce(a, 0),
            Ephemeral(a, 0),
            Ephemeral(a, 1),
            Expiring(a, 0),
            Delete(a, 0),
            Rename(a),
        ];
        let lists =
            [Append(a, 0, 1), Append(a, 0, 2), Append(a, 1, 1), AppendEphemeral(a, 0), ListRename(a), ListDelete(a, 0)];
        let queues = [Claim(a), Done(a), GiveBack(a)];
        let streams = [Open(a), Send(a), StreamDelete(a), Subscribe(a)];
        let memory = [Grow(a), GrowFails(a), Shrink(a), Lease(a, 0)];
        match self {
            Self::Names => [&names[..], &[Tend(a), Dies(a)]].concat(),
            Self::Renames => vec![Put(a, 0), Put(a, 1), Rename(a), Dies(a)],
            Self::Lists => [&lists[..], &queues, &[Dies(a)]].concat(),
            Self::Streams => [&streams[..], &[Put(a, 0), Dies(a)]].concat(),
            Self::Memory => [&memory[..], &[Put(a, 0), Delete(a, 0), Tend(a), Dies(a)]].concat(),
            Self::All => [&names[..], &lists, &queues, &streams, &memory, &[Tend(a), Dies(a)]].concat(),
        }
    }

    fn choices(self) -> Vec<Choice> {
        let clients = (0..CLIENTS).flat_map(|a| self.of_client(a));
        clients.chain([Choice::Kernel, Choice::KernelFails, Choice::Alarm, Choice::Later]).collect()
    }
}

/// The bounds of a search.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub family: Family,
    /// Number of choices of the longest traces.
    pub depth: usize,
    /// Number of choices of the longest traces within whose last choice the daemon is killed, and the next daemon, too.
    pub twice: usize,
    /// Whether the daemon runs in user mode, in which the next daemon continues with a copy of the directory.
    pub user_mode: bool,
    pub threads: usize,
    /// A deliberate fault.
    pub flaw: Option<Flaw>,
}

impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mode = if self.user_mode { "user" } else { "system" };
        write!(f, "{:?}, {mode} mode, depth {}, two kills in a row up to depth {}", self.family, self.depth, self.twice)
    }
}

const QUICK: &str =
    "names=2/0,names=1/1,renames=3/0,lists=2/0,lists=1/1,streams=2/1,memory=2/0,memory=1/1,user-all=1/0";
const FULL: &str = "names=3/1,renames=4/1,lists=3/1,streams=3/2,memory=3/1,all=2/1,\
    user-names=2/1,user-lists=2/1,user-streams=2/1,user-memory=2/1";

/// Returns the bounds of searches: `quick`, `full`, or families with their depths, such as `names=3/1,user-lists=2/0`.
///
/// # Panics
/// If there is no such family.
pub fn bounds(which: &str) -> Vec<Bounds> {
    let which = match which {
        "quick" => QUICK,
        "full" => FULL,
        other => other,
    };
    let one = |text: &str| {
        let (family, depths) = text.split_once('=')?;
        let (depth, twice) = depths.split_once('/')?;
        let user_mode = family.starts_with("user-");
        let family = family.trim_start_matches("user-");
        let family = Family::ALL.into_iter().find(|it| format!("{it:?}").eq_ignore_ascii_case(family))?;
        Some(Bounds {
            family,
            depth: depth.parse().ok()?,
            twice: twice.parse().ok()?,
            user_mode,
            threads: 1,
            flaw: None,
        })
    };
    which.split(',').map(|text| one(text).unwrap_or_else(|| panic!("{text:?} is not such as names=3/1"))).collect()
}

/// The size of a search.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explored {
    /// Traces that were run to their ends.
    pub traces: u64,
    /// Distinct states.
    pub states: u64,
    /// Kills within a step.
    pub deaths: u64,
    /// Daemons that began after a kill.
    pub restarts: u64,
}

/// A kill within a step.
#[derive(Clone, Copy, Debug)]
struct Kill {
    /// The place in the step.
    at: usize,
    /// Whether the client that takes the step ends, too.
    with_client: bool,
    /// The place in the next daemon's start and in the clients' return at which that daemon is killed, too.
    again: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    choice: Choice,
    kill: Option<Kill>,
}

/// A state, by the trace that leads to it.
#[derive(Clone, Debug, Default)]
struct Node {
    trace: Vec<Step>,
    killed: bool,
}

struct Search {
    bounds: Bounds,
    choices: Vec<Choice>,
    seen: Mutex<HashSet<u64>>,
    /// The fingerprints of the worlds whose daemon is dead.
    dead: Mutex<HashSet<u64>>,
    next: Mutex<Vec<Node>>,
    traces: AtomicU64,
    deaths: AtomicU64,
    restarts: AtomicU64,
    failure: Mutex<Option<Failure>>,
    stop: AtomicBool,
}

/// Explores all traces within the bounds.
///
/// # Errors
/// The shortest trace that breaks an invariant, or after which a client sees a state that the model does not allow.
pub fn explore(bounds: Bounds) -> Result<Explored, Failure> {
    let it = Search {
        bounds,
        choices: bounds.family.choices(),
        seen: Mutex::default(),
        dead: Mutex::default(),
        next: Mutex::new(vec![Node::default()]),
        traces: AtomicU64::new(0),
        deaths: AtomicU64::new(0),
        restarts: AtomicU64::new(0),
        failure: Mutex::default(),
        stop: AtomicBool::new(false),
    };
    for _ in 0..bounds.depth {
        let level = std::mem::take(&mut *it.next.lock().expect("no thread panics"));
        let at = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..bounds.threads.max(1) {
                scope.spawn(|| {
                    while let Some(node) = level.get(at.fetch_add(1, Ordering::Relaxed))
                        && !it.stop.load(Ordering::Relaxed)
                    {
                        it.expand(node);
                    }
                });
            }
        });
        if let Some(failure) = it.failure.lock().expect("no thread panics").take() {
            return Err(failure);
        }
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let states = it.seen.lock().expect("no thread panics").len() as u64;
    Ok(Explored { traces: count(&it.traces), states, deaths: count(&it.deaths), restarts: count(&it.restarts) })
}

impl Search {
    fn begin(&self, trace: bool) -> World {
        let mode = if self.bounds.user_mode { Mode::User } else { Mode::System };
        World::new(Plan { trace, flaw: self.bounds.flaw, ..Plan::new(0) }, mode)
    }

    /// Runs a trace. Returns the world, and the number of places of the last step (`.0`) and of the restart within it (`.1`).
    /// `None`: the last step is not possible, or `is_new` returns false for the world of the dead daemon.
    fn play(&self, trace: &[Step], show: bool, is_new: &dyn Fn(u64) -> bool) -> Option<(World, usize, usize)> {
        let mut world = self.begin(show);
        let (mut places, mut of_restart) = (0, 0);
        for (number, step) in trace.iter().enumerate() {
            let last = number + 1 == trace.len();
            // The earlier steps have been checked as those of shorter traces.
            world.sim.step = u32::from(!last);
            if show {
                note(format!("-- step {number}: {step:?}"));
            }
            world.sim.cuts = Some(Cuts { passed: 0, at: step.kill.map(|kill| kill.at) });
            if !world.take(step.choice) {
                return None;
            }
            places = world.sim.cuts.take().map_or(0, |cuts| cuts.passed);
            let Some(kill) = step.kill else { continue };
            if !world.sim.life.is_gone {
                world.sim.daemon_dies();
            }
            let is_new = |dead| !last || is_new(dead);
            if kill.again.is_none() && !is_new(world.fingerprint() ^ u64::from(kill.with_client)) {
                return None;
            }
            let died = step.choice.client().filter(|_| kill.with_client);
            of_restart = world.recovers(died, kill.again, &is_new)?;
        }
        Some((world, places, of_restart))
    }

    /// Runs a trace, and records the failure if it fails.
    fn run(&self, node: &Node, step: Step, is_new: &dyn Fn(u64) -> bool) -> Option<(World, usize, usize)> {
        let trace: Vec<Step> = node.trace.iter().copied().chain([step]).collect();
        let played = guarded(0, || {
            let mut played = self.play(&trace, false, is_new)?;
            played.0.check();
            Some(played)
        });
        match played {
            Ok(played) => {
                self.traces.fetch_add(u64::from(played.is_some()), Ordering::Relaxed);
                played
            }
            Err(failure) => {
                self.fails(&trace, failure);
                None
            }
        }
    }

    fn fails(&self, trace: &[Step], failure: Failure) {
        self.stop.store(true, Ordering::Relaxed);
        let again = guarded(0, || {
            if let Some((mut world, ..)) = self.play(trace, true, &|_| true) {
                world.check();
                world.finish();
            }
        });
        let failure = again.err().unwrap_or(failure);
        let what = format!("{:?}, trace {trace:?}: {}", self.bounds.family, failure.what);
        *self.failure.lock().expect("no thread panics") = Some(Failure { what, ..failure });
    }

    /// Takes every possible step from a state.
    fn expand(&self, node: &Node) {
        for &choice in &self.choices {
            // Both clients are alike before the first step.
            if node.trace.is_empty() && choice.client().is_some_and(|a| a != 0) || self.stop.load(Ordering::Relaxed) {
                continue;
            }
            let step = Step { choice, kill: None };
            let Some((world, places, _)) = self.run(node, step, &|_| true) else { continue };
            self.reached(node, step, world);
            if node.killed {
                continue;
            }
            for at in 0..=places {
                for with_client in [false, true] {
                    if choice.client().is_some() || !with_client {
                        self.kill(node, choice, Kill { at, with_client, again: None });
                    }
                }
            }
        }
    }

    fn kill(&self, node: &Node, choice: Choice, kill: Kill) {
        let is_new = |dead| self.dead.lock().expect("no thread panics").insert(dead);
        let step = |kill| Step { choice, kill: Some(kill) };
        let Some((world, _, of_restart)) = self.run(node, step(kill), &is_new) else { return };
        self.deaths.fetch_add(1, Ordering::Relaxed);
        self.restarts.fetch_add(1, Ordering::Relaxed);
        self.reached(node, step(kill), world);
        if node.trace.len() >= self.bounds.twice {
            return;
        }
        for again in 0..of_restart {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let kill = Kill { again: Some(again), ..kill };
            let Some((world, ..)) = self.run(node, step(kill), &is_new) else { continue };
            self.deaths.fetch_add(2, Ordering::Relaxed);
            self.restarts.fetch_add(2, Ordering::Relaxed);
            self.reached(node, step(kill), world);
        }
    }

    /// A trace has reached a state. If it is a new one, the search continues from there, and everything must come to an end.
    fn reached(&self, node: &Node, step: Step, world: World) {
        if !self.seen.lock().expect("no thread panics").insert(world.fingerprint()) {
            return;
        }
        let trace: Vec<Step> = node.trace.iter().copied().chain([step]).collect();
        if let Err(failure) = guarded(0, || world.finish()) {
            return self.fails(&trace, failure);
        }
        let killed = node.killed || step.kill.is_some();
        self.next.lock().expect("no thread panics").push(Node { trace, killed });
    }
}
