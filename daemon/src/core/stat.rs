//! Metrics of the daemon.

use super::account::NamespaceId;
use super::counters::Counter;
use super::device::Device;
use super::env::Env;
use super::namespace::Namespace;
use super::orphans::FormerWriter;
use super::settings::Mode;
use std::collections::BTreeMap;
use tensorlend_layout::size;
use tensorlend_layout::wire::{Holder, NamespaceUse, Stat, UidUse};

/// Maximum number of accounts in one response. A response must fit into a packet.
const ACCOUNTS_MAX: usize = 128;
/// Maximum number of sessions in one response.
const HOLDERS_MAX: usize = 64;

/// Collects the metrics over all namespaces. The metrics are only numbers, so no namespace learns a
/// name of another one. The response contains the accounts of `asker`, which is a uid in a
/// namespace. For the superuser, the response contains all accounts.
pub fn stat(env: &Env, namespaces: &BTreeMap<NamespaceId, Namespace>, asker: Option<(u32, NamespaceId)>) -> Stat {
    let mut stat = Stat {
        version: tensorlend_layout::versions::build().into(),
        pid: env.settings.pid,
        uptime_ns: env.clock.uptime_ns(),
        mode: match env.settings.mode {
            Mode::System => "system".into(),
            Mode::User => "user".into(),
        },
        pool_bytes_max: env.pool.bytes_max(),
        pool_bytes: env.pool.bytes(),
        bytes_in_use: env.pool.lent_bytes(),
        bytes_spare: env.pool.spare_bytes(),
        bytes_sheets: env.accounts.sheet_bytes(),
        requests: env.counters.number_of(Counter::Requests),
        wakeups: env.counters.number_of(Counter::Wakeups),
        refusals: env.counters.refusals(),
        names_expired: env.counters.number_of(Counter::NamesExpired),
        names_ephemeral_gone: env.counters.number_of(Counter::NamesEphemeralGone),
        sessions_revoked: env.counters.number_of(Counter::SessionsRevoked),
        bytes_spilled: env.spills.bytes(),
        spill_failures: env.spills.failures,
        device: if env.devices.len() == 0 { env.settings.no_device.clone() } else { String::new() },
        devices: env.devices.iter().map(Device::usage).collect(),
        ..Stat::default()
    };
    for namespace in namespaces.values() {
        stat.names += namespace.bindings.names().live();
        for client in namespace.members.values() {
            stat.segments += size::count(client.segments.len());
            if client.is_live() {
                stat.clients += 1;
            } else {
                stat.frozen += 1;
            }
        }
    }
    if let Some((uid, namespace)) = asker {
        let uids = env.accounts.users().uids().filter(|&it| uid == 0 || it == uid).take(ACCOUNTS_MAX);
        stat.uids = uids.map(|uid| uid_use(env, namespaces, uid)).collect();
        let told = namespaces.values().filter(|it| uid == 0 || it.context.ledger.id() == namespace).take(ACCOUNTS_MAX);
        stat.namespaces = told.map(|namespace| namespace_use(env, namespace)).collect();
        stat.holders = holders(env, namespaces, uid);
    }
    stat
}

/// Returns the sessions to which the daemon had lent memory that is orphaned now. The sessions with
/// the most bytes come first.
fn holders(env: &Env, namespaces: &BTreeMap<NamespaceId, Namespace>, asker: u32) -> Vec<Holder> {
    let writers = env.orphans.former_writers(|uid| asker == 0 || asker == uid);
    let mut holders: Vec<Holder> = writers
        .into_iter()
        .map(|((namespace, FormerWriter { uid, client, pid }), (pieces, bytes))| {
            let its = namespaces.get(&namespace).and_then(|it| it.members.get(client));
            let connected = its.is_some_and(|it| it.is_live() && (it.uid, it.pid) == (uid, pid));
            Holder { uid, client, pid, connected, pieces, bytes }
        })
        .collect();
    holders.sort_unstable_by_key(|it| (std::cmp::Reverse(it.bytes), it.pid, it.client));
    holders.truncate(HOLDERS_MAX);
    holders
}

fn uid_use(env: &Env, namespaces: &BTreeMap<NamespaceId, Namespace>, uid: u32) -> UidUse {
    let held = env.accounts.users().held_by(uid);
    let (bytes_max, descriptors_max) = env.accounts.most(uid);
    let (sessions, sessions_max) = env.accounts.sessions(uid);
    UidUse {
        uid,
        bytes: held.bytes(),
        bytes_max,
        bytes_kept_by_leases: namespaces
            .values()
            .map(|n| n.pressure.retained_by_uid(&n.members, uid))
            .fold(0, u64::saturating_add),
        bytes_returned_and_held: env.orphans.bytes_of(uid),
        device_bytes: held.device_bytes,
        segments: held.segments,
        descriptors: held.descriptors,
        descriptors_max,
        sessions,
        sessions_max,
        names: namespaces.values().map(|n| n.bindings.names_of_uid(&n.members, uid)).sum(),
        leases: namespaces.values().map(|n| n.members.leases_of_uid(uid)).sum(),
    }
}

/// Returns the usage and the limits of a namespace.
pub fn namespace_use(env: &Env, namespace: &Namespace) -> NamespaceUse {
    let (ledger, limits) = (&namespace.context.ledger, namespace.context.ledger.limits());
    let held = env.accounts.held_in(ledger.id());
    NamespaceUse {
        name: ledger.name().to_owned(),
        bytes: held.bytes(),
        bytes_max: limits.bytes_max,
        device_bytes: held.device_bytes,
        segments: held.segments,
        segments_max: limits.segments_max,
        descriptors: held.descriptors,
        names: namespace.bindings.names().live(),
        names_max: limits.names_max,
        clients: size::count(namespace.members.len()),
        clients_max: limits.members_max,
    }
}
