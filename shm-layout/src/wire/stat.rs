//! The daemon's metrics.

use super::{DeviceUse, Health};
use crate::number::ClientNo;
use serde::{Deserialize, Serialize};

/// Metrics of the daemon, over all namespaces.
///
/// ```
/// use tensorlend_layout::wire::Stat;
///
/// let stat = Stat { pool_bytes: 96 << 20, bytes_in_use: 64 << 20, bytes_spare: 32 << 20, ..Stat::default() };
/// assert_eq!(stat.pool_bytes, stat.bytes_in_use + stat.bytes_spare);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Version of the daemon.
    pub version: String,
    /// Pid of the daemon.
    pub pid: u32,
    /// Time since the daemon's start, in nanoseconds.
    pub uptime_ns: u64,
    /// "system" or "user".
    pub mode: String,
    pub pool_bytes_max: u64,
    /// Bytes of segments that exist: lent, spare and idle.
    pub pool_bytes: u64,
    /// Bytes of segments that are lent (or orphaned).
    pub bytes_in_use: u64,
    /// Bytes of spare segments, ready to lend.
    pub bytes_spare: u64,
    pub bytes_sheets: u64,
    /// Segments lent.
    pub segments: u32,
    /// Clients connected.
    pub clients: u32,
    /// Clients that have ended and whose tensors still exist.
    pub frozen: u32,
    /// Names in all namespaces.
    pub names: u64,
    /// Requests served.
    pub requests: u64,
    /// Number of times that the daemon woke up.
    pub wakeups: u64,
    /// Requests refused, by reason.
    pub refusals: Refusals,
    /// The reason why the daemon lends no device memory; empty if it lends some.
    pub device: String,
    /// Devices whose memory is lent.
    pub devices: Vec<DeviceUse>,
    /// Names that ended because their lifetime was over.
    pub names_expired: u64,
    /// Ephemeral names that ended with their producers' sessions.
    pub names_ephemeral_gone: u64,
    /// Sessions that the daemon ended while memory was short, because their leases kept replaced
    /// values in use.
    pub sessions_revoked: u64,
    /// Bytes of segments that are in files and not in the pool.
    pub bytes_spilled: u64,
    /// Spill files that could not be written or read.
    pub spill_failures: u64,
    /// Usage of the requesting uid. For the superuser, usage of each uid (128 at most).
    pub uids: Vec<UidUse>,
    /// Usage of the requesting namespace. For the superuser, usage of each namespace (128 at most).
    pub namespaces: Vec<NamespaceUse>,
    /// Sessions of the requesting uid that returned memory which some process still holds. For the
    /// superuser, the sessions of every uid. At most 64, those with the most bytes.
    pub holders: Vec<Holder>,
    /// The daemon's faults, and the losses of its last restart. `None`: the daemon is older than this client. The field
    /// is no part of the message: see [`super::Inspected::Health`].
    #[serde(skip)]
    pub health: Option<Health>,
}

/// Numbers of refused requests. A refusal counts once, when a program gets an error for it. Responses that the client
/// library expects and handles do not count: see [`super::Refusal::is_ordinary`].
///
/// ```
/// use tensorlend_layout::wire::Refusals;
///
/// let refusals = Refusals { limit: 2, race: 1, ..Refusals::default() };
/// assert_eq!(refusals.total(), 3);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// Refusals because a limit of the configuration or of the machine was reached.
    pub limit: u64,
    /// Refusals of requests that the daemon never grants, because they are damaged or impossible, or because the client
    /// lacks the rights.
    pub invalid: u64,
    /// Refusals because another client was faster: the object is taken.
    pub race: u64,
}

impl Refusals {
    /// Returns the number of all refusals.
    pub fn total(&self) -> u64 {
        self.limit + self.invalid + self.race
    }

    /// Returns the number of each reason, with the word that metrics and the log use.
    pub fn by_reason(&self) -> [(&'static str, u64); 3] {
        [("limit", self.limit), ("invalid", self.invalid), ("race", self.race)]
    }
}

/// A session that has returned memory which some process still holds. The process may be the
/// session's own, or one that got the memory from it, such as a child. The kernel does not report
/// which.
///
/// ```
/// use tensorlend_layout::number::ClientNo;
/// use tensorlend_layout::wire::Holder;
///
/// let holder = Holder { uid: 1000, client: ClientNo::new(3), pid: 4711, connected: true, pieces: 2, bytes: 64 << 20 };
/// println!("process {} (client {}) of uid {}: {} bytes", holder.pid, holder.client, holder.uid, holder.bytes);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The uid of the user to whom the memory is charged.
    pub uid: u32,
    /// The client's number in its namespace; 0 if only a previous daemon knew it.
    pub client: ClientNo,
    /// The pid of the process that connected, as the daemon sees it. 0 if only a previous daemon knew
    /// the pid.
    pub pid: u32,
    /// Whether the session is connected.
    pub connected: bool,
    /// Number of segments and sheets.
    pub pieces: u32,
    /// Bytes of those segments and sheets.
    pub bytes: u64,
}

/// Usage and current limits of one uid.
///
/// ```
/// use tensorlend_layout::wire::UidUse;
///
/// let user = UidUse { uid: 1000, bytes: 64 << 20, bytes_max: 512 << 20, ..UidUse::default() };
/// assert!(user.bytes <= user.bytes_max);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UidUse {
    pub uid: u32,
    /// Bytes of segments and sheets, including those of the user's ended clients.
    pub bytes: u64,
    /// Current maximum of `bytes`: the smaller of the user's limit and the user's share of the
    /// common memory.
    pub bytes_max: u64,
    /// Bytes of replaced or deleted values that only the user's leases keep in use. The daemon
    /// knows the number only while memory is short.
    pub bytes_kept_by_leases: u64,
    /// Bytes that the user's clients returned, or left when they ended, and that some process still
    /// holds. The daemon charges these bytes to the user until the kernel reports that no process
    /// can write them (in user mode: that no process holds them).
    pub bytes_returned_and_held: u64,
    /// Segments lent to the user.
    pub segments: u32,
    /// Descriptors that the daemon has open for the user.
    pub descriptors: u64,
    pub descriptors_max: u64,
    /// Bytes of device memory, including those of the user's ended clients.
    pub device_bytes: u64,
    pub sessions: u32,
    pub sessions_max: u32,
    /// Names with values of this uid, including items of lists.
    pub names: u64,
    /// Leases that the user's clients hold now.
    pub leases: u64,
}

/// Usage and limits of one namespace.
///
/// ```
/// use tensorlend_layout::wire::NamespaceUse;
///
/// let lab = NamespaceUse { name: "lab".into(), names: 3, names_max: 65536, ..NamespaceUse::default() };
/// assert!(lab.names <= u64::from(lab.names_max));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceUse {
    pub name: String,
    /// Bytes of segments and sheets.
    pub bytes: u64,
    /// Maximum of `bytes`; `u64::MAX` if only the pool's maximum applies.
    pub bytes_max: u64,
    /// Bytes of device memory.
    pub device_bytes: u64,
    /// Segments lent in the namespace.
    pub segments: u32,
    pub segments_max: u32,
    /// Descriptors that the daemon has open for the namespace's memory.
    pub descriptors: u64,
    /// Names, list items, lists and streams.
    pub names: u64,
    pub names_max: u32,
    /// Clients, live and ended.
    pub clients: u32,
    pub clients_max: u32,
}
