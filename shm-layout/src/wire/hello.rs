//! The versions that a client offers in its first message.

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

/// The versions that a client offers. [`Hello`] and [`Return`] begin with them in every version of the protocol, so a
/// daemon can read them even if it does not know the rest of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Oldest and newest protocol version that the client speaks.
    pub protocols: (u16, u16),
    /// The layout that the client offers.
    pub layout: Layout,
}

impl Offer {
    /// Reads the beginning of a packet. Returns `None` if the packet is neither a [`Hello`] nor a [`Return`].
    ///
    /// ```
    /// use tensorlend_layout::wire::{Hello, Offer, PROTOCOL_VERSION, Request, encode};
    ///
    /// let mut packet = encode(&Request::Hello(Hello::new(None, "client")));
    /// packet.push(7);
    /// assert_eq!(Offer::of(&packet).unwrap().protocols.1, PROTOCOL_VERSION);
    /// assert_eq!(Offer::of(&encode(&Request::Ping)), None);
    /// ```
    pub fn of(packet: &[u8]) -> Option<Self> {
        /// The indices of `Hello` and `Return` among the kinds of requests.
        const FIRST_MESSAGES: std::ops::RangeInclusive<u32> = 0..=1;
        let (head, _) = postcard::take_from_bytes::<(u32, u16, u16, u32, u64)>(packet).ok()?;
        let (kind, protocol_min, protocol_max, version, hash) = head;
        let offer = Self { protocols: (protocol_min, protocol_max), layout: Layout { version, hash } };
        FIRST_MESSAGES.contains(&kind).then_some(offer)
    }
}
