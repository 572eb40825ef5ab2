//! The broker as a state machine: events in, effects out. No clock, no descriptor, no thread and no system call: memory
//! is named by [`MemId`], time comes with each event, and shared words are reached through views that the shell hands
//! in. So a simulation can run it over ordinary memory, and the same events give the same effects.

pub mod account;
mod announcers;
mod audience;
mod building;
pub mod chores;
mod client;
mod credit;
mod death;
mod departure;
pub(crate) mod device;
mod entries;
mod env;
mod holders;
mod join;
mod kept;
pub mod label;
mod length;
mod lifetime;
mod list;
mod names;
mod namespace;
mod outlived;
pub mod owners;
mod pool;
mod restore;
mod segment;
mod session;
pub mod settings;
mod share;
mod spill;
mod stat;
mod stream;
mod survey;
mod tables;
#[cfg(test)]
mod tests;

pub use join::sheet_bytes_min;
pub use segment::SLOTS_LOG2_MAX;
pub use session::Core;

use settings::Peer;
use tensorlend_layout::header::{Magic, SheetHeader};
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::{Export, Reply};

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
    /// A packet arrived. One [`Effect::Send`], [`Effect::Resume`] or [`Effect::Close`] answers it, now or later; until
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
    /// The answer to [`Effect::Allocate`].
    Allocated {
        /// Of which memory.
        mem: MemId,
        /// Where the part begins.
        at: u64,
        /// Whether it is there; else the kernel's word.
        made: Result<(), String>,
    },
    /// The answer to [`Effect::Probe`].
    Probed {
        /// Which memory.
        mem: MemId,
        /// Whether nobody can write it any more.
        quiet: bool,
    },
    /// The answer to [`Effect::CreateOnDevice`].
    CreatedOnDevice {
        /// Which memory.
        mem: MemId,
        /// What its descriptor is; else the driver's word.
        made: Result<Export, String>,
    },
    /// The answer to [`Effect::Spill`].
    Spilled {
        /// The file.
        file: MemId,
        /// Why there is none: empty if somebody holds the memory.
        written: Result<(), String>,
    },
    /// The answer to [`Effect::AwaitExit`].
    Exited {
        /// The connection that its process had.
        conn: ConnId,
    },
    /// The configuration was read again. Whatever is lent stays so, whatever the limits are now.
    Reload(Box<settings::Settings>),
    /// The time that [`Core::alarm`] named has come.
    Alarm,
}

/// What a sheet's header shall say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SheetPlan {
    /// What it is.
    pub magic: Magic,
    /// Its one writer; 0: the daemon.
    pub owner: u16,
    /// Elements of its array.
    pub count: u64,
    /// First number of that array.
    pub first: u64,
}

impl SheetPlan {
    /// Writes the header of a fresh sheet. The shell does this through a writable mapping, before anybody is lent it.
    pub fn initialise(&self, view: &View) {
        let head: &SheetHeader = view.at(0).expect("a sheet is longer than its header");
        head.initialise(self.magic, view.bytes() as u64, self.owner, self.count, self.first);
    }
}

/// How a descriptor is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lending {
    /// Reopened read-only.
    Read,
    /// Reopened for reading and writing: to the one writer.
    Write,
    /// A client's wake descriptor, as it is.
    Wake,
    /// A descriptor of a device's memory, as it is: whoever has it chooses what to map it for.
    Device,
    /// No memory: the descriptor with which this client nudges the daemon.
    Nudge,
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Make a memfd. [`Event::Created`] answers.
    Create {
        /// Its name from now on.
        mem: MemId,
        /// Its length.
        bytes: u64,
        /// How much of it there must be from its beginning on: all of it, but for a directory.
        bytes_first: u64,
        /// If it is a sheet: its header. `None`: a segment.
        sheet: Option<SheetPlan>,
        /// Whether it is long: to be made beside the loop.
        background: bool,
    },
    /// Have a device's driver make memory, beside the loop. [`Event::CreatedOnDevice`] answers.
    CreateOnDevice {
        /// Its name from now on.
        mem: MemId,
        /// The device's place among [`settings::Settings::devices`].
        device: usize,
        /// For whom, in which namespace: a driver's pool serves one user in one.
        whose: (account::NamespaceId, u32),
        /// Its length.
        bytes: u64,
    },
    /// Make a part of memory that was not there from the beginning. [`Event::Allocated`] answers, if the memory is there
    /// still.
    Allocate {
        /// Of which.
        mem: MemId,
        /// Where the part begins.
        at: u64,
        /// Its length.
        bytes: u64,
        /// Whether it is long: to be made beside the loop.
        background: bool,
    },
    /// Give a part of memory back, if that can be done: it is zero then, or as it was.
    Discard {
        /// Of which.
        mem: MemId,
        /// Where the part begins.
        at: u64,
        /// Its length.
        bytes: u64,
    },
    /// Nobody wants what is being made beside the loop any more. [`Event::Created`] answers the order still.
    Cancel {
        /// Which.
        mem: MemId,
    },
    /// Have this outlive the daemon, where somebody keeps things for it, under this label.
    Keep {
        /// Which: memory, or a file.
        mem: MemId,
        /// What it is.
        label: label::Label,
    },
    /// It need not outlive the daemon any more, and is not yet to be closed.
    Forget {
        /// Which.
        mem: MemId,
    },
    /// Close a descriptor, and forget its view; nor need it outlive the daemon.
    Release {
        /// Which.
        mem: MemId,
    },
    /// No new writer from now on. If that fails, the shell hangs up: see [`Event::HungUp`].
    Seal {
        /// Who has it mapped.
        conn: ConnId,
        /// Which.
        mem: MemId,
    },
    /// Ask the kernel whether somebody can still write. [`Event::Probed`] answers.
    Probe {
        /// Which.
        mem: MemId,
    },
    /// Answer a connection.
    Send {
        /// Which.
        conn: ConnId,
        /// With what.
        reply: Reply,
        /// And with which descriptors.
        lend: Vec<(MemId, Lending)>,
        /// Whether to hang up after it. No [`Event::HungUp`] follows.
        close: bool,
    },
    /// Read from the connection again: its last packet needs no answer.
    Resume {
        /// Which.
        conn: ConnId,
    },
    /// Hang up. No [`Event::HungUp`] follows.
    Close {
        /// Which.
        conn: ConnId,
    },
    /// Wake those who sleep on a directory's bell, which has been rung.
    Wake {
        /// The directory.
        directory: MemId,
    },
    /// Wake those who wait for segments of device memory to be taken back: that bell of a directory has been rung.
    WakeHolders {
        /// The directory.
        directory: MemId,
    },
    /// Write a segment to a file, beside the loop, if nobody else holds it. [`Event::Spilled`] answers.
    Spill {
        /// Which.
        mem: MemId,
        /// What the file is called from then on.
        file: MemId,
        /// Its length.
        bytes: u64,
    },
    /// Make memory with what was written to a file, beside the loop. [`Event::Created`] answers; the file stays.
    Recall {
        /// Its name from now on.
        mem: MemId,
        /// The file.
        file: MemId,
        /// Its length.
        bytes: u64,
    },
    /// A file is wanted no more; nor need it outlive the daemon.
    DropFile {
        /// Which.
        file: MemId,
    },
    /// Watch a connection's process on after the connection has ended. [`Event::Exited`] answers, now or later.
    AwaitExit {
        /// Which, of a peer that could be watched.
        conn: ConnId,
    },
}
