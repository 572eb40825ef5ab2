//! The header of every sheet: the sheet's kind, and the layout that the sheet's writer uses.

use crate::describe::structure;
#[cfg(not(loom))]
use crate::number::ClientNo;
#[cfg(not(loom))]
use crate::raw::View;
#[cfg(not(loom))]
use crate::versions::Layout;
use crate::word::Word;
#[cfg(not(loom))]
use core::mem::offset_of;

structure! {
    /// The first cache line of every sheet. The daemon writes it before it lends the sheet; no process changes it
    /// afterwards.
    pub struct SheetHeader [64] {
        /// The kind of the sheet: eight ASCII letters (`TLDIRECT`, `TLCATALG`, `TLCELLS_`, `TLSLOTS_`, `TLLEASES`, `TLSTREAM`).
        0 magic: Word,
        /// The oldest version of the layout whose programs can use the sheet: see [`crate::versions`].
        8 version: Word,
        /// The hash of that version.
        16 hash: Word,
        /// Length of the sheet in bytes.
        24 bytes: Word,
        /// The client number of the sheet's one writer; 0 for the daemon.
        32 owner: Word,
        /// Number of elements in the sheet's array, if it has one of varying length (cells, slots, ring entries).
        40 count: Word,
        /// First number of that array (the first slot or cell that this part holds).
        48 first: Word,
        /// Reserved; always 0.
        56 reserved: Word,
    }
}

/// The kind of a sheet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Magic {
    /// A namespace's directory.
    Directory = u64::from_le_bytes(*b"TLDIRECT"),
    /// A client's catalogue.
    Catalogue = u64::from_le_bytes(*b"TLCATALG"),
    /// More cells of a catalogue.
    Cells = u64::from_le_bytes(*b"TLCELLS_"),
    /// The slot records of one segment.
    Slots = u64::from_le_bytes(*b"TLSLOTS_"),
    /// A client's lease table.
    Leases = u64::from_le_bytes(*b"TLLEASES"),
    /// A stream's ring.
    Stream = u64::from_le_bytes(*b"TLSTREAM"),
}

/// The reason why a sheet was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "shared memory of the daemon has another format than this version reads ({what}; format {version} is expected): install client and daemon of the same version; if they are, the memory is damaged: restart the daemon"
)]
pub struct WrongSheet {
    expected: Magic,
    version: u32,
    what: &'static str,
}

#[cfg(not(loom))]
impl SheetHeader {
    /// Writes the header. The daemon calls this before it lends the sheet.
    pub fn initialise(&self, magic: Magic, bytes: u64, owner: ClientNo, count: u64, first: u64) {
        self.version.put(u64::from(Layout::OLDEST.version));
        self.hash.put(Layout::OLDEST.hash);
        self.bytes.put(bytes);
        self.owner.put(u64::from(owner));
        self.count.put(count);
        self.first.put(first);
        self.magic.set(magic as u64);
    }

    /// Checks that a sheet has the expected kind, and a layout that this program understands.
    ///
    /// # Errors
    /// [`WrongSheet`] if the kind or the layout differs, or if the sheet is too short.
    pub fn check(sheet: &View, expected: Magic) -> Result<(), WrongSheet> {
        let wrong = |what| Err(WrongSheet { expected, version: Layout::OLDEST.version, what });
        if sheet.word(offset_of!(Self, magic)) != Some(expected as u64) {
            return wrong("magic number differs");
        }
        if sheet.word(offset_of!(Self, version)) != Some(u64::from(Layout::OLDEST.version)) {
            return wrong("layout version differs");
        }
        if sheet.word(offset_of!(Self, hash)) != Some(Layout::OLDEST.hash) {
            return wrong("layout hash differs");
        }
        Ok(())
    }
}
