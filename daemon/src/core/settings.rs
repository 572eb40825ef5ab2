//! What the core is told: limits, namespaces, and who may do what in them.

use super::owners::Owners;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tensorlend_layout::Uuid;
use tensorlend_layout::wire::Allocator;

/// Whose uid the daemon runs under, and with it how it keeps a segment's other holders from writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A uid of its own: clients cannot reopen what they are lent, so segments may be lent again.
    System,
    /// The user's own uid: a segment is sealed for its one producer and freed after it.
    User,
}

/// Limits of one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceLimits {
    /// Bytes of segments and sheets.
    pub bytes_max: u64,
    /// Names, list items and streams.
    pub names_max: u32,
    /// Clients, live and gone together.
    pub members_max: u32,
    /// Lists.
    pub lists_max: u32,
    /// Streams.
    pub streams_max: u32,
    /// Segments.
    pub segments_max: u32,
    /// Bytes of devices' memory.
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
    /// Who may read.
    pub readers: Vec<Principal>,
    /// Who may read and write.
    pub writers: Vec<Principal>,
    /// Its limits.
    pub limits: NamespaceLimits,
}

/// Who is at the other end of a connection, as the kernel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Whether that is one user: false for the uid that stands for all whom the daemon's user namespace does not know.
    pub known: bool,
    /// Its process.
    pub pid: u32,
    /// Its user's groups.
    pub gids: Vec<u32>,
    /// Whether the end of its process will be told, however its connection ends.
    pub watched: bool,
}

/// Sessions of administrators that the daemon admits beyond the limits, at the same time.
pub const RESERVED_SESSIONS: u32 = 4;

/// For whom the daemon makes the sheets of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// It is an administrator: the memory that is left for administrators may be used.
    pub administrator: bool,
    /// It has a place of the reserve: no limit holds.
    pub beyond: bool,
}

/// What a peer may do in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read.
    Reader,
    /// Read and write.
    Writer,
}

impl NamespaceRule {
    /// What `peer` may do here; `None`: nothing.
    pub fn role(&self, peer: &Peer) -> Option<Role> {
        let listed = |list: &[Principal]| {
            list.iter().any(|p| match *p {
                Principal::Uid(uid) => uid == peer.uid,
                Principal::Gid(gid) => peer.gids.contains(&gid),
            })
        };
        if listed(&self.writers) {
            Some(Role::Writer)
        } else if listed(&self.readers) {
            Some(Role::Reader)
        } else {
            None
        }
    }
}

/// A device of which memory is lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSettings {
    /// Which.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Who allocates.
    pub allocator: Allocator,
    /// Length of an ordinary segment in bytes: a multiple of `unit_bytes`.
    pub segment_bytes: u64,
    /// Allocations have multiples of so many bytes: itself one of 2 MiB.
    pub unit_bytes: u64,
    /// Bytes that may be allocated.
    pub bytes_max: u64,
    /// Bytes that are kept for who had them when nobody has them any more.
    pub idle_bytes_max: u64,
}

/// Where segments go that nobody holds when memory is short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillSettings {
    /// In which directory: the shell's business.
    pub directory: PathBuf,
    /// Bytes that may be there.
    pub bytes_max: u64,
    /// Bytes of each uid's clients that may be there.
    pub uid_bytes_max: u64,
    /// When segments are spilled before anybody was refused; `None`: never.
    pub marks: Option<SpillMarks>,
}

/// How full the pool is when spilling begins, and when it ends, in hundredths of what it may lend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillMarks {
    /// It begins above this.
    pub high_percent: u8,
    /// It ends here, or below.
    pub low_percent: u8,
}

/// Everything that the core is told at its start, and again by [`Event::Reload`](super::Event::Reload).
#[derive(Clone, Debug)]
pub struct Settings {
    /// System or user mode.
    pub mode: Mode,
    /// The daemon's process, for `stat`.
    pub pid: u32,
    /// From which the seeds of the namespaces' hashes are drawn.
    pub seed: u64,
    /// Bytes of segments that may exist: lent, spare and idle.
    pub pool_bytes_max: u64,
    /// Bytes of sheets that may exist.
    pub sheet_bytes_max: u64,
    /// Length of an ordinary segment in bytes.
    pub segment_bytes: u64,
    /// Segments of more than half of an ordinary one have a multiple of so many bytes.
    pub segment_unit: u64,
    /// Ordinary segments kept ready to lend.
    pub spare_segments: u32,
    /// Bytes of returned segments kept to be lent again in their namespace (system mode).
    pub idle_bytes_max: u64,
    /// Bytes of segments and sheets that one uid may hold.
    pub uid_bytes_max: u64,
    /// Sessions that one uid may have.
    pub uid_sessions_max: u32,
    /// Whether a uid may take no more than its share of the pool, the sheets, the descriptors, and the tables of a shared
    /// namespace.
    pub uid_share: bool,
    /// Which uids are one user's: for the limits and shares of uids.
    pub owners: Arc<Owners>,
    /// Uids for whose sessions the daemon keeps a reserve: see [`Settings::is_administrator`].
    pub administrators: Vec<u32>,
    /// How long a stream without producer and subscribers stays readable.
    pub stream_grace_ns: u64,
    /// Descriptors that the daemon may have open for its clients.
    pub descriptors_max: u64,
    /// After so long a client that keeps memory by leases on what was replaced may be ended when memory is short.
    pub lease_ns_max: Option<u64>,
    /// Devices of which memory is lent.
    pub devices: Vec<DeviceSettings>,
    /// Why there are none, for an administrator.
    pub no_device: String,
    /// Bytes of devices' memory that one uid may hold.
    pub uid_device_bytes_max: u64,
    /// How long the driver is given to end what a process had under way that is gone.
    pub quarantine_ns: u64,
    /// Spilling; `None`: none.
    pub spill: Option<SpillSettings>,
    /// Limits of a uid's private namespace.
    pub private: NamespaceLimits,
    /// The namespaces of the configuration.
    pub namespaces: BTreeMap<String, NamespaceRule>,
}

impl Settings {
    /// Returns true if the daemon lets sessions of this uid in beyond every limit, as long as its reserve lasts.
    pub fn is_administrator(&self, uid: u32) -> bool {
        self.administrators.contains(&uid)
    }

    /// Takes from `new` what may change while the daemon runs; the rest stays, since clients were told of it, or what there is
    /// has been made by it.
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
        let role =
            |uid, gids: &[u32]| rule.role(&Peer { uid, known: true, pid: 1, gids: gids.to_vec(), watched: true });
        assert_eq!(role(1, &[]), Some(Role::Writer));
        assert_eq!(role(2, &[7]), Some(Role::Reader));
        assert_eq!(role(2, &[7, 8]), Some(Role::Writer));
        assert_eq!(role(2, &[9]), None);
    }
}
