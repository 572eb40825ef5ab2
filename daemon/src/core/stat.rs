//! Figures of the daemon.

use super::env::Env;
use super::namespace::Namespace;
use super::settings::Mode;
use tensorlend_layout::wire::Stat;

/// Gathers the figures over all namespaces: numbers only, so that no namespace learns a name of another.
pub fn stat<'n>(env: &Env, namespaces: impl Iterator<Item = &'n Namespace>) -> Stat {
    let mut stat = Stat {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: env.settings.pid,
        uptime_ns: env.now_ns - env.started_ns,
        mode: match env.settings.mode {
            Mode::System => "system".into(),
            Mode::User => "user".into(),
        },
        pool_bytes_max: env.pool.bytes_max(),
        pool_bytes: env.pool.bytes(),
        bytes_in_use: env.pool.lent_bytes(),
        bytes_spare: env.pool.spare_bytes(),
        bytes_sheets: env.accounts.sheet_bytes(),
        requests: env.requests,
        wakeups: env.wakeups,
        refusals: env.refusals,
        names_expired: env.names_expired,
        names_ephemeral_gone: env.names_ephemeral_gone,
        device: "this daemon lends host memory only".into(),
        ..Stat::default()
    };
    for namespace in namespaces {
        stat.names += namespace.names.live();
        for client in namespace.clients.values() {
            stat.segments += client.segments.len() as u32;
            if client.is_live() {
                stat.clients += 1;
            } else {
                stat.frozen += 1;
            }
        }
    }
    stat
}
