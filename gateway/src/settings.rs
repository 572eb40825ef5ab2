//! What a gateway is to do, checked.

use crate::wire::{NodeName, Packing};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::path::PathBuf;
use std::time::Duration;
use tensorlend::Policy;

/// What a gateway is to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node.
    pub node: NodeName,
    /// The broker's socket; `None`: where clients look for it.
    pub socket: Option<PathBuf>,
    /// Its namespaces.
    pub spaces: Vec<SpaceSettings>,
    /// How bytes are packed that others send.
    pub packing: Packing,
    /// Whether they come with checksums.
    pub checksum: bool,
    /// Bytes of one chunk, at most.
    pub chunk_bytes: u32,
    /// Bytes of one transfer, or stream, that may be on their way.
    pub window_bytes: u64,
    /// Bytes of all transfers and streams that may be on their way.
    pub windows_bytes: u64,
    /// Bytes of copies of others' values.
    pub cache_bytes: u64,
    /// How long another node has to answer.
    pub answer_timeout: Duration,
    /// How long a transfer may be without progress.
    pub stall_timeout: Duration,
}

/// One namespace.
#[derive(Clone, Debug)]
pub struct SpaceSettings {
    /// What it is called here; `None`: the user's private one.
    pub local: Option<String>,
    /// What it is called between gateways.
    pub name: String,
    /// Names, lists and streams that others may read.
    pub export: Globs,
    /// Names, lists and streams of others, with their nodes, that may be fetched.
    pub import: Globs,
    /// Names that others may write.
    pub accept_put: Globs,
    /// What becomes of a stream's messages whose receiver on another node is slow.
    pub stream_policy: Policy,
}

/// Names, by globs as `tensorlend ls` takes them.
#[derive(Clone, Debug)]
pub struct Globs(GlobSet);

impl Globs {
    /// Of these globs.
    ///
    /// # Errors
    /// [`globset::Error`] for one that cannot be.
    pub fn new(globs: &[impl AsRef<str>]) -> Result<Self, globset::Error> {
        let mut set = GlobSetBuilder::new();
        for glob in globs {
            set.add(GlobBuilder::new(glob.as_ref()).literal_separator(false).backslash_escape(true).build()?);
        }
        Ok(Self(set.build()?))
    }

    /// Whether one of them matches.
    pub fn is_match(&self, name: &str) -> bool {
        self.0.is_match(name)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Settings {
    /// Of a node that exports all names of the user's private namespace, imports all, and takes no puts.
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
