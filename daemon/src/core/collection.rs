//! The look through a frozen client's memory: which of its segments names, streams and leases lead to. It goes on in slices:
//! see [`super::chores`].
//!
//! Nobody writes a frozen client's cells, rings and records any more, and only the daemon moves homes. While a survey is
//! under way, a home can cease to lead to a value of the client's, which the next survey sees; the daemon's own rename of
//! such a name is the only way in which one can come to, and [`super::members::Members::surveyed`] adds that one. So when the names and
//! streams have been gone through, no home or ring leads to a segment that was not found, and none ever will. Only then,
//! behind a fence, the lease tables are read, one after another: a lease on such a segment that is valid was stored before
//! the fence, and stands in its table until its reader lets go; a client that joins later has none.

use super::chores::{ENTRIES_STEP, LOOK, RELEASE, REMOVAL, SCAN};
use super::client::survey::{Stage, Survey};
use super::client::{Client, Life};
use super::env::{Env, Timer};
use super::members::LEASES_PAUSE_NS;
use super::namespace::Namespace;
use tensorlend_layout::leases::scan_fence;
use tensorlend_layout::word::Home;

const LEASES_PAUSE_NS_MAX: u64 = 30_000_000_000;

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
                        self.segments.free_segment(
                            env,
                            &mut self.context,
                            &mut self.members,
                            &mut self.devices,
                            catalogue,
                            base,
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
