//! The events that the core handles, and the ids of connections and memory in them.

use super::settings::{Peer, Settings};
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::{Export, LimitKind, Refusal};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// The id of a descriptor that the system layer holds: of memory that the core ordered, or that the fd store has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemId(pub u64);

/// The reason why no file was written. The default value means that a process holds the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwritten {
    /// The failed operation and the kernel's error, for every user.
    pub reason: String,
    /// The folder and its free bytes. Only administrators and observers may see them in system mode.
    pub place: String,
}

impl From<String> for Unwritten {
    fn from(reason: String) -> Self {
        Self { reason, place: String::new() }
    }
}

impl Unwritten {
    /// Returns the reason with the folder, for readers who may see it.
    pub fn in_full(&self) -> String {
        if self.place.is_empty() { self.reason.clone() } else { format!("{} ({})", self.reason, self.place) }
    }
}

#[derive(Debug)]
pub enum Event {
    Start,
    Connected {
        conn: ConnId,
        /// The process at the other end.
        peer: Peer,
    },
    /// A packet has arrived. One [`super::Effect::Send`], [`super::Effect::Resume`] or
    /// [`super::Effect::Close`] responds, now or later. Until then the system layer reads nothing
    /// more from this connection.
    Packet {
        conn: ConnId,
        bytes: Vec<u8>,
        /// The number of descriptors that came with the packet. The system layer has closed them.
        descriptors: usize,
        /// Whether the packet exceeded the maximum length.
        truncated: bool,
    },
    /// The descriptors of an [`super::Effect::Send`] could not be opened or sent, so the client has no response yet.
    Unsent {
        conn: ConnId,
        /// The response that says why.
        refusal: Refusal,
    },
    /// A client has announced a name and has woken the daemon.
    Woken {
        conn: ConnId,
    },
    /// A connection has ended.
    HungUp {
        conn: ConnId,
    },
    /// The kernel has made memory, or has failed. For a sheet, the event carries the daemon's view,
    /// which is writable for a directory and read-only for other sheets.
    Created {
        mem: MemId,
        /// The view of a sheet, or the kernel's error.
        made: Result<Option<View>, Unmade>,
    },
    /// The result of [`super::Effect::Allocate`].
    Allocated {
        mem: MemId,
        /// Offset of the part.
        at: u64,
        /// The kernel's error, if the allocation failed.
        made: Result<(), Unmade>,
    },
    /// The result of [`super::Effect::Probe`].
    Probed {
        mem: MemId,
        /// Whether no process can write the memory any more.
        quiescent: bool,
    },
    /// The kernel could not read a sheet of a client, and the core has read zeros.
    Unreadable {
        mem: MemId,
    },
    /// The result of [`super::Effect::CreateOnDevice`].
    CreatedOnDevice {
        mem: MemId,
        /// The kind of the memory's descriptor, or the driver's error.
        made: Result<Export, Unmade>,
    },
    /// The result of [`super::Effect::Spill`].
    Spilled {
        file: MemId,
        /// The reason why no file was written.
        written: Result<(), Unwritten>,
    },
    /// The process of [`super::Effect::AwaitExit`] has ended.
    Exited {
        /// The former connection of the process.
        conn: ConnId,
    },
    /// The daemon has read the configuration again. Existing loans survive, whatever the new limits
    /// are.
    Reload(Box<Settings>),
    /// The time that [`super::Core::alarm`] returned has come.
    Alarm,
}

/// The reason why memory could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmade {
    /// The kernel or the driver has refused the memory, in its words.
    Memory(String),
    /// The process or the machine has no descriptor left.
    Descriptors {
        /// The limited resource.
        what: &'static str,
        /// The setting that determines the limit.
        setting: &'static str,
        limit: u64,
    },
}

impl<T: Into<String>> From<T> for Unmade {
    fn from(reason: T) -> Self {
        Self::Memory(reason.into())
    }
}

impl std::fmt::Display for Unmade {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory(reason) => f.write_str(reason),
            Self::Descriptors { what, limit, .. } => write!(f, "{what} is at its limit of {limit}"),
        }
    }
}

impl Unmade {
    /// Returns the refusal of a request for this memory. `bytes` is 0 if the length is unknown.
    pub fn refusal(self, bytes: u64) -> Refusal {
        match self {
            Self::Memory(reason) => Refusal::Memory { bytes, reason },
            Self::Descriptors { what, setting, limit } => {
                let (kind, limit) = (LimitKind::Descriptors, limit.to_string());
                Refusal::Limit { kind, what: what.into(), setting: setting.into(), limit }
            }
        }
    }
}
