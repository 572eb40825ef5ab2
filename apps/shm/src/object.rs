//! Objects of shared memory, and their holders.

use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use tensorlend_os::sysv::History;

/// The kind of an object.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A file of /dev/shm.
    Shm,
    /// A file of another tmpfs, which a process has mapped as shared memory.
    Tmpfs,
    Memfd,
    /// A segment of System V.
    Sysv,
    /// A file without a name, which only its holders keep.
    Deleted,
    /// Memory without a file that a process shares with its children.
    Anonymous,
    /// A file of hugetlbfs, or such memory without a file.
    Hugetlb,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::Shm, Self::Tmpfs, Self::Memfd, Self::Sysv, Self::Deleted, Self::Anonymous, Self::Hugetlb];

    /// Returns the kind in one lower-case word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tmpfs => "tmpfs",
            Self::Memfd => "memfd",
            Self::Sysv => "sysv",
            Self::Deleted => "deleted",
            Self::Anonymous => "anonymous",
            Self::Hugetlb => "hugetlb",
        }
    }
}

/// The identity of an object. A segment of System V has its id as inode, and its ipc namespace as device.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Key {
    #[serde(skip)]
    pub is_sysv: bool,
    pub device: u64,
    pub inode: u64,
}

/// Whether a process holds an object.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    InUse,
    /// No process of the machine has mapped or opened it.
    Orphaned,
    /// No process that this user may read has mapped or opened it.
    Unknown,
}

/// Time since an event of an object.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Age {
    #[serde(rename = "age_seconds", serialize_with = "whole_seconds")]
    pub age: Duration,
    /// `change`: the last change of the inode (mtime or ctime); of a segment of System V, its last attachment or
    /// detachment. `holder`: the start of the oldest holder, if the inode cannot be read.
    #[serde(rename = "age_since")]
    pub since: &'static str,
}

fn whole_seconds<S: serde::Serializer>(age: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(age.as_secs())
}

/// A process that holds an object.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Holder {
    pub pid: u32,
    pub command: String,
    pub uid: Option<u32>,
    pub cgroup: String,
    pub is_mapped: bool,
    pub is_open: bool,
    #[serde(skip)]
    pub(crate) age: Duration,
}

/// An object of shared memory.
#[derive(Clone, Debug, Serialize)]
pub struct Object {
    #[serde(flatten)]
    pub key: Key,
    pub kind: Kind,
    /// The path below /dev/shm, the name of a memfd, or the path of another file.
    pub name: String,
    pub size_bytes: u64,
    /// Bytes of allocated blocks. If this user may not read the inode, the resident bytes of the holder that has most of
    /// them in memory.
    pub resident_bytes: Option<u64>,
    /// The owner, where it can be read.
    pub uid: Option<u32>,
    #[serde(flatten)]
    pub age: Option<Age>,
    pub state: State,
    /// The pid of the daemon whose memory it is.
    pub daemon_pid: Option<u32>,
    pub holders: Vec<Holder>,
    /// Number of names of the file.
    #[serde(skip)]
    pub(crate) links: u64,
    /// The state of a segment of System V during the scan.
    #[serde(skip)]
    pub(crate) history: Option<History>,
}

impl Object {
    /// Returns true if a daemon or a client of tensorlend created it.
    pub fn is_tensorlend(&self) -> bool {
        self.kind == Kind::Memfd && self.name.starts_with("tensorlend-")
    }

    /// Returns the allocated bytes, or the size if they are unknown.
    pub fn bytes(&self) -> u64 {
        self.resident_bytes.unwrap_or(self.size_bytes)
    }
}

/// Processes whose memory a scan could not read.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Unseen {
    /// Number of processes that this user may not read.
    pub unreadable: u64,
    /// The first of them.
    pub unreadable_pid: Option<u32>,
    /// Whether /proc omits processes: those outside this pid namespace, or all of other users (`hidepid`).
    pub is_partial: bool,
}

impl Unseen {
    /// Returns true if a process may hold an object without being seen.
    pub fn any(self) -> bool {
        self.unreadable > 0 || self.is_partial
    }
}

/// Sums over the objects of a scan.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Totals {
    pub bytes: u64,
    pub bytes_by_kind: BTreeMap<Kind, u64>,
    /// Bytes of orphaned objects. `None` if the scan could not read all processes.
    pub orphaned_bytes: Option<u64>,
}
