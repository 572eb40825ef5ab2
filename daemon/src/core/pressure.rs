//! What leases keep: values that no name, stream or announcement leads to any more, and that somebody still reads.
//!
//! Nobody looks while there is memory enough. When a limit of bytes has refused somebody (`Core::signal_pressure`), the lease tables
//! are looked through, and again at times while that is not long ago. What has been kept for a second then counts as its
//! holder's, not its owner's; and where the configuration says so (`uid.lease_ms_max`), who has kept something for longer
//! than that is ended.
//!
//! Whether a value is replaced, and how long it is, is what its owner says: an allegation, of which no more than the owner's
//! segments is believed. A lease that ends within a second is never charged, and one that ends in time never revoked, whatever
//! the owner says: a value that was replaced cannot be leased again.

use super::account::{Moved, bytes_text};
use super::chores::Chore;
use super::client::Client;
use super::context::Context;
use super::env::{Env, Timer};
use super::members::Members;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::word::LeaseWord;

mod look;

use look::Look;

/// What is kept for so long counts as its holder's.
const STANDING_NS: u64 = 1_000_000_000;
/// Between two looks, unless leases are to be revoked sooner.
const LOOK_PAUSE_NS: u64 = 500_000_000;
/// No look comes sooner after another.
const LOOK_PAUSE_NS_MIN: u64 = 25_000_000;
/// How long after the last refusal somebody still looks.
const PRESSED_NS: u64 = 10_000_000_000;

/// A value that nothing but leases keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retained {
    /// Who reads it.
    pub holder: u16,
    /// Whose it is.
    pub owner: u16,
    /// The lease.
    pub lease: LeaseWord,
    /// Bytes that come back when it ends, if no other keeps them.
    pub bytes: u64,
    /// Since when it is known to be kept.
    pub since_ns: u64,
}

/// What a namespace knows of its leases while memory is short.
#[derive(Debug, Default)]
pub struct Pressure {
    /// When somebody was refused last; `None`: nobody looks.
    pressed_ns: Option<u64>,
    /// Somebody was refused since a session was ended for its leases.
    short: bool,
    looked_ns: Option<u64>,
    /// How far the look that is under way has come.
    look: Option<Box<Look>>,
    retained: Vec<Retained>,
}

impl Pressure {
    /// Somebody was refused for want of memory.
    pub fn signal_pressure(&mut self, env: &mut Env, context: &Context) {
        let armed = self.pressed_ns.replace(env.now_ns).is_some();
        self.short = true;
        if self.looked_ns.is_none_or(|at| env.now_ns >= at + LOOK_PAUSE_NS_MIN) {
            self.begin_look(env, context);
        }
        if !armed {
            env.set_timer(look_pause_ns(env), Timer::Leases(context.ledger.id()));
        }
    }

    /// Begins a look, unless one is under way.
    fn begin_look(&mut self, env: &mut Env, context: &Context) {
        self.looked_ns = Some(env.now_ns);
        if self.look.is_none() {
            self.look = Some(Box::new(Look::new(&self.retained)));
            env.take_on(context.ledger.id(), Chore::Leases);
        }
    }

    /// The timer has come.
    pub fn leases_due(&mut self, env: &mut Env, context: &Context) {
        let Some(pressed_ns) = self.pressed_ns else { return };
        let lasts_ns = PRESSED_NS.max(env.settings.lease_ns_max.unwrap_or(0).saturating_mul(3));
        if env.now_ns - pressed_ns > lasts_ns {
            // What was moved between accounts goes back: it would be wrong before long.
            *self = Pressure::default();
            return;
        }
        self.begin_look(env, context);
        env.set_timer(look_pause_ns(env), Timer::Leases(context.ledger.id()));
    }

    /// Ends the session that keeps most, of those that keep something for too long: one for each time that memory was
    /// short.
    fn revoke(&mut self, env: &mut Env, members: &mut Members) {
        let Some(most_ns) = env.settings.lease_ns_max.filter(|_| self.short) else { return };
        let mut holders: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
        // Who departs has no session that could be ended any more.
        let live = |value: &&Retained| members.get(value.holder).is_some_and(Client::is_live);
        for value in self.retained.iter().filter(live) {
            let age_ns = env.now_ns - value.since_ns;
            if age_ns >= most_ns && value.bytes > 0 {
                let (bytes, oldest_ns) = holders.entry(value.holder).or_default();
                *bytes = bytes.saturating_add(value.bytes);
                *oldest_ns = age_ns.max(*oldest_ns);
            }
        }
        let Some((&holder, &(bytes, age_ns))) = holders.iter().max_by_key(|(_, held)| **held) else { return };
        self.short = false;
        env.sessions_revoked += 1;
        let why = format!(
            "memory is short, and its leases have kept {} that were replaced for {} ms: uid.lease_ms_max is {}",
            bytes_text(bytes),
            age_ns / 1_000_000,
            most_ns / 1_000_000
        );
        members.fault(holder, why);
    }

    /// Adds what leases move between the accounts of different users here.
    pub fn add_moved(&self, members: &Members, now_ns: u64, moved: &mut BTreeMap<u32, Moved>) {
        let (mut keeps, mut kept) = (BTreeSet::new(), BTreeSet::new());
        for it in self.retained.iter().filter(|k| now_ns - k.since_ns >= STANDING_NS) {
            let (Some(holder), Some(owner)) = (members.get(it.holder), members.get(it.owner)) else {
                continue;
            };
            if holder.uid == owner.uid {
                continue;
            }
            // Once for each user, however many of his clients hold it; once for its owner, however many users do.
            if keeps.insert((holder.uid, it.lease.0)) {
                moved.entry(holder.uid).or_default().keeps += it.bytes;
            }
            if kept.insert(it.lease.0) {
                moved.entry(owner.uid).or_default().kept += it.bytes;
            }
        }
    }
}

impl Members {
    /// Leases that the clients of `uid` hold.
    pub fn leases_of_uid(&self, uid: u32) -> u64 {
        let mut count = 0;
        for table in self.values().filter(|c| c.uid == uid).filter_map(Client::lease_table) {
            table.scan(|_| count += 1);
        }
        count
    }
}

impl Pressure {
    /// Bytes that nothing but leases of `uid` keeps, as far as somebody has looked.
    pub fn retained_by_uid(&self, members: &Members, uid: u32) -> u64 {
        let its = |k: &&Retained| members.get(k.holder).is_some_and(|c| c.uid == uid);
        self.retained.iter().filter(its).map(|k| k.bytes).fold(0, u64::saturating_add)
    }
}

fn look_pause_ns(env: &Env) -> u64 {
    let sooner = env.settings.lease_ns_max.map_or(LOOK_PAUSE_NS, |ns| ns / 4);
    sooner.clamp(LOOK_PAUSE_NS_MIN, LOOK_PAUSE_NS)
}
