//! The configuration: a TOML file in which every option has a default. Zenoh's own file configures
//! the connections to other nodes.

use crate::settings::{Globs, Settings, SpaceSettings};
use crate::wire::{CHUNK_BYTES_LEAST, CHUNK_BYTES_MAX, NodeName, Packing, check_name};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tensorlend::Policy;
pub use tensorlend_layout::size::Bytes;

/// The configuration file with every option, its default and its unit. `--print-config` prints it.
pub const EXAMPLE: &str = include_str!("config.toml");

/// The reason why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadConfig {
    #[error("cannot read {path}: {cause}: name a file that the gateway's user can read")]
    File { path: PathBuf, cause: std::io::Error },
    /// Invalid TOML, or an unknown option.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    #[error("{option}: {why}")]
    Value {
        option: String,
        /// The reason why the value is invalid, and an example of a valid one.
        why: String,
    },
}

/// Policy for a stream's messages when the receiver is slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamPolicy {
    /// The messages stay in the ring on the producer's machine. When this ring is full, the stream's own policy
    /// applies.
    #[default]
    Block,
    /// The producer's gateway drops the oldest queued message, and counts it.
    DropOldest,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// This node's name. Default: the host name, up to its first dot.
    pub node: Option<String>,
    /// The daemon's control socket. Default: the default socket of all clients.
    pub socket: Option<PathBuf>,
    /// Zenoh's own configuration file (`.json5`, `.yaml`). Default: zenoh's defaults.
    pub zenoh: Option<PathBuf>,
    /// Zenoh's mode: `peer`, `client` or `router`. Default: the mode in zenoh's file.
    pub mode: Option<String>,
    /// Endpoints on which this node listens, such as `tcp/0.0.0.0:7447`. Default: those in zenoh's file.
    pub listen: Vec<String>,
    /// Endpoints to which this node connects, such as `quic/hub.example:7447`. Default: those in zenoh's file.
    pub connect: Vec<String>,
    /// Compression of the bytes that other nodes send to this node.
    pub packing: Packing,
    /// Whether the bytes that other nodes send carry checksums.
    pub checksum: bool,
    /// Number of bytes of a value that one request asks for.
    pub chunk_bytes: Bytes,
    /// Maximum bytes in flight of one value or stream.
    pub window_bytes: Bytes,
    /// Maximum bytes in flight of all values and streams.
    pub windows_bytes: Bytes,
    /// Maximum bytes of cached copies of remote values.
    pub cache_bytes: Bytes,
    /// Time in milliseconds that another node has to respond to a request.
    pub answer_timeout_ms: u64,
    /// Time in milliseconds after which a transfer without progress fails.
    pub patience_ms: u64,
    /// The served namespaces. Default: the private namespace of the gateway's user.
    pub namespace: Vec<SpaceConfig>,
}

/// A `[[namespace]]` table: one namespace that the gateway serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpaceConfig {
    /// The namespace's name on this machine. Default: the private namespace of the gateway's user.
    pub local: Option<String>,
    /// The namespace's name between gateways. Default: `local`, or `default`.
    pub name: Option<String>,
    /// Globs of names, lists and streams that other nodes may read.
    pub export: Vec<String>,
    /// Globs of names, lists and streams of other nodes, each with its node (`NODE/NAME`), that programs here may read.
    pub import: Vec<String>,
    /// Globs of names that other nodes may write.
    pub accept_put: Vec<String>,
    /// Policy for messages when the receiver on another node is slow.
    pub stream_policy: StreamPolicy,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node: None,
            socket: None,
            zenoh: None,
            mode: None,
            listen: Vec::new(),
            connect: Vec::new(),
            packing: Packing::None,
            checksum: false,
            chunk_bytes: Bytes(1 << 20),
            window_bytes: Bytes(16 << 20),
            windows_bytes: Bytes(256 << 20),
            cache_bytes: Bytes(4 << 30),
            answer_timeout_ms: 5000,
            patience_ms: 30_000,
            namespace: Vec::new(),
        }
    }
}

impl Config {
    /// Reads a configuration file and checks all values.
    ///
    /// # Errors
    /// [`BadConfig`].
    pub fn load(path: &Path) -> Result<Self, BadConfig> {
        let text = std::fs::read_to_string(path).map_err(|cause| BadConfig::File { path: path.to_owned(), cause })?;
        Self::parse(&text)
    }

    /// Parses the text of a configuration file and checks all values.
    ///
    /// # Errors
    /// [`BadConfig`].
    pub fn parse(text: &str) -> Result<Self, BadConfig> {
        let config: Self = toml::from_str(text)?;
        // The conversion into settings finds invalid values.
        config.settings_of(config.node.as_deref().unwrap_or("node"))?;
        Ok(config)
    }

    /// Returns the settings of a gateway on this machine.
    ///
    /// # Errors
    /// [`BadConfig::Value`]. Without a configured `node`, this includes a host name that is not a valid node name.
    pub fn settings(&self) -> Result<Settings, BadConfig> {
        if let Some(node) = &self.node {
            return self.settings_of(node);
        }
        let uname = rustix::system::uname();
        let host = uname.nodename().to_string_lossy();
        self.settings_of(host.split('.').next().unwrap_or_default())
    }

    fn settings_of(&self, node: &str) -> Result<Settings, BadConfig> {
        let node = NodeName::new(node).map_err(|bad| value("node", &bad))?;
        if let Some(mode) = &self.mode
            && !["peer", "client", "router"].contains(&mode.as_str())
        {
            return Err(value("mode", &format!("{mode:?} is not a mode: use \"peer\", \"client\" or \"router\"")));
        }
        let chunk = self.chunk_bytes.0;
        if !(CHUNK_BYTES_LEAST..=u64::from(CHUNK_BYTES_MAX)).contains(&chunk) {
            return Err(value("chunk_bytes", &"use 4 KiB to 64 MiB"));
        }
        if self.window_bytes.0 < chunk || self.windows_bytes.0 < self.window_bytes.0.max(2 * chunk) {
            let why = "one window is at least a chunk, and all together at least one window and two chunks";
            return Err(value("window_bytes", &why));
        }
        if self.answer_timeout_ms == 0 || self.patience_ms == 0 {
            return Err(value("answer_timeout_ms, patience_ms", &"0 ms is too short: give 1 or more"));
        }
        let given = if self.namespace.is_empty() { &[SpaceConfig::default()][..] } else { &self.namespace };
        let mut spaces: Vec<SpaceSettings> = Vec::new();
        for space in given {
            let space = space.settings()?;
            if spaces.iter().any(|other| other.name == space.name) {
                return Err(value("namespace.name", &format!("{:?} is there twice", space.name)));
            }
            if spaces.iter().any(|other| other.local == space.local) {
                return Err(value("namespace.local", &"one namespace has one entry"));
            }
            spaces.push(space);
        }
        Ok(Settings {
            node,
            socket: self.socket.clone(),
            spaces,
            packing: self.packing,
            checksum: self.checksum,
            chunk_bytes: chunk as u32,
            window_bytes: self.window_bytes.0,
            windows_bytes: self.windows_bytes.0,
            cache_bytes: self.cache_bytes.0,
            answer_timeout: Duration::from_millis(self.answer_timeout_ms),
            stall_timeout: Duration::from_millis(self.patience_ms),
        })
    }
}

#[cfg(feature = "zenoh")]
impl Config {
    /// Returns the options for zenoh. Options of this configuration override those of zenoh's own
    /// file.
    ///
    /// # Errors
    /// [`BadConfig::Value`], also for settings with which a gateway that uses TLS would accept peers without it.
    pub fn zenoh_options(&self) -> Result<crate::transport::ZenohOptions, BadConfig> {
        use crate::transport::ZenohOptions;
        let fail = |trouble| value("zenoh", &trouble);
        let mut options = match &self.zenoh {
            Some(path) => ZenohOptions::file(path).map_err(|trouble| value(&path.display().to_string(), &trouble))?,
            None => ZenohOptions::defaults().map_err(fail)?,
        };
        if let Some(mode) = &self.mode {
            options.set("mode", &format!("\"{mode}\"")).map_err(fail)?;
        }
        if !self.listen.is_empty() {
            options.set_strings("listen/endpoints", &self.listen).map_err(|trouble| value("listen", &trouble))?;
        }
        if !self.connect.is_empty() {
            options.set_strings("connect/endpoints", &self.connect).map_err(|trouble| value("connect", &trouble))?;
        }
        options.confined().map_err(|error| match error.setting.as_str() {
            "listen/endpoints" if !self.listen.is_empty() => value("listen", &error.why),
            "connect/endpoints" if !self.connect.is_empty() => value("connect", &error.why),
            setting => value(setting, &error.why),
        })
    }
}

impl SpaceConfig {
    fn settings(&self) -> Result<SpaceSettings, BadConfig> {
        let name = self.name.clone().or_else(|| self.local.clone()).unwrap_or_else(|| "default".into());
        check_name(&name).map_err(|bad| value("namespace.name", &bad))?;
        let globs = |option: &str, globs: &[String]| Globs::new(globs).map_err(|bad| value(option, &bad));
        for import in &self.import {
            if !import.contains('/') && import != "*" && import != "**" {
                let why = format!("{import:?} has no node: write NODE/NAME, as in \"node7/sim/*\" or \"*/sim/*\"");
                return Err(value("namespace.import", &why));
            }
        }
        Ok(SpaceSettings {
            local: self.local.clone(),
            name,
            export: globs("namespace.export", &self.export)?,
            import: globs("namespace.import", &self.import)?,
            accept_put: globs("namespace.accept_put", &self.accept_put)?,
            stream_policy: match self.stream_policy {
                StreamPolicy::Block => Policy::Block,
                StreamPolicy::DropOldest => Policy::DropOldest,
            },
        })
    }
}

fn value(option: &str, why: &dyn std::fmt::Display) -> BadConfig {
    BadConfig::Value { option: option.to_owned(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The comments of the example state the default of each option. Namespaces are the exception: the example has one
    /// as a user might write it.
    #[test]
    fn the_example_has_every_option_with_its_default() {
        let as_it_is = Config::parse(EXAMPLE).unwrap();
        assert_eq!(as_it_is, Config::default());
        let is_option = |line: &&str| !line.starts_with(' ');
        let options: Vec<&str> = EXAMPLE.lines().filter_map(|line| line.strip_prefix('#')).filter(is_option).collect();
        let options = options.join("\n");
        let all = Config::parse(&options).unwrap();
        let [space] = all.namespace.as_slice() else { panic!("one namespace: {all:?}") };
        assert_eq!(space.name.as_deref(), Some("lab"));
        let table: toml::Table = options.parse().unwrap();
        for option in [
            "node",
            "socket",
            "zenoh",
            "mode",
            "listen",
            "connect",
            "packing",
            "checksum",
            "chunk_bytes",
            "window_bytes",
            "windows_bytes",
            "cache_bytes",
            "answer_timeout_ms",
            "patience_ms",
            "namespace",
        ] {
            assert!(table.contains_key(option), "{option}");
        }
        let defaults = Config::default();
        let of_defaults = Config {
            node: None,
            socket: None,
            zenoh: None,
            mode: None,
            listen: Vec::new(),
            connect: Vec::new(),
            namespace: Vec::new(),
            ..all
        };
        assert_eq!(of_defaults, defaults);
    }

    #[test]
    fn what_cannot_be_is_told_with_its_option() {
        for (text, option) in [
            ("nodes = 'a'", "nodes"),
            ("node = 'a b'", "node"),
            ("mode = 'server'", "mode"),
            ("chunk_bytes = 1", "chunk_bytes"),
            ("chunk_bytes = '1 MB'", "MB"),
            ("chunk_bytes = '64MiB'", "window_bytes"),
            ("patience_ms = 0", "patience_ms"),
            ("packing = 'gzip'", "gzip"),
            ("[[namespace]]\nexport = ['[']", "namespace.export"),
            ("[[namespace]]\nimport = ['sim']", "namespace.import"),
            ("[[namespace]]\nlocal = 'a'\n[[namespace]]\nname = 'a'", "twice"),
            ("[[namespace]]\n[[namespace]]\nname = 'a'", "one entry"),
            ("[[namespace]]\nstreams = 'block'", "streams"),
        ] {
            let bad = Config::parse(text).unwrap_err().to_string();
            assert!(bad.contains(option), "{text}: {bad}");
        }
    }

    #[test]
    fn a_node_without_a_name_is_called_as_its_host() {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let settings = Config::parse("").unwrap().settings();
        match NodeName::new(host.split('.').next().unwrap()) {
            Ok(node) => assert_eq!(settings.unwrap().node, node),
            Err(_) => assert!(settings.is_err()),
        }
    }
}
