//! The checked settings of a gateway.

use crate::wire::{NodeName, Packing};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::path::PathBuf;
use std::time::Duration;
use tensorlend::Policy;

#[derive(Clone, Debug)]
pub struct Settings {
    pub node: NodeName,
    /// The daemon's socket; `None` means the default of clients.
    pub socket: Option<PathBuf>,
    /// The namespaces that the gateway serves.
    pub spaces: Vec<SpaceSettings>,
    /// Compression of the bytes that other nodes send to this node.
    pub packing: Packing,
    /// Whether the bytes that other nodes send carry checksums.
    pub checksum: bool,
    /// Maximum bytes of one chunk.
    pub chunk_bytes: u32,
    /// Maximum bytes in flight of one transfer or stream.
    pub window_bytes: u64,
    /// Maximum bytes in flight of all transfers and streams.
    pub windows_bytes: u64,
    /// Maximum bytes of copies of remote values.
    pub cache_bytes: u64,
    /// Time that another node has to respond to a request.
    pub answer_timeout: Duration,
    /// Time after which a transfer without progress fails.
    pub stall_timeout: Duration,
}

#[derive(Clone, Debug)]
pub struct SpaceSettings {
    /// The namespace's name on this machine; `None` means the user's private namespace.
    pub local: Option<String>,
    /// The namespace's name between gateways.
    pub name: String,
    /// Names, lists and streams that other nodes may read.
    pub export: Globs,
    /// Remote names, lists and streams, with their nodes, that programs here may read.
    pub import: Globs,
    /// Names that other nodes may write.
    pub accept_put: Globs,
    /// Policy for a stream's messages when the receiver on another node is slow.
    pub stream_policy: Policy,
}

/// A set of globs of names, with the syntax of `tensorlend ls`.
#[derive(Clone, Debug)]
pub struct Globs(GlobSet);

impl Globs {
    /// Compiles a list of globs into a set.
    ///
    /// # Errors
    /// [`globset::Error`] for an invalid glob.
    pub fn new(globs: &[impl AsRef<str>]) -> Result<Self, globset::Error> {
        let mut set = GlobSetBuilder::new();
        for glob in globs {
            set.add(GlobBuilder::new(glob.as_ref()).literal_separator(false).backslash_escape(true).build()?);
        }
        Ok(Self(set.build()?))
    }

    pub fn is_match(&self, name: &str) -> bool {
        self.0.is_match(name)
    }

    /// Returns true if the set has no globs, so that no name matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Settings {
    /// Makes the settings of a node that exports all names of the user's private namespace. The
    /// node imports all names of other nodes, and accepts no puts.
    pub fn of_node(node: NodeName) -> Self {
        let all = || Globs::new(&["*"]).expect("a glob");
        let none: [&str; 0] = [];
        let accept_put = Globs::new(&none).expect("no glob");
        let space = SpaceSettings {
            local: None,
            name: "default".into(),
            export: all(),
            import: all(),
            accept_put,
            stream_policy: Policy::Block,
        };
        Self {
            node,
            socket: None,
            spaces: vec![space],
            packing: Packing::None,
            checksum: false,
            chunk_bytes: 1 << 20,
            window_bytes: 16 << 20,
            windows_bytes: 256 << 20,
            cache_bytes: 4 << 30,
            answer_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
        }
    }
}
