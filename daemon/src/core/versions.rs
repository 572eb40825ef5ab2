//! The versions of protocol and layout that client and daemon agree on.

use tensorlend_layout::versions::Layout;
use tensorlend_layout::wire::{Offer, PROTOCOL_OLDEST, PROTOCOL_VERSION, Refusal};

/// The versions of a session. Client and daemon both support them. No right of the client depends on
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub protocol: u16,
    pub layout: u32,
}

impl Versions {
    /// The versions of this daemon.
    pub const OWN: Self = Self { protocol: PROTOCOL_VERSION, layout: Layout::CURRENT.version };

    /// Returns the newest protocol of the client's range, and the layout that the client offers, if
    /// this daemon supports both.
    pub fn agree(protocols: (u16, u16), offered: Layout) -> Result<Self, Refusal> {
        if offered.is_known() {
            return Ok(Self { protocol: common_protocol(protocols)?, layout: offered.version });
        }
        // A newer client may support the daemon's layout, and then offers it on its next connection.
        Err(Refusal::Layout {
            daemon_version: Layout::CURRENT.version,
            daemon_hash: Layout::CURRENT.hash,
            client_version: offered.version,
            client_hash: offered.hash,
        })
    }

    /// Returns the refusal of a client whose first message this daemon cannot decode, because the client is of another
    /// version. Returns `None` if the packet has another fault.
    pub fn refusal_of(packet: &[u8]) -> Option<Refusal> {
        let Offer { protocols, layout } = Offer::of(packet)?;
        Self::agree(protocols, layout).err()
    }

    /// Returns the end of a log line about the client: empty, or the older layout that the client
    /// uses.
    pub fn note(self) -> String {
        if self.layout == Layout::CURRENT.version {
            return String::new();
        }
        format!(", with layout {} of shared memory (this daemon's: {})", self.layout, Layout::CURRENT.version)
    }
}

/// Returns the newest protocol that a client and this daemon support.
pub fn common_protocol((client_min, client_max): (u16, u16)) -> Result<u16, Refusal> {
    let common = client_max.min(PROTOCOL_VERSION);
    if common >= client_min.max(PROTOCOL_OLDEST) {
        return Ok(common);
    }
    Err(Refusal::Protocol { daemon: PROTOCOL_VERSION, client_min, client_max })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend_layout::versions::LAYOUTS;

    #[test]
    fn a_client_offers_any_layout_of_the_range() {
        for &layout in LAYOUTS {
            let agreed = Versions::agree((PROTOCOL_OLDEST, u16::MAX), layout);
            assert_eq!(agreed, Ok(Versions { protocol: PROTOCOL_VERSION, layout: layout.version }));
            let other = Layout { hash: layout.hash ^ 1, ..layout };
            assert!(matches!(Versions::agree((0, u16::MAX), other), Err(Refusal::Layout { .. })));
        }
        let Layout { version, hash } = Layout::CURRENT;
        for version in [version + 1, Layout::OLDEST.version - 1] {
            let refused = Versions::agree((0, u16::MAX), Layout { version, hash });
            let Err(Refusal::Layout { daemon_version, daemon_hash, client_version, .. }) = refused else {
                panic!("{refused:?}")
            };
            let daemon = Layout { version: daemon_version, hash: daemon_hash };
            assert_eq!((daemon, client_version), (Layout::CURRENT, version));
        }
    }

    #[test]
    fn the_newest_common_protocol_is_used() {
        assert_eq!(common_protocol((0, PROTOCOL_OLDEST)), Ok(PROTOCOL_OLDEST));
        assert_eq!(common_protocol((PROTOCOL_OLDEST, u16::MAX)), Ok(PROTOCOL_VERSION));
        for range in [(0, PROTOCOL_OLDEST - 1), (PROTOCOL_VERSION + 1, u16::MAX), (u16::MAX, 0)] {
            assert!(matches!(common_protocol(range), Err(Refusal::Protocol { .. })), "{range:?}");
        }
    }

    #[test]
    fn the_log_names_an_older_layout() {
        assert_eq!(Versions::OWN.note(), "");
        let old = Versions { layout: Layout::CURRENT.version - 1, ..Versions::OWN };
        assert!(old.note().starts_with(", with layout "), "{}", old.note());
    }
}
