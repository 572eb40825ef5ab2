//! A reload of the configuration. New limits apply to later requests. Existing loans and sessions
//! survive. A namespace keeps the sizes of its tables while it is open. It also keeps its rule for
//! shares of names, because the daemon never withdraws grants of announcements.

use super::Core;
use crate::core::context::Context;
use crate::core::env::Env;
use crate::core::namespace::Namespace;
use crate::core::segment::Segments;
use crate::core::settings::{NamespaceLimits, Settings};

impl Core {
    pub(super) fn reload(&mut self, new: Settings) {
        let env = &mut self.env;
        env.settings.reload(new);
        env.accounts.reload(&env.settings);
        env.spills.note_spillable();
        let Settings { pool_bytes_max, spare_segments, idle_bytes_max, .. } = env.settings;
        for mem in env.pool.reload(pool_bytes_max, spare_segments, idle_bytes_max) {
            env.release(mem);
        }
        for opening in &mut self.opening {
            let Some(limits) = env.settings.configured(opening.ledger.name()) else { continue };
            opening.ledger.set_owners(&env.settings.owners);
            let setting = setting_of(opening.ledger.name());
            opening.ledger.rebound(&mut env.accounts, setting, limits);
        }
        for namespace in self.namespaces.values_mut() {
            namespace.context.ledger.set_owners(&env.settings.owners);
            namespace.reload(env);
            Segments::announce_spill(env, &namespace.context.directory);
        }
    }
}

impl Namespace {
    fn reload(&mut self, env: &mut Env) {
        let Context { ledger, directory } = &mut self.context;
        let Some(limits) = env.settings.configured(ledger.name()) else {
            tracing::info!(namespace = ledger.name(), "no longer configured: no new client may join");
            return;
        };
        // The configuration may not have contained this namespace of the previous daemon until now.
        let setting = setting_of(ledger.name());
        ledger.rebound(&mut env.accounts, setting, limits);
        let known = ledger.limits();
        directory.head().bytes_max.set(known.bytes_max);
        let kept = [
            ("names_max", known.names_max, limits.names_max),
            ("members_max", known.members_max, limits.members_max),
            ("lists_max", known.lists_max, limits.lists_max),
            ("streams_max", known.streams_max, limits.streams_max),
            ("segments_max", known.segments_max, limits.segments_max),
        ];
        for (option, is, wanted) in kept.into_iter().filter(|(_, is, wanted)| is != wanted) {
            let namespace = ledger.name();
            tracing::info!(namespace, option, "stays {is} until the namespace is created again, then {wanted}");
        }
    }
}

/// Returns true for the name of a private namespace. No shared namespace may have such a name.
fn is_private(name: &str) -> bool {
    name.starts_with("uid:")
}

/// Returns the section of the configuration with the limits of a namespace.
fn setting_of(name: &str) -> String {
    if is_private(name) { "namespace_default".into() } else { format!("namespace.{name}") }
}

impl Settings {
    /// Returns the configured limits of a namespace. Returns `None` if the configuration does not
    /// contain the namespace.
    fn configured(&self, name: &str) -> Option<NamespaceLimits> {
        if is_private(name) {
            return Some(self.private);
        }
        self.namespaces.get(name).map(|rule| rule.limits)
    }
}
