//! Charges, and the sums that users and namespaces hold.

use super::NamespaceId;
use std::sync::{Arc, Weak};

/// The kind of object that a charge is for. Each object needs one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Tensor bytes. The limit of the pool applies to them too.
    Segment,
    /// Bytes of device memory. Separate limits and the devices' pools bound them.
    Device,
    /// Shared words. `pool.sheet_bytes_max` limits their sum.
    Sheet,
    /// A client's wake descriptor. The charge has no bytes.
    Wake,
}

/// A charge, which its holder must refund.
#[derive(Debug)]
#[must_use]
pub struct Charge {
    /// A reference to the accounts, until the accounts refund this charge or are deleted.
    books: Weak<()>,
    pub(super) uid: Option<u32>,
    pub(super) namespace: NamespaceId,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
}

impl Charge {
    /// Returns a charge of the accounts that own `books`.
    pub(super) fn new(books: &Arc<()>, uid: Option<u32>, namespace: NamespaceId, kind: Kind, bytes: u64) -> Self {
        Self { books: Arc::downgrade(books), uid, namespace, kind, bytes }
    }

    /// Records that the accounts have refunded this charge.
    pub(super) fn settle(&mut self) {
        self.books = Weak::new();
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

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

/// The sum that a uid or a namespace holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    pub segment_bytes: u64,
    pub sheet_bytes: u64,
    pub device_bytes: u64,
    pub segments: u32,
    /// Descriptors that the daemon has open for the uid or the namespace.
    pub descriptors: u64,
}

impl Holding {
    /// Returns the bytes of host memory: segments and sheets.
    pub fn bytes(&self) -> u64 {
        self.segment_bytes + self.sheet_bytes
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        self.segment_bytes += other.segment_bytes;
        self.sheet_bytes += other.sheet_bytes;
        self.device_bytes += other.device_bytes;
        self.segments += other.segments;
        self.descriptors += other.descriptors;
    }

    /// Returns true if no amount of this holding is larger than the same amount of `other`.
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
