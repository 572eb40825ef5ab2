//! What happens, and what is named in it.

use super::settings::{Peer, Settings};
use tensorlend_layout::header::Magic;
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::Export;

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// A descriptor that the shell holds: a memfd that the core ordered, or (with the top bit set) one that came from a
/// client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemId(pub u64);

impl MemId {
    /// The `number`th descriptor that came from a client.
    pub fn received(number: u64) -> Self {
        Self(1 << 63 | number)
    }
}

/// A descriptor that came with a packet.
#[derive(Clone, Debug)]
pub struct Received {
    /// Its name; whoever does not keep it releases it.
    pub mem: MemId,
    /// Whether it can wake somebody: a Unix socket.
    pub wakes: bool,
    /// What it is if a daemon of this uid made it, so that nobody else can have.
    pub own: Option<Own>,
}

/// Memory that a daemon has made.
#[derive(Clone, Debug)]
pub struct Own {
    /// What it was made as, if it is a sheet of this layout; else a segment.
    pub magic: Option<Magic>,
    /// Its length.
    pub bytes: u64,
    /// Its words if it is a sheet of this layout: writable for a directory, else read-only.
    pub view: Option<View>,
    /// Whether its writer had mapped it.
    pub acked: bool,
    /// Whether the view is of a copy: nobody can write the original any more.
    pub copied: bool,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The daemon starts.
    Start,
    /// Somebody connected.
    Connected {
        /// The connection.
        conn: ConnId,
        /// Who.
        peer: Peer,
    },
    /// A packet arrived. One [`super::Effect::Send`], [`super::Effect::Resume`] or [`super::Effect::Close`] answers it, now or later; until
    /// then the shell reads nothing more from this connection.
    Packet {
        /// The connection.
        conn: ConnId,
        /// Its bytes.
        bytes: Vec<u8>,
        /// Its descriptors.
        descriptors: Vec<Received>,
        /// Whether it was longer than packets may be.
        truncated: bool,
    },
    /// A client has announced a name and asks that somebody look.
    Nudged {
        /// Whose.
        conn: ConnId,
    },
    /// A connection ended.
    HungUp {
        /// Which.
        conn: ConnId,
    },
    /// Memory was made, or could not be. A sheet comes with its view: read-only, but for a directory.
    Created {
        /// Which.
        mem: MemId,
        /// Its view if it is a sheet; else the kernel's word.
        made: Result<Option<View>, String>,
    },
    /// The answer to [`super::Effect::Allocate`].
    Allocated {
        /// Of which memory.
        mem: MemId,
        /// Where the part begins.
        at: u64,
        /// Whether it is there; else the kernel's word.
        made: Result<(), String>,
    },
    /// The answer to [`super::Effect::Probe`].
    Probed {
        /// Which memory.
        mem: MemId,
        /// Whether nobody can write it any more.
        quiet: bool,
    },
    /// The answer to [`super::Effect::CreateOnDevice`].
    CreatedOnDevice {
        /// Which memory.
        mem: MemId,
        /// What its descriptor is; else the driver's word.
        made: Result<Export, String>,
    },
    /// The answer to [`super::Effect::Spill`].
    Spilled {
        /// The file.
        file: MemId,
        /// Why there is none: empty if somebody holds the memory.
        written: Result<(), String>,
    },
    /// The answer to [`super::Effect::AwaitExit`].
    Exited {
        /// The connection that its process had.
        conn: ConnId,
    },
    /// The configuration was read again. Whatever is lent stays so, whatever the limits are now.
    Reload(Box<Settings>),
    /// The time that [`super::Core::alarm`] named has come.
    Alarm,
}
