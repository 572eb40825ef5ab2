//! The look through a frozen client's memory: which of its segments names, streams and leases lead to. It goes on in slices:
//! see [`super::chores`].
//!
//! Nobody writes a frozen client's cells, rings and records any more, and only the daemon moves homes. While a survey is
//! under way, a home can cease to lead to a value of the client's, which the next survey sees; the daemon's own rename of
//! such a name is the only way in which one can come to, and [`Namespace::surveyed`] adds that one. So when the names and
//! streams have been gone through, no home or ring leads to a segment that was not found, and none ever will. Only then,
//! behind a fence, the lease tables are read, one after another: a lease on such a segment that is valid was stored before
//! the fence, and stands in its table until its reader lets go; a client that joins later has none.

use super::chores::{Chore, ENTRIES_STEP, LOOK, RELEASE, REMOVAL, SCAN};
use super::client::{Client, Life};
use super::context::Context;
use super::env::{Env, Timer};
use super::members::Members;
use super::namespace::Namespace;
use std::collections::BTreeMap;
use tensorlend_layout::leases::scan_fence;
use tensorlend_layout::word::{Cell, Home, SLOT_NONE};

const LEASES_PAUSE_NS_MAX: u64 = 30_000_000_000;
pub const LEASES_PAUSE_NS: u64 = 1_000_000_000;

/// The segments that chains of slots lie in. The records are allegations: a chain ends where it leaves the client's segments
/// or comes back to itself, and where its first record is of another life.
#[derive(Debug, Default)]
pub struct Reach {
    /// By first slot number, a bit for each slot that a chain has come through.
    segments: BTreeMap<u32, Box<[u64]>>,
    /// The chain at hand: its next slot, and the generation that the slot's record must have, if it is the first.
    chain: Option<(u32, Option<u64>)>,
}

impl Reach {
    /// Begins with the chain of a slot, of this generation if one is given.
    pub fn begin(&mut self, slot: u32, generation: Option<u64>) {
        self.chain = Some((slot, generation));
    }

    /// Goes on with the chain as long as `goes_on`; whether it has come to its end.
    pub fn follow(&mut self, client: &Client, mut goes_on: impl FnMut() -> bool) -> bool {
        while let Some((slot, generation)) = self.chain {
            if !goes_on() {
                return false;
            }
            self.chain = None;
            if slot == SLOT_NONE {
                break;
            }
            let Some((base, words)) = client.slot(slot) else { break };
            let slots = 1usize << client.segments[&base].slots_log2;
            let seen = self.segments.entry(base).or_insert_with(|| vec![0; slots.div_ceil(64)].into());
            let another_life = generation.is_some_and(|g| g != Cell(words[0]).generation());
            let (word, bit) = ((slot - base) as usize / 64, 1 << ((slot - base) % 64));
            if another_life || seen[word] & bit != 0 {
                break;
            }
            seen[word] |= bit;
            self.chain = Some((words[2] as u32 & SLOT_NONE, None));
        }
        true
    }

    /// Whether a chain lies in this segment.
    pub fn has(&self, base: u32) -> bool {
        self.segments.contains_key(&base)
    }

    /// The first slot numbers of the segments.
    pub fn bases(&self) -> impl Iterator<Item = u32> + '_ {
        self.segments.keys().copied()
    }
}

#[derive(Debug)]
enum Stage {
    /// Entries of names, from this one on.
    Names(u32),
    /// Streams from this place on; of that one, if it has this id, entries of its ring from this one on.
    Streams { place: u32, id: u64, entry: usize },
    /// Lease tables, of the clients from this number on.
    Leases(u16),
    /// Segments that nothing leads to, from this first slot number on.
    Free(u32),
}

/// How far the look through a client's memory has come.
#[derive(Debug)]
pub struct Survey {
    stage: Stage,
    /// Where names and streams lead.
    named: Reach,
    /// Where leases lead.
    held: Reach,
    /// Names that were renamed meanwhile, and leased slots of the table that was read last: chains to follow.
    roots: Vec<(u32, Option<u64>)>,
    /// Whether it has streams, or names with values.
    in_use: bool,
    leased: bool,
}

impl Survey {
    /// At its beginning.
    pub fn new() -> Self {
        Self {
            stage: Stage::Names(0),
            named: Reach::default(),
            held: Reach::default(),
            roots: Vec::new(),
            in_use: false,
            leased: false,
        }
    }

    fn is_at_names(&self) -> bool {
        matches!(self.stage, Stage::Names(_) | Stage::Streams { .. })
    }

    /// Follows the chains that are known to be there; whether all of them have come to their ends.
    fn follow(&mut self, env: &mut Env, client: &Client) -> bool {
        let reach = if self.is_at_names() { &mut self.named } else { &mut self.held };
        loop {
            if !reach.follow(client, || env.chores.spend(1)) {
                return false;
            }
            let Some((slot, generation)) = self.roots.pop() else { return true };
            reach.begin(slot, generation);
        }
    }

    fn is_unused(&self, base: u32) -> bool {
        !self.named.has(base) && !self.held.has(base)
    }
}

impl Members {
    /// Has a frozen client's memory looked through: buries the names that it deleted, frees the segments that nothing leads
    /// to, and drops it altogether when nothing is left.
    pub fn collect(&mut self, env: &mut Env, context: &Context, catalogue: u16) {
        let id = context.ledger.id();
        let Some(Client { life: Life::Frozen { due_ns, survey, .. }, .. }) = self.get_mut(catalogue) else {
            return;
        };
        if survey.is_none() {
            *due_ns = None;
            *survey = Some(Box::new(Survey::new()));
            env.take_on(id, Chore::Survey(catalogue));
        } else {
            // What has happened since may be behind the place that it has come to.
            *due_ns = Some(env.now_ns);
        }
    }

    /// A home has come to lead to a cell of a client that is gone.
    pub fn surveyed(&mut self, catalogue: u16, cell: u32) {
        let Some(client) = self.get_mut(catalogue) else { return };
        let value = client.value(cell).filter(|value| value.is_value());
        if let (Some(value), Life::Frozen { survey: Some(survey), .. }) = (value, &mut client.life) {
            survey.in_use = true;
            if survey.is_at_names() {
                survey.roots.push((value.slot(), Some(value.generation())));
            }
        }
    }
}

impl Namespace {
    /// Goes on with a survey; whether there is more to do.
    pub fn survey(&mut self, env: &mut Env, catalogue: u16) -> bool {
        let Some(Client { life: Life::Frozen { survey, .. }, .. }) = self.members.get_mut(catalogue) else {
            return false;
        };
        let Some(mut survey) = survey.take() else { return false };
        let done = self.go_on_with(env, catalogue, &mut survey);
        if done {
            self.finish(env, catalogue, &survey);
        } else if let Life::Frozen { survey: place, .. } = &mut self.members.me(catalogue).life {
            *place = Some(survey);
        }
        !done
    }

    fn go_on_with(&mut self, env: &mut Env, catalogue: u16, survey: &mut Survey) -> bool {
        loop {
            if !survey.follow(env, &self.members[catalogue]) {
                return false;
            }
            let more = match survey.stage {
                Stage::Names(next) => self.survey_names(env, catalogue, survey, next),
                Stage::Streams { place, id, entry } => self.survey_stream(env, catalogue, survey, (place, id, entry)),
                Stage::Leases(next) => self.survey_leases(env, catalogue, survey, next),
                Stage::Free(next) => {
                    let mut bases = self.members[catalogue].segments.range(next..).map(|(&base, _)| base);
                    let Some(base) = bases.find(|&base| survey.is_unused(base)) else { return true };
                    survey.stage = Stage::Free(base);
                    let may = env.chores.spend(RELEASE);
                    if may {
                        self.free_segment(env, catalogue, base, true);
                    }
                    may
                }
            };
            if !more {
                return false;
            }
        }
    }

    /// Each of these goes on a little; false: this step may not.
    fn survey_names(&mut self, env: &mut Env, catalogue: u16, survey: &mut Survey, next: u32) -> bool {
        let entries = self.bindings.names().owned_from(catalogue, next, ENTRIES_STEP);
        if entries.is_empty() {
            survey.stage = Stage::Streams { place: 0, id: 0, entry: 0 };
        }
        for entry in entries {
            if !env.chores.spend(LOOK) {
                return false;
            }
            survey.stage = Stage::Names(entry + 1);
            let home = Home(self.context.directory.names[entry as usize].home.peek());
            let client = &self.members[catalogue];
            let value = client.value(home.cell()).filter(|cell| cell.is_value());
            let named = value.filter(|cell| client.segment_of(cell.slot()).is_some_and(|(_, it)| !it.is_lost()));
            let Some(value) = named else {
                // Deleted by its owner, never rightly filled, or lost; nothing of it can be in flight any more.
                env.chores.spend(REMOVAL);
                self.bindings.remove(env, &mut self.context, &mut self.members, entry, false);
                continue;
            };
            survey.in_use = true;
            survey.named.begin(value.slot(), Some(value.generation()));
            if !survey.follow(env, &self.members[catalogue]) {
                return false;
            }
        }
        true
    }

    fn survey_stream(
        &mut self,
        env: &mut Env,
        catalogue: u16,
        survey: &mut Survey,
        (place, id, entry): (u32, u64, usize),
    ) -> bool {
        if !env.chores.spend(1) {
            return false;
        }
        let Some((at, stream)) = self.streams.of_producer_from(catalogue, place) else {
            survey.stage = Stage::Leases(0);
            tensorlend_layout::crash_point!("daemon: memory looked through");
            // The news (a home moved, an owner's word that a slot is dead) was stored before: whoever leased a slot by the
            // old route either is seen from here on or sees the news.
            scan_fence();
            return true;
        };
        survey.in_use = true;
        let from = if (at, stream) == (place, id) { entry } else { 0 };
        let (end, value) = self.streams.value_from(at, from);
        // An entry without a value costs next to nothing, but a ring has many.
        env.chores.spend(((end - from) / 16) as u32);
        match value {
            Some(value) => {
                survey.stage = Stage::Streams { place: at, id: stream, entry: end };
                survey.named.begin(value.slot(), Some(value.generation()));
            }
            None => survey.stage = Stage::Streams { place: at + 1, id: 0, entry: 0 },
        }
        true
    }

    fn survey_leases(&mut self, env: &mut Env, catalogue: u16, survey: &mut Survey, next: u16) -> bool {
        let Some((number, reader)) = self.members.first_from(next) else {
            survey.stage = Stage::Free(0);
            return true;
        };
        let table = reader.lease_table();
        if !env.chores.spend(if table.is_some() { SCAN } else { 1 }) {
            return false;
        }
        if let Some(table) = table {
            table.scan(|lease| {
                if lease.catalogue() == catalogue {
                    survey.roots.push((lease.slot(), None));
                }
            });
        }
        survey.leased |= !survey.roots.is_empty();
        survey.stage = if number == u16::MAX { Stage::Free(0) } else { Stage::Leases(number + 1) };
        true
    }

    /// Everything was looked at, and what nothing leads to is freed.
    fn finish(&mut self, env: &mut Env, catalogue: u16, survey: &Survey) {
        if !survey.in_use && !survey.leased {
            self.drop_client(env, catalogue);
            return;
        }
        let lease_held = survey.held.bases().any(|base| !survey.named.has(base)) || !survey.in_use;
        let (id, now_ns) = (self.context.ledger.id(), env.now_ns);
        let Life::Frozen { lease_held: before, pause_ns, due_ns, .. } = &mut self.members.me(catalogue).life else {
            return;
        };
        *pause_ns = if *before { (*pause_ns * 2).min(LEASES_PAUSE_NS_MAX) } else { LEASES_PAUSE_NS };
        *before = lease_held;
        let next = lease_held.then_some(now_ns + *pause_ns);
        // Something may have happened since it began.
        *due_ns = [next, *due_ns].into_iter().flatten().min();
        if let Some(at) = *due_ns {
            env.set_timer(at.saturating_sub(now_ns).max(1), Timer::Collect(id, catalogue));
        }
    }
}
