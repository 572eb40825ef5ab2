//! The end of streams that no client uses.
//!
//! A stream is *idle* when it has no subscribers and its producer has closed it or has ended. An
//! idle stream stays readable for late subscribers during a grace period. Then the daemon retires
//! the stream like a deleted one. If a new stream needs an entry or a share, the daemon retires an
//! idle stream at once. The daemon begins with the stream that has been idle longest.

use super::{StreamId, Streams};
use crate::core::bindings::Bindings;
use crate::core::chores::{PAUSE_NS, RELEASE};
use crate::core::clock::Timer;
use crate::core::context::Context;
use crate::core::env::Env;
use crate::core::members::Members;
use crate::core::outcome::Outcome;
use crate::core::parts::Parts;
use tensorlend_layout::number::{ClientNo, StreamLine};
use tensorlend_layout::wire::Reply;

/// Maximum number of streams that one turn retires. The daemon serves other requests between turns.
const TURN_MAX: usize = 64;
/// Pause between two checks while clients may still read the previous daemon's directory.
const GATHERING_PAUSE_NS: u64 = 100_000_000;

impl Streams {
    /// Updates the idle times of all streams like [`Streams::update_idle_time`].
    pub fn update_idle_times(&mut self, env: &Env, members: &Members) {
        for line in self.table.keys().copied().collect::<Vec<_>>() {
            self.update_idle_time(env, members, line);
        }
    }

    /// Handles a producer's report that it has closed a stream. The ring's word `closed` is
    /// authoritative.
    pub fn stream_closed(&mut self, parts: &Parts<'_>, producer: ClientNo, StreamId { line, id }: StreamId) -> Outcome {
        if self.table.get(&line).is_some_and(|s| s.producer == producer && s.id == id) {
            self.update_idle_time(parts.env, parts.members, line);
        }
        Outcome::Reply(Reply::Done)
    }

    /// Retires the stream that has been idle longest. If a user is given, considers only this
    /// user's streams. Returns true if a stream was retired.
    pub(super) fn retire_oldest(&mut self, parts: &mut Parts<'_>, bindings: &mut Bindings, uid: Option<u32>) -> bool {
        let owner = |uid: Option<u32>| uid.map(|uid| parts.context.ledger.owner_of(uid));
        let of_uid =
            |line: &StreamLine| uid.is_none() || owner(uid) == owner(parts.members.uid_of(self.table[line].producer));
        let Some(line) = self.idle.iter().map(|&(_, _, line)| line).find(of_uid) else { return false };
        self.retire(parts, bindings, line, "its line is needed");
        true
    }

    fn retire(&mut self, parts: &mut Parts<'_>, bindings: &mut Bindings, line: StreamLine, why: &str) {
        tracing::debug!(
            namespace = parts.context.ledger.name(),
            stream = self.table[&line].name,
            "stream retired: {why}"
        );
        self.stream_remove(parts, bindings, line);
    }

    /// Handles the timer of the streams.
    pub fn streams_due(&mut self, parts: &mut Parts<'_>, bindings: &mut Bindings, at: u64) {
        if self.armed_ns.is_some_and(|armed| armed <= at) {
            self.armed_ns = None;
        }
        // A client that still reads the previous daemon's directory would not notice that an entry
        // has another stream.
        if parts.env.is_gathering() {
            return;
        }
        for _ in 0..TURN_MAX {
            if !parts.env.chores.spend(0) {
                return;
            }
            let Some(&(since, _, line)) = self.idle.first() else { return };
            if since.saturating_add(parts.env.settings.stream_grace_ns) > parts.env.clock.now_ns() {
                return;
            }
            // The daemon reads the producer's word `closed` again. A producer that has reset the
            // word keeps its stream.
            self.update_idle_time(parts.env, parts.members, line);
            if self.table[&line].idle_since_ns.is_some() {
                parts.env.chores.spend(RELEASE);
                self.retire(parts, bindings, line, "it has had neither producer nor subscribers for streams.grace_ms");
            }
        }
    }

    /// Sets the timer for the end of the next idle stream.
    pub fn arm_streams(&mut self, env: &mut Env, context: &Context) {
        let Some(&(since, ..)) = self.idle.first() else { return };
        let due = since.saturating_add(env.settings.stream_grace_ns);
        let pause_ns =
            due.saturating_sub(env.clock.now_ns()).max(if env.is_gathering() { GATHERING_PAUSE_NS } else { PAUSE_NS });
        let at = env.clock.now_ns().saturating_add(pause_ns);
        if self.armed_ns.is_none_or(|armed| armed > at) {
            self.armed_ns = Some(at);
            env.clock.set_timer(pause_ns, Timer::Streams(context.ledger.id()));
        }
    }
}
