//! A limit on the rate of log lines that clients cause, for each kind of line and each uid. A
//! summary line reports the number of suppressed lines.
//!
//! A client can connect, break a rule and be disconnected as often as it wants. Each time, the
//! daemon writes a log line. Without a limit, one client could fill the disk, and hide the lines
//! about other clients.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Maximum number of lines of one kind and uid in a burst.
const BURST: u32 = 200;
/// Interval at which one more line of a kind and uid is allowed.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Interval between two summary lines.
const SUMMARY_EVERY: Duration = Duration::from_secs(10);
/// Number of buckets (one for each kind and uid) above which full buckets are dropped.
const BUCKETS_MAX: usize = 1024;
/// The field that marks summary lines.
const LEFT_OUT: &str = "left_out";

/// A kind of line: the logging statement in the program, and the uid in the line, if the line has
/// one.
type Kind = (Identifier, Option<u64>);

#[derive(Debug)]
struct Bucket {
    /// Number of lines that may still be written, multiplied by [`LINE_EVERY`].
    budget: Duration,
    /// The time at which `budget` was last updated.
    at: Instant,
    left_out: u64,
    summary_at: Instant,
    /// The last line that was written. The summary quotes it.
    example: String,
}

/// A line that reports the number of suppressed lines.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    uid: Option<u64>,
    left_out: u64,
    example: String,
}

#[derive(Debug, Default)]
struct Buckets(HashMap<Kind, Bucket>);

impl Buckets {
    /// Takes a line from the bucket of `kind`. Returns false if the line must be suppressed.
    fn admit(&mut self, kind: Kind, now: Instant, line: &str) -> bool {
        if self.0.len() >= BUCKETS_MAX && !self.0.contains_key(&kind) {
            self.0.retain(|_, it| it.left_out > 0 || it.budget + (now - it.at) < LINE_EVERY * BURST);
        }
        let full = LINE_EVERY * BURST;
        let fresh = || Bucket { budget: full, at: now, left_out: 0, summary_at: now, example: String::new() };
        let bucket = self.0.entry(kind).or_insert_with(fresh);
        bucket.budget = full.min(bucket.budget + now.saturating_duration_since(bucket.at));
        bucket.at = now;
        if let Some(rest) = bucket.budget.checked_sub(LINE_EVERY) {
            bucket.budget = rest;
            line.clone_into(&mut bucket.example);
            return true;
        }
        if bucket.left_out == 0 {
            bucket.summary_at = now + SUMMARY_EVERY;
        }
        bucket.left_out += 1;
        false
    }

    /// Returns the summaries that are due. Returns all summaries if `now` is `None`.
    fn due(&mut self, now: Option<Instant>) -> Vec<Summary> {
        let due = |it: &Bucket| it.left_out > 0 && now.is_none_or(|now| it.summary_at <= now);
        let due = self.0.iter_mut().filter(|(_, it)| due(it));
        let tell = |(&(_, uid), it): (&Kind, &mut Bucket)| {
            it.summary_at += SUMMARY_EVERY;
            Summary { uid, left_out: std::mem::take(&mut it.left_out), example: it.example.clone() }
        };
        due.map(tell).collect()
    }
}

/// Limits the rate of a log's lines.
#[derive(Clone, Debug, Default)]
pub struct Floods(Arc<Mutex<Buckets>>);

impl Floods {
    fn buckets(&self) -> MutexGuard<'_, Buckets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the counts of suppressed lines that are not written yet.
    pub fn tell_all(&self) {
        tell(self.buckets().due(None));
    }
}

fn tell(summaries: Vec<Summary>) {
    for Summary { uid, left_out, example } in summaries {
        tracing::warn!(left_out, uid, "{left_out} lines of this kind were left out: {example}");
    }
}

impl<S: Subscriber> Layer<S> for Floods {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // Only the levels INFO and WARN are limited. Lines of the level ERROR are rare, because clients
        // do not cause them. A user who enables the debug levels wants every line.
        let is_bounded = matches!(*metadata.level(), Level::INFO | Level::WARN);
        if !is_bounded || metadata.fields().field(LEFT_OUT).is_some() {
            return true;
        }
        let mut found = Found::default();
        event.record(&mut found);
        let now = Instant::now();
        let (admitted, due) = {
            let mut buckets = self.buckets();
            (buckets.admit((metadata.callsite(), found.uid), now, &found.message), buckets.due(Some(now)))
        };
        tell(due);
        admitted
    }
}

/// The fields of a line that this module reads.
#[derive(Default)]
struct Found {
    uid: Option<u64>,
    message: String,
}

impl Visit for Found {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "uid" {
            self.uid = Some(value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Callsite;
    use tracing::callsite::DefaultCallsite;
    use tracing::field::FieldSet;
    use tracing::metadata::Kind as Of;

    static SITE: DefaultCallsite = DefaultCallsite::new(&META);
    static META: tracing::Metadata<'static> = tracing::Metadata::new(
        "a line",
        "test",
        Level::WARN,
        None,
        None,
        None,
        FieldSet::new(&["message"], tracing::callsite::Identifier(&SITE)),
        Of::EVENT,
    );

    #[test]
    fn a_uid_has_so_many_lines_and_the_rest_is_counted() {
        let (mut buckets, start) = (Buckets::default(), Instant::now());
        let site = SITE.metadata().callsite();
        let mut say = |uid, at| buckets.admit((site.clone(), Some(uid)), start + at, "line");
        let mut written = 0;
        for number in 0..100_000 {
            written += u32::from(say(1, LINE_EVERY * number / 1000));
        }
        // 100 seconds with a thousand lines each.
        assert_eq!(written, BURST + 99);
        // Another uid has its own budget, and a silent uid regains its own.
        assert!(say(2, Duration::ZERO) && say(1, LINE_EVERY * 200));
        let mut due = buckets.due(None);
        due.retain(|it| it.uid == Some(1));
        assert_eq!(due, [Summary { uid: Some(1), left_out: u64::from(100_000 - written), example: "line".to_owned() }]);
        assert_eq!(buckets.due(None), [], "once");
    }
}
