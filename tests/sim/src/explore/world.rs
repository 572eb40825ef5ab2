//! The small world of the exhaustive search: two clients of a namespace.

use super::clients::Choice;
use super::model::{Model, Op, Stream, Val};
use crate::Plan;
use crate::client::Asked;
use crate::cuts::Cuts;
use crate::reload::plain_settings;
use crate::restart::Life;
use crate::rng::Rng;
use crate::sim::{SEGMENT, Sim};
use crate::steps::{a_collection, hello};
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_daemon::core::Event;
use tensorlend_daemon::core::chores::UNITS;
use tensorlend_daemon::core::settings::{Mode, NamespaceLimits, NamespaceRule, Payer, Principal, Settings};
use tensorlend_layout::wire::{CLAIM_BATCH_MAX, Hello, QueueReply, QueueRequest, Reply, Request};

/// Number of clients.
pub const CLIENTS: usize = 2;
/// A seed without an administrator who changes limits.
const SEED: u64 = 0;
/// log2 of the slots of a client's first segment.
const SLOTS_LOG2: u8 = 2;
/// Time to live of a name that expires.
pub const TTL_NS: u64 = 1_000_000_000;
/// Time within which a daemon has ended all that its clients' deaths end.
const ENDS_NS: u64 = 6_000_000_000;

/// A small world, and the state of its sequential model.
pub struct World {
    pub sim: Sim,
    pub model: Model,
    /// The operation of each client's latest request.
    pub ops: BTreeMap<usize, Op>,
    /// Clients whose responses the model has, and that have not read them.
    pub answered: BTreeSet<usize>,
    dead: BTreeSet<usize>,
}

fn settings(mode: Mode) -> Settings {
    let limits = NamespaceLimits {
        bytes_max: u64::MAX,
        names_max: 12,
        members_max: 4,
        lists_max: 2,
        streams_max: 1,
        segments_max: 6,
        device_bytes_max: u64::MAX,
        payer: Payer::Daemon,
    };
    let rule = NamespaceRule { readers: Vec::new(), writers: vec![Principal::Uid(1), Principal::Uid(2)], limits };
    Settings { seed: SEED, ..plain_settings(mode, limits, rule) }
}

impl World {
    /// Returns a world in which both clients have joined and have a segment.
    pub fn new(plan: Plan, mode: Mode) -> Self {
        let mut life = Life::new(&mut Rng::new(SEED));
        (life.keeper, life.kills_left) = (true, 0);
        let mut sim = Sim::begin(plan, Rng::new(SEED), settings(mode), UNITS, life).started();
        sim.disk.settings = None;
        let mut it = Self {
            sim,
            model: Model::default(),
            ops: BTreeMap::new(),
            answered: BTreeSet::new(),
            dead: BTreeSet::new(),
        };
        for actor in 0..CLIENTS {
            // In user mode, all clients are of one user.
            let uid = if it.sim.is_user_mode() { 1 } else { actor as u32 + 1 };
            it.sim.dial(uid, true);
            let mut h = it.sim.actors[actor].honest.take().expect("it is honest");
            h.hello_sent = true;
            it.sim.ask(
                actor,
                &mut h,
                Asked::Hello,
                &Request::Hello(Hello { namespace: Some("lab".into()), ..hello() }),
            );
            it.sim.actors[actor].honest = Some(h);
            it.sim.settle();
            let segment = Request::Segment { bytes: SEGMENT, slots_log2: SLOTS_LOG2 };
            it.client(actor, |w, h, _| {
                w.ask(actor, h, Asked::Segment, &segment, Op::Nothing);
                true
            });
            it.sim.settle();
        }
        it.ops.clear();
        it
    }

    /// Returns the operations without a response.
    pub fn pending(&self) -> (&BTreeMap<usize, Op>, &BTreeSet<usize>) {
        (&self.ops, &self.answered)
    }

    /// Takes one step. Returns false if it is not possible in this state.
    pub fn take(&mut self, choice: Choice) -> bool {
        self.sim.now_ns += 1000;
        self.sim.poor = 0;
        self.chooses(&[]);
        let taken = match choice {
            Choice::Kernel | Choice::KernelFails => {
                !self.sim.orders.is_empty() && {
                    let order = self.sim.orders.remove(0);
                    self.sim.answer(order, choice == Choice::KernelFails);
                    true
                }
            }
            Choice::Alarm => self.sim.core.alarm().is_some_and(|at| {
                let is_soon = at < self.sim.now_ns + TTL_NS / 2;
                if is_soon {
                    self.sim.now_ns = self.sim.now_ns.max(at);
                    self.sim.happen(Event::Alarm);
                }
                is_soon
            }),
            Choice::Later => {
                self.sim.wait_until(self.sim.now_ns + 3 * TTL_NS);
                true
            }
            Choice::Dies(a) => {
                self.is_here(a) && {
                    self.dies(a);
                    true
                }
            }
            _ => self.client_takes(choice),
        };
        self.notes_answers();
        taken
    }

    fn dies(&mut self, a: usize) {
        self.dead.insert(a);
        self.ops.remove(&a);
        if self.sim.life.is_gone {
            self.sim.ends_away(a);
        } else {
            self.sim.hang_up(a);
            // The daemon may have been killed by the end of the connection.
            if self.sim.life.is_gone { self.sim.ends_away(a) } else { self.sim.exit(a) }
        }
    }

    /// Fixes the next choices of the steps of clients; all further ones are 99.
    pub fn chooses(&mut self, choices: &[u8]) {
        let mut all = [99; 32];
        all[..choices.len()].copy_from_slice(choices);
        self.sim.rng = Rng::of(&all);
    }

    pub fn is_here(&self, a: usize) -> bool {
        let it = &self.sim.actors[a];
        it.connected && !it.away && it.seat.is_some()
    }

    /// The model has the effects of all requests that the daemon has answered.
    pub fn notes_answers(&mut self) {
        for a in 0..CLIENTS.min(self.sim.actors.len()) {
            let it = &self.sim.actors[a];
            let Some((reply, _)) = it.inbox.front() else { continue };
            if self.answered.insert(a) {
                let (op, reply) = (self.ops.remove(&a).unwrap_or_default(), reply.clone());
                self.model = self.model.answered(&op, &reply, &|val| self.ends(val));
            }
        }
    }

    /// Returns true if a value may end at any time, or has ended.
    pub fn ends(&self, val: &Val) -> bool {
        val.deadline_ns.is_some_and(|at| at <= self.sim.now_ns) || val.ephemeral && self.dead.contains(&val.owner)
    }

    /// Checks the invariants, and that the model allows what a new client sees.
    pub fn check(&mut self) {
        self.sim.check();
        let pending: Vec<Op> = self.ops.values().cloned().collect();
        // A request without a response waits, and has no effect yet.
        let states = [self.model.clone()];
        self.sees(&states, &format!("with {pending:?} unanswered"));
    }

    /// Asserts that one of `states` allows what a new client sees, which is then the model's state.
    fn sees(&mut self, states: &[Model], when: &str) {
        let seen = self.visible();
        Model::assert_one_allows(states, &seen, &|val| self.ends(val), &|a| self.dead.contains(&a), when);
        self.model = seen;
    }

    /// Another daemon begins, after one that was killed, and is perhaps killed within its start at `second`. Returns the
    /// number of places at which it can be killed. `died`: the client whose process has ended, too.
    /// `None`: `is_new` returns false for the world in which both are dead.
    pub fn recovers(
        &mut self,
        died: Option<usize>,
        second: Option<usize>,
        is_new: &dyn Fn(u64) -> bool,
    ) -> Option<usize> {
        if let Some(a) = died {
            let op = self.ops.get(&a).cloned();
            self.dies(a);
            self.ops.extend(op.map(|op| (a, op)));
        }
        self.sim.poor = 0;
        self.chooses(&[]);
        let answered = std::mem::take(&mut self.answered);
        let pending: Vec<(usize, Op)> =
            std::mem::take(&mut self.ops).into_iter().filter(|(a, _)| !answered.contains(a)).collect();
        self.sim.cuts = Some(Cuts { passed: 0, at: second });
        self.sim.daemon_begins();
        let mut states = vec![self.model.clone()];
        for (_, op) in &pending {
            states = states.iter().flat_map(|state| state.around(op)).collect();
        }
        if self.sim.life.is_gone {
            if !is_new(self.fingerprint()) {
                return None;
            }
            self.sim.daemon_begins();
        }
        self.sees(&states, &format!("after a kill within {pending:?}"));
        self.sim.settle();
        if self.sim.life.is_gone {
            if !is_new(self.fingerprint()) {
                return None;
            }
            self.sim.daemon_begins();
            self.sim.settle();
        }
        self.have_returned(&pending);
        self.sim.cuts.take().map(|cuts| cuts.passed)
    }

    /// The clients have returned, and repeated their requests.
    fn have_returned(&mut self, pending: &[(usize, Op)]) {
        let mut states = vec![self.model.clone()];
        for (a, op) in pending {
            let repeats = matches!(op, Op::Bind(..) | Op::Open(..) | Op::Subscribe(..) | Op::Done(..));
            if self.dead.contains(a) {
                continue;
            }
            // The daemon refuses the stream of another producer that lives, and a stream without a producer that has its ring.
            let other = |stream: &Stream| match op {
                Op::Open(..) => stream.producer != *a,
                _ => self.dead.contains(&stream.producer),
            };
            let may_be_refused = matches!(op, Op::Open(..) | Op::Subscribe(..));
            if may_be_refused && states.iter().flat_map(|state| state.streams.values()).any(other) {
                states = states.iter().flat_map(|state| state.around(op)).collect();
            } else if repeats {
                states = states.iter().map(|state| state.after(op)).collect();
            }
        }
        self.sees(&states, &format!("after a kill within {pending:?}, when the clients have returned,"));
        self.has_no_remains();
    }

    /// All values that must end have ended, every client gets its responses, a new client gets all the items of the queues
    /// that nobody has claimed, and when all have left nothing remains.
    pub fn finish(mut self) {
        self.sim.cuts = None;
        self.chooses(&[]);
        self.sim.settle();
        self.sim.wait_until(self.sim.now_ns + ENDS_NS);
        self.sim.settle();
        let pending: Vec<Op> = std::mem::take(&mut self.ops).into_values().collect();
        let mut states = vec![self.model.clone()];
        for op in &pending {
            states = states.iter().flat_map(|state| state.around(op)).collect();
        }
        self.sees(&states, "at the end");
        let left = |val: &Val| self.ends(val);
        assert!(!self.model.names.values().any(left), "names have not ended: {:?}", self.model);
        assert!(!self.model.lists.values().flatten().any(left), "items have not ended: {:?}", self.model);
        let idle = |stream: &Stream| self.dead.contains(&stream.producer) && self.dead.is_superset(&stream.subscribers);
        assert!(!self.model.streams.values().any(idle), "a stream has not ended: {:?}", self.model);
        self.sim.faults_stop();
        self.drains();
        self.sim.clean_up();
    }

    /// A new client claims all items that wait.
    fn drains(&mut self) {
        let actor = self.sim.dial(1, true);
        let hello = Hello { namespace: Some("lab".into()), ..hello() };
        for request in [Request::Hello(hello), Request::Ping] {
            self.sim.ask_plainly(actor, &request, "a newcomer");
        }
        let claimed: BTreeSet<_> = self.sim.actors[..CLIENTS]
            .iter()
            .flat_map(|it| it.honest.iter().filter(|_| it.connected))
            .flat_map(|h| &h.claims)
            .map(|claim| claim.item)
            .collect();
        for list in [a_collection(0), a_collection(1)] {
            let waiting: Vec<u64> = self
                .items(&list)
                .into_iter()
                .flatten()
                .filter(|(item, _)| !claimed.contains(item))
                .map(|(item, _)| item.number)
                .collect();
            let max = CLAIM_BATCH_MAX as u8;
            let claim = Request::Queue(QueueRequest::Claim { list: list.clone(), done: Vec::new(), max, wait: false });
            let reply = self.sim.ask_plainly(actor, &claim, "items");
            let found = match reply {
                Reply::Queue(QueueReply::Claimed(claims)) => claims.iter().map(|claim| claim.item.number).collect(),
                Reply::Queue(QueueReply::Empty) => Vec::new(),
                other => panic!("items of {list:?} were claimed, and there came {other:?}"),
            };
            assert_eq!(found, waiting, "the items of {list:?} that wait");
        }
    }
}
