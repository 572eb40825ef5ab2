//! Effects: the work that a step of the core orders from the shell.

use super::event::{ConnId, MemId};
use super::label::Label;
use super::pool::Borrower;
use tensorlend_layout::header::{Magic, SheetHeader};
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::Reply;

/// The contents of a sheet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SheetPlan {
    /// The kind of the sheet.
    pub magic: Magic,
    /// The number of its writer. 0 stands for the daemon.
    pub owner: u16,
    /// Number of elements of its array.
    pub count: u64,
    /// First number of that array.
    pub first: u64,
}

impl SheetPlan {
    /// Writes the header of a fresh sheet. The shell does this through a writable mapping, before the daemon lends the sheet.
    pub fn initialise(&self, view: &View) {
        let head: &SheetHeader = view.at(0).expect("a sheet is longer than its header");
        head.initialise(self.magic, view.bytes() as u64, self.owner, self.count, self.first);
    }
}

/// The way of lending a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lending {
    /// Reopened read-only.
    Read,
    /// Reopened for reading and writing: to the one writer.
    Write,
    /// A client's wake descriptor, unchanged.
    Wake,
    /// A descriptor of a device's memory, unchanged. The process that maps the memory chooses the access.
    Device,
    /// No memory: the wakeup eventfd with which this client wakes the daemon.
    Wakeup,
}

/// An order of the core to the shell.
#[derive(Debug)]
pub enum Effect {
    /// Make a memfd. [`super::Event::Created`] answers.
    Create {
        /// The number of the new memory.
        mem: MemId,
        /// Its length.
        bytes: u64,
        /// Bytes to allocate at once, from the beginning: all bytes, except for a directory.
        bytes_first: u64,
        /// The header of a sheet, or `None` for a segment.
        sheet: Option<SheetPlan>,
        /// Whether the memory is so long that a worker thread makes it.
        background: bool,
        /// Whether the new memory may come from the reserve for administrators.
        reserved: bool,
    },
    /// Have a device's driver make memory, on a worker thread. [`super::Event::CreatedOnDevice`] answers.
    CreateOnDevice {
        /// The number of the new memory.
        mem: MemId,
        /// The device's index in [`super::settings::Settings::devices`].
        device: usize,
        /// The borrower, because a driver's pool serves one borrower only.
        borrower: Borrower,
        /// Its length.
        bytes: u64,
    },
    /// Allocate a part of memory that was not allocated at the beginning. [`super::Event::Allocated`] answers if the memory still
    /// exists.
    Allocate {
        /// The memory.
        mem: MemId,
        /// Offset of the part.
        at: u64,
        /// Its length.
        bytes: u64,
        /// Whether the memory is so long that a worker thread makes it.
        background: bool,
    },
    /// Give a part of memory back to the kernel, if possible. The part then reads as zeroes. If the kernel refuses, the part is
    /// unchanged.
    Discard {
        /// The memory.
        mem: MemId,
        /// Offset of the part.
        at: u64,
        /// Its length.
        bytes: u64,
    },
    /// Cancel memory that a worker thread is making. [`super::Event::Created`] still answers the order.
    Cancel {
        /// The memory.
        mem: MemId,
    },
    /// Store a descriptor in the fd store, if there is one, under this label.
    Keep {
        /// The memory, or the file.
        mem: MemId,
        /// The label of the descriptor.
        label: Label,
    },
    /// Remove a descriptor from the fd store, and leave it open here.
    Forget {
        /// The memory.
        mem: MemId,
    },
    /// Close a descriptor, drop its view, and remove it from the fd store.
    Release {
        /// The memory.
        mem: MemId,
    },
    /// Seal the memory against new writers. If that fails, the shell hangs up: see [`super::Event::HungUp`].
    Seal {
        /// The connection of the client that has the memory mapped.
        conn: ConnId,
        /// The memory.
        mem: MemId,
    },
    /// Ask the kernel whether any process can still write. [`super::Event::Probed`] answers.
    Probe {
        /// The memory.
        mem: MemId,
    },
    /// Send a response to a connection.
    Send {
        /// The connection.
        conn: ConnId,
        /// The response.
        reply: Reply,
        /// The descriptors that go with the response.
        lend: Vec<(MemId, Lending)>,
        /// Whether to hang up after the response. No [`super::Event::HungUp`] follows.
        close: bool,
    },
    /// Read from the connection again: its last packet gets no reply.
    Resume {
        /// The connection.
        conn: ConnId,
    },
    /// Hang up. No [`super::Event::HungUp`] follows.
    Close {
        /// The connection.
        conn: ConnId,
    },
    /// Wake the clients that sleep on a directory's bell, which the core has rung.
    Wake {
        /// The directory.
        directory: MemId,
    },
    /// Wake the holders of device memory: the core has rung the directory's bell for returned segments.
    WakeHolders {
        /// The directory.
        directory: MemId,
    },
    /// Write a segment to a file on a worker thread, unless another process holds the segment. [`super::Event::Spilled`] answers.
    Spill {
        /// The memory.
        mem: MemId,
        /// The number of the new file.
        file: MemId,
        /// Its length.
        bytes: u64,
    },
    /// Make memory with the contents of a file, on a worker thread. [`super::Event::Created`] answers. The file stays.
    Recall {
        /// The number of the new memory.
        mem: MemId,
        /// The file.
        file: MemId,
        /// Its length.
        bytes: u64,
    },
    /// Delete a file, and remove it from the fd store.
    DropFile {
        /// The file.
        file: MemId,
    },
    /// Continue to watch a connection's process after the connection has ended. [`super::Event::Exited`] answers, now or later.
    AwaitExit {
        /// The connection of a peer whose process can be watched.
        conn: ConnId,
    },
}
