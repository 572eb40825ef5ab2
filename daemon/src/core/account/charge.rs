//! What is charged, and the receipt for it.

use super::NamespaceId;
use std::sync::{Arc, Weak};

/// What is charged. Each of them is one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Tensor bytes: the pool bounds them too.
    Segment,
    /// Bytes of a device's memory: limits of their own, and the devices' pools, bound them.
    Device,
    /// Shared words: bounded for all together by `pool.sheet_bytes_max`.
    Sheet,
    /// A client's wake descriptor, or what it has handed back and nobody has looked at: no bytes.
    Wake,
}

/// What somebody holds: a receipt, to be given back.
#[derive(Debug)]
#[must_use]
pub struct Charge {
    /// Alive while the accounts want it back.
    books: Weak<()>,
    pub(super) uid: Option<u32>,
    pub(super) namespace: NamespaceId,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
}

impl Charge {
    /// A receipt of the accounts that have these books.
    pub(super) fn new(books: &Arc<()>, (uid, namespace): (Option<u32>, NamespaceId), kind: Kind, bytes: u64) -> Self {
        Self { books: Arc::downgrade(books), uid, namespace, kind, bytes }
    }

    /// The books have it back.
    pub(super) fn settle(&mut self) {
        self.books = Weak::new();
    }

    /// The bytes charged.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whose budget it is in.
    pub fn namespace(&self) -> NamespaceId {
        self.namespace
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            debug_assert_eq!(self.books.strong_count(), 0, "a charge is refunded, not dropped: {self:?}");
        }
    }
}

/// What a uid or a namespace holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Bytes of segments.
    pub segment_bytes: u64,
    /// Bytes of sheets.
    pub sheet_bytes: u64,
    /// Bytes of devices' memory.
    pub device_bytes: u64,
    /// Segments.
    pub segments: u32,
    /// Descriptors that the daemon has open for it.
    pub descriptors: u64,
}

impl Holding {
    /// Bytes of host memory, of both kinds.
    pub fn bytes(&self) -> u64 {
        self.segment_bytes + self.sheet_bytes
    }

    /// Adds what another one holds.
    pub(super) fn add_all(&mut self, other: &Self) {
        self.segment_bytes += other.segment_bytes;
        self.sheet_bytes += other.sheet_bytes;
        self.device_bytes += other.device_bytes;
        self.segments += other.segments;
        self.descriptors += other.descriptors;
    }

    /// Returns true if this is no more than the other in anything.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        self.segment_bytes <= other.segment_bytes
            && self.sheet_bytes <= other.sheet_bytes
            && self.device_bytes <= other.device_bytes
            && self.segments <= other.segments
            && self.descriptors <= other.descriptors
    }

    pub(super) fn add(&mut self, kind: Kind, bytes: u64) {
        self.descriptors += 1;
        match kind {
            Kind::Segment => {
                self.segment_bytes += bytes;
                self.segments += 1;
            }
            Kind::Device => {
                self.device_bytes += bytes;
                self.segments += 1;
            }
            Kind::Sheet => self.sheet_bytes += bytes,
            Kind::Wake => {}
        }
    }

    pub(super) fn take(&mut self, kind: Kind, bytes: u64) {
        self.descriptors -= 1;
        match kind {
            Kind::Segment => {
                self.segment_bytes -= bytes;
                self.segments -= 1;
            }
            Kind::Device => {
                self.device_bytes -= bytes;
                self.segments -= 1;
            }
            Kind::Sheet => self.sheet_bytes -= bytes,
            Kind::Wake => {}
        }
    }
}
