//! Values that only leases retain. No name, stream or announcement leads to such a value any more,
//! but a reader still reads it.
//!
//! The daemon does not scan while memory is plentiful. When a limit of bytes has refused a request
//! (`Core::signal_pressure`), the daemon scans the lease tables, and repeats the scan for some
//! time. After a lease has retained a value for a second, the value's bytes count for the lease's
//! holder, not for the owner. If the configuration limits that time (`uid.lease_ms_max`), the
//! daemon ends the session of a client that retains a value for longer.
//!
//! Daemon D relies on the owner P for two facts: that P replaced the value, and the value's length.
//! P may lie. D bounds the length by P's segments. D charges a reader R only if R's lease lasts
//! longer than a second, and revokes only leases that do not end in time. A reader whose leases end
//! in time is safe, because no reader can lease a replaced value again.

use super::account::Moved;
use super::chores::Chore;
use super::client::Client;
use super::clock::Timer;
use super::context::Context;
use super::counters::Counter;
use super::env::Env;
use super::members::Members;
use super::parts::Parts;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::size::bytes_text;
use tensorlend_layout::word::LeaseWord;

mod scan;

use scan::Scan;

/// Time after which the bytes of a retained value count for the lease's holder.
const STANDING_NS: u64 = 1_000_000_000;
/// Pause between two scans, unless leases must be revoked sooner.
const SCAN_PAUSE_NS: u64 = 500_000_000;
/// Minimum pause between two scans.
const SCAN_PAUSE_NS_MIN: u64 = 25_000_000;
/// Time after the last refusal for which scans continue.
const PRESSED_NS: u64 = 10_000_000_000;

/// A value that only leases retain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retained {
    /// The reader's number.
    pub holder: ClientNo,
    pub owner: ClientNo,
    pub lease: LeaseWord,
    /// Bytes that become free when the lease ends, if no other lease retains them.
    pub bytes: u64,
    /// Time at which the daemon first found that the lease retains the value.
    pub since_ns: u64,
}

/// A namespace's data about its leases while memory is short.
#[derive(Debug, Default)]
pub struct Pressure {
    /// Time of the last refusal. `None` while the daemon does not scan.
    pressed_ns: Option<u64>,
    /// Whether a limit has refused a request since the daemon last ended a session for its leases.
    short: bool,
    scanned_ns: Option<u64>,
    scan: Option<Box<Scan>>,
    retained: Vec<Retained>,
}

impl Pressure {
    /// Records that a request was refused for lack of memory.
    pub fn signal_pressure(&mut self, env: &mut Env, context: &Context) {
        let armed = self.pressed_ns.replace(env.clock.now_ns()).is_some();
        self.short = true;
        if self.scanned_ns.is_none_or(|at| env.clock.now_ns() >= at + SCAN_PAUSE_NS_MIN) {
            self.begin_scan(env, context);
        }
        if !armed {
            env.clock.set_timer(scan_pause_ns(env), Timer::Leases(context.ledger.id()));
        }
    }

    /// Begins a scan, unless one is in progress.
    fn begin_scan(&mut self, env: &mut Env, context: &Context) {
        self.scanned_ns = Some(env.clock.now_ns());
        if self.scan.is_none() {
            self.scan = Some(Box::new(Scan::new(&self.retained)));
            env.chores.take_on(&mut env.clock, context.ledger.id(), Chore::Leases);
        }
    }

    /// Handles the timer of the scans.
    pub fn leases_due(&mut self, env: &mut Env, context: &Context) {
        let Some(pressed_ns) = self.pressed_ns else { return };
        let lasts_ns = PRESSED_NS.max(env.settings.lease_ns_max.unwrap_or(0).saturating_mul(3));
        if env.clock.now_ns() - pressed_ns > lasts_ns {
            // The moved charges return to the values' owners. Without scans, the moved charges
            // would soon be wrong.
            *self = Pressure::default();
            return;
        }
        self.begin_scan(env, context);
        env.clock.set_timer(scan_pause_ns(env), Timer::Leases(context.ledger.id()));
    }

    /// Ends one session: among the sessions that retain a value for too long, the one that retains
    /// most. The daemon then ends another session only if a limit refuses a further request.
    fn revoke(&mut self, parts: &mut Parts<'_>) {
        let Some(most_ns) = parts.env.settings.lease_ns_max.filter(|_| self.short) else { return };
        let mut holders: BTreeMap<ClientNo, (u64, u64)> = BTreeMap::new();
        // Of the clients without a connection, only those with reading children have leases that
        // can end now.
        let live =
            |value: &&Retained| parts.members.get(value.holder).is_some_and(|it| it.is_live() || it.awaits_children());
        for value in self.retained.iter().filter(live) {
            let age_ns = parts.env.clock.now_ns() - value.since_ns;
            if age_ns >= most_ns && value.bytes > 0 {
                let (bytes, oldest_ns) = holders.entry(value.holder).or_default();
                *bytes = bytes.saturating_add(value.bytes);
                *oldest_ns = age_ns.max(*oldest_ns);
            }
        }
        let Some((&holder, &(bytes, age_ns))) = holders.iter().max_by_key(|(_, held)| **held) else { return };
        self.short = false;
        parts.env.counters.count(Counter::SessionsRevoked);
        let why = format!(
            "memory is short, and its leases have kept {} that were replaced for {} ms: uid.lease_ms_max is {}",
            bytes_text(bytes),
            age_ns / 1_000_000,
            most_ns / 1_000_000
        );
        if !parts.members.abandon_children(parts.env, parts.context, holder) {
            parts.members.me(holder).is_revoked = true;
            parts.members.fault(holder, why);
        }
    }

    /// Adds the bytes that leases move between the accounts of different users.
    pub fn add_moved(&self, members: &Members, now_ns: u64, moved: &mut BTreeMap<u32, Moved>) {
        let (mut keeps, mut kept) = (BTreeSet::new(), BTreeSet::new());
        for it in self.retained.iter().filter(|k| now_ns - k.since_ns >= STANDING_NS) {
            let (Some(holder), Some(owner)) = (members.get(it.holder), members.get(it.owner)) else {
                continue;
            };
            if holder.uid == owner.uid {
                continue;
            }
            // Each value counts once for each holder's user, and once for its owner's user.
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
    pub fn leases_of_uid(&self, uid: u32) -> u64 {
        let mut count = 0;
        for table in self.values().filter(|c| c.uid == uid).filter_map(Client::lease_table) {
            LeaseTable::scan_view(table, |_| count += 1);
        }
        count
    }
}

impl Pressure {
    /// Returns the bytes that only leases of `uid` retain, as of the last scan.
    pub fn retained_by_uid(&self, members: &Members, uid: u32) -> u64 {
        let its = |k: &&Retained| members.get(k.holder).is_some_and(|c| c.uid == uid);
        self.retained.iter().filter(its).map(|k| k.bytes).fold(0, u64::saturating_add)
    }
}

fn scan_pause_ns(env: &Env) -> u64 {
    let sooner = env.settings.lease_ns_max.map_or(SCAN_PAUSE_NS, |ns| ns / 4);
    sooner.clamp(SCAN_PAUSE_NS_MIN, SCAN_PAUSE_NS)
}
