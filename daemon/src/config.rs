//! The configuration: a TOML file in which every limit has a default.

mod error;
mod source;

use crate::core::device::UNIT;
pub use crate::core::settings::Payer;
use crate::core::settings::SpillMarks;
pub use error::ConfigError;
use serde::{Deserialize, Deserializer};
pub use source::Source;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tensorlend_layout::Uuid;
use tensorlend_layout::directory::DEVICES;
pub use tensorlend_layout::size::Bytes;
use tensorlend_layout::stream::CAPACITY_MAX;
use tensorlend_layout::wire::Allocator;
use tensorlend_os::numa::Numa;

/// Every option with its default and its unit. Lines that begin with `#=` have examples.
pub const EXAMPLE: &str = include_str!("config.toml");

/// The beginning of [`commented`].
const HEAD: &str = "\
# The configuration of tensorlendd.
#
# This file shows every option, with its default or an example. Remove the # to set an option. An option
# belongs to the section above it, such as [pool]. Sizes are bytes: integers, or strings with B, KiB, MiB,
# GiB or TiB. Check this file before a restart, as the daemon's user, such as for the system's daemon:
#     runuser -u tensorlend -- tensorlendd --check-config --config /etc/tensorlend/tensorlendd.toml

";

/// Returns a configuration file that sets no option, and has every option in a comment. Packages install it, and
/// `--print-config` prints it.
pub fn commented() -> String {
    // The head of the other text explains its signs.
    let (_, options) = EXAMPLE.split_once("\n\n").unwrap_or(("", EXAMPLE));
    let line = |line: &str| match line.strip_prefix("#= ") {
        Some(example) => format!("#{example}\n"),
        None if line.is_empty() || line.starts_with(['#', '[']) => format!("{line}\n"),
        None => format!("#{line}\n"),
    };
    HEAD.to_owned() + &options.lines().map(line).collect::<String>()
}

/// Maximum quarantine in milliseconds. The limit rejects a value in a wrong unit, with which
/// clients would wait for hours.
const QUARANTINE_MS_MAX: u64 = 60_000;

/// Maximum grace period of streams in milliseconds (one day). The limit rejects a value in a wrong
/// unit, with which streams would stay for weeks.
const STREAM_GRACE_MS_MAX: u64 = 86_400_000;

/// Minimum of `uid.lease_ms_max` in milliseconds.
const LEASE_MS_LEAST: u64 = 100;

/// The rule by which the daemon protects memory that it has lent to one writer against all other
/// writers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModeChoice {
    /// System mode for a uid below 1000 in a user namespace that maps all users, otherwise user mode.
    #[default]
    Auto,
    /// The daemon has its own uid.
    System,
    /// The daemon runs under its user's uid.
    User,
}

/// Page size of segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum HugePages {
    /// 4 KiB pages.
    #[default]
    #[serde(rename = "never")]
    Never,
    /// Transparent huge pages, where the kernel's shmem_enabled allows them.
    #[serde(rename = "advise")]
    Advise,
    /// Reserved pages of 2 MiB.
    #[serde(rename = "2M")]
    Reserved2M,
    /// Reserved pages of 1 GiB.
    #[serde(rename = "1G")]
    Reserved1G,
}

/// NUMA placement of segments: `"local"`, `"interleave"` or `"node:N"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumaChoice(pub Numa);

impl std::str::FromStr for NumaChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let node = |text: &str| text.strip_prefix("node:")?.parse().ok().map(Numa::Node);
        match text {
            "local" => Ok(Self(Numa::Local)),
            "interleave" => Ok(Self(Numa::Interleave)),
            _ => node(text).map(Self).ok_or_else(|| format!("{text:?}: use \"local\", \"interleave\" or \"node:N\"")),
        }
    }
}

impl<'de> Deserialize<'de> for NumaChoice {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Where the daemon stores its descriptors, by the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreAt<'a> {
    /// In the service manager's store, or in a store that the daemon starts.
    Default,
    /// Nowhere.
    None,
    /// In the process with this socket.
    Socket(&'a Path),
}

/// The whole configuration. `Config::default()` is the configuration of an empty file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Path of the control socket. Default: /run/tensorlend/tensorlend.sock in system mode, else
    /// tensorlend.sock in $XDG_RUNTIME_DIR, /run/user/UID or /tmp/tensorlend-UID.
    pub socket: Option<PathBuf>,
    /// Permission bits of the socket. Default: 0o666 in system mode (the kernel reports the client's user), else 0o600.
    pub socket_mode: Option<u32>,
    /// Path of the socket of a `tensorlendd --fd-store`, which stores the daemon's descriptors, or `none`. Default: the
    /// service manager's store. Without one, a daemon in user mode starts a store itself, next to its socket.
    pub fd_store: Option<PathBuf>,
    /// System or user mode. Default: auto.
    pub mode: ModeChoice,
    /// Seconds without clients and names after which the daemon ends. 0: never. Default: 0, or 600 for a daemon that runs in
    /// the background (`--daemonize`).
    pub idle_exit_s: Option<u32>,
    /// Users and groups that may see names, sizes and holders of all namespaces, but no values.
    /// Each is a name, a number, or `@group`. Default: none.
    pub observers: Vec<String>,
    /// Limits and properties of the pool.
    pub pool: PoolConfig,
    /// Memory of CUDA devices.
    pub cuda: CudaConfig,
    /// Directory and limits of spilled segments.
    pub spill: SpillConfig,
    /// Limits of each uid.
    pub uid: UidConfig,
    /// Lifetime of unused streams.
    pub streams: StreamsConfig,
    /// Limits of private namespaces, and the defaults of other namespaces.
    pub namespace_default: LimitsConfig,
    /// Shared namespaces, by name.
    pub namespace: BTreeMap<String, NamespaceConfig>,
    /// The file from which [`Config::load`] has read this configuration. Errors name it. No
    /// configuration file sets this field.
    #[serde(skip)]
    pub source: Source,
}

/// The section `[pool]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolConfig {
    /// Maximum bytes of segments. Default: half of the memory, or of the cgroup's limit if that is smaller.
    pub bytes_max: Option<Bytes>,
    /// Maximum bytes of sheets (names, descriptors, lease tables). Default: a quarter of `bytes_max`, at least 64 MiB.
    pub sheet_bytes_max: Option<Bytes>,
    /// Length of an ordinary segment in bytes; a larger tensor gets its own segment. Default: 64 MiB.
    pub segment_bytes: Bytes,
    /// Number of ordinary segments prepared in advance. Default: 1.
    pub spare_segments: u32,
    /// Maximum bytes of returned segments that the daemon keeps, to lend them again in the same namespace; system mode
    /// only. Default: 256 MiB.
    pub idle_bytes_max: Bytes,
    /// Pages of segments. Default: ordinary ones.
    pub huge_pages: HugePages,
    /// NUMA placement of segments on a machine with several memory nodes. Default: local.
    pub numa: NumaChoice,
    /// Whether clients that use a CUDA device lock the pages of the segments that they map. Default: false.
    pub page_lock: bool,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            bytes_max: None,
            sheet_bytes_max: None,
            segment_bytes: Bytes(64 << 20),
            spare_segments: 1,
            idle_bytes_max: Bytes(256 << 20),
            huge_pages: HugePages::Never,
            numa: NumaChoice::default(),
            page_lock: false,
        }
    }
}

/// The section `[spill]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpillConfig {
    /// Directory for the files of spilled segments. Default: none, which disables spilling.
    pub directory: Option<PathBuf>,
    /// Maximum bytes of the files. Default: the pool's limit.
    pub bytes_max: Option<Bytes>,
    /// Maximum bytes of the files of one uid's clients. Default: no limit except `bytes_max`.
    pub uid_bytes_max: Option<Bytes>,
    /// Usage of the pool at which spilling begins, in percent. Default: when a request would be refused.
    pub high_water_percent: Option<u8>,
    /// Usage of the pool at which spilling ends, in percent. Default: 10 less.
    pub low_water_percent: Option<u8>,
}

impl SpillConfig {
    /// Returns the thresholds at which spilling begins and ends before the daemon refuses any
    /// request. Returns `None` if the configuration does not set them.
    pub fn marks(&self) -> Option<SpillMarks> {
        let high_percent = self.high_water_percent?;
        let low_percent = self.low_water_percent.unwrap_or(high_percent.saturating_sub(10));
        Some(SpillMarks { high_percent, low_percent })
    }

    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |text: String| Err(ConfigError::Value(text));
        let marks = [("high", self.high_water_percent), ("low", self.low_water_percent)];
        for (which, percent) in marks {
            if let Some(percent) = percent.filter(|percent| !(1..=99).contains(percent)) {
                return wrong(format!("spill.{which}_water_percent is {percent}: use 1 to 99"));
            }
        }
        if let Some(SpillMarks { high_percent, low_percent }) = self.marks()
            && low_percent >= high_percent
        {
            return wrong(format!(
                "spill.low_water_percent is {low_percent}: use less than spill.high_water_percent, {high_percent}"
            ));
        }
        Ok(())
    }
}

/// The section `[cuda]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CudaConfig {
    /// UUIDs of the devices whose memory is lent, or `"all"`. Default: none.
    pub devices: Vec<String>,
    /// The allocator of device memory. Default: pool.
    pub allocator: Allocator,
    /// Maximum bytes allocated on each device. Default: half of its memory.
    pub bytes_max: Option<Bytes>,
    /// Length of an ordinary segment in bytes. Default: 256 MiB; 64 MiB with the allocator `arena`.
    pub segment_bytes: Option<Bytes>,
    /// Maximum bytes per device of segments that no client has mapped. The daemon keeps these
    /// segments for their last user and namespace. Default: 1 GiB.
    pub idle_bytes_max: Bytes,
    /// Milliseconds after a process's exit during which the process's memory counts as in use.
    /// Default: 100.
    pub quarantine_ms: u64,
    /// Whether the daemon may use a fake driver's devices. No configuration file sets this field.
    /// Only a command line, or a program with an embedded daemon, sets it.
    #[serde(skip)]
    pub allow_fake: bool,
}

impl Default for CudaConfig {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            allocator: Allocator::Pool,
            bytes_max: None,
            segment_bytes: None,
            idle_bytes_max: Bytes(1 << 30),
            quarantine_ms: 100,
            allow_fake: false,
        }
    }
}

impl CudaConfig {
    /// Returns the length of an ordinary segment in bytes.
    pub fn segment_bytes(&self) -> u64 {
        let default = if self.allocator == Allocator::Arena { 64 << 20 } else { 256 << 20 };
        self.segment_bytes.map_or(default, |bytes| bytes.0)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |text: String| Err(ConfigError::Value(text));
        for name in self.devices.iter().filter(|name| *name != "all") {
            name.parse::<Uuid>()
                .map_err(|error| ConfigError::Value(format!("cuda.devices: {error}, or use \"all\"")))?;
        }
        if self.devices.len() > DEVICES {
            return wrong(format!("cuda.devices names {} devices: at most {DEVICES}", self.devices.len()));
        }
        let segment = self.segment_bytes();
        if !(UNIT..=1 << 40).contains(&segment) || !segment.is_multiple_of(UNIT) {
            return wrong(format!("cuda.segment_bytes is {segment}: use a multiple of 2 MiB, up to 1 TiB"));
        }
        if self.quarantine_ms > QUARANTINE_MS_MAX {
            return wrong(format!("cuda.quarantine_ms is {}: at most {QUARANTINE_MS_MAX}", self.quarantine_ms));
        }
        Ok(())
    }
}

/// The system's file that assigns subordinate uids to users.
const SUBUID_FILE: &str = "/etc/subuid";

/// The section `[uid]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UidConfig {
    /// Maximum bytes of segments and sheets of one uid. Default: no limit except the pool's.
    pub bytes_max: Option<Bytes>,
    /// Maximum bytes of device memory of one uid. Default: no limit except the devices'.
    pub device_bytes_max: Option<Bytes>,
    /// Maximum number of sessions of one uid. Default: 256.
    pub sessions_max: u32,
    /// Whether a uid may use only its share of common resources, so that other uids get some of
    /// them too. Default: in system mode.
    pub share: Option<bool>,
    /// Milliseconds for which the leases of a session may retain replaced values while memory is
    /// short. Afterwards the daemon ends the session. Default: no limit.
    pub lease_ms_max: Option<u64>,
    /// The file that assigns ranges of uids to users, in the format of subuid(5). Default: `/etc/subuid`. Empty: each
    /// uid is its own user.
    pub subuid_file: PathBuf,
}

impl Default for UidConfig {
    fn default() -> Self {
        Self {
            bytes_max: None,
            device_bytes_max: None,
            sessions_max: 256,
            share: None,
            lease_ms_max: None,
            subuid_file: SUBUID_FILE.into(),
        }
    }
}

/// The section `[streams]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamsConfig {
    /// Milliseconds during which a stream without producer and subscribers stays readable. Default: 60000.
    pub grace_ms: u64,
}

impl Default for StreamsConfig {
    fn default() -> Self {
        Self { grace_ms: 60_000 }
    }
}

/// Limits of a namespace: `[namespace_default]`, and part of `[namespace.NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Maximum bytes of segments and sheets. Default: no limit except the pool's.
    pub bytes_max: Option<Bytes>,
    /// Maximum number of names, list items, lists and streams together; 512 to 16777216. Default: 65536.
    pub names_max: Option<u32>,
    /// Maximum number of clients, including ended clients whose tensors still exist; 1 to 65535.
    /// Default: 4096.
    pub members_max: Option<u32>,
    /// Maximum number of lists. Default: 1024.
    pub lists_max: Option<u32>,
    /// Maximum number of streams. Default: 256.
    pub streams_max: Option<u32>,
    /// Maximum number of segments. Default: 4096.
    pub segments_max: Option<u32>,
    /// Maximum bytes of device memory. Default: no limit except the devices'.
    pub device_bytes_max: Option<Bytes>,
    /// The process whose memory cgroup the kernel charges for segments. Default: daemon.
    pub charge: Option<Payer>,
}

/// The section `[namespace.NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NamespaceConfig {
    /// Users and groups that may read: names, numbers, or `@group`.
    pub readers: Vec<String>,
    /// Users and groups that may read and write.
    pub writers: Vec<String>,
    /// Maximum bytes of segments and sheets in this namespace: see [`LimitsConfig::bytes_max`].
    pub bytes_max: Option<Bytes>,
    /// Maximum number of names in this namespace: see [`LimitsConfig::names_max`].
    pub names_max: Option<u32>,
    /// Maximum number of clients in this namespace: see [`LimitsConfig::members_max`].
    pub members_max: Option<u32>,
    /// Maximum number of lists in this namespace: see [`LimitsConfig::lists_max`].
    pub lists_max: Option<u32>,
    /// Maximum number of streams in this namespace: see [`LimitsConfig::streams_max`].
    pub streams_max: Option<u32>,
    /// Maximum number of segments in this namespace: see [`LimitsConfig::segments_max`].
    pub segments_max: Option<u32>,
    /// Maximum bytes of device memory in this namespace: see [`LimitsConfig::device_bytes_max`].
    pub device_bytes_max: Option<Bytes>,
    /// The process whose memory cgroup the kernel charges for this namespace's segments: see
    /// [`LimitsConfig::charge`].
    pub charge: Option<Payer>,
}

impl Config {
    /// Returns where the daemon stores its descriptors.
    pub fn fd_store_at(&self) -> StoreAt<'_> {
        match &self.fd_store {
            None => StoreAt::Default,
            Some(path) if path.as_os_str() == "none" => StoreAt::None,
            Some(path) => StoreAt::Socket(path),
        }
    }

    /// Reads a configuration file, and checks its values like [`Config::parse`].
    ///
    /// # Errors
    /// The errors of [`Config::parse`], and [`ConfigError::Read`] if the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Read { path: path.into(), error })?;
        let source = Source::of(path, &text);
        match Self::parse(&text) {
            Ok(config) => Ok(Self { source, ..config }),
            Err(ConfigError::Parse { error, .. }) => Err(ConfigError::Parse { path: Some(path.into()), error }),
            Err(error) => Err(error.in_file(&source)),
        }
    }

    /// Parses the text of a configuration, and checks the ranges of its values.
    ///
    /// ```
    /// let config = tensorlend_daemon::Config::parse("[pool]\nsegment_bytes = \"16MiB\"")?;
    /// assert_eq!(config.pool.segment_bytes.0, 16 << 20);
    /// # Ok::<(), tensorlend_daemon::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::Parse`] for invalid TOML and unknown options, [`ConfigError::Value`] for values out of range.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self =
            toml::from_str(text).map_err(|error| ConfigError::Parse { path: None, error: Box::new(error) })?;
        config.check()?;
        Ok(config)
    }

    /// Checks that every value is in its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |text: String| Err(ConfigError::Value(text));
        let segment = self.pool.segment_bytes.0;
        if !(4096..=1 << 40).contains(&segment) || !segment.is_multiple_of(4096) {
            return wrong(format!("pool.segment_bytes is {segment}: use a multiple of 4096, up to 1 TiB"));
        }
        if self.pool.spare_segments > 64 {
            return wrong(format!("pool.spare_segments is {}: at most 64", self.pool.spare_segments));
        }
        if self.uid.sessions_max == 0 {
            return wrong("uid.sessions_max is 0: no client could connect".into());
        }
        if self.uid.lease_ms_max.is_some_and(|ms| ms < LEASE_MS_LEAST) {
            return wrong(format!("uid.lease_ms_max is less than {LEASE_MS_LEAST}: no reader could be as fast"));
        }
        if self.streams.grace_ms > STREAM_GRACE_MS_MAX {
            return wrong(format!("streams.grace_ms is {}: at most {STREAM_GRACE_MS_MAX}", self.streams.grace_ms));
        }
        if let Some(mode) = self.socket_mode
            && mode > 0o777
        {
            return wrong(format!("socket_mode is {mode:#o}: permission bits are 0o000 to 0o777"));
        }
        let reserved = matches!(self.pool.huge_pages, HugePages::Reserved2M | HugePages::Reserved1G);
        if self.spill.directory.is_some() && reserved {
            return wrong(
                "spill.directory does not go with reserved huge pages: set pool.huge_pages to \"advise\"".into(),
            );
        }
        self.spill.check()?;
        self.cuda.check()?;
        check_limits("namespace_default", &self.namespace_default)?;
        for (name, namespace) in &self.namespace {
            let named = format!("namespace.{name}");
            tensorlend_layout::name::check(name).map_err(|e| ConfigError::Value(format!("{named}: {e}")))?;
            if name.starts_with("uid:") {
                return wrong(format!("{named}: names that begin with \"uid:\" are kept for private namespaces"));
            }
            if namespace.readers.is_empty() && namespace.writers.is_empty() {
                return wrong(format!("{named} has neither readers nor writers: name users or \"@groups\""));
            }
            check_limits(&named, &namespace.limits())?;
        }
        Ok(())
    }
}

impl NamespaceConfig {
    /// Returns only the limits of the namespace.
    pub fn limits(&self) -> LimitsConfig {
        LimitsConfig {
            bytes_max: self.bytes_max,
            names_max: self.names_max,
            members_max: self.members_max,
            lists_max: self.lists_max,
            streams_max: self.streams_max,
            segments_max: self.segments_max,
            device_bytes_max: self.device_bytes_max,
            charge: self.charge,
        }
    }
}

fn check_limits(section: &str, limits: &LimitsConfig) -> Result<(), ConfigError> {
    let within = |key: &str, value: Option<u32>, least: u32, most: u32| match value {
        Some(v) if !(least..=most).contains(&v) => {
            Err(ConfigError::Value(format!("{section}.{key} is {v}: use {least} to {most}")))
        }
        _ => Ok(()),
    };
    within("names_max", limits.names_max, 512, 1 << 24)?;
    within("members_max", limits.members_max, 1, 65535)?;
    within("lists_max", limits.lists_max, 1, 1 << 20)?;
    within("streams_max", limits.streams_max, 1, CAPACITY_MAX)?;
    within("segments_max", limits.segments_max, 1, 65536)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_configuration_is_the_default() {
        assert_eq!(Config::parse(EXAMPLE).unwrap(), Config::default());
        // The lines that begin with "#=" show options: without the mark they must be valid.
        let open: Vec<&str> = EXAMPLE.lines().map(|line| line.strip_prefix("#= ").unwrap_or(line)).collect();
        let all = Config::parse(&open.join("\n")).unwrap();
        assert_eq!(all.pool.segment_bytes, PoolConfig::default().segment_bytes);
        assert_eq!(all.namespace_default.names_max, Some(crate::sys::limits::NAMES_MAX));
        assert_eq!(all.namespace.len(), 1);
        assert_eq!(all.cuda.segment_bytes(), CudaConfig::default().segment_bytes());
    }

    #[test]
    fn bytes_are_numbers_or_words() {
        assert_eq!(Config::parse("[pool]\nsegment_bytes = \"8KiB\"").unwrap().pool.segment_bytes, Bytes(8192));
        assert_eq!(Config::parse("[pool]\nsegment_bytes = 8192").unwrap().pool.segment_bytes, Bytes(8192));
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| Config::parse(text).unwrap_err().to_string();
        assert!(error("[pool]\nsegment_byte = 1").contains("segment_byte"));
        assert!(error("[pool]\nsegment_bytes = 5000").contains("pool.segment_bytes"));
        let both = "[pool]\nhuge_pages = \"2M\"\nsegment_bytes = \"2MiB\"\n[spill]\ndirectory = \"/tmp\"";
        assert!(error(both).contains("spill.directory"));
        assert!(error("[spill]\nhigh_water_percent = 100").contains("use 1 to 99"));
        assert!(error("[spill]\nhigh_water_percent = 50\nlow_water_percent = 50").contains("use less than"));
        let marks = |text: &str| Config::parse(text).unwrap().spill.marks().map(|it| (it.high_percent, it.low_percent));
        assert_eq!(marks("[spill]\nlow_water_percent = 3"), None);
        assert_eq!(marks("[spill]\nhigh_water_percent = 5"), Some((5, 0)));
        assert_eq!(marks("[spill]\nhigh_water_percent = 80\nlow_water_percent = 60"), Some((80, 60)));
        assert!(error("[namespace_default]\nnames_max = 100").contains("use 512 to 16777216"));
        Config::parse("[namespace_default]\nnames_max = 10000000").unwrap();
        assert!(error("[namespace.lab]").contains("namespace.lab has neither"));
        assert!(error("[namespace.\"uid:7\"]\nreaders = [\"a\"]").contains("kept for private"));
        assert!(error("[pool]\nnuma = \"node:x\"").contains("node:N"));
        assert!(error("[namespace_default]\ncharge = \"reader\"").contains("charge"));
        assert!(error("[pool]\nhuge_pages = \"4M\"").contains("huge_pages"));
        assert!(error("[uid]\nsessions_max = 0").contains("uid.sessions_max"));
        assert!(error("[cuda]\ndevices = [\"first\"]").contains("nvidia-smi -L"));
        assert!(error("[cuda]\nallocator = \"slab\"").contains("slab"));
        assert!(error("[cuda]\nsegment_bytes = \"3MiB\"").contains("cuda.segment_bytes"));
        assert!(error("[cuda]\nquarantine_ms = 60001").contains("cuda.quarantine_ms"));
        assert!(error("[cuda]\nallow_fake = true").contains("allow_fake"), "not from a file");
        Config::parse("[cuda]\ndevices = [\"all\"]\nallocator = \"arena\"").unwrap();
        assert!(error("[uid]\nlease_ms_max = 10").contains("uid.lease_ms_max"));
        assert!(error("[streams]\ngrace_ms = 86400001").contains("streams.grace_ms"));
        assert_eq!(Config::parse("[streams]\ngrace_ms = 0").unwrap().streams.grace_ms, 0);
    }
}
