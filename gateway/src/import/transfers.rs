//! Values on their way here: asked for in ranges, copied into drafts by workers.

use super::transfer::{Range, Rules, Standing, Transfer};
use crate::hub::Hub;
use crate::key::{Key, Kind};
use crate::settings::Settings;
use crate::transport::{Body, Frame, Trouble};
use crate::value::Incoming;
use crate::wire::{AboutName, Chunk, Descriptor, NameAnswer, NameQuestion, NodeName, Stamp, decode, encode};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tensorlend::{Client, ValueDraft};

/// How often one range may come damaged.
const DAMAGED_MAX: u32 = 3;
/// How often those are looked at to which nothing happens.
const LOOK: Duration = Duration::from_millis(5);

/// A value of so many bytes, all of them here, is written by the hub itself.
const SMALL_BYTES: u64 = 64 << 10;
/// If it has no more tensors than this.
const SMALL_TENSORS: usize = 16;

/// What is fetched.
#[derive(Clone, Debug)]
pub struct Source {
    /// In which namespace.
    pub space: usize,
    /// Of whom.
    pub node: NodeName,
    /// What it is there.
    pub kind: Kind,
    /// What it is called there.
    pub name: String,
    /// Which value.
    pub stamp: Stamp,
}

/// What came of it.
#[expect(clippy::large_enum_variant, reason = "handed over once, and never kept")]
pub enum Outcome {
    /// All of it is here, to be published.
    Complete(ValueDraft),
    /// It is not kept there any more.
    Superseded,
    /// No answers for too long.
    Unreachable,
    /// It cannot be had, in words.
    Refused(String),
}

type Done = Box<dyn FnOnce(&mut Hub, Instant, Outcome) + Send>;
/// Drafts, while they are written. `None`: they are done, or given up.
type Place = Arc<Mutex<Option<Incoming>>>;

/// Why there are no drafts.
struct NoPlace {
    why: String,
    /// The other side has sent what cannot be.
    lie: bool,
}

struct Running {
    source: Source,
    client: Client,
    machine: Transfer,
    place: Place,
    /// The drafts are there.
    ready: bool,
    /// Something was asked for: the other side keeps the value.
    asked: bool,
    done: Done,
}

/// All that is on its way.
pub struct Transfers {
    rules: Rules,
    running: BTreeMap<u64, Running>,
    numbers: u64,
    /// When all were looked at.
    looked: Instant,
    /// All that may be on its way is: what comes back is somebody's who waits.
    starved: bool,
}

impl Transfers {
    /// None.
    pub fn new(settings: &Settings) -> Self {
        let rules = Rules {
            chunk_bytes: settings.chunk_bytes,
            window_bytes: settings.window_bytes,
            patience: settings.patience,
            damaged_max: DAMAGED_MAX,
        };
        Self { rules, running: BTreeMap::new(), numbers: 0, looked: Instant::now(), starved: false }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// A node is there: what it was asked for goes on at once.
    pub fn on_came(&mut self, node: &NodeName, now: Instant) {
        for running in self.running.values_mut().filter(|running| running.source.node == *node) {
            running.machine.on_way(now);
        }
    }

    /// When there is something to do by the clock.
    pub fn due(&self) -> Option<Instant> {
        // Back-off is short, and counted in ticks of this.
        (!self.running.is_empty()).then(|| Instant::now() + Duration::from_millis(20))
    }
}

impl Hub {
    /// Fetches a value into drafts of a client; `first`: bytes of it that are here already.
    pub fn fetch(
        &mut self,
        client: Client,
        source: Source,
        descriptor: Arc<Descriptor>,
        first: Option<(Chunk, Body)>,
        done: impl FnOnce(&mut Hub, Instant, Outcome) + Send + 'static,
    ) {
        let transfers = &mut self.transfers;
        transfers.numbers += 1;
        let number = transfers.numbers;
        let total = descriptor.bytes();
        let here = first.as_ref().map_or(0, |(chunk, _)| u64::from(chunk.bytes));
        // Not of what has no bytes: many such items of a list would end each other by their ends.
        let few = descriptor.shape.tensors().take(SMALL_TENSORS + 1).count() <= SMALL_TENSORS;
        let is_small = first.is_some() && here == total && total <= SMALL_BYTES && few;
        let place = Place::default();
        let machine = Transfer::new(transfers.rules, total, here, Instant::now());
        let running = Running {
            source,
            client: client.clone(),
            machine,
            place: place.clone(),
            ready: false,
            asked: false,
            done: Box::new(done),
        };
        transfers.running.insert(number, running);
        let make = move || {
            let incoming = Incoming::new(&client, descriptor);
            let mut incoming = incoming.map_err(|error| NoPlace { why: error.to_string(), lie: false })?;
            if let Some((chunk, body)) = first {
                let received = incoming.receive(&chunk, &body);
                received.map_err(|bad| NoPlace { why: bad.to_string(), lie: true })?;
            }
            *lock(&place) = Some(incoming);
            Ok(())
        };
        if is_small {
            // All of it is here: to hand it over, and to be told, would take longer than to copy it.
            return self.on_place(number, make(), Instant::now());
        }
        // Memory for a large value takes the daemon a while.
        let post = self.context.post.clone();
        let started = self.context.copiers.run(move || {
            let made = make();
            post.run(move |hub, now| hub.on_place(number, made, now));
        });
        if !started {
            let why = NoPlace { why: "too much to do".into(), lie: false };
            self.context.post.run(move |hub, now| hub.on_place(number, Err(why), now));
        }
    }

    fn on_place(&mut self, number: u64, made: Result<(), NoPlace>, now: Instant) {
        let Some(running) = self.transfers.running.get_mut(&number) else { return };
        match made {
            Ok(()) => {
                running.ready = true;
                self.go_on(number, now);
            }
            Err(NoPlace { why, lie }) => {
                if lie {
                    self.context.drop_message(running.source.node.as_str(), &why);
                }
                self.end_transfer(number, now, Outcome::Refused(why));
            }
        }
    }

    /// Looks how a transfer stands, and asks for more.
    fn go_on(&mut self, number: u64, now: Instant) {
        let transfers = &mut self.transfers;
        let Some(running) = transfers.running.get_mut(&number).filter(|running| running.ready) else { return };
        match running.machine.standing(now) {
            Standing::Going => {}
            Standing::Complete => {
                let incoming = lock(&running.place).take();
                let client = running.client.clone();
                let outcome = match incoming.map(|incoming| incoming.finish(&client)) {
                    Some(Ok(draft)) => Outcome::Complete(draft),
                    Some(Err(error)) => Outcome::Refused(error.to_string()),
                    None => Outcome::Refused("the drafts are gone".into()),
                };
                return self.end_transfer(number, now, outcome);
            }
            Standing::Stuck => return self.end_transfer(number, now, Outcome::Unreachable),
            Standing::Damaged => {
                let why = "its bytes came damaged again and again".into();
                return self.end_transfer(number, now, Outcome::Refused(why));
            }
        }
        let ranges = running.machine.fill(now, &mut self.budget.of(&running.source.node));
        transfers.starved |= running.machine.is_held_up();
        running.asked |= !ranges.is_empty();
        let source = running.source.clone();
        for range in ranges {
            let settings = &self.context.settings;
            let what = NameQuestion::Read {
                stamp: source.stamp,
                offset: range.offset,
                bytes: range.bytes,
                codecs: settings.packing.codecs(),
                checksum: settings.checksum,
            };
            let timeout = settings.answer_timeout;
            self.ask_about(&source, what, Body::default(), timeout, move |hub, now, answer| {
                hub.on_range(number, range, answer, now);
            });
        }
    }

    /// Asks about a name, list or stream of another node, by the questions of names; what is offered may come along.
    pub fn ask_about(
        &self,
        source: &Source,
        what: NameQuestion,
        body: Body,
        timeout: Duration,
        done: impl FnOnce(&mut Hub, Instant, Result<Frame, Trouble>) + Send + 'static,
    ) {
        let space = self.context.settings.spaces[source.space].name.clone();
        let key = Key::About { node: source.node.clone(), kind: source.kind, space, name: Some(source.name.clone()) };
        let about = AboutName { asker: self.context.asker.clone(), what };
        self.context.ask(key, Frame { head: encode(&about), body }, timeout, done);
    }

    fn on_range(&mut self, number: u64, range: Range, answer: Result<Frame, Trouble>, now: Instant) {
        let Hub { transfers, context, budget, .. } = self;
        let Some(running) = transfers.running.get_mut(&number) else { return };
        let share = &mut budget.of(&running.source.node);
        let Ok(frame) = answer else {
            context.statistics.troubles += 1;
            return running.machine.on_trouble(range, now, share);
        };
        let node = running.source.node.clone();
        match decode::<NameAnswer>(&frame.head) {
            Ok(NameAnswer::Bytes(chunk)) if chunk.offset == range.offset && chunk.bytes == range.bytes => {
                if !running.machine.on_bytes(range, now) {
                    return;
                }
                let (place, post) = (running.place.clone(), context.post.clone());
                let copied = context.copiers.run(move || {
                    let received = lock(&place).as_mut().map(|incoming| incoming.receive(&chunk, &frame.body));
                    if let Some(received) = received {
                        post.run(move |hub, now| hub.on_landed(number, range, received.err(), now));
                    }
                });
                if !copied {
                    running.machine.on_landed(range, false, now, share);
                }
                self.go_on(number, now);
            }
            Ok(NameAnswer::Superseded(_) | NameAnswer::Nothing) => self.end_transfer(number, now, Outcome::Superseded),
            Ok(NameAnswer::Refused(why)) => self.end_transfer(number, now, Outcome::Refused(why)),
            other => {
                let why = other.map_or_else(|bad| bad.to_string(), |_| "not an answer to what was asked".to_owned());
                context.drop_message(node.as_str(), &why);
                if running.machine.on_bytes(range, now) {
                    running.machine.on_landed(range, false, now, share);
                }
                self.go_on(number, now);
            }
        }
    }

    fn on_landed(&mut self, number: u64, range: Range, bad: Option<crate::wire::BadChunk>, now: Instant) {
        let Hub { transfers, context, budget, .. } = self;
        let Some(running) = transfers.running.get_mut(&number) else { return };
        if let Some(why) = &bad {
            context.statistics.damaged += 1;
            context.drop_message(running.source.node.as_str(), why);
        }
        running.machine.on_landed(range, bad.is_none(), now, &mut budget.of(&running.source.node));
        self.go_on(number, now);
    }

    fn end_transfer(&mut self, number: u64, now: Instant, outcome: Outcome) {
        let Some(mut running) = self.transfers.running.remove(&number) else { return };
        running.machine.end(&mut self.budget.of(&running.source.node));
        *lock(&running.place) = None;
        if running.asked {
            // So that it need not be kept there any longer; nobody waits for the answer.
            let timeout = self.context.settings.answer_timeout;
            let what = NameQuestion::Done { stamp: running.source.stamp };
            self.ask_about(&running.source, what, Body::default(), timeout, |_, _, _| {});
        }
        (running.done)(self, now, outcome);
    }

    /// Time passes.
    pub fn transfers_tick(&mut self, now: Instant) {
        // Each event that concerns one has it go on; the others have waited for the clock, or for what this one has given back.
        let waits = now.saturating_duration_since(self.transfers.looked) < LOOK && !self.transfers.starved;
        if waits {
            return;
        }
        (self.transfers.looked, self.transfers.starved) = (now, false);
        let numbers: Vec<u64> = self.transfers.running.keys().copied().collect();
        for number in numbers {
            self.go_on(number, now);
        }
    }
}

fn lock(place: &Mutex<Option<Incoming>>) -> std::sync::MutexGuard<'_, Option<Incoming>> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Transfers {
    fn drop(&mut self) {
        for running in self.running.values() {
            *lock(&running.place) = None;
        }
    }
}
