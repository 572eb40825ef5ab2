//! The configuration of the core: limits, namespaces, and access rights.

use super::owners::{Owners, SUPERUSER};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tensorlend_layout::Uuid;
use tensorlend_layout::wire::Allocator;

/// The relation of the daemon's uid to its clients' uids. It determines how the daemon prevents
/// other holders of a segment from writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The daemon has its own uid. Clients cannot reopen memory for writing, so the daemon may lend
    /// segments again.
    System,
    /// The daemon has the user's uid. The daemon seals a segment for the segment's one producer,
    /// and frees the segment afterwards.
    User,
}

/// The process whose memory cgroup the kernel charges for the segments of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Payer {
    /// The daemon, which touches the pages before it lends a segment.
    #[default]
    Daemon,
    /// The client that receives a new segment. The client touches the pages.
    Client,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceLimits {
    /// Maximum bytes of segments and sheets.
    pub bytes_max: u64,
    /// Maximum number of names, list items and streams together.
    pub names_max: u32,
    /// Maximum number of clients, connected and disconnected.
    pub members_max: u32,
    pub lists_max: u32,
    pub streams_max: u32,
    pub segments_max: u32,
    pub device_bytes_max: u64,
    /// The process that pays for new segments.
    pub payer: Payer,
}

/// A user or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal {
    Uid(u32),
    Gid(u32),
}

/// A configured namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRule {
    /// The users and groups that may read.
    pub readers: Vec<Principal>,
    /// The users and groups that may read and write.
    pub writers: Vec<Principal>,
    pub limits: NamespaceLimits,
}

/// The process at the other end of a connection, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    /// Whether the uid is that of one user. False for the uid that stands for all users outside the
    /// daemon's user namespace.
    pub known: bool,
    pub pid: u32,
    /// The name of the process's command, without control characters; empty: unknown.
    pub command: String,
    /// The groups of the process.
    pub gids: Vec<u32>,
    /// Whether the kernel notifies the daemon of the end of the process, even if the connection
    /// ends before.
    pub watched: bool,
}

impl Peer {
    /// Returns true if a list contains the user or one of its groups.
    fn is_in(&self, list: &[Principal]) -> bool {
        list.iter().any(|p| match *p {
            Principal::Uid(uid) => uid == self.uid,
            Principal::Gid(gid) => self.gids.contains(&gid),
        })
    }
}

/// Maximum number of administrators' sessions that the daemon admits beyond the limits at the same
/// time.
pub const RESERVED_SESSIONS: u32 = 4;

/// Maximum number of connections for metrics that the daemon accepts at the same time, while it has
/// no descriptor left for clients.
pub const RESERVED_INSPECTIONS: u32 = 8;

/// The privileges with which the daemon allocates the sheets of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Whether an administrator opens the session. Such a session may use the memory reserved for
    /// administrators.
    pub administrator: bool,
    /// Whether the session is a reserved one. No limit holds for a reserved session.
    pub beyond: bool,
}

/// The access of a peer to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The peer may read.
    Reader,
    /// The peer may read and write.
    Writer,
}

impl NamespaceRule {
    /// Returns the access of `peer`. Returns `None` if the peer has none.
    pub fn role(&self, peer: &Peer) -> Option<Role> {
        if peer.is_in(&self.writers) {
            Some(Role::Writer)
        } else if peer.is_in(&self.readers) {
            Some(Role::Reader)
        } else {
            None
        }
    }
}

/// A device whose memory the daemon lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSettings {
    pub uuid: Uuid,
    pub name: String,
    pub allocator: Allocator,
    /// Length of an ordinary segment in bytes: a multiple of `unit_bytes`.
    pub segment_bytes: u64,
    /// Unit of the lengths of allocations in bytes: a multiple of 2 MiB.
    pub unit_bytes: u64,
    /// Maximum bytes of allocations.
    pub bytes_max: u64,
    /// Maximum bytes of returned segments that the daemon preserves for the uids that had them.
    pub idle_bytes_max: u64,
}

/// The settings for spilling. While memory is short, the daemon spills segments that no process
/// holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillSettings {
    /// The directory of the files. Only the system layer uses it.
    pub directory: PathBuf,
    /// Maximum bytes of the files.
    pub bytes_max: u64,
    /// Maximum bytes of the files of each uid's clients.
    pub uid_bytes_max: u64,
    /// Fill levels at which the daemon spills before it refuses a request. `None`: the daemon spills only after a refusal.
    pub marks: Option<SpillMarks>,
}

/// The fill levels of the pool at which spilling begins and ends, in percent of the pool's maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillMarks {
    /// Spilling begins above this level.
    pub high_percent: u8,
    /// Spilling ends at this level or below.
    pub low_percent: u8,
}

/// The configuration that the core receives at its start, and again with [`Event::Reload`](super::Event::Reload).
#[derive(Clone, Debug)]
pub struct Settings {
    /// System or user mode.
    pub mode: Mode,
    /// The pid of the daemon, for `stat`.
    pub pid: u32,
    /// The secret from which the seeds of the namespaces' hashes are drawn.
    pub seed: u64,
    /// Maximum bytes of segments that exist: lent, spare and idle.
    pub pool_bytes_max: u64,
    pub sheet_bytes_max: u64,
    pub segment_bytes: u64,
    /// Unit of the lengths of segments above 7/8 of the ordinary length, in bytes.
    pub segment_unit: u64,
    /// Number of ordinary segments that the daemon prepares in advance.
    pub spare_segments: u32,
    /// Whether clients that use a device lock the pages of the host segments that they map.
    pub page_lock: bool,
    /// Maximum bytes of returned segments that the daemon preserves, to lend them again in their
    /// namespace (system mode).
    pub idle_bytes_max: u64,
    /// Maximum bytes of segments and sheets that one uid may hold.
    pub uid_bytes_max: u64,
    pub uid_sessions_max: u32,
    /// Whether a uid may have only its share of the pool, the sheets, the descriptors, and the
    /// tables of a shared namespace.
    pub uid_share: bool,
    /// The owners of uids, for the limits and shares of uids.
    pub owners: Arc<Owners>,
    /// Uids for whose sessions the daemon has a reserve: see [`Settings::is_administrator`].
    pub administrators: Vec<u32>,
    /// The users and groups that may see names, sizes and holders of all namespaces.
    pub observers: Vec<Principal>,
    /// The uid whose clients the daemon refuses. This is the daemon's own uid, if `mode = "auto"`
    /// has chosen system mode and the uid is not 0.
    pub refused_uid: Option<u32>,
    /// Time for which a stream without producer and subscribers stays readable.
    pub stream_grace_ns: u64,
    /// Maximum number of descriptors that the daemon may have open for its clients.
    pub descriptors_max: u64,
    /// Time for which a client's leases may retain replaced values while memory is short.
    /// Afterwards the daemon may end the client.
    pub lease_ns_max: Option<u64>,
    /// Devices whose memory the daemon lends.
    pub devices: Vec<DeviceSettings>,
    /// The reason why the list of devices is empty, for an administrator.
    pub no_device: String,
    /// Maximum bytes of device memory that one uid may hold.
    pub uid_device_bytes_max: u64,
    /// Time that the driver has to end the device work of a process that has ended.
    pub quarantine_ns: u64,
    /// The settings for spilling. `None` if spilling is disabled.
    pub spill: Option<SpillSettings>,
    /// Limits of a uid's private namespace.
    pub private: NamespaceLimits,
    pub namespaces: BTreeMap<String, NamespaceRule>,
}

impl Settings {
    /// Returns true if the daemon seals each segment for its one producer.
    pub fn is_user_mode(&self) -> bool {
        self.mode == Mode::User
    }

    /// Returns true if the daemon admits sessions of this uid beyond every limit, as long as its reserve lasts.
    pub fn is_administrator(&self, uid: u32) -> bool {
        self.administrators.contains(&uid)
    }

    /// Returns true if this peer may see the daemon's folders and their free space.
    pub fn shows_folders_to(&self, peer: &Peer) -> bool {
        self.is_user_mode() || peer.uid == SUPERUSER || self.is_observer(peer)
    }

    /// Returns true if this peer may see names, sizes and holders of all namespaces.
    pub fn is_observer(&self, peer: &Peer) -> bool {
        self.is_administrator(peer.uid) || peer.is_in(&self.observers)
    }

    /// Takes from `new` the settings that may change while the daemon runs. The other settings
    /// stay, because clients have received them, or existing memory depends on them.
    pub fn reload(&mut self, new: Self) {
        let kept = self.clone();
        *self = Self {
            mode: kept.mode,
            pid: kept.pid,
            seed: kept.seed,
            segment_bytes: kept.segment_bytes,
            segment_unit: kept.segment_unit,
            descriptors_max: kept.descriptors_max,
            devices: kept.devices,
            no_device: kept.no_device,
            spill: kept.spill,
            ..new
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_come_before_readers_and_strangers_get_nothing() {
        let limits = NamespaceLimits {
            bytes_max: 1,
            names_max: 1,
            members_max: 1,
            lists_max: 1,
            streams_max: 1,
            segments_max: 1,
            device_bytes_max: 1,
            payer: Payer::Daemon,
        };
        let rule = NamespaceRule {
            readers: vec![Principal::Uid(1), Principal::Gid(7)],
            writers: vec![Principal::Uid(1), Principal::Gid(8)],
            limits,
        };
        let role = |uid, gids: &[u32]| {
            rule.role(&Peer { uid, known: true, pid: 1, command: String::new(), gids: gids.to_vec(), watched: true })
        };
        assert_eq!(role(1, &[]), Some(Role::Writer));
        assert_eq!(role(2, &[7]), Some(Role::Reader));
        assert_eq!(role(2, &[7, 8]), Some(Role::Writer));
        assert_eq!(role(2, &[9]), None);
    }
}
