//! What is to be done.

use super::account::NamespaceId;
use super::event::{ConnId, MemId};
use super::label::Label;
use tensorlend_layout::header::{Magic, SheetHeader};
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::Reply;

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
    /// Make a memfd. [`super::Event::Created`] answers.
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
    /// Have a device's driver make memory, beside the loop. [`super::Event::CreatedOnDevice`] answers.
    CreateOnDevice {
        /// Its name from now on.
        mem: MemId,
        /// The device's place among [`super::settings::Settings::devices`].
        device: usize,
        /// For whom, in which namespace: a driver's pool serves one user in one.
        whose: (NamespaceId, u32),
        /// Its length.
        bytes: u64,
    },
    /// Make a part of memory that was not there from the beginning. [`super::Event::Allocated`] answers, if the memory is there
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
    /// Nobody wants what is being made beside the loop any more. [`super::Event::Created`] answers the order still.
    Cancel {
        /// Which.
        mem: MemId,
    },
    /// Have this outlive the daemon, where somebody keeps things for it, under this label.
    Keep {
        /// Which: memory, or a file.
        mem: MemId,
        /// What it is.
        label: Label,
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
    /// No new writer from now on. If that fails, the shell hangs up: see [`super::Event::HungUp`].
    Seal {
        /// Who has it mapped.
        conn: ConnId,
        /// Which.
        mem: MemId,
    },
    /// Ask the kernel whether somebody can still write. [`super::Event::Probed`] answers.
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
        /// Whether to hang up after it. No [`super::Event::HungUp`] follows.
        close: bool,
    },
    /// Read from the connection again: its last packet needs no answer.
    Resume {
        /// Which.
        conn: ConnId,
    },
    /// Hang up. No [`super::Event::HungUp`] follows.
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
    /// Write a segment to a file, beside the loop, if nobody else holds it. [`super::Event::Spilled`] answers.
    Spill {
        /// Which.
        mem: MemId,
        /// What the file is called from then on.
        file: MemId,
        /// Its length.
        bytes: u64,
    },
    /// Make memory with what was written to a file, beside the loop. [`super::Event::Created`] answers; the file stays.
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
    /// Watch a connection's process on after the connection has ended. [`super::Event::Exited`] answers, now or later.
    AwaitExit {
        /// Which, of a peer that could be watched.
        conn: ConnId,
    },
}
