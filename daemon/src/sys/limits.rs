//! The conversion of the configuration to the core's settings. It resolves users and groups, and
//! computes the defaults that depend on the machine.

use super::DaemonError;
use super::backing::{Backing, Pages};
use crate::config::{Bytes, Config, ConfigError, HugePages, LimitsConfig, ModeChoice};
use crate::core::owners::{Owners, SUPERUSER};
use crate::core::settings::{
    Mode, NamespaceLimits, NamespaceRule, Payer, Principal, RESERVED_INSPECTIONS, Settings, SpillSettings,
};
use nix::unistd::{Group, User};
use rustix::process::{Resource, Rlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use tensorlend_os::cgroup;
use tensorlend_os::memfd::HugePage;
use tensorlend_os::numa::{self, Numa};
use tensorlend_os::user_folder;

/// Number of descriptors that the daemon needs for its log, its epoll, its threads, and temporary
/// files.
const OWN_DESCRIPTORS: u64 = 64;

/// Number of descriptors for the administrators' sessions that the core's reserve admits. Each
/// session needs five: a socket, a process, a wakeup eventfd and two sheets. Some sessions also
/// need a directory, and a reply needs up to four more. Each connection for metrics needs a socket and a process, and
/// counts as a session.
const RESERVED_DESCRIPTORS: u64 = 32 + 3 * RESERVED_INSPECTIONS as u64;

/// The directory through which the daemon reopens descriptors.
const FD_FOLDER: &str = "/proc/self/fd";
const UID_MAP: &str = "/proc/self/uid_map";
const GID_MAP: &str = "/proc/self/gid_map";

/// Default of `names_max`.
pub const NAMES_MAX: u32 = 65536;

/// Minimum limit of descriptors with which the daemon can serve a client.
const DESCRIPTORS_MIN: u64 = OWN_DESCRIPTORS;

/// Checks the requirements that do not depend on the configuration.
pub fn check_system() -> Result<(), DaemonError> {
    tensorlend_os::kernel::check()?;
    std::fs::metadata(FD_FOLDER).map_err(DaemonError::NoProc)?;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if limit < DESCRIPTORS_MIN {
        return Err(DaemonError::Descriptors { limit, least: DESCRIPTORS_MIN });
    }
    Ok(())
}

/// Returns the core's settings. Users and groups that do not exist get no rights.
pub fn settings(config: &Config, mode: Mode) -> Result<Settings, ConfigError> {
    settings_and_unknown(config, mode).map(|(settings, _)| settings)
}

/// Returns the core's settings, and a message for each user or group of a namespace that was not
/// found.
///
/// A missing user is not an error, because a package may create the user later, or a name service
/// may be down. If the daemon refused to start, the service manager would drop the descriptors in
/// its fd store.
pub fn settings_and_unknown(config: &Config, mode: Mode) -> Result<(Settings, Vec<String>), ConfigError> {
    config.check()?;
    let Rights { namespaces, observers, unknown } = Rights::of(config);
    let clients_pay = clients_pay(config);
    let pool = config.pool.bytes_max.map_or_else(|| pool_default(clients_pay), |b| b.0);
    let sheets = config.pool.sheet_bytes_max.map_or_else(|| sheets_default(pool, clients_pay), |b| b.0);
    let private = limits(&config.namespace_default, &LimitsConfig::default());
    let segment = segment_bytes(config, pool)?;
    let sections = namespaces.iter().map(|(name, rule)| (format!("namespace.{name}"), &rule.limits));
    check_sheets(sections.chain([("namespace_default".into(), &private)]), sheets)?;
    let settings = Settings {
        mode,
        pid: std::process::id(),
        seed: seed(),
        pool_bytes_max: pool,
        sheet_bytes_max: sheets,
        segment_bytes: segment,
        segment_unit: match config.pool.huge_pages {
            HugePages::Never => 4096,
            HugePages::Advise | HugePages::Reserved2M => HugePage::Mib2.bytes(),
            HugePages::Reserved1G => HugePage::Gib1.bytes(),
        },
        // A spare segment has pages of the daemon, so no client that pays itself can use it.
        spare_segments: if clients_pay { 0 } else { config.pool.spare_segments },
        page_lock: config.pool.page_lock,
        idle_bytes_max: config.pool.idle_bytes_max.0,
        uid_bytes_max: config.uid.bytes_max.map_or(u64::MAX, |b| b.0),
        uid_sessions_max: config.uid.sessions_max,
        uid_share: config.uid.share.unwrap_or(mode == Mode::System),
        owners: Arc::new(owners(&config.uid.subuid_file)),
        administrators: administrators(config.mode, mode, rustix::process::geteuid().as_raw()),
        observers,
        refused_uid: refused_uid(config.mode, mode, rustix::process::geteuid().as_raw()),
        stream_grace_ns: config.streams.grace_ms.saturating_mul(1_000_000),
        descriptors_max: descriptors(),
        lease_ns_max: config.uid.lease_ms_max.map(|ms| ms.saturating_mul(1_000_000)),
        devices: Vec::new(),
        no_device: String::new(),
        uid_device_bytes_max: config.uid.device_bytes_max.map_or(u64::MAX, |b| b.0),
        spill: spill(config, pool),
        quarantine_ns: config.cuda.quarantine_ms * 1_000_000,
        private,
        namespaces,
    };
    Ok((settings, unknown))
}

/// The rights that a configuration gives to users and groups.
#[derive(Default)]
struct Rights {
    namespaces: BTreeMap<String, NamespaceRule>,
    observers: Vec<Principal>,
    /// A message for each user or group that was not found.
    unknown: Vec<String>,
}

impl Rights {
    fn of(config: &Config) -> Self {
        let mut it = Self::default();
        for (name, namespace) in &config.namespace {
            let rule = NamespaceRule {
                readers: it.principals(&format!("namespace.{name}.readers"), &namespace.readers),
                writers: it.principals(&format!("namespace.{name}.writers"), &namespace.writers),
                limits: limits(&namespace.limits(), &config.namespace_default),
            };
            it.namespaces.insert(name.clone(), rule);
        }
        it.observers = it.principals("observers", &config.observers);
        it
    }

    /// Returns the users and groups in `list` that exist. `key` is the list's key in the configuration.
    fn principals(&mut self, key: &str, list: &[String]) -> Vec<Principal> {
        let found = list.iter().map(|who| principal(who).map_err(|why| format!("{key}: {why}")));
        found.filter_map(|it| it.map_err(|why| self.unknown.push(why)).ok()).collect()
    }
}

/// Returns the length of a segment of a pool of this length.
fn segment_bytes(config: &Config, pool: u64) -> Result<u64, ConfigError> {
    let wanted = config.pool.segment_bytes.0;
    match config.pool.bytes_max {
        Some(Bytes(most)) if wanted > most => {
            Err(ConfigError::Value(format!("pool.segment_bytes is {wanted}, and pool.bytes_max only {most}")))
        }
        // On a small machine the default segment may be larger than the pool, so the pool limits
        // the segment.
        _ => Ok(wanted.min(pool / 4096 * 4096)),
    }
}

/// Checks that the memory for sheets suffices for one client of each section of the configuration.
fn check_sheets<'a>(
    sections: impl Iterator<Item = (String, &'a NamespaceLimits)>,
    sheets: u64,
) -> Result<(), ConfigError> {
    for (section, limits) in sections {
        let needed = crate::core::sheet_bytes_min(limits);
        if needed > sheets {
            let text = format!("pool.sheet_bytes_max is {sheets}, but one client of {section} needs {needed}");
            return Err(ConfigError::Value(text));
        }
    }
    Ok(())
}

/// Returns the settings of spilling, if the configuration has a directory for spilled segments.
fn spill(config: &Config, pool: u64) -> Option<SpillSettings> {
    Some(SpillSettings {
        directory: config.spill.directory.clone()?,
        bytes_max: config.spill.bytes_max.map_or(pool, |b| b.0),
        uid_bytes_max: config.spill.uid_bytes_max.map_or(u64::MAX, |b| b.0),
        marks: config.spill.marks(),
    })
}

/// Returns the uids of the administrators, for whom the daemon has a reserve. These are the
/// superuser and, in system mode, the daemon's own user. In user mode, ordinary clients also run
/// under the daemon's uid, so that uid is no administrator. If the daemon refuses clients of its
/// own user, this user is no administrator either.
fn administrators(choice: ModeChoice, mode: Mode, own: u32) -> Vec<u32> {
    match mode {
        Mode::System if refused_uid(choice, mode, own).is_some() => vec![SUPERUSER],
        Mode::System => BTreeSet::from([SUPERUSER, own]).into_iter().collect(),
        Mode::User => [SUPERUSER].into_iter().filter(|&uid| uid != own).collect(),
    }
}

/// Returns the daemon's own uid if the daemon must refuse clients with this uid, because `mode =
/// "auto"` has chosen system mode.
///
/// A client of the daemon's uid could open lent memory for writing. Other processes may have the
/// same low uid, for example in containers whose images have the same user. Root is an exception,
/// because root can open everything in any case.
fn refused_uid(choice: ModeChoice, mode: Mode, own: u32) -> Option<u32> {
    (choice == ModeChoice::Auto && mode == Mode::System && own != SUPERUSER).then_some(own)
}

/// Returns the assignment of uids to owners from a file in the format of subuid(5). The result is
/// empty if the file does not exist.
fn owners(path: &Path) -> Owners {
    if path.as_os_str().is_empty() {
        return Owners::default();
    }
    match std::fs::read_to_string(path) {
        Ok(text) => Owners::new(text.lines().filter_map(|line| subuids(line, uid_of))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Owners::default(),
        Err(error) => {
            tracing::warn!("uid.subuid_file {path:?} cannot be read, so that each uid counts as a user: {error}");
            Owners::default()
        }
    }
}

/// Parses a line of subuid(5): the first uid of a range, its length, and the uid of its owner, if that user exists.
fn subuids(line: &str, uid_of: impl Fn(&str) -> Option<u32>) -> Option<(u32, u32, Option<u32>)> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = line.trim().splitn(3, ':');
    let (owner, first, count) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((first, count, owner.parse().ok().or_else(|| uid_of(owner))))
}

fn uid_of(name: &str) -> Option<u32> {
    User::from_name(name).ok().flatten().map(|user| user.uid.as_raw())
}

/// Returns the page size and NUMA placement of segments.
pub fn backing(config: &Config) -> Result<Backing, ConfigError> {
    let numa = config.pool.numa.0;
    if let Numa::Node(node) = numa {
        let nodes = numa::nodes().unwrap_or_default();
        if !nodes.contains(&node) {
            let text = format!("pool.numa is \"node:{node}\", but this machine's nodes with memory are {nodes:?}");
            return Err(ConfigError::Value(text));
        }
    }
    let pages = match config.pool.huge_pages {
        HugePages::Never => Pages::Ordinary,
        HugePages::Advise => Pages::Advised,
        HugePages::Reserved2M => Pages::Reserved(HugePage::Mib2),
        HugePages::Reserved1G => Pages::Reserved(HugePage::Gib1),
    };
    if let Pages::Reserved(page) = pages
        && !config.pool.segment_bytes.0.is_multiple_of(page.bytes())
    {
        let (segment, page) = (config.pool.segment_bytes.0, page.bytes());
        let text = format!("pool.segment_bytes is {segment}: with these pool.huge_pages use a multiple of {page}");
        return Err(ConfigError::Value(text));
    }
    Ok(Backing { pages, numa })
}

/// Returns the daemon's mode. `auto` selects system mode only if the daemon's uid is reserved for
/// the system, so that clients have other uids.
///
/// A uid below 1000 is reserved for the system only in a user namespace that maps all users, such
/// as the machine's own namespace. In any other namespace, such as that of a rootless container,
/// uid 0 is an ordinary user of the machine, and clients may have the daemon's uid.
pub fn mode(choice: ModeChoice) -> Mode {
    match choice {
        ModeChoice::System => Mode::System,
        ModeChoice::User => Mode::User,
        ModeChoice::Auto => {
            let map = std::fs::read_to_string(UID_MAP).unwrap_or_default();
            auto_mode(rustix::process::getuid().as_raw(), &map)
        }
    }
}

/// Returns the path of the control socket.
pub fn socket_path(config: &Config, mode: Mode) -> Result<PathBuf, DaemonError> {
    if let Some(path) = &config.socket {
        return Ok(path.clone());
    }
    if mode == Mode::System {
        return Ok(PathBuf::from("/run/tensorlend/tensorlend.sock"));
    }
    user_folder::socket().map_err(DaemonError::NoSocketPath)
}

fn auto_mode(uid: u32, uid_map: &str) -> Mode {
    if uid < 1000 && maps_all_users(uid_map) { Mode::System } else { Mode::User }
}

fn limits(own: &LimitsConfig, default: &LimitsConfig) -> NamespaceLimits {
    let or = |own: Option<u32>, default: Option<u32>, fixed| own.or(default).unwrap_or(fixed);
    NamespaceLimits {
        bytes_max: own.bytes_max.or(default.bytes_max).map_or(u64::MAX, |Bytes(b)| b),
        names_max: or(own.names_max, default.names_max, NAMES_MAX),
        members_max: or(own.members_max, default.members_max, 4096),
        lists_max: or(own.lists_max, default.lists_max, 1024),
        streams_max: or(own.streams_max, default.streams_max, 256),
        segments_max: or(own.segments_max, default.segments_max, 4096),
        device_bytes_max: own.device_bytes_max.or(default.device_bytes_max).map_or(u64::MAX, |Bytes(b)| b),
        payer: own.charge.or(default.charge).unwrap_or_default(),
    }
}

/// Returns the number of descriptors for clients: this process's limit minus the daemon's own need
/// and the reserve. If the limit is very low, clients may have a quarter of it, because the daemon seldom needs all of
/// the rest.
pub fn descriptors() -> u64 {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    most.saturating_sub(OWN_DESCRIPTORS + RESERVED_DESCRIPTORS).max(most / 4)
}

fn seed() -> u64 {
    let mut bytes = [0; 8];
    // getrandom returns all eight bytes, or fails. After a failure, only the hashes of names become
    // predictable.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_le_bytes(bytes)
}

fn principal(who: &str) -> Result<Principal, String> {
    if let Some(group) = who.strip_prefix('@') {
        if let Ok(gid) = group.parse() {
            return Ok(Principal::Gid(gid));
        }
        return match Group::from_name(group) {
            Ok(Some(group)) => Ok(Principal::Gid(group.gid.as_raw())),
            Ok(None) => Err(format!("there is no group {group:?}")),
            Err(e) => Err(format!("looking up group {group:?}: {e}")),
        };
    }
    if let Ok(uid) = who.parse() {
        return Ok(Principal::Uid(uid));
    }
    match User::from_name(who) {
        Ok(Some(user)) => Ok(Principal::Uid(user.uid.as_raw())),
        Ok(None) => Err(format!("there is no user {who:?} (groups begin with @)")),
        Err(e) => Err(format!("looking up user {who:?}: {e}")),
    }
}

/// Returns the groups of a connection's process, as the kernel recorded them when the process
/// connected: `gid` and the supplementary groups. `unknown` is the gid that the kernel shows for
/// all groups that this process's user namespace does not map. The result omits `unknown`.
pub fn groups(connection: &impl AsFd, gid: u32, unknown: Option<u32>) -> Vec<u32> {
    let mut gids = tensorlend_os::inherited::peer_groups(connection.as_fd()).unwrap_or_else(|error| {
        tracing::warn!("the kernel does not report a client's groups: {error}");
        Vec::new()
    });
    gids.push(gid);
    gids.retain(|&gid| unknown != Some(gid));
    gids
}

/// Returns the uid that the kernel shows for all users that this process's user namespace does not
/// map. Returns `None` if the namespace maps all users, like the machine's own namespace
/// (user_namespaces(7)).
pub fn unknown_uid() -> Option<u32> {
    unknown(&std::fs::read_to_string(UID_MAP).ok()?, || std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok())
}

/// Returns the gid that the kernel shows for all groups that this process's user namespace does not
/// map, like [`unknown_uid`] for users.
pub fn unknown_gid() -> Option<u32> {
    unknown(&std::fs::read_to_string(GID_MAP).ok()?, || std::fs::read_to_string("/proc/sys/kernel/overflowgid").ok())
}

fn unknown(map: &str, overflow: impl FnOnce() -> Option<String>) -> Option<u32> {
    if maps_all_users(map) {
        return None;
    }
    Some(overflow().and_then(|text| text.trim().parse().ok()).unwrap_or(65534))
}

/// Returns true if a user namespace maps every uid except -1. The uid -1 is invalid.
fn maps_all_users(map: &str) -> bool {
    let mapped: u64 = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum();
    mapped >= u64::from(u32::MAX)
}

/// Returns true if clients pay for the segments of all namespaces.
fn clients_pay(config: &Config) -> bool {
    let pays = |own: &LimitsConfig| limits(own, &config.namespace_default).payer == Payer::Client;
    pays(&config.namespace_default) && config.namespace.values().all(|namespace| pays(&namespace.limits()))
}

/// Returns the default size of the pool. It is half of the machine's memory, or of the cgroup's
/// limit if that is smaller. The cgroup's limit does not count if clients pay for all segments.
fn pool_default(clients_pay: bool) -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = cgroup::meminfo_bytes(&meminfo, "MemTotal:").unwrap_or(2 << 30);
    let limit = if clients_pay { None } else { cgroup::limit() };
    (total.min(limit.unwrap_or(u64::MAX)) / 2).max(1 << 20)
}

/// Returns the default maximum of the bytes of sheets, for which the daemon always pays. It is a
/// quarter of the pool, and at least 64 MiB. If clients pay for all segments, the pool may exceed
/// the cgroup's limit, and the default is at most half of that limit.
fn sheets_default(pool: u64, clients_pay: bool) -> u64 {
    let limit = if clients_pay { cgroup::limit() } else { None };
    (pool / 4).min(limit.unwrap_or(u64::MAX) / 2).max(64 << 20)
}

/// Raises the limit of open descriptors, because the daemon has one for every segment and every
/// sheet.
pub fn raise_descriptors() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if rustix::process::setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!("the limit of open descriptors could not be raised from {:?}", limit.current);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_namespace_that_maps_all_users_has_no_unknown_ones() {
        let overflow = || Some("65534\n".to_owned());
        assert_eq!(unknown("         0          0 4294967295\n", overflow), None);
        assert_eq!(unknown("0 1000 1\n1 100000 65536\n", overflow), Some(65534));
        assert_eq!(unknown("0 0 1\n", || None), Some(65534));
    }

    #[test]
    fn administrators_are_root_and_a_user_of_the_daemons_own() {
        assert_eq!(administrators(ModeChoice::System, Mode::System, 990), [0, 990]);
        assert_eq!(administrators(ModeChoice::Auto, Mode::System, 990), [0], "its clients are refused");
        assert_eq!(administrators(ModeChoice::Auto, Mode::System, 0), [0]);
        assert_eq!(administrators(ModeChoice::User, Mode::User, 1000), [0]);
        assert_eq!(administrators(ModeChoice::User, Mode::User, 0), [0; 0]);
    }

    #[test]
    fn clients_of_the_daemons_uid_are_refused_unless_the_mode_was_chosen() {
        assert_eq!(refused_uid(ModeChoice::Auto, Mode::System, 999), Some(999));
        assert_eq!(refused_uid(ModeChoice::Auto, Mode::System, 0), None);
        assert_eq!(refused_uid(ModeChoice::System, Mode::System, 999), None);
        assert_eq!(refused_uid(ModeChoice::Auto, Mode::User, 1000), None);
    }

    #[test]
    fn system_mode_is_for_system_users_of_the_machine() {
        let machine = "         0          0 4294967295\n";
        assert_eq!(auto_mode(0, machine), Mode::System);
        assert_eq!(auto_mode(999, machine), Mode::System);
        assert_eq!(auto_mode(1000, machine), Mode::User);
        // As with `unshare -r`, and in rootless containers: uid 0 is a user of the machine.
        for map in ["0 1000 1\n", "0 1000 1\n1 100000 65536\n", ""] {
            for uid in [0, 999, 1000] {
                assert_eq!(auto_mode(uid, map), Mode::User, "{uid} in {map:?}");
            }
        }
    }

    #[test]
    fn subordinate_uids_are_their_users() {
        let uid_of = |name: &str| (name == "alice").then_some(1000);
        let line = |text| subuids(text, uid_of);
        assert_eq!(line("alice:100000:65536"), Some((100_000, 65_536, Some(1000))));
        assert_eq!(line("1001:165536:65536 "), Some((165_536, 65_536, Some(1001))));
        assert_eq!(line("gone:300000:10"), Some((300_000, 10, None)));
        for text in ["", "# alice:1:2", "alice", "alice:1", "alice:x:2", "alice:1:-2", "alice:1:2:3"] {
            assert_eq!(line(text), None, "{text}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "root:100000:65536\n7:200000:65536\n").unwrap();
        let text = format!("[uid]\nsubuid_file = {:?}", file.path());
        let settings = settings(&Config::parse(&text).unwrap(), Mode::User).unwrap();
        assert_eq!((settings.owners.of(100_001), settings.owners.of(200_001)), (100_000, 7));
        assert!(owners(Path::new("")).is_empty() && owners(Path::new("/nonexistent/file")).is_empty());
    }

    #[test]
    fn a_group_that_stands_for_others_is_none() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(groups(&ours, 7, None).contains(&7));
        assert!(!groups(&ours, 65534, Some(65534)).contains(&65534));
    }

    /// Users and groups that do not exist get no rights, and the rest of the configuration applies.
    #[test]
    fn users_and_groups_that_do_not_exist_are_told() {
        let config = "[namespace.lab]\nwriters = [\"nobody-has-this-name\", \"7\"]\nreaders = [\"@nor-this\"]";
        let (settings, unknown) = settings_and_unknown(&Config::parse(config).unwrap(), Mode::User).unwrap();
        let rule = &settings.namespaces["lab"];
        assert_eq!((&rule.writers[..], &rule.readers[..]), (&[Principal::Uid(7)][..], &[][..]));
        assert_eq!(unknown.len(), 2, "{unknown:?}");
        assert!(
            unknown.iter().any(|it| it.contains("lab.writers") && it.contains("nobody-has-this-name")),
            "{unknown:?}"
        );
        assert!(unknown.iter().any(|it| it.contains("lab.readers") && it.contains("nor-this")), "{unknown:?}");
    }

    #[test]
    fn memory_is_read_from_what_the_kernel_says() {
        let meminfo = "MemTotal:       24000000 kB\nMemFree: 1 kB\n";
        assert_eq!(cgroup::meminfo_bytes(meminfo, "MemTotal:"), Some(24_000_000 * 1024));
        assert!(pool_default(false) >= 1 << 20);
    }

    #[test]
    fn without_segments_of_the_daemon_its_group_does_not_bound_the_pool() {
        let of = |text: &str| settings(&Config::parse(text).unwrap(), Mode::User).unwrap();
        let client = "[namespace_default]\ncharge = \"client\"\n";
        let all = of(client);
        assert_eq!((all.private.payer, all.spare_segments), (Payer::Client, 0));
        assert!(all.pool_bytes_max >= of("").pool_bytes_max);
        let mixed = of(&format!("{client}[namespace.lab]\nreaders = [\"0\"]\ncharge = \"daemon\""));
        assert_eq!((mixed.namespaces["lab"].limits.payer, mixed.spare_segments), (Payer::Daemon, 1));
        assert_eq!(mixed.private.payer, Payer::Client);
        let inherited = of(&format!("{client}[namespace.lab]\nreaders = [\"0\"]"));
        assert_eq!((inherited.namespaces["lab"].limits.payer, inherited.spare_segments), (Payer::Client, 0));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let wrong = |text: &str| {
            let config = Config::parse(text).unwrap();
            settings(&config, Mode::User).unwrap_err().to_string()
        };
        assert!(wrong("[pool]\nbytes_max = \"1MiB\"").contains("pool.segment_bytes is 67108864"));
        assert!(wrong("[pool]\nsheet_bytes_max = \"1MiB\"").contains("namespace_default needs"));
        let lab = "[pool]\nsheet_bytes_max = \"16MiB\"\n[namespace.lab]\nreaders = [\"0\"]\nnames_max = 4194304";
        assert!(wrong(lab).contains("namespace.lab needs"));
        settings(&Config::default(), Mode::User).unwrap();
    }

    #[test]
    fn pages_and_nodes_that_cannot_be_are_refused() {
        let of = |text: &str| backing(&Config::parse(&format!("[pool]\n{text}")).unwrap()).map_err(|e| e.to_string());
        let nodes = numa::nodes().unwrap();
        let there = of(&format!("numa = \"node:{}\"", nodes[0])).unwrap();
        assert_eq!((there.numa, there.pages), (Numa::Node(nodes[0]), Pages::Ordinary));
        let missing = (0..1000).find(|node| !nodes.contains(node)).unwrap();
        let error = of(&format!("numa = \"node:{missing}\"")).unwrap_err();
        assert!(error.contains(&format!("node:{missing}")) && error.contains("nodes with memory are"), "{error}");
        assert_eq!(of("huge_pages = \"2M\"").unwrap().pages, Pages::Reserved(HugePage::Mib2));
        assert!(of("huge_pages = \"1G\"").unwrap_err().contains("pool.segment_bytes"));
        assert!(of("huge_pages = \"2M\"\nsegment_bytes = \"1MiB\"").unwrap_err().contains("multiple of 2097152"));
    }

    #[test]
    fn users_and_groups_are_names_or_numbers() {
        assert_eq!(principal("1000"), Ok(Principal::Uid(1000)));
        assert_eq!(principal("@27"), Ok(Principal::Gid(27)));
        assert_eq!(principal("root"), Ok(Principal::Uid(0)));
        assert!(principal("nobody-has-this-name").unwrap_err().contains("no user"));
    }
}
