//! Faults of the daemon that lose tensors or will lose them.

use serde::{Deserialize, Serialize};

/// The faults of the daemon that an administrator can remove, and the losses of its last restart.
///
/// ```
/// use tensorlend_layout::wire::{Health, SpillFault};
///
/// assert!(Health::default().spill.is_none());
/// let fault = SpillFault { reason: "No space left on device".into(), failures: 3, since_ns: 0 };
/// assert!(Health { spill: Some(fault), ..Health::default() }.spill.is_some());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The failure of spilling, from the first failed write until a write succeeds. `None`: spilling works, or is disabled.
    pub spill: Option<SpillFault>,
    /// The fd store that the daemon uses. `None`: none.
    pub fd_store: Option<FdStoreState>,
    /// The losses at the daemon's start, which took over from a previous daemon. `None`: nothing was lost.
    pub lost: Option<RestartLoss>,
}

/// A failure to write spill files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpillFault {
    /// The last failure, with the kernel's error. In system mode only administrators and observers also get the folder and
    /// its free bytes.
    pub reason: String,
    /// Number of failed writes since the last write that succeeded.
    pub failures: u64,
    /// Time of the first of these failures, in nanoseconds of `CLOCK_BOOTTIME`.
    pub since_ns: u64,
}

/// The descriptors that the daemon stores for its successor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdStoreState {
    /// Number of descriptors that the next daemon needs.
    pub needed: u64,
    /// Number of these descriptors that the store does not have. A restart loses their memory.
    pub missing: u64,
    /// Number of descriptors for which the store has room. `None`: the service manager does not report it.
    pub capacity: Option<u64>,
}

/// The tensors that did not outlive the previous daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartLoss {
    /// Names, including items of lists.
    pub names: u64,
    pub streams: u64,
    /// Bytes of segments.
    pub bytes: u64,
    /// Namespaces of which nothing is left, so that their names are not counted.
    pub namespaces: u64,
    /// The causes, as text.
    pub why: String,
}
