//! Effects: the I/O that a step of the core orders from its caller, the system layer
//! (`crate::sys`).

use super::event::{ConnId, MemId};
use super::label::Label;
use super::pool::Borrower;
use tensorlend_layout::header::{Magic, SheetHeader};
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::Reply;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SheetPlan {
    /// The kind of the sheet.
    pub magic: Magic,
    /// The number of the sheet's writer. 0 stands for the daemon.
    pub owner: ClientNo,
    /// Number of elements of the sheet's array.
    pub count: u64,
    /// Number of the array's first element.
    pub first: u64,
}

impl SheetPlan {
    /// Writes the header of a fresh sheet of `bytes` bytes, before the daemon lends the sheet. The view contains at least
    /// the header.
    pub fn initialise(&self, view: &View, bytes: u64) {
        let head: &SheetHeader = view.at(0).expect("a sheet is longer than its header");
        head.initialise(self.magic, bytes, self.owner, self.count, self.first);
    }
}

/// The way in which the daemon lends a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lending {
    /// Lends a descriptor that is reopened read-only.
    Read,
    /// Lends a descriptor that is reopened for reading and writing. Only the one writer gets it.
    Write,
    /// Lends the producer's end of a wake pair, unchanged.
    Wake,
    /// Hands out the subscriber's end of a wake pair. The daemon keeps no descriptor of it.
    Woken,
    /// Lends a descriptor of device memory, unchanged. The process that maps the memory chooses the
    /// access.
    Device,
    /// Lends the wakeup eventfd with which this client wakes the daemon, and no memory.
    Wakeup,
}

/// An order of the core to the system layer.
#[derive(Debug)]
pub enum Effect {
    /// Makes a memfd. [`super::Event::Created`] reports the result.
    Create {
        /// The id of the new memory.
        mem: MemId,
        bytes: u64,
        /// Bytes to allocate at once, from the beginning. This is the whole length, except for a
        /// directory, and for a segment whose pages the client touches first (0).
        bytes_first: u64,
        /// The header of a sheet, or `None` for a segment.
        sheet: Option<SheetPlan>,
        /// Whether a lane makes the memory, because the memory is long.
        background: bool,
        /// Whether the new memory may come from the reserve for administrators.
        reserved: bool,
        /// The connection whose request needs the memory. `None` for the daemon's own memory.
        conn: Option<ConnId>,
    },
    /// Makes a wake pair: two connected sockets, with which producers wake a subscriber. The id stands for the
    /// producers' end.
    CreateWake {
        /// The id of the pair.
        mem: MemId,
        /// The user of the subscriber.
        uid: u32,
    },
    /// Makes memory on a device, by the device's driver and in a lane.
    /// [`super::Event::CreatedOnDevice`] reports the result.
    CreateOnDevice {
        /// The id of the new memory.
        mem: MemId,
        /// The device's index in [`super::settings::Settings::devices`].
        device: usize,
        /// The borrower. A driver's pool serves only one borrower.
        borrower: Borrower,
        bytes: u64,
    },
    /// Allocates a part of memory that was not allocated at the beginning.
    /// [`super::Event::Allocated`] reports the result if the memory still exists.
    Allocate {
        mem: MemId,
        /// Offset of the part.
        at: u64,
        /// Length of the part in bytes.
        bytes: u64,
    },
    /// Frees the pages of a part of memory, if possible. The part then reads as zeros. If the
    /// kernel refuses, the part is unchanged. The core uses the part again only after an
    /// [`Effect::Allocate`], which the system layer performs later.
    Discard {
        mem: MemId,
        /// Offset of the part.
        at: u64,
        /// Length of the part in bytes.
        bytes: u64,
    },
    /// Cancels memory that a lane is making. [`super::Event::Created`] still reports the
    /// result of the order.
    Cancel { mem: MemId },
    /// Stores a descriptor in the fd store under this label, if there is a store.
    Keep {
        /// The memory or the file.
        mem: MemId,
        label: Label,
    },
    /// Removes a descriptor from the fd store. The descriptor stays open in this daemon.
    Forget { mem: MemId },
    /// Closes a descriptor, drops its view, and removes it from the fd store.
    Release { mem: MemId },
    /// Seals the memory against new writers. If sealing fails, the system layer closes the
    /// connection: see [`super::Event::HungUp`].
    Seal {
        /// The connection of the client that has the memory mapped.
        conn: ConnId,
        mem: MemId,
    },
    /// Asks the kernel whether any process can still write the memory. [`super::Event::Probed`]
    /// reports the result.
    Probe { mem: MemId },
    /// Sends a response to a connection. [`super::Event::Unsent`] follows if the system layer cannot open or send its
    /// descriptors.
    Send {
        conn: ConnId,
        reply: Reply,
        /// The descriptors that go with the response.
        lend: Vec<(MemId, Lending)>,
        /// Whether to close the connection after the response. No [`super::Event::HungUp`] follows.
        close: bool,
    },
    /// Reads from the connection again. The connection's last packet gets no reply.
    Resume { conn: ConnId },
    /// Closes the connection. No [`super::Event::HungUp`] follows.
    Close { conn: ConnId },
    /// Wakes the clients that sleep on a directory's bell. The core has rung the bell before.
    Wake { directory: MemId },
    /// Wakes the holders of device memory. The core has rung the directory's bell for returned
    /// segments before.
    WakeHolders { directory: MemId },
    /// Wakes the clients that watch for segments that the daemon wants out of memory. The core has rung
    /// the directory's bell before.
    WakeWanted { directory: MemId },
    /// Writes a segment to a file in a lane, unless another process holds the segment.
    /// [`super::Event::Spilled`] reports the result.
    Spill {
        mem: MemId,
        /// The id of the new file.
        file: MemId,
        bytes: u64,
        /// The user of the segment.
        uid: u32,
    },
    /// Makes memory with the contents of a file, in a lane. [`super::Event::Created`]
    /// reports the result. The file stays.
    Recall {
        /// The id of the new memory.
        mem: MemId,
        file: MemId,
        bytes: u64,
        /// The user of the segment.
        uid: u32,
    },
    /// Deletes a file, and removes it from the fd store.
    DropFile { file: MemId },
    /// Continues to watch a connection's process after the connection has ended.
    /// [`super::Event::Exited`] reports the exit, now or later.
    AwaitExit {
        /// The connection. Its peer's process can be watched.
        conn: ConnId,
    },
}
