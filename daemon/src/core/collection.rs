//! The survey of a frozen client's memory: the segments of the client that are reachable from
//! names, streams and leases. A survey runs in slices: see [`super::chores`].
//!
//! Let C be a frozen client. No process writes the cells, rings and records of C any more, and only
//! daemon D moves owner words. During a survey of C, an owner word may stop leading to a value of
//! C. The next survey detects this change. An owner word can start leading to a value of C only if
//! D itself renames a name of C. Then [`super::members::Members::surveyed`] adds the value.
//!
//! So after D has visited the names and streams, D knows every segment that an owner word or ring
//! leads to, now and in future. Only then, after a fence, D reads the lease tables one after
//! another. A reader R with a valid lease on another segment stored this lease before the fence.
//! The lease stays in R's table until R drops the lease. A client that joins later has no such
//! lease.

use super::chores::{ENTRIES_STEP, READ, RELEASE, REMOVAL, SCAN};
use super::client::survey::{Stage, StreamPosition, Survey};
use super::client::{Client, ClientState};
use super::clock::Timer;
use super::env::Env;
use super::members::LEASES_PAUSE_NS;
use super::namespace::Namespace;
use super::parts::Parts;
use super::range::SegmentId;
use tensorlend_layout::leases::{LeaseTable, scan_fence};
use tensorlend_layout::number::{ClientNo, EntryNo, SlotNo};
use tensorlend_layout::size;
use tensorlend_layout::word::OwnerWord;

const LEASES_PAUSE_NS_MAX: u64 = 30_000_000_000;

impl Namespace {
    /// Continues a survey. Returns true if there is more to do.
    pub fn survey(&mut self, env: &mut Env, owner: ClientNo) -> bool {
        let Some(Client { state: ClientState::Frozen { survey, .. }, .. }) = self.members.get_mut(owner) else {
            return false;
        };
        let Some(mut survey) = survey.take() else { return false };
        let done = self.advance_survey(env, owner, &mut survey);
        if done {
            self.finish(env, owner, &survey);
        } else if let ClientState::Frozen { survey: before, .. } = &mut self.members.me(owner).state {
            *before = Some(survey);
        }
        !done
    }

    fn advance_survey(&mut self, env: &mut Env, owner: ClientNo, survey: &mut Survey) -> bool {
        loop {
            if !survey.follow(env, &self.members[owner]) {
                return false;
            }
            let more = match survey.stage {
                Stage::Names(next) => self.survey_names(env, owner, survey, next),
                Stage::Streams(position) => self.survey_stream(env, owner, survey, position),
                Stage::Leases(next) => self.survey_leases(env, owner, survey, next),
                Stage::Free(next) => {
                    let mut bases = self.members[owner].segments.range(next..).map(|(&base, _)| base);
                    let Some(base) = bases.find(|&base| survey.is_unused(base)) else { return true };
                    survey.stage = Stage::Free(base);
                    let may = env.chores.spend(RELEASE);
                    if may {
                        self.segments.free_segment(
                            &mut Parts { env, context: &mut self.context, members: &mut self.members },
                            &mut self.devices,
                            SegmentId { owner, base },
                            true,
                        );
                    }
                    may
                }
            };
            if !more {
                return false;
            }
        }
    }

    /// Continues the stage that reads names. Returns false if the step has spent its units.
    fn survey_names(&mut self, env: &mut Env, owner: ClientNo, survey: &mut Survey, next: EntryNo) -> bool {
        let entries = self.bindings.names().owned().of_from(owner, next, ENTRIES_STEP);
        if entries.is_empty() {
            survey.stage = Stage::Streams(StreamPosition::default());
        }
        for entry in entries {
            if !env.chores.spend(READ) {
                return false;
            }
            survey.stage = Stage::Names(entry + 1);
            let owner_word = OwnerWord(self.context.directory.names[entry.index()].owner_word.peek());
            let client = &self.members[owner];
            let value = client.value(owner_word.cell()).filter(|cell| cell.is_value());
            let named = value.filter(|cell| client.has_bytes_of(cell.slot()));
            let Some(value) = named else {
                // The owner deleted the value or filled the slot incorrectly, or the bytes are
                // lost. No operation on the value can be in progress.
                env.chores.spend(REMOVAL);
                self.bindings.remove(
                    &mut Parts { env, context: &mut self.context, members: &mut self.members },
                    entry,
                    false,
                );
                continue;
            };
            survey.in_use = true;
            survey.named.begin(value.slot(), Some(value.generation()));
            if !survey.follow(env, &self.members[owner]) {
                return false;
            }
        }
        true
    }

    fn survey_stream(&mut self, env: &mut Env, owner: ClientNo, survey: &mut Survey, position: StreamPosition) -> bool {
        if !env.chores.spend(1) {
            return false;
        }
        let Some((at, stream)) = self.streams.of_producer_from(owner, position.line) else {
            survey.stage = Stage::Leases(ClientNo::default());
            tensorlend_layout::crash_point!("daemon: memory looked through");
            // A change was stored before this fence: an owner word moved, or an owner marked a slot
            // as dead. Consider a reader R that leased a slot by the old route. Either daemon D
            // sees the lease from here on, or R sees the change.
            scan_fence();
            return true;
        };
        survey.in_use = true;
        let from = if (at, stream) == (position.line, position.id) { position.entry } else { 0 };
        let (end, value) = self.streams.value_from(at, from);
        // An entry without a value costs little, but a ring has many entries.
        env.chores.spend(size::count((end - from) / 16));
        match value {
            Some(value) => {
                survey.stage = Stage::Streams(StreamPosition { line: at, id: stream, entry: end });
                survey.named.begin(value.slot(), Some(value.generation()));
            }
            None => survey.stage = Stage::Streams(StreamPosition::after(at)),
        }
        true
    }

    fn survey_leases(&mut self, env: &mut Env, owner: ClientNo, survey: &mut Survey, next: ClientNo) -> bool {
        let Some((number, reader)) = self.members.first_from(next) else {
            survey.stage = Stage::Free(SlotNo::new(0));
            return true;
        };
        let table = reader.lease_table();
        if !env.chores.spend(if table.is_some() { SCAN } else { 1 }) {
            return false;
        }
        if let Some(table) = table {
            LeaseTable::scan_view(table, |lease| {
                if lease.owner() == owner {
                    survey.roots.push((lease.slot(), None));
                }
            });
        }
        survey.leased |= !survey.roots.is_empty();
        survey.stage = number.next().map_or(Stage::Free(SlotNo::new(0)), Stage::Leases);
        true
    }

    /// Ends a survey. Frees the segments to which no name, stream or lease leads.
    fn finish(&mut self, env: &mut Env, owner: ClientNo, survey: &Survey) {
        if !survey.in_use && !survey.leased {
            self.drop_client(env, owner);
            return;
        }
        let lease_held = survey.held.bases().any(|base| !survey.named.has(base)) || !survey.in_use;
        let (id, now_ns) = (self.context.ledger.id(), env.clock.now_ns());
        let ClientState::Frozen { lease_held: before, pause_ns, due_ns, .. } = &mut self.members.me(owner).state else {
            return;
        };
        *pause_ns = if *before { (*pause_ns * 2).min(LEASES_PAUSE_NS_MAX) } else { LEASES_PAUSE_NS };
        *before = lease_held;
        let next = lease_held.then_some(now_ns + *pause_ns);
        // A change during the survey may have set an earlier due time.
        *due_ns = [next, *due_ns].into_iter().flatten().min();
        if let Some(at) = *due_ns {
            env.clock.set_timer(at.saturating_sub(now_ns).max(1), Timer::Collect(id, owner));
        }
    }
}
