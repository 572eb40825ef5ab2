//! The conventions that tensorlend processes share: the words in shared memory, the steps over
//! these words, and the messages on the control socket. This crate makes no system calls.
//!
//! # Vocabulary, largest to smallest
//!
//! * **namespace**: the clients that may see and write each other's tensors; the unit of
//!   confidentiality and quota.
//! * **pool**: the memory that the daemon owns. `pool = lent + spare + idle` bytes, at most
//!   `pool.bytes_max`.
//! * **segment**: one sealed memfd of tensor bytes, lent to one client. Only that client may write
//!   the segment. Every lent segment has an aligned range of its client's 24-bit slot numbers. The
//!   daemon records the range, so that (catalogue, slot) identifies the segment without trust in
//!   any client.
//! * **slot**: a piece of a segment that contains one tensor: a draft, published, retired or free.
//! * **generation**: one use of a slot; a number of 40 bits that advances whenever the owner fills
//!   the slot again.
//! * **draft**: a slot that its owner is writing. The owner publishes or drops the draft.
//! * **cell**: the latest value of a name: one word, generation 40 . slot 24, in the owner's
//!   catalogue.
//! * **owner word**: the owner of a name, and the name's cell in the owner's catalogue. It is one
//!   word in the directory, which only the daemon stores.
//! * **lease**: the right to read one (slot, generation): one word in the reader's lease table.
//! * **stream**: a ring of messages from one producer to many subscribers. **List**: a collection
//!   that many producers append to and the daemon orders. **Dataset**: several tensors that a
//!   client publishes and leases as one.
//! * **sheet**: one sealed memfd of shared words with one writer: directory (daemon), catalogue
//!   (client), lease table (client), ring (producer).
//! * **member**: a client as its namespace sees it. **Epoch**: the time during which one client has
//!   one client number.
//! * **account**: the memory charged to one uid. The daemon eventually returns every charge to the
//!   account.
//!
//! # The one rule
//!
//! Every shared page has exactly one writer. All other processes map the page read-only. A client's
//! words are *allegations*: a reader copies them once, checks the copy against geometry that the
//! daemon owns, and only then uses the copy.
//!
//! # Life of a slot
//!
//! ```text
//! free -> draft -> published -> retired -> free (generation + 1)
//!            \--------------------------/   (dropped: never seen, reused as it is)
//! retired -> free only when no live member's lease table holds (catalogue, slot, generation)
//! ```

#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap, clippy::cast_lossless)
)]

#[cfg(not(target_os = "linux"))]
compile_error!("tensorlend is built on sealed memfds, futexes and descriptor passing: it runs on Linux only");
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("tensorlend is built and tested for x86-64 and aarch64 only");

pub mod announce;
mod bell;
pub mod catalogue;
pub mod child_holds;
#[cfg(not(loom))]
pub mod dataset;
pub mod describe;
pub mod device;
pub mod directory;
pub mod dtype;
pub mod header;
pub mod leases;
pub mod limit;
pub mod name;
pub mod number;
#[cfg(all(any(test, kani), not(loom)))]
mod properties;
pub mod publish;
pub mod random;
pub mod raw;
pub mod size;
pub mod stream;
pub mod sync;
pub mod tensor;
#[cfg(not(loom))]
pub mod versions;
pub mod wake;
pub mod wire;
pub mod word;

#[cfg(feature = "crash-points")]
pub mod crash;

/// A crash point, at which a test may kill the process: see `crash`. Empty without the feature `crash-points`.
#[cfg(feature = "crash-points")]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {{
        const POINT: usize = $crate::crash::number($name);
        $crate::crash::pass(POINT);
    }};
}

/// A crash point, at which a test may kill the process. Empty without the feature `crash-points`.
#[cfg(not(feature = "crash-points"))]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {};
}

pub use device::{BadUuid, Device, Uuid};
pub use dtype::DType;

/// Version of the shared-memory layout. The version advances with every change. A change that an
/// older program would misread also begins a new range of [`versions`].
pub const LAYOUT_VERSION: u32 = if cfg!(feature = "next-layout-for-tests") { 9 } else { 8 };

/// Every shared structure, in the order of docs/layout.md.
#[cfg(not(loom))]
pub const STRUCTURES: &[describe::Structure] = &[
    header::SheetHeader::STRUCTURE,
    directory::DirectoryHead::STRUCTURE,
    directory::MemberEntry::STRUCTURE,
    directory::NameEntry::STRUCTURE,
    directory::LongName::STRUCTURE,
    directory::ListEntry::STRUCTURE,
    directory::StreamEntry::STRUCTURE,
    directory::SegmentEntry::STRUCTURE,
    catalogue::Catalogue::STRUCTURE,
    catalogue::CellRecord::STRUCTURE,
    catalogue::CellsPart::STRUCTURE,
    catalogue::SlotRecord::STRUCTURE,
    catalogue::SlotsPart::STRUCTURE,
    leases::LeaseTable::STRUCTURE,
    leases::Cursor::STRUCTURE,
    stream::StreamRing::STRUCTURE,
    stream::RingEntry::STRUCTURE,
];

/// Hash of the layout.
#[cfg(not(loom))]
pub const LAYOUT_HASH: u64 = describe::hash(STRUCTURES, LAYOUT_VERSION);
