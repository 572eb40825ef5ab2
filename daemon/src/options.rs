//! The differences between two configurations, and the time from which a running daemon applies
//! each changed option.

use crate::config::{
    Bytes, Config, CudaConfig, LimitsConfig, NamespaceConfig, PoolConfig, SpillConfig, StreamsConfig, UidConfig,
};
use std::collections::BTreeMap;
use std::fmt::{self, Debug};

/// The time from which a changed option applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Takes {
    /// The change applies immediately, for all later requests and connections.
    Now,
    /// The change applies to namespaces created from now on, because the directory of an existing
    /// namespace has a fixed size.
    NewNamespace,
    /// The change applies from the next start of the daemon.
    Restart,
}

/// A changed option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The option's full key.
    pub option: String,
    /// The time from which the change applies.
    pub takes: Takes,
    /// The old value. `None` if the option had its default, or its section was missing.
    pub before: Option<String>,
    /// The new value. `None` if the option has its default, or its section is missing.
    pub after: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "the default".into());
        write!(f, "{}: {} instead of {}", self.option, text(&self.after), text(&self.before))
    }
}

/// Returns the differences of two configurations.
pub fn changes(before: &Config, after: &Config) -> Vec<Change> {
    let (mut before, after) = (options(before), options(after));
    let mut found = Vec::new();
    for (option, (takes, value)) in after {
        let was = before.remove(&option).and_then(|(_, value)| value);
        if was != value {
            found.push(Change { option, takes, before: was, after: value });
        }
    }
    let gone = before.into_iter().filter(|(_, (_, value))| value.is_some());
    found.extend(gone.map(|(option, (takes, before))| Change { option, takes, before, after: None }));
    found
}

/// Returns the part of `wanted` that a running daemon can apply. Options that need a restart have
/// their values from `running`.
pub fn without_restart(wanted: Config, running: &Config) -> Config {
    let now = running.clone();
    Config {
        socket: now.socket,
        socket_mode: now.socket_mode,
        fd_store: now.fd_store,
        mode: now.mode,
        idle_exit_s: now.idle_exit_s,
        pool: PoolConfig {
            segment_bytes: now.pool.segment_bytes,
            huge_pages: now.pool.huge_pages,
            numa: now.pool.numa,
            ..wanted.pool
        },
        cuda: CudaConfig { quarantine_ms: wanted.cuda.quarantine_ms, ..now.cuda },
        spill: now.spill,
        ..wanted
    }
}

type Options = BTreeMap<String, (Takes, Option<String>)>;

/// Returns all options. The code destructures each structure without `..`, so the compiler rejects
/// this function if it omits an option.
fn options(config: &Config) -> Options {
    let Config {
        socket,
        socket_mode,
        fd_store,
        mode,
        idle_exit_s,
        observers,
        pool,
        cuda,
        spill,
        uid,
        streams,
        namespace_default,
        namespace,
        source: _,
    } = config;
    let mut all = Options::new();
    memory(&mut all, pool, cuda, spill);
    let mut put = |key: &str, takes, value| drop(all.insert(key.to_owned(), (takes, value)));

    put("socket", Takes::Restart, debug(socket.as_ref()));
    put("socket_mode", Takes::Restart, socket_mode.map(|mode| format!("{mode:#o}")));
    put("fd_store", Takes::Restart, debug(fd_store.as_ref()));
    put("mode", Takes::Restart, debug(Some(mode)));
    put("idle_exit_s", Takes::Restart, debug(idle_exit_s.as_ref()));
    put("observers", Takes::Now, debug(Some(observers)));

    let UidConfig { bytes_max, device_bytes_max, sessions_max, share, lease_ms_max, subuid_file } = uid;
    put("uid.bytes_max", Takes::Now, bytes(*bytes_max));
    put("uid.device_bytes_max", Takes::Now, bytes(*device_bytes_max));
    put("uid.sessions_max", Takes::Now, debug(Some(sessions_max)));
    put("uid.share", Takes::Now, debug(share.as_ref()));
    put("uid.lease_ms_max", Takes::Now, debug(lease_ms_max.as_ref()));
    put("uid.subuid_file", Takes::Now, debug(Some(subuid_file)));

    let StreamsConfig { grace_ms } = streams;
    put("streams.grace_ms", Takes::Now, debug(Some(grace_ms)));

    limits(&mut all, "namespace_default", namespace_default);
    for (name, rule) in namespace {
        let section = format!("namespace.{name}");
        limits(&mut all, &section, &rule.limits());
        // The call of `limits` has already added the other fields.
        let NamespaceConfig { readers, writers, .. } = rule;
        for (key, list) in [("readers", readers), ("writers", writers)] {
            all.insert(format!("{section}.{key}"), (Takes::Now, debug(Some(list))));
        }
    }
    all
}

/// Adds the options of the sections that describe the kinds of memory.
fn memory(all: &mut Options, pool: &PoolConfig, cuda: &CudaConfig, spill: &SpillConfig) {
    let mut put = |key: &str, takes, value| drop(all.insert(key.to_owned(), (takes, value)));
    let PoolConfig {
        bytes_max,
        sheet_bytes_max,
        segment_bytes,
        spare_segments,
        idle_bytes_max,
        huge_pages,
        numa,
        page_lock,
    } = pool;
    put("pool.bytes_max", Takes::Now, bytes(*bytes_max));
    put("pool.sheet_bytes_max", Takes::Now, bytes(*sheet_bytes_max));
    put("pool.segment_bytes", Takes::Restart, bytes(Some(*segment_bytes)));
    put("pool.spare_segments", Takes::Now, debug(Some(spare_segments)));
    put("pool.idle_bytes_max", Takes::Now, bytes(Some(*idle_bytes_max)));
    put("pool.huge_pages", Takes::Restart, debug(Some(huge_pages)));
    put("pool.numa", Takes::Restart, debug(Some(numa.0)));
    put("pool.page_lock", Takes::Now, debug(Some(page_lock)));

    // `allow_fake` is ignored, because no configuration file sets it.
    let CudaConfig { devices, allocator, bytes_max, segment_bytes, idle_bytes_max, quarantine_ms, allow_fake: _ } =
        cuda;
    put("cuda.devices", Takes::Restart, debug(Some(devices)));
    put("cuda.allocator", Takes::Restart, debug(Some(allocator)));
    put("cuda.bytes_max", Takes::Restart, bytes(*bytes_max));
    put("cuda.segment_bytes", Takes::Restart, bytes(*segment_bytes));
    put("cuda.idle_bytes_max", Takes::Restart, bytes(Some(*idle_bytes_max)));
    put("cuda.quarantine_ms", Takes::Now, debug(Some(quarantine_ms)));

    let SpillConfig { directory, bytes_max, uid_bytes_max, high_water_percent, low_water_percent } = spill;
    put("spill.directory", Takes::Restart, debug(directory.as_ref()));
    put("spill.bytes_max", Takes::Restart, bytes(*bytes_max));
    put("spill.uid_bytes_max", Takes::Restart, bytes(*uid_bytes_max));
    put("spill.high_water_percent", Takes::Restart, debug(high_water_percent.as_ref()));
    put("spill.low_water_percent", Takes::Restart, debug(low_water_percent.as_ref()));
}

fn limits(all: &mut Options, section: &str, limits: &LimitsConfig) {
    let LimitsConfig {
        bytes_max,
        names_max,
        members_max,
        lists_max,
        streams_max,
        segments_max,
        device_bytes_max,
        charge,
    } = limits;
    let mut put = |key: &str, takes, value| drop(all.insert(format!("{section}.{key}"), (takes, value)));
    put("bytes_max", Takes::Now, bytes(*bytes_max));
    put("device_bytes_max", Takes::Now, bytes(*device_bytes_max));
    put("charge", Takes::Now, debug(charge.as_ref()));
    put("names_max", Takes::NewNamespace, debug(names_max.as_ref()));
    put("members_max", Takes::NewNamespace, debug(members_max.as_ref()));
    put("lists_max", Takes::NewNamespace, debug(lists_max.as_ref()));
    put("streams_max", Takes::NewNamespace, debug(streams_max.as_ref()));
    put("segments_max", Takes::NewNamespace, debug(segments_max.as_ref()));
}

fn bytes(value: Option<Bytes>) -> Option<String> {
    value.map(|Bytes(bytes)| tensorlend_layout::size::bytes_exact(bytes))
}

fn debug(value: Option<impl Debug>) -> Option<String> {
    value.map(|value| format!("{value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text).unwrap()
    }

    #[test]
    fn what_differs_is_named_with_when_it_counts() {
        let before = config("[pool]\nbytes_max = \"1GiB\"\n[namespace.lab]\nreaders = [\"0\"]\nnames_max = 600");
        let after = config("[pool]\nsegment_bytes = \"1MiB\"\n[namespace.lab]\nwriters = [\"0\"]\nnames_max = 700");
        let found = changes(&before, &after);
        let said: Vec<(Takes, String)> = found.iter().map(|change| (change.takes, change.to_string())).collect();
        assert_eq!(
            said,
            [
                (Takes::NewNamespace, "namespace.lab.names_max: 700 instead of 600".to_owned()),
                (Takes::Now, "namespace.lab.readers: [] instead of [\"0\"]".to_owned()),
                (Takes::Now, "namespace.lab.writers: [\"0\"] instead of []".to_owned()),
                (Takes::Now, "pool.bytes_max: the default instead of 1 GiB".to_owned()),
                (Takes::Restart, "pool.segment_bytes: 1 MiB instead of 64 MiB".to_owned()),
            ]
        );
        assert_eq!(changes(&after, &after), []);
        // Removing a section reports each of its options that was set.
        let gone: Vec<String> = changes(&after, &Config::default()).into_iter().map(|change| change.option).collect();
        let lab = ["names_max", "readers", "writers"].map(|key| format!("namespace.lab.{key}"));
        assert_eq!(gone, [&["pool.segment_bytes".to_owned()][..], &lab].concat());
    }

    /// `without_restart` restores each option that needs a restart, and no other.
    #[test]
    fn only_what_needs_a_restart_is_put_off() {
        let running = Config::default();
        let wanted = config(
            "socket = \"/x\"\nsocket_mode = 0o600\nfd_store = \"/x\"\nmode = \"user\"\nidle_exit_s = 7\nobservers = [\"0\"]\n\
             [pool]\nbytes_max = \"1GiB\"\nsheet_bytes_max = \"1GiB\"\nsegment_bytes = \"2MiB\"\nspare_segments = 3\n\
             idle_bytes_max = 4096\nhuge_pages = \"advise\"\nnuma = \"interleave\"\npage_lock = true\n\
             [cuda]\ndevices = [\"all\"]\nallocator = \"arena\"\nbytes_max = \"1GiB\"\nsegment_bytes = \"2MiB\"\n\
             idle_bytes_max = 0\nquarantine_ms = 7\n\
             [spill]\ndirectory = \"/x\"\nbytes_max = 1\nuid_bytes_max = 1\nhigh_water_percent = 7\n\
             low_water_percent = 3\n\
             [uid]\nbytes_max = 1\ndevice_bytes_max = 1\nsessions_max = 1\nshare = true\nlease_ms_max = 1000\n\
             subuid_file = \"/x\"\n\
             [streams]\ngrace_ms = 7\n\
             [namespace_default]\nbytes_max = 1\ndevice_bytes_max = 1\nnames_max = 600\nmembers_max = 9\nlists_max = 9\n\
             streams_max = 9\nsegments_max = 9\ncharge = \"client\"\n[namespace.lab]\nreaders = [\"0\"]",
        );
        // All options differ except the eight limits of the namespace, which equal the defaults.
        let all = options(&wanted).len() - 8;
        let wanted_changes = changes(&running, &wanted);
        assert_eq!(wanted_changes.len(), all, "{wanted_changes:#?}");
        let put_off = wanted_changes.iter().filter(|change| change.takes == Takes::Restart).count();
        let taken = changes(&running, &without_restart(wanted, &running));
        assert!(taken.iter().all(|change| change.takes != Takes::Restart), "{taken:#?}");
        assert_eq!(taken.len(), wanted_changes.len() - put_off);
    }
}
