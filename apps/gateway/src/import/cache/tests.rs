use super::revalidation::SILENCE;
use super::*;
use crate::export::invalidation::{Invalidation, Subscriptions};
use crate::wire::Asker;
use crate::wire::HEARTBEAT;
use proptest::prelude::*;
use std::collections::VecDeque;

const LONG: Duration = Duration::from_secs(1000);

fn node() -> NodeName {
    NodeName::new("b").unwrap()
}

fn name(name: &str) -> RemoteName {
    RemoteName { space: 0, node: node(), name: name.into() }
}

fn stamp(counter: u64) -> Stamp {
    Stamp { epoch: Epoch(1), counter }
}

fn version(n: u64) -> Version {
    Version::from_words([1 << 50, n])
}

fn asked(effects: &[Effect]) -> Option<(Fetch, Option<Stamp>, bool)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Ask { fetch, have, wanted, .. } => Some((*fetch, *have, *wanted)),
        _ => None,
    })
}

fn here(ticket: Ticket) -> Effect {
    Effect::Answer(ticket, Verdict::Here { stale: false })
}

/// Returns a cache with one good copy, of the value with stamp 1.
fn with_copy(now: Instant) -> Cache {
    let mut cache = Cache::new(1000, 100);
    cache.on_node_up(&node(), Epoch(1));
    let (fetch, have, wanted) = asked(&cache.on_get(&name("x"), 1, now + LONG, now)).unwrap();
    assert_eq!((have, wanted), (None, true));
    assert_eq!(cache.on_value(fetch, stamp(1), version(1), 100, now), [here(1)]);
    cache
}

#[test]
fn what_was_fetched_is_good_until_a_word_comes() {
    let now = Instant::now();
    let mut cache = with_copy(now);
    assert_eq!(cache.on_get(&name("x"), 2, now + LONG, now), [here(2)]);
    let (known, effects) =
        cache.on_changed(&node(), 0, Position { epoch: Epoch(1), number: 1 }, &[("x".into(), Some(stamp(2)))], now);
    assert!(known && effects.is_empty());
    // The clients that asked have some time to lease the copy.
    assert_eq!(cache.due(), Some(now + GRACE));
    assert_eq!(cache.on_tick(now + GRACE), [Effect::Delete(name("x"))]);
    assert_eq!(cache.size(), (1, 0));
    assert!(asked(&cache.on_get(&name("x"), 3, now + LONG, now)).is_some());
}

#[test]
fn a_node_with_a_subscription_that_is_silent_is_asked_again() {
    let now = Instant::now();
    let mut cache = with_copy(now);
    // The node sends messages at intervals, even without names: none is lost.
    let mut at = now;
    for number in 1..=10 {
        at += HEARTBEAT;
        assert!(cache.on_tick(at).is_empty());
        assert!(cache.on_changed(&node(), 0, Position { epoch: Epoch(1), number }, &[], at).1.is_empty());
    }
    // The node is silent: the last message was lost, and so was every message that would have shown the gap.
    let (mut asks, start) = (Vec::new(), at);
    while at < start + SILENCE + HEARTBEAT {
        at += HEARTBEAT / 4;
        asks.extend(asked(&cache.on_tick(at)));
    }
    let [(fetch, have, wanted)] = asks[..] else { panic!("{asks:?}") };
    assert_eq!((have, wanted), (Some(stamp(1)), false));
    assert_eq!(cache.on_other(fetch, at), [Effect::Delete(name("x"))]);
    // No message of this node is expected any more.
    assert!((1..20).all(|n| cache.on_tick(at + n * HEARTBEAT).is_empty()));
}

#[test]
fn a_word_that_overtakes_its_answer_counts() {
    let now = Instant::now();
    let mut cache = with_copy(now);
    cache.on_changed(&node(), 0, Position { epoch: Epoch(1), number: 1 }, &[("x".into(), Some(stamp(2)))], now);
    cache.on_tick(now + GRACE);
    let (fetch, ..) = asked(&cache.on_get(&name("x"), 2, now + LONG, now)).unwrap();
    cache.on_changed(&node(), 0, Position { epoch: Epoch(1), number: 2 }, &[("x".into(), Some(stamp(3)))], now);
    assert_eq!(cache.on_value(fetch, stamp(2), version(2), 100, now), [here(2)]);
    assert!(cache.placed(&name("x")).unwrap().stale);
    assert_eq!(cache.on_tick(now + GRACE), [Effect::Delete(name("x"))]);
    // A message about a value that the cache knows already does not invalidate the copy.
    let (fetch, ..) = asked(&cache.on_get(&name("x"), 3, now + LONG, now)).unwrap();
    cache.on_changed(&node(), 0, Position { epoch: Epoch(1), number: 3 }, &[("x".into(), Some(stamp(4)))], now);
    cache.on_value(fetch, stamp(4), version(3), 100, now);
    assert!(!cache.placed(&name("x")).unwrap().stale);
}

#[test]
fn a_wait_is_answered_by_the_next_value_and_by_no_older_one() {
    let now = Instant::now();
    let mut cache = with_copy(now);
    assert!(cache.on_wait(&name("x"), version(1), 2, now + LONG, now).is_empty());
    let (_, effects) =
        cache.on_changed(&node(), 0, Position { epoch: Epoch(1), number: 1 }, &[("x".into(), Some(stamp(2)))], now);
    let (fetch, have, wanted) = asked(&effects).unwrap();
    assert_eq!((have, wanted), (Some(stamp(1)), true));
    // A false alarm: the client waits for the next invalidation message.
    assert!(cache.on_unchanged(fetch, now).is_empty());
    let (_, effects) =
        cache.on_changed(&node(), 0, Position { epoch: Epoch(1), number: 2 }, &[("x".into(), Some(stamp(2)))], now);
    let (fetch, ..) = asked(&effects).unwrap();
    assert_eq!(cache.on_value(fetch, stamp(2), version(2), 100, now), [here(2)]);
    // A client that has seen another value gets an answer at once.
    assert_eq!(cache.on_wait(&name("x"), Version::NONE, 3, now + LONG, now), [here(3)]);
    cache.on_wait(&name("x"), version(2), 4, now + Duration::from_secs(1), now);
    assert_eq!(cache.on_tick(now + Duration::from_secs(1)), [Effect::Answer(4, Verdict::Timeout)]);
}

#[test]
fn a_name_that_is_nothing_yet_is_waited_for_without_asking_again() {
    let now = Instant::now();
    let mut cache = Cache::new(1000, 100);
    cache.on_node_up(&node(), Epoch(1));
    let (fetch, ..) = asked(&cache.on_wait(&name("x"), Version::NONE, 1, now + LONG, now)).unwrap();
    assert!(cache.on_nothing(fetch, now).is_empty());
    assert!(cache.on_wait(&name("x"), Version::NONE, 2, now + LONG, now).is_empty());
    // A client that does not wait for a change gets an answer now.
    let (fetch, ..) = asked(&cache.on_get(&name("x"), 3, now + LONG, now)).unwrap();
    assert_eq!(cache.on_nothing(fetch, now), [Effect::Answer(3, Verdict::Nothing)]);
    let (_, effects) =
        cache.on_changed(&node(), 0, Position { epoch: Epoch(1), number: 1 }, &[("x".into(), Some(stamp(1)))], now);
    let (fetch, ..) = asked(&effects).unwrap();
    assert_eq!(cache.on_value(fetch, stamp(1), version(1), 100, now), [here(1), here(2)]);
}

#[test]
fn a_node_that_went_leaves_stale_copies_and_is_asked_when_it_is_back() {
    let now = Instant::now();
    let mut cache = with_copy(now);
    cache.on_node_down(&node());
    assert!(cache.placed(&name("x")).unwrap().stale);
    assert_eq!(cache.on_get(&name("x"), 2, now + LONG, now), [Effect::Answer(2, Verdict::Here { stale: true })]);
    assert_eq!(cache.on_get(&name("y"), 3, now + LONG, now), [Effect::Answer(3, Verdict::Unreachable)]);
    let (fetch, have, wanted) = asked(&cache.on_node_up(&node(), Epoch(1))).unwrap();
    assert_eq!((have, wanted), (Some(stamp(1)), false));
    assert!(cache.on_unchanged(fetch, now).is_empty());
    assert!(!cache.placed(&name("x")).unwrap().stale);
    // The node returns in another epoch, in which its old value has another stamp.
    cache.on_node_down(&node());
    let (fetch, ..) = asked(&cache.on_node_up(&node(), Epoch(2))).unwrap();
    assert!(!cache.is_wanted(fetch));
    let later = now + LONG;
    assert_eq!(cache.on_other(fetch, later), [Effect::Delete(name("x"))]);
}

#[test]
fn a_gap_in_the_numbers_revalidates_every_copy() {
    let now = Instant::now();
    let mut cache = with_copy(now);
    let (_, effects) = cache.on_changed(&node(), 0, Position { epoch: Epoch(1), number: 2 }, &[], now);
    assert_eq!(asked(&effects).map(|(_, have, wanted)| (have, wanted)), Some((Some(stamp(1)), false)));
    let (known, _) = cache.on_changed(&node(), 0, Position { epoch: Epoch(9), number: 1 }, &[], now);
    assert!(!known);
}

#[test]
fn many_copies_are_asked_for_a_few_at_a_time() {
    let now = Instant::now();
    let mut cache = Cache::new(u64::MAX, 10_000);
    cache.on_node_up(&node(), Epoch(1));
    for n in 0..1000 {
        let (fetch, ..) = asked(&cache.on_get(&name(&n.to_string()), n, now + LONG, now)).unwrap();
        cache.on_value(fetch, stamp(n + 1), version(n), 1, now);
    }
    cache.on_node_down(&node());
    let mut flying: Vec<Effect> = cache.on_node_up(&node(), Epoch(1));
    assert_eq!(flying.len(), REVALIDATED_AT_ONCE);
    let mut all = 0;
    while let Some(Effect::Ask { fetch, .. }) = flying.pop() {
        all += 1;
        flying.extend(cache.on_unchanged(fetch, now));
    }
    assert_eq!(all, 1000);
}

#[test]
fn the_oldest_copies_make_room() {
    let now = Instant::now();
    let mut cache = Cache::new(250, 10);
    cache.on_node_up(&node(), Epoch(1));
    for n in 0..20u64 {
        let at = now + GRACE * 2 * n as u32;
        let effects = cache.on_get(&name(&n.to_string()), n, at + LONG, at);
        let (fetch, ..) = asked(&effects).unwrap();
        cache.on_value(fetch, stamp(n + 1), version(n), 100, at);
        assert!(cache.size().0 <= 10 && cache.size().1 <= 250, "{:?}", cache.size());
    }
    assert!(cache.version(&name("19")).is_some() && cache.version(&name("17")).is_none());
}

/// A random event of the simulation.
#[derive(Clone, Debug)]
enum Step {
    /// The owner publishes, or deletes.
    Change {
        name: usize,
        delete: bool,
    },
    /// The owner's gateway detects the daemon's change.
    Notice,
    Get(usize),
    Wait(usize),
    /// A request in flight arrives and is answered; its response is then in flight.
    Arrive(usize),
    /// A response arrives.
    Land(usize),
    LoseQuestion(usize),
    Invalidation,
    LoseInvalidation,
    Part,
    Meet {
        again: bool,
    },
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3usize, prop::bool::weighted(0.2)).prop_map(|(name, delete)| Step::Change { name, delete }),
        4 => Just(Step::Notice),
        4 => (0..3usize).prop_map(Step::Get),
        2 => (0..3usize).prop_map(Step::Wait),
        6 => any::<usize>().prop_map(Step::Arrive),
        6 => any::<usize>().prop_map(Step::Land),
        1 => any::<usize>().prop_map(Step::LoseQuestion),
        4 => Just(Step::Invalidation),
        1 => Just(Step::LoseInvalidation),
        1 => Just(Step::Part),
        1 => prop::bool::weighted(0.3).prop_map(|again| Step::Meet { again }),
        4 => (0..3000u16).prop_map(Step::Pass),
    ]
}

enum Said {
    Value(Stamp, u64),
    Unchanged,
    Nothing,
}

/// One owner, one reader's gateway, and the messages in flight between them.
struct World {
    now: Instant,
    epoch: u64,
    together: bool,
    count: u64,
    /// The values of the owner's names, as stamps of its gateway.
    values: [Option<u64>; 3],
    unnoticed: Vec<usize>,
    subscriptions: Subscriptions,
    words: VecDeque<(u64, Invalidation)>,
    questions: Vec<(usize, Option<Stamp>, Fetch)>,
    answers: Vec<(usize, Fetch, Said)>,
    cache: Cache,
    directory: HashMap<String, (Version, Stamp)>,
    versions: u64,
    tickets: u64,
    verdicts: HashMap<Ticket, Verdict>,
}

const NAMES: [&str; 3] = ["x", "y", "z"];

impl World {
    fn new() -> Self {
        let mut world = Self {
            now: Instant::now(),
            epoch: 1,
            together: true,
            count: 0,
            values: [None; 3],
            unnoticed: Vec::new(),
            subscriptions: Subscriptions::new(Epoch(1), 2, 4),
            words: VecDeque::new(),
            questions: Vec::new(),
            answers: Vec::new(),
            cache: Cache::new(1000, 100),
            directory: HashMap::new(),
            versions: 0,
            tickets: 0,
            verdicts: HashMap::new(),
        };
        let effects = world.cache.on_node_up(&node(), Epoch(1));
        world.run(effects);
        world
    }

    fn asker() -> Asker {
        Asker { node: NodeName::new("a").unwrap(), epoch: Epoch(77) }
    }

    fn run(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Ask { name, have, fetch, .. } => {
                    let at = NAMES.iter().position(|n| *n == name.name).unwrap();
                    if self.together {
                        self.questions.push((at, have, fetch));
                    } else {
                        let effects = self.cache.on_failed(fetch, &Failure::Unreachable, self.now);
                        self.run(effects);
                    }
                }
                Effect::Answer(ticket, verdict) => {
                    assert!(self.verdicts.insert(ticket, verdict).is_none(), "answered twice");
                }
                Effect::Delete(name) => {
                    assert!(self.directory.remove(&name.name).is_some(), "deleted what was not there");
                }
            }
        }
    }

    fn say(&mut self, words: Vec<Invalidation>) {
        if self.together {
            let epoch = self.epoch;
            self.words.extend(words.into_iter().map(|word| (epoch, word)));
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Change { name, delete } => {
                self.count += 1;
                self.values[*name] = (!delete).then_some(self.count);
                self.unnoticed.push(*name);
            }
            Step::Notice => {
                let epoch = Epoch(self.epoch);
                let names: Vec<_> = std::mem::take(&mut self.unnoticed)
                    .into_iter()
                    .map(|at| (NAMES[at].to_owned(), self.values[at].map(|counter| Stamp { epoch, counter })))
                    .collect();
                let words = self.subscriptions.on_changed(0, &names);
                self.say(words);
            }
            Step::Get(at) => {
                self.tickets += 1;
                let effects = self.cache.on_get(&name(NAMES[*at]), self.tickets, self.now + LONG, self.now);
                self.run(effects);
            }
            Step::Wait(at) => {
                self.tickets += 1;
                let seen = self.directory.get(NAMES[*at]).map_or(Version::NONE, |(version, _)| *version);
                let until = self.now + Duration::from_secs(3);
                let effects = self.cache.on_wait(&name(NAMES[*at]), seen, self.tickets, until, self.now);
                self.run(effects);
            }
            Step::Arrive(pick) if !self.questions.is_empty() => {
                let (at, have, fetch) = self.questions.swap_remove(pick % self.questions.len());
                let stamp = self.values[at].map(|counter| Stamp { epoch: Epoch(self.epoch), counter });
                let made = self.subscriptions.subscribe(&Self::asker(), 0, NAMES[at], stamp);
                self.say(made.evicted.into_iter().collect());
                let said = match stamp {
                    None => Said::Nothing,
                    Some(stamp) if have == Some(stamp) => Said::Unchanged,
                    Some(stamp) => Said::Value(stamp, 10),
                };
                self.answers.push((at, fetch, said));
            }
            Step::Land(pick) if !self.answers.is_empty() => {
                let (at, fetch, said) = self.answers.swap_remove(pick % self.answers.len());
                let effects = match said {
                    Said::Nothing => self.cache.on_nothing(fetch, self.now),
                    Said::Unchanged => self.cache.on_unchanged(fetch, self.now),
                    Said::Value(..) if !self.cache.is_wanted(fetch) => self.cache.on_other(fetch, self.now),
                    Said::Value(stamp, bytes) => {
                        self.versions += 1;
                        let version = version(self.versions);
                        self.directory.insert(NAMES[at].to_owned(), (version, stamp));
                        self.cache.on_value(fetch, stamp, version, bytes, self.now)
                    }
                };
                self.run(effects);
            }
            Step::LoseQuestion(pick) if !self.questions.is_empty() => {
                let (_, _, fetch) = self.questions.swap_remove(pick % self.questions.len());
                let effects = self.cache.on_failed(fetch, &Failure::Unreachable, self.now);
                self.run(effects);
            }
            Step::Invalidation => {
                if let Some((epoch, word)) = self.words.pop_front() {
                    let position = Position { epoch: Epoch(epoch), number: word.changed.number };
                    let (_, effects) = self.cache.on_changed(&node(), 0, position, &word.changed.names, self.now);
                    self.run(effects);
                }
            }
            Step::LoseInvalidation => {
                self.words.pop_front();
            }
            Step::Part if self.together => {
                self.together = false;
                self.words.clear();
                self.subscriptions.on_node_down(&Self::asker().node);
                self.cache.on_node_down(&node());
                for (_, _, fetch) in std::mem::take(&mut self.questions) {
                    let effects = self.cache.on_failed(fetch, &Failure::Unreachable, self.now);
                    self.run(effects);
                }
            }
            Step::Meet { again } if !self.together => {
                self.together = true;
                if *again {
                    // The owner's gateway restarted.
                    self.epoch += 1;
                    self.subscriptions = Subscriptions::new(Epoch(self.epoch), 2, 4);
                }
                let words = self.subscriptions.on_node_up(&Self::asker().node, Self::asker().epoch);
                self.say(words);
                let effects = self.cache.on_node_up(&node(), Epoch(self.epoch));
                self.run(effects);
            }
            Step::Pass(ms) => {
                self.now += Duration::from_millis(u64::from(*ms));
                let words = self.subscriptions.on_tick(self.now);
                self.say(words);
                let effects = self.cache.on_tick(self.now);
                self.run(effects);
            }
            _ => {}
        }
    }

    /// All messages in flight arrive, and nothing else happens.
    fn quieten(&mut self) {
        self.step(&Step::Meet { again: false });
        for _ in 0..6 {
            self.step(&Step::Pass(2500));
            self.step(&Step::Notice);
            for _ in 0..100 {
                self.step(&Step::Arrive(0));
                self.step(&Step::Land(0));
                self.step(&Step::Invalidation);
            }
        }
        // The cache deletes the copies that it found invalid at the end.
        self.now += GRACE;
        let effects = self.cache.on_tick(self.now);
        self.run(effects);
        assert!(self.questions.is_empty() && self.answers.is_empty() && self.words.is_empty());
    }

    fn check(&mut self) {
        for (at, known) in NAMES.iter().enumerate() {
            let current = self.values[at].map(|counter| Stamp { epoch: Epoch(self.epoch), counter });
            // A reader finds this value without a request to the owner's node.
            if let Some((_, stamp)) = self.directory.get(*known) {
                assert_eq!(Some(*stamp), current, "{known} is old");
            }
            self.step(&Step::Get(at));
            let ticket = self.tickets;
            self.step(&Step::Arrive(0));
            self.step(&Step::Land(0));
            let found = self.directory.get(*known).map(|(_, stamp)| *stamp);
            assert_eq!(found, current);
            let wanted = if current.is_some() { Verdict::Here { stale: false } } else { Verdict::Nothing };
            assert_eq!(self.verdicts.get(&ticket), Some(&wanted));
        }
        assert_eq!(self.cache.size().1, 10 * self.directory.len() as u64);
        self.cache.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn whoever_asks_after_all_is_quiet_gets_what_the_owner_has(steps in prop::collection::vec(step(), 0..120)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.quieten();
        world.check();
        // Every client got an answer.
        for ticket in 1..=world.tickets {
            prop_assert!(world.verdicts.contains_key(&ticket), "{ticket} was not answered");
        }
    }
}
