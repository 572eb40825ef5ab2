//! The configuration of the core: limits, namespaces, and access rights.

use super::owners::Owners;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tensorlend_layout::Uuid;
use tensorlend_layout::wire::Allocator;

/// The uid under which the daemon runs. The uid determines how the daemon prevents other holders of a segment from writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A uid of its own: clients cannot reopen memory for writing, so segments may be lent again.
    System,
    /// The user's own uid. The daemon seals a segment for the segment's one producer, and frees the segment afterwards.
    User,
}

/// Limits of one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceLimits {
    /// Bytes of segments and sheets.
    pub bytes_max: u64,
    /// Names, list items and streams.
    pub names_max: u32,
    /// Clients, connected and disconnected.
    pub members_max: u32,
    /// Lists.
    pub lists_max: u32,
    /// Streams.
    pub streams_max: u32,
    /// Segments.
    pub segments_max: u32,
    /// Bytes of device memory.
    pub device_bytes_max: u64,
}

/// A user or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal {
    /// A user.
    Uid(u32),
    /// A group.
    Gid(u32),
}

/// A configured namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRule {
    /// The users and groups that may read.
    pub readers: Vec<Principal>,
    /// The users and groups that may read and write.
    pub writers: Vec<Principal>,
    /// Its limits.
    pub limits: NamespaceLimits,
}

/// The process at the other end of a connection, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Whether the uid is one user. False for the uid that stands for all users outside the daemon's user namespace.
    pub known: bool,
    /// Its process.
    pub pid: u32,
    /// The name of its command, without control characters; empty: unknown.
    pub command: String,
    /// Its user's groups.
    pub gids: Vec<u32>,
    /// Whether the daemon learns of the end of the process, even if its connection ends before.
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

/// Number of administrators' sessions that the daemon admits beyond the limits at the same time.
pub const RESERVED_SESSIONS: u32 = 4;

/// The privileges with which the daemon makes the sheets of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Whether an administrator opens the session. Such a session may use the memory left for administrators.
    pub administrator: bool,
    /// Whether the session is one of the reserved ones, for which no limit holds.
    pub beyond: bool,
}

/// The access of a peer to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read.
    Reader,
    /// Read and write.
    Writer,
}

impl NamespaceRule {
    /// Returns the access of `peer`, or `None` if it has none.
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
    /// Its UUID.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// The allocator of its memory.
    pub allocator: Allocator,
    /// Length of an ordinary segment in bytes: a multiple of `unit_bytes`.
    pub segment_bytes: u64,
    /// Unit of the lengths of allocations in bytes: a multiple of 2 MiB.
    pub unit_bytes: u64,
    /// Bytes that may be allocated.
    pub bytes_max: u64,
    /// Bytes of returned segments that the daemon preserves for the uids that had them.
    pub idle_bytes_max: u64,
}

/// The spilling of segments that no process holds, while memory is short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillSettings {
    /// The directory of the files. Only the shell uses it.
    pub directory: PathBuf,
    /// Maximum bytes of the files.
    pub bytes_max: u64,
    /// Maximum bytes of the files of each uid's clients.
    pub uid_bytes_max: u64,
    /// Fill levels at which the daemon spills before it refuses a request. `None`: the daemon spills only after a refusal.
    pub marks: Option<SpillMarks>,
}

/// The fill levels of the pool at which spilling begins and ends, in percent of its maximum.
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
    /// The daemon's process, for `stat`.
    pub pid: u32,
    /// The secret from which the seeds of the namespaces' hashes are drawn.
    pub seed: u64,
    /// Bytes of segments that may exist: lent, spare and idle.
    pub pool_bytes_max: u64,
    /// Bytes of sheets that may exist.
    pub sheet_bytes_max: u64,
    /// Length of an ordinary segment in bytes.
    pub segment_bytes: u64,
    /// Unit of the lengths of segments above 7/8 of the ordinary length, in bytes.
    pub segment_unit: u64,
    /// Ordinary segments kept ready to lend.
    pub spare_segments: u32,
    /// Whether clients that use a device lock the pages of the host segments that they map.
    pub page_lock: bool,
    /// Bytes of returned segments kept to be lent again in their namespace (system mode).
    pub idle_bytes_max: u64,
    /// Bytes of segments and sheets that one uid may hold.
    pub uid_bytes_max: u64,
    /// Sessions that one uid may have.
    pub uid_sessions_max: u32,
    /// Whether a uid may take no more than its share of the pool, the sheets, the descriptors, and the tables of a shared
    /// namespace.
    pub uid_share: bool,
    /// The owners of uids, for the limits and shares of uids.
    pub owners: Arc<Owners>,
    /// Uids for whose sessions the daemon keeps a reserve: see [`Settings::is_administrator`].
    pub administrators: Vec<u32>,
    /// The users and groups that see names, sizes and holders of all namespaces.
    pub observers: Vec<Principal>,
    /// The uid whose clients the daemon refuses: its own, if `mode = "auto"` has chosen system mode and the uid is not 0.
    pub refused_uid: Option<u32>,
    /// Time for which a stream without producer and subscribers stays readable.
    pub stream_grace_ns: u64,
    /// Descriptors that the daemon may have open for its clients.
    pub descriptors_max: u64,
    /// Time for which a client's leases may retain replaced values while memory is short, before the daemon may end the client.
    pub lease_ns_max: Option<u64>,
    /// Devices whose memory the daemon lends.
    pub devices: Vec<DeviceSettings>,
    /// The reason why the list of devices is empty, for an administrator.
    pub no_device: String,
    /// Bytes of devices' memory that one uid may hold.
    pub uid_device_bytes_max: u64,
    /// Time that the driver has to end the device work of a process that has ended.
    pub quarantine_ns: u64,
    /// Spilling, or `None` if spilling is off.
    pub spill: Option<SpillSettings>,
    /// Limits of a uid's private namespace.
    pub private: NamespaceLimits,
    /// The namespaces of the configuration.
    pub namespaces: BTreeMap<String, NamespaceRule>,
}

impl Settings {
    /// Returns true if each segment is sealed for its one producer.
    pub fn is_user_mode(&self) -> bool {
        self.mode == Mode::User
    }

    /// Returns true if the daemon admits sessions of this uid beyond every limit, as long as its reserve lasts.
    pub fn is_administrator(&self, uid: u32) -> bool {
        self.administrators.contains(&uid)
    }

    /// Returns true if this peer may see names, sizes and holders of all namespaces.
    pub fn is_observer(&self, peer: &Peer) -> bool {
        self.is_administrator(peer.uid) || peer.is_in(&self.observers)
    }

    /// Takes from `new` the settings that may change while the daemon runs. The others stay: clients have received them, or
    /// existing memory depends on them.
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
