//! The layout that a client offers in its first message.

use super::{Hello, PROTOCOL_OLDEST, PROTOCOL_VERSION, Return};
use crate::versions::Layout;

impl Hello {
    /// Returns the hello of a client that was built with this crate.
    pub fn new(namespace: Option<String>, label: impl Into<String>) -> Self {
        Self {
            protocol_min: PROTOCOL_OLDEST,
            protocol_max: PROTOCOL_VERSION,
            layout_version: Layout::CURRENT.version,
            layout_hash: Layout::CURRENT.hash,
            namespace,
            label: label.into(),
        }
    }

    /// Returns the layout that the client offers.
    pub fn layout(&self) -> Layout {
        Layout { version: self.layout_version, hash: self.layout_hash }
    }

    /// Returns the same hello with another layout.
    #[must_use]
    pub fn in_layout(self, Layout { version, hash }: Layout) -> Self {
        Self { layout_version: version, layout_hash: hash, ..self }
    }
}

impl Return {
    /// Returns the layout that the client offers.
    pub fn layout(&self) -> Layout {
        Layout { version: self.layout_version, hash: self.layout_hash }
    }
}
